//! What calls leave behind: counters, metrics and warn logs, from what the machine answered.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `circuit_breaker_state` | gauge: 0 closed, 1 half-open, 2 open | `service`, `dependency` |
//! | `mamparo_breaker_openings_total` | counter | `service`, `dependency` |
//! | `mamparo_attempts_total` | counter | `service`, `dependency`, `outcome` |
//! | `mamparo_retries_total` | counter | `service`, `dependency` |
//! | `mamparo_hedges_total` | counter | `service`, `dependency` |
//! | `mamparo_hedges_denied_total` | counter | `service`, `dependency`, `reason` |
//! | `mamparo_retry_budget_spent_total` | counter | `service`, `dependency` |
//! | `mamparo_detached_running` | gauge, where attempts are detached | `service`, `dependency` |
//! | `mamparo_detached_total` | counter | `service`, `dependency`, `outcome` |
//! | `mamparo_concurrency_limit` | gauge, where the limit is adaptive | `service`, `dependency` |
//! | `mamparo_refusals_total` | counter | `service`, `dependency`, `reason` |
//! | `mamparo_transaction_retries_total` | counter | `transaction` |
//! | `mamparo_fallbacks_total` | counter | `service`, `dependency`, `source`, `reason` |
//! | `mamparo_cache_requests_total` | counter | `service`, `cache`, `outcome` |
//! | `mamparo_cache_refreshes_total` | counter | `service`, `cache`, `outcome` |
//! | `mamparo_faults_injected_total` | counter | `service`, `dependency`, `kind` |
//!
//! Handles are fetched once, those of what happens on every call when the dependency is built and
//! the others when they are first needed: install the recorder before.

use std::sync::OnceLock;
use std::time::Duration;

