//! What calls leave behind: counters, metrics and warn logs, from what the machine answered.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `circuit_breaker_state` | gauge: 0 closed, 1 half-open, 2 open | `service`, `dependency` |
//! | `mamparo_breaker_openings_total` | counter | `service`, `dependency` |
//! | `mamparo_attempts_total` | counter | `service`, `dependency`, `outcome` |
//! | `mamparo_retries_total` | counter | `service`, `dependency` |
//! | `mamparo_refusals_total` | counter | `service`, `dependency`, `reason` |
//! | `mamparo_transaction_retries_total` | counter | `transaction` |
//! | `mamparo_faults_injected_total` | counter | `service`, `dependency`, `kind` |
//!
//! Handles of what happens on every call are fetched once, when the dependency is built: install the
//! recorder before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_core::call::breaker;
use mamparo_core::call::fault::{FaultConfig, Injection, Instead};
use mamparo_core::call::pipeline::{Event, Misfit, Phase, Refusal, Step, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::outcome::{Failure, Kind};

use crate::snapshot::Snapshot;

/// The gauge of a breaker's state.
const BREAKER_STATE: &str = "circuit_breaker_state";
/// Times that a breaker opened; a gauge that is scraped now and then misses short ones.
const BREAKER_OPENINGS: &str = "mamparo_breaker_openings_total";
/// Attempts by outcome.
const ATTEMPTS: &str = "mamparo_attempts_total";
/// Attempts after the first.
const RETRIES: &str = "mamparo_retries_total";
/// Repeated database transactions.
const TRANSACTION_RETRIES: &str = "mamparo_transaction_retries_total";
/// Faults that were injected on purpose.
const FAULTS: &str = "mamparo_faults_injected_total";
/// Calls that a guard refused.
const REFUSALS: &str = "mamparo_refusals_total";

/// Counters of one dependency, and its metrics.
pub(crate) struct Observer {
    calls: AtomicU64,
    succeeded: AtomicU64,
    gave_up: AtomicU64,
    abandoned: AtomicU64,
    attempts: AtomicU64,
    retries: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    openings: AtomicU64,
    attempts_succeeded: metrics::Counter,
    breaker_state: metrics::Gauge,
}

impl Observer {
    pub(crate) fn new(plan: &Plan) -> Self {
        let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
        let breaker_state = match plan.breaker {
            Some(_) => metrics::gauge!(
                BREAKER_STATE, "service" => service.clone(), "dependency" => dependency.clone()
            ),
            None => metrics::Gauge::noop(),
        };
        breaker_state.set(f64::from(breaker::Phase::Closed.gauge()));
        Self {
            calls: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            gave_up: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            refused: Default::default(),
            openings: AtomicU64::new(0),
            attempts_succeeded: metrics::counter!(
                ATTEMPTS,
                "service" => service, "dependency" => dependency, "outcome" => "success"
            ),
            breaker_state,
        }
    }

    /// Takes what the machine answered to `event` in state `before`.
    pub(crate) fn told(
        &self,
        plan: &Plan,
        before: Phase,
        event: Event,
        attempts: u32,
        told: &Told,
    ) {
        if before == Phase::New {
            add(&self.calls);
        }
        if before == Phase::Attempting {
            self.attempt_ended(plan, event);
        }
        match told.step {
            Step::Attempt { budget, .. } => {
                add(&self.attempts);
                if budget.number > 1 {
                    self.retried(plan);
                }
            }
            Step::Wait { after, .. } => retrying(plan, attempts, after, event),
            Step::Queue { .. } => {}
            Step::Reject { reason, retry_after } => self.refused(plan, reason, retry_after),
            Step::GiveUp { .. } => add(&self.gave_up),
            Step::Done => add(&self.succeeded),
            Step::Released => add(&self.abandoned),
        }
        if let Some(change) = &told.change {
            self.breaker_changed(plan, change);
        }
    }

    /// What was counted since the start; the rest is left empty.
    pub(crate) fn counted(&self, plan: &Plan) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Endings before beginnings, so that a call that ends meanwhile makes no negative rest.
        let (succeeded, gave_up) = (get(&self.succeeded), get(&self.gave_up));
        let abandoned = get(&self.abandoned);
        let refused = std::array::from_fn(|n| (Refusal::ALL[n], get(&self.refused[n])));
        let ended = succeeded + gave_up + abandoned + refused.iter().map(|(_, n)| n).sum::<u64>();
        let calls = get(&self.calls);
        Snapshot {
            dependency: plan.dependency.clone(),
            service: plan.service.clone(),
            breaker: None,
            reopens_in: None,
            window_failures: 0,
            in_flight: calls.saturating_sub(ended),
            queued: 0,
            calls,
            succeeded,
            gave_up,
            abandoned,
            attempts: get(&self.attempts),
            retries: get(&self.retries),
            refused,
            openings: get(&self.openings),
        }
    }

    fn retried(&self, plan: &Plan) {
        add(&self.retries);
        metrics::counter!(
            RETRIES, "service" => plan.service.clone(), "dependency" => plan.dependency.clone()
        )
        .increment(1);
    }

    fn attempt_ended(&self, plan: &Plan, event: Event) {
        if event == Event::Succeeded {
            return self.attempts_succeeded.increment(1);
        }
        let Some(outcome) = outcome(event) else { return };
        metrics::counter!(
            ATTEMPTS,
            "service" => plan.service.clone(), "dependency" => plan.dependency.clone(),
            "outcome" => outcome
        )
        .increment(1);
    }

    fn refused(&self, plan: &Plan, reason: Refusal, retry_after: Option<Duration>) {
        if let Some(place) = Refusal::ALL.iter().position(|each| *each == reason) {
            add(&self.refused[place]);
        }
        metrics::counter!(
            REFUSALS,
            "service" => plan.service.clone(), "dependency" => plan.dependency.clone(),
            "reason" => reason.slug()
        )
        .increment(1);
        tracing::warn!(
            service = plan.service,
            dependency = plan.dependency,
            reason = reason.slug(),
            retry_after_ms = retry_after.map(millis),
            "call refused"
        );
    }

    /// Shows the breaker's state. Under the lock of the state it shows, unlike the rest: of two
    /// changes on two threads, the later one must stay on the gauge.
    pub(crate) fn show_breaker(&self, state: breaker::Phase) {
        self.breaker_state.set(f64::from(state.gauge()));
    }

    fn breaker_changed(&self, plan: &Plan, change: &breaker::Change) {
        if change.to == breaker::Phase::Open {
            add(&self.openings);
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(
                BREAKER_OPENINGS, "service" => service, "dependency" => dependency
            )
            .increment(1);
        }
        tracing::warn!(
            service = plan.service,
            dependency = plan.dependency,
            from = change.from.name(),
            to = change.to.name(),
            cause = ?change.on,
            "circuit breaker changed"
        );
    }
}

