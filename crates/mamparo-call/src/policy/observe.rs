//! What free-standing policies leave behind, in the words and under the names of a
//! [`Dependency`](crate::Dependency)'s metrics.
//!
//! | metric | kind | labels | from |
//! |---|---|---|---|
//! | `circuit_breaker_state` | gauge: 0 closed, 1 half-open, 2 open | `service`, `dependency` | `Changed` |
//! | `mamparo_breaker_openings_total` | counter | `service`, `dependency` | `Changed` to open |
//! | `mamparo_attempts_total` | counter | `service`, `dependency`, `outcome` | how calls end |
//! | `mamparo_retries_total` | counter | `service`, `dependency` | `Retrying` |
//! | `mamparo_hedges_total` | counter | `service`, `dependency` | `Hedged` |
//! | `mamparo_hedges_denied_total` | counter | `service`, `dependency`, `reason` | `NotHedged` |
//! | `mamparo_retry_budget_spent_total` | counter | `service`, `dependency` | `GaveUp` for want of it |
//! | `mamparo_refusals_total` | counter | `service`, `dependency`, `reason` | `Refused` |

use mamparo_core::call::breaker::Phase;
use mamparo_core::call::hedge::NoHedge;
use mamparo_core::call::pipeline::{GiveUp, Refusal};

use crate::policy::{Listener, PolicyEvent};

const BREAKER_STATE: &str = "circuit_breaker_state";
const BREAKER_OPENINGS: &str = "mamparo_breaker_openings_total";
const ATTEMPTS: &str = "mamparo_attempts_total";
const RETRIES: &str = "mamparo_retries_total";
const HEDGES: &str = "mamparo_hedges_total";
const HEDGES_DENIED: &str = "mamparo_hedges_denied_total";
const BUDGET_SPENT: &str = "mamparo_retry_budget_spent_total";
const REFUSALS: &str = "mamparo_refusals_total";

/// The ways in which a call or an attempt ends, as [`PolicyEvent::slug`] says them.
const OUTCOMES: [&str; 7] =
    ["success", "transient", "permanent", "unknown", "neutral", "timeout", "panic"];

/// Counts a policy's events under the metrics of a dependency.
///
/// All handles are fetched when it is made, so that an event allocates nothing: install the recorder
/// before. Of stacked policies let **one** count the attempts, the breaker or the retry: each that is
/// listened to counts what it sees.
pub struct MetricsListener {
    outcomes: [metrics::Counter; OUTCOMES.len()],
    refusals: [metrics::Counter; Refusal::ALL.len()],
    retries: metrics::Counter,
    hedges: metrics::Counter,
    hedges_denied: [metrics::Counter; NoHedge::ALL.len()],
    budget_spent: metrics::Counter,
    openings: metrics::Counter,
    breaker_state: metrics::Gauge,
}

impl std::fmt::Debug for MetricsListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetricsListener").finish_non_exhaustive()
    }
}

impl MetricsListener {
    /// Counts for the calls of `dependency` by `service`, the labels of the metrics.
    #[must_use]
    pub fn new(service: &str, dependency: &str) -> Self {
        let labels = [("service", service.to_owned()), ("dependency", dependency.to_owned())];
        let with = |key, value: &str| {
            let mut labels = labels.to_vec();
            labels.push((key, value.to_owned()));
            labels
        };
        Self {
            outcomes: OUTCOMES.map(|word| metrics::counter!(ATTEMPTS, &with("outcome", word))),
            refusals: Refusal::ALL
                .map(|why| metrics::counter!(REFUSALS, &with("reason", why.slug()))),
            retries: metrics::counter!(RETRIES, &labels),
            hedges: metrics::counter!(HEDGES, &labels),
            hedges_denied: NoHedge::ALL
                .map(|why| metrics::counter!(HEDGES_DENIED, &with("reason", why.slug()))),
            budget_spent: metrics::counter!(BUDGET_SPENT, &labels),
            openings: metrics::counter!(BREAKER_OPENINGS, &labels),
            breaker_state: metrics::gauge!(BREAKER_STATE, &labels),
        }
    }
}

impl Listener for MetricsListener {
    fn hear(&self, event: &PolicyEvent) {
        match event {
            PolicyEvent::Succeeded
            | PolicyEvent::Failed(_)
            | PolicyEvent::TimedOut(_)
            | PolicyEvent::Panicked => {
                let ended = OUTCOMES.iter().position(|word| *word == event.slug());
                if let Some(counter) = ended.and_then(|place| self.outcomes.get(place)) {
                    counter.increment(1);
                }
            }
            PolicyEvent::Refused(refused) => {
                let place = Refusal::ALL.iter().position(|reason| *reason == refused.reason);
                if let Some(counter) = place.and_then(|place| self.refusals.get(place)) {
                    counter.increment(1);
                }
            }
            PolicyEvent::Retrying { .. } => self.retries.increment(1),
            PolicyEvent::Hedged { .. } => self.hedges.increment(1),
            PolicyEvent::NotHedged(reason) => self.hedges_denied[reason.index()].increment(1),
            PolicyEvent::GaveUp { reason: GiveUp::BudgetSpent, .. } => {
                self.budget_spent.increment(1);
            }
            PolicyEvent::Changed(change) => {
                self.breaker_state.set(f64::from(change.to.gauge()));
                if change.to == Phase::Open {
                    self.openings.increment(1);
                }
            }
            PolicyEvent::Queued | PolicyEvent::Cancelled | PolicyEvent::GaveUp { .. } => {}
        }
    }
}

/// A listener of a policy panicked; the call goes on.
pub(super) fn listener_panicked(event: &PolicyEvent) {
    tracing::error!(event = event.slug(), "policy listener panicked");
}