use mamparo_core::call::breaker;
use mamparo_core::call::fallback::Reason;
use mamparo_core::call::fault::{FaultConfig, Injection, Instead};
use mamparo_core::call::hedge::NoHedge;
use mamparo_core::call::pipeline::{Event, GiveUp, Misfit, Move, Phase, Refusal, Step, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::shed::{self, Criticality};
use mamparo_core::outcome::{Failure, Kind};

use crate::cache::{self, CacheError, Cached};
use crate::counters::{Count, Counters, Stripe};
use crate::fallback::Source;
use crate::snapshot::Snapshot;

/// The gauge of a breaker's state.
const BREAKER_STATE: &str = "circuit_breaker_state";
/// Times that a breaker opened; a gauge that is scraped now and then misses short ones.
const BREAKER_OPENINGS: &str = "mamparo_breaker_openings_total";
/// Attempts by outcome.
const ATTEMPTS: &str = "mamparo_attempts_total";
/// Attempts after the first.
const RETRIES: &str = "mamparo_retries_total";
/// Attempts sent beside one that took long.
const HEDGES: &str = "mamparo_hedges_total";
/// Attempts that were due beside one that took long, and were not sent.
const HEDGES_DENIED: &str = "mamparo_hedges_denied_total";
/// Calls whose retry the budget did not allow.
const BUDGET_SPENT: &str = "mamparo_retry_budget_spent_total";
/// Attempts that go on in the background now.
const DETACHED_RUNNING: &str = "mamparo_detached_running";
/// Detached attempts by outcome; `cut-off` when the background was full.
const DETACHED: &str = "mamparo_detached_total";
/// Most calls in flight, where the limit is adaptive.
const LIMIT: &str = "mamparo_concurrency_limit";
/// Repeated database transactions.
const TRANSACTION_RETRIES: &str = "mamparo_transaction_retries_total";
/// Lesser answers that stood in for a call.
const FALLBACKS: &str = "mamparo_fallbacks_total";
/// Requests for a remembered answer.
const CACHE_REQUESTS: &str = "mamparo_cache_requests_total";
/// Calls that renew a remembered answer while nobody waits for them.
const CACHE_REFRESHES: &str = "mamparo_cache_refreshes_total";
/// Faults that were injected on purpose.
const FAULTS: &str = "mamparo_faults_injected_total";
/// Calls that a guard refused.
const REFUSALS: &str = "mamparo_refusals_total";

/// A counter that is fetched when it first counts, so that what never happens is no series.
#[derive(Default)]
struct Series(OnceLock<metrics::Counter>);

impl Series {
    fn add(&self, times: u32, fetch: impl FnOnce() -> metrics::Counter) {
        self.0.get_or_init(fetch).increment(times.into());
    }
}

/// Counters of one dependency, and its metrics.
pub(crate) struct Observer {
    counters: Counters,
    attempts_succeeded: metrics::Counter,
    attempts_failed: [Series; Outcome::ALL.len()],
    retries: Series,
    hedges: Series,
    hedges_denied: [Series; NoHedge::ALL.len()],
    budget_spent: Series,
    refusals: [Series; Refusal::ALL.len()],
    openings: Series,
    breaker_state: metrics::Gauge,
    limit: metrics::Gauge,
    detached_running: metrics::Gauge,
}

impl Observer {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self::with_gauges(plan, true)
    }

    /// The observer of one of many that count under the same name: it has no gauges, which they would
    /// take from each other.
    pub(crate) fn keyed(plan: &Plan) -> Self {
        Self::with_gauges(plan, false)
    }

    fn with_gauges(plan: &Plan, gauges: bool) -> Self {
        let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
        let breaker_state = match plan.breaker {
            Some(_) if gauges => metrics::gauge!(
                BREAKER_STATE, "service" => service.clone(), "dependency" => dependency.clone()
            ),
            Some(_) | None => metrics::Gauge::noop(),
        };
        breaker_state.set(f64::from(breaker::Phase::Closed.gauge()));
        let limit = match plan.adaptive {
            Some(adaptive) if gauges => {
                let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
                let limit =
                    metrics::gauge!(LIMIT, "service" => service, "dependency" => dependency);
                limit.set(f64::from(adaptive.initial));
                limit
            }
            Some(_) | None => metrics::Gauge::noop(),
        };
        let detached_running = match plan.detached {
            Some(_) if gauges => {
                let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
                metrics::gauge!(
                    DETACHED_RUNNING, "service" => service, "dependency" => dependency
                )
            }
            Some(_) | None => metrics::Gauge::noop(),
        };
        Self {
            counters: Counters::new(),
            attempts_succeeded: metrics::counter!(
                ATTEMPTS,
                "service" => service, "dependency" => dependency, "outcome" => "success"
            ),
            attempts_failed: Default::default(),
            retries: Series::default(),
            hedges: Series::default(),
            hedges_denied: Default::default(),
            budget_spent: Series::default(),
            refusals: Default::default(),
            openings: Series::default(),
            breaker_state,
            limit,
            detached_running,
        }
    }

    /// Where a call is counted.
    #[inline]
    pub(crate) fn stripe(&self) -> &Stripe {
        self.counters.stripe()
    }

    /// An attempt gave the call its value.
    #[inline]
    pub(crate) fn succeeded(&self, stripe: &Stripe) {
        stripe.add(Count::Succeeded);
        self.attempts_succeeded.increment(1);
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
        if before == Phase::Attempting
            && let Some(outcome) = Outcome::of(event)
        {
            self.attempt_failed(plan, outcome, 1);
        }
        if told.cut_off > 0 {
            self.attempt_failed(plan, Outcome::Cancelled, told.cut_off);
        }
        if let Some(reason) = told.no_hedge {
            self.hedge_denied(plan, reason);
        }
        match (told.step, told.moved) {
            (Step::Attempt { number: 1, .. } | Step::Queue { .. } | Step::KeepOn, _) => {}
            (Step::Attempt { .. }, Move::Hedge) => self.hedged(plan),
            (Step::Attempt { .. }, _) => self.retried(plan),
            (Step::Wait { after, .. }, _) => retrying(plan, attempts, after, event),
            (Step::Reject { reason, retry_after }, _) => self.refused(plan, reason, retry_after),
            (Step::GiveUp { reason, .. }, _) => self.gave_up(plan, reason, attempts, event),
            (Step::Done, _) => self.succeeded(self.stripe()),
            (Step::Released, _) => {
                self.counters.add(Count::Abandoned);
                if attempts == 0 {
                    self.counters.add(Count::NeverAttempted);
                }
            }
        }
    }

    fn attempt_failed(&self, plan: &Plan, outcome: Outcome, times: u32) {
        self.attempts_failed[outcome as usize].add(times, || {
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(
                ATTEMPTS,
                "service" => service, "dependency" => dependency, "outcome" => outcome.name()
            )
        });
    }

    fn gave_up(&self, plan: &Plan, reason: GiveUp, attempt: u32, cause: Event) {
        self.counters.add(Count::GaveUp);
        // Retries that nobody sees missing are hard to find.
        if reason == GiveUp::BudgetSpent {
            self.counters.add(Count::BudgetSpent);
            self.budget_spent.add(1, || {
                let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
                metrics::counter!(BUDGET_SPENT, "service" => service, "dependency" => dependency)
            });
            tracing::warn!(
                service = plan.service,
                dependency = plan.dependency,
                attempt,
                cause = Outcome::of(cause).map(Outcome::name),
                "retry not made: the retry budget is spent"
            );
        }
    }

    fn hedged(&self, plan: &Plan) {
        self.counters.add(Count::Hedges);
        self.hedges.add(1, || {
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(HEDGES, "service" => service, "dependency" => dependency)
        });
    }

    fn hedge_denied(&self, plan: &Plan, reason: NoHedge) {
        self.hedges_denied[reason.index()].add(1, || {
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(
                HEDGES_DENIED,
                "service" => service, "dependency" => dependency, "reason" => reason.slug()
            )
        });
    }

    /// What was counted since the start, with `queued` calls that wait for a slot; the rest is left
    /// empty.
    pub(crate) fn counted(&self, plan: &Plan, queued: u64) -> Snapshot {
        let get = |count| self.counters.get(count);
        // Endings before beginnings, so that a call that ends meanwhile makes no negative rest.
        let (succeeded, gave_up) = (get(Count::Succeeded), get(Count::GaveUp));
        let (abandoned, retries) = (get(Count::Abandoned), get(Count::Retries));
        let hedges = get(Count::Hedges);
        let refused = Refusal::ALL.map(|reason| (reason, get(Count::Refused(reason))));
        let refused_total: u64 = refused.iter().map(|(_, count)| count).sum();
        let never_attempted = get(Count::NeverAttempted);
        let calls = get(Count::Calls);
        let ended = succeeded + gave_up + abandoned + refused_total;
        // Every call makes a first attempt unless it was refused, gone before it, or still waits.
        let without = refused_total + never_attempted + queued;
        Snapshot {
            dependency: plan.dependency.clone(),
            service: plan.service.clone(),
            breaker: None,
            reopens_in: None,
            window_failures: 0,
            in_flight: calls.saturating_sub(ended).saturating_sub(queued),
            queued,
            detached: 0,
            calls,
            succeeded,
            gave_up,
            abandoned,
            attempts: calls.saturating_sub(without) + retries + hedges,
            retries,
            hedges,
            budget_spent: get(Count::BudgetSpent),
            refused,
            openings: get(Count::Openings),
        }
    }

    fn retried(&self, plan: &Plan) {
        self.counters.add(Count::Retries);
        self.retries.add(1, || {
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(RETRIES, "service" => service, "dependency" => dependency)
        });
    }

    fn refused(&self, plan: &Plan, reason: Refusal, retry_after: Option<Duration>) {
        self.counters.add(Count::Refused(reason));
        self.refusals[reason.index()].add(1, || {
            let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
            metrics::counter!(
                REFUSALS,
                "service" => service, "dependency" => dependency, "reason" => reason.slug()
            )
        });
        tracing::warn!(
            service = plan.service,
            dependency = plan.dependency,
            reason = reason.slug(),
            retry_after_ms = retry_after.map(millis),
            "call refused"
        );
    }

    /// An attempt goes on in the background, one of `running`.
    pub(crate) fn detached(&self, plan: &Plan, running: u32) {
        self.show_detached(running);
        let (service, dependency) = (&plan.service, &plan.dependency);
        tracing::warn!(service, dependency, running, "attempt detached");
    }

    /// Shows how many attempts go on in the background by now.
    pub(crate) fn show_detached(&self, running: u32) {
        self.detached_running.set(f64::from(running));
    }

    /// The background is full: the attempt was cut off after all.
    #[expect(clippy::unused_self, reason = "said of this dependency, like its neighbours")]
    pub(crate) fn not_detached(&self, plan: &Plan) {
        detached_ended(plan, "cut-off");
        let (service, dependency) = (&plan.service, &plan.dependency);
        tracing::warn!(service, dependency, "attempt cut off: too many are detached");
    }

    /// A detached attempt ended.
    #[expect(clippy::unused_self, reason = "said of this dependency, like its neighbours")]
    pub(crate) fn detached_ended(&self, plan: &Plan, failure: Option<Failure>) {
        let outcome = failure.map_or("success", |failure| Outcome::of_kind(failure.kind).name());
        detached_ended(plan, outcome);
        let (service, dependency) = (&plan.service, &plan.dependency);
        tracing::info!(service, dependency, outcome, "detached attempt ended");
    }

    /// Shows the breaker's state.
    pub(crate) fn show_breaker(&self, state: breaker::Phase) {
        self.breaker_state.set(f64::from(state.gauge()));
    }

    /// Shows the limit that an adaptive bulkhead has by now.
    pub(crate) fn show_limit(&self, limit: u32) {
        self.limit.set(f64::from(limit));
    }

    pub(crate) fn shed_changed(&self, plan: &Plan, change: &shed::Change) {
        tracing::warn!(
            service = plan.service,
            dependency = plan.dependency,
            from = change.from.map(Criticality::slug),
            to = change.to.map(Criticality::slug),
            "levels of criticality shed"
        );
    }

    /// The breaker changed; `tries_in` is what is left of the open time, where it decides by itself.
    pub(crate) fn breaker_changed(
        &self,
        plan: &Plan,
        change: &breaker::Change,
        tries_in: Option<Duration>,
    ) {
        if change.to == breaker::Phase::Open {
            self.counters.add(Count::Openings);
            self.openings.add(1, || {
                let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
                metrics::counter!(
                    BREAKER_OPENINGS, "service" => service, "dependency" => dependency
                )
            });
        }
        tracing::warn!(
            service = plan.service,
            dependency = plan.dependency,
            from = change.from.name(),
            to = change.to.name(),
            cause = ?change.on,
            because = plan.breaker.map(|config| tracing::field::display(change.because(config.trip))),
            retry_after_ms = tries_in.map(millis),
            "circuit breaker changed"
        );
    }
}