/// How an attempt ended, in one word for logs and metrics. `None` for what ends no attempt.
const fn outcome(event: Event) -> Option<&'static str> {
    match event {
        Event::Succeeded => Some("success"),
        Event::Failed(Failure { kind: Kind::Transient, .. }) => Some("transient"),
        Event::Failed(Failure { kind: Kind::Permanent, .. }) => Some("permanent"),
        Event::Failed(Failure { kind: Kind::Unknown, .. }) => Some("unknown"),
        Event::Failed(Failure { kind: Kind::Neutral, .. }) => Some("neutral"),
        Event::TimedOut => Some("timeout"),
        Event::Panicked => Some("panic"),
        Event::Cancelled => Some("cancelled"),
        Event::Start
        | Event::SlotGranted
        | Event::QueueTimedOut
        | Event::CircuitOpened
        | Event::WaitOver => None,
    }
}

fn retrying(plan: &Plan, attempt: u32, after: Duration, cause: Event) {
    tracing::warn!(
        service = plan.service,
        dependency = plan.dependency,
        attempt,
        wait_ms = millis(after),
        cause = outcome(cause),
        "attempt failed, will retry"
    );
}

/// The machine refused an event: a bug of ours that must not stay unseen.
pub(crate) fn misfit(plan: &Plan, misfit: &Misfit) {
    tracing::error!(service = plan.service, dependency = plan.dependency, %misfit, "call was not released");
}

/// The hook of a breaker's changes panicked; the call goes on.
pub(crate) fn hook_panicked(plan: &Plan, change: &breaker::Change) {
    tracing::error!(dependency = plan.dependency, to = change.to.name(), "breaker hook panicked");
}

/// A transaction of this process is repeated.
pub(crate) fn transaction_repeated(what: &'static str, attempt: u32, after: Duration) {
    metrics::counter!(TRANSACTION_RETRIES, "transaction" => what).increment(1);
    tracing::warn!(transaction = what, attempt, wait_ms = millis(after), "transaction repeated");
}

/// Faults on purpose are switched on.
pub(crate) fn faults_are_on(service: &str, dependency: &str, config: &FaultConfig) {
    tracing::warn!(service, dependency, ?config, "faults are injected on purpose");
}

/// A fault befalls a call. Its subject and the seed replay the decision.
pub(crate) fn fault_injected(service: &str, dependency: &str, injection: &Injection) {
    let kinds = [injection.delay.map(|_| "latency"), injection.instead.map(Instead::slug)];
    for kind in kinds.into_iter().flatten() {
        let (service, dependency) = (service.to_owned(), dependency.to_owned());
        metrics::counter!(FAULTS, "service" => service, "dependency" => dependency, "kind" => kind)
            .increment(1);
    }
    tracing::warn!(
        service,
        dependency,
        subject = injection.subject,
        delay_ms = injection.delay.map(millis),
        instead = injection.instead.map(Instead::slug),
        "fault injected on purpose"
    );
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