/// How an attempt ended without a value.
#[derive(Clone, Copy)]
enum Outcome {
    Transient,
    Permanent,
    Unknown,
    Neutral,
    Timeout,
    Panic,
    Cancelled,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::Transient,
        Self::Permanent,
        Self::Unknown,
        Self::Neutral,
        Self::Timeout,
        Self::Panic,
        Self::Cancelled,
    ];

    /// `None` for what ends no attempt.
    const fn of(event: Event) -> Option<Self> {
        match event {
            Event::Failed { failure, .. } => Some(Self::of_kind(failure.kind)),
            Event::TimedOut { .. } => Some(Self::Timeout),
            Event::Panicked { .. } => Some(Self::Panic),
            // Counted as what it cuts off.
            Event::Cancelled
            | Event::HedgeDue
            | Event::Start
            | Event::SlotGranted
            | Event::QueueTimedOut
            | Event::CircuitOpened
            | Event::Succeeded { .. }
            | Event::WaitOver => None,
        }
    }

    const fn of_kind(kind: Kind) -> Self {
        match kind {
            Kind::Transient => Self::Transient,
            Kind::Permanent => Self::Permanent,
            Kind::Unknown => Self::Unknown,
            Kind::Neutral => Self::Neutral,
        }
    }

    /// In one word, for logs and metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Unknown => "unknown",
            Self::Neutral => "neutral",
            Self::Timeout => "timeout",
            Self::Panic => "panic",
            Self::Cancelled => "cancelled",
        }
    }
}

fn detached_ended(plan: &Plan, outcome: &'static str) {
    let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
    metrics::counter!(
        DETACHED, "service" => service, "dependency" => dependency, "outcome" => outcome
    )
    .increment(1);
}

fn retrying(plan: &Plan, attempt: u32, after: Duration, cause: Event) {
    tracing::warn!(
        service = plan.service,
        dependency = plan.dependency,
        attempt,
        wait_ms = millis(after),
        cause = Outcome::of(cause).map(Outcome::name),
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

/// The spawner of detached attempts panicked: this one was cut off after all.
pub(crate) fn spawner_panicked(plan: &Plan) {
    detached_ended(plan, "cut-off");
    tracing::error!(dependency = plan.dependency, "attempt cut off: the spawner panicked");
}

/// A transaction of this process is repeated.
pub(crate) fn transaction_repeated(what: &'static str, attempt: u32, after: Duration) {
    metrics::counter!(TRANSACTION_RETRIES, "transaction" => what).increment(1);
    tracing::warn!(transaction = what, attempt, wait_ms = millis(after), "transaction repeated");
}

/// A lesser answer stands in for a call.
pub(crate) fn fell_back(service: &str, dependency: &str, source: Source, reason: Reason) {
    metrics::counter!(
        FALLBACKS,
        "service" => service.to_owned(), "dependency" => dependency.to_owned(),
        "source" => source.slug(), "reason" => reason.slug()
    )
    .increment(1);
    let age_ms = match source {
        Source::Stale { age } => Some(millis(age)),
        Source::Partial | Source::Default => None,
    };
    tracing::warn!(
        service,
        dependency,
        source = source.slug(),
        reason = reason.slug(),
        age_ms,
        "a lesser answer stands in"
    );
}

/// Counts what a cache answers.
pub(crate) struct CacheObserver {
    service: Box<str>,
    cache: Box<str>,
    hits: metrics::Counter,
}

impl CacheObserver {
    pub(crate) fn new(service: &str, cache: &str) -> Self {
        let (service, cache) = (Box::from(service), Box::from(cache));
        let hits = cache_requests(&service, &cache, cache::Outcome::Hit.slug());
        Self { service, cache, hits }
    }

    /// A request for a remembered answer ended.
    pub(crate) fn asked<V, E>(&self, result: &Result<Cached<V>, CacheError<E>>) {
        let outcome = match result {
            Ok(cached) if cached.handling.outcome == cache::Outcome::Hit => {
                return self.hits.increment(1);
            }
            Ok(cached) => cached.handling.outcome.slug(),
            Err(CacheError::Failed { .. }) => "failed",
            Err(CacheError::Late { .. }) => "late",
        };
        cache_requests(&self.service, &self.cache, outcome).increment(1);
    }

    /// A stale value stands in. One that is being renewed is as good as its rules want it.
    pub(crate) fn stood_in(&self, age: Duration, reason: Reason) {
        if reason != Reason::Revalidating {
            fell_back(&self.service, &self.cache, Source::Stale { age }, reason);
        }
    }

    /// A refresh in the background ended.
    pub(crate) fn refreshed(&self, succeeded: bool) {
        let (service, cache) = (self.service.to_string(), self.cache.to_string());
        let outcome = if succeeded { "success" } else { "failed" };
        metrics::counter!(
            CACHE_REFRESHES, "service" => service, "cache" => cache, "outcome" => outcome
        )
        .increment(1);
        if !succeeded {
            tracing::warn!(service = %self.service, cache = %self.cache, "a cache was not refreshed");
        }
    }
}

fn cache_requests(service: &str, cache: &str, outcome: &'static str) -> metrics::Counter {
    let (service, cache) = (service.to_owned(), cache.to_owned());
    metrics::counter!(
        CACHE_REQUESTS, "service" => service, "cache" => cache, "outcome" => outcome
    )
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
