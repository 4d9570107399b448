//! What all calls of a dependency share.

use std::time::Duration;

use crate::call::adaptive::{self, AdaptiveLimit, Sample};
use crate::call::breaker::{Admission, Breaker, Change, Verdict};
use crate::call::bulkhead::{Bulkhead, Woken};
use crate::call::hedge::Hedge;
use crate::call::latency::Latency;
use crate::call::plan::Plan;
use crate::call::rate_limit::RateLimit;
use crate::call::retry::Retry;
use crate::call::retry_budget::{RetryBudget, Withdrawal};
use crate::call::shed::{self, Criticality, Lot, Shed, Work};
use crate::call::throttle::{Leave, Reply, Throttle};
use crate::rng::Rng;
use crate::time::Moment;

/// What came of an observation.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) limit: Option<adaptive::Change>,
    pub(super) wake: Woken,
}

/// Sets the limit that the adaptive one has by now. Of two changes on two threads the later one counts:
/// whoever has set an older one sees that here, and sets it right.
fn follow(adaptive: &AdaptiveLimit, bulkhead: &Bulkhead, now: Moment) -> Woken {
    let mut wake = Woken::default();
    loop {
        let limit = adaptive.limit();
        wake.extend(bulkhead.set_limit(now, limit));
        if adaptive.limit() == limit {
            return wake;
        }
    }
}

/// The settings and the machines of one dependency, lent to each of its calls.
#[derive(Debug)]
pub struct Policies {
    /// Longest that one attempt may take.
    pub attempt_timeout: Option<Duration>,
    /// Longest that the whole call may take.
    pub budget: Option<Duration>,
    /// Attempts and waits.
    pub retry: Retry,
    /// What retries and hedges draw on; `None` where nothing is ever repeated.
    pub retry_budget: Option<RetryBudget>,
    /// When an attempt beside the first is sent.
    pub hedge: Option<Hedge>,
    /// How long attempts take, where hedges or people want to know.
    pub latency: Option<Latency>,
    /// Asked before each attempt.
    pub breaker: Option<Breaker>,
    /// A slot is held for the whole call, waits included.
    pub bulkhead: Option<Bulkhead>,
    /// Finds the limit of the bulkhead.
    pub adaptive: Option<AdaptiveLimit>,
    /// Asked once a call.
    pub rate_limit: Option<RateLimit>,
    /// Asked once a call, told of each attempt.
    pub throttle: Option<Throttle>,
    /// Asked once a call, with the load of the bulkhead.
    pub shed: Option<Shed>,
    /// Does the end of every attempt matter, and not only of those that fail?
    timed: bool,
}

impl Policies {
    /// Fresh policies for `plan`. `seed` spreads the open times of the breaker: draw it at random, or
    /// all instances of a service try in step ([`Breaker::with_seed`]); a fixed one replays a simulation.
    #[must_use]
    pub fn new(plan: &Plan, seed: u64) -> Self {
        let breaker = plan.breaker.map(|config| Breaker::with_seed(config, seed));
        let latency = plan.latency_window().map(Latency::new);
        let adaptive = plan.adaptive.map(AdaptiveLimit::new);
        Self {
            attempt_timeout: plan.attempt_timeout,
            budget: plan.budget,
            retry: plan.retry,
            retry_budget: plan.effective_retry_budget().map(RetryBudget::new),
            hedge: plan.hedge.map(Hedge::new),
            timed: latency.is_some()
                || adaptive.is_some()
                || breaker.as_ref().is_some_and(Breaker::success_needs_now),
            latency,
            breaker,
            bulkhead: plan.effective_bulkhead().map(Bulkhead::new),
            adaptive,
            rate_limit: plan.rate_limit.map(RateLimit::new),
            throttle: plan.throttle.map(Throttle::new),
            shed: plan.shed.map(Shed::new),
        }
    }

    /// Does a success have to be told with the time of its end? If not, and it is no probe
    /// ([`super::Pipeline::is_probe`]), the time of its start will do, and the host saves a clock
    /// reading.
    #[must_use]
    #[inline]
    pub fn success_needs_now(&self) -> bool {
        self.timed || self.bulkhead.as_ref().is_some_and(Bulkhead::release_needs_now)
    }

    /// Is there too much to do for a call that matters this much? The load is that of the bulkhead,
    /// those who wait for a slot included.
    pub(super) fn ask_shed(
        &self,
        criticality: Criticality,
        deadline: Option<Moment>,
        now: Moment,
        rng: &mut impl Rng,
    ) -> (shed::Entry, Option<shed::Change>) {
        let Some((shed, bulkhead)) = self.shed.as_ref().zip(self.bulkhead.as_ref()) else {
            return (shed::Entry::Admitted, None);
        };
        let wanted = bulkhead.in_flight().saturating_add(bulkhead.queued());
        let work = Work {
            criticality,
            load: f64::from(wanted) / f64::from(bulkhead.limit().max(1)),
            left: deadline.map(|deadline| now.until(deadline)),
            needs: None,
        };
        let answer = shed.ask(work, Lot::drawn(rng));
        (answer.entry, answer.change)
    }

    /// After what time to come back, if the call is held back.
    pub(super) fn ask_throttle(&self, now: Moment, rng: &mut impl Rng) -> Option<Duration> {
        match self.throttle.as_ref()?.ask(now, rng) {
            Leave::Granted => None,
            Leave::Throttled { retry_after } => Some(retry_after),
        }
    }

    /// Does nobody count the success of this attempt?
    #[inline]
    pub(super) fn forgets_success(&self, admission: Option<&Admission>) -> bool {
        !self.timed
            && self.throttle.is_none()
            && match (&self.breaker, admission) {
                (Some(breaker), Some(admission)) => breaker.forgets_success(admission),
                (None, _) | (_, None) => true,
            }
    }

    /// How long a success took, where its end is told.
    #[inline]
    pub(super) fn took(&self, started: Moment, now: Moment) -> Option<Duration> {
        self.timed.then(|| now.since(started))
    }

    /// Takes what an attempt showed of the dependency's speed and will to serve. `answered` when its
    /// time is that of an answer and not of our patience.
    pub(super) fn observe(
        &self,
        now: Moment,
        took: Option<Duration>,
        answered: bool,
        reply: Reply,
    ) -> Seen {
        if let Some(throttle) = &self.throttle {
            throttle.tell(now, reply);
        }
        if reply == Reply::Silent {
            return Seen::default();
        }
        if let Some((latency, took)) = self.latency.as_ref().zip(took.filter(|_| answered)) {
            latency.record(now, took);
        }
        let Some((adaptive, bulkhead)) = self.adaptive.as_ref().zip(self.bulkhead.as_ref()) else {
            return Seen::default();
        };
        let sample = Sample {
            took: took.unwrap_or_default(),
            in_flight: bulkhead.in_flight(),
            dropped: reply == Reply::Rejected,
        };
        match adaptive.tell(now, sample) {
            Some(limit) => Seen { limit: Some(limit), wake: follow(adaptive, bulkhead, now) },
            None => Seen::default(),
        }
    }

    /// An attempt that was cut off took longer than anybody knows. One that had hardly begun says
    /// nothing.
    pub(super) fn record_cut_off(&self, now: Moment, started: Moment) {
        if let Some((latency, hedge)) = self.latency.as_ref().zip(self.hedge.as_ref())
            && hedge.delay(now, latency).is_some_and(|delay| now.since(started) > delay)
        {
            latency.record_cut_off(now);
        }
    }

    #[inline]
    pub(super) fn tell_breaker(
        &self,
        now: Moment,
        admission: Option<Admission>,
        verdict: Verdict,
    ) -> Option<Change> {
        let (breaker, admission) = self.breaker.as_ref().zip(admission)?;
        breaker.tell(now, admission, verdict).change
    }

    /// Puts back what was paid for an attempt that is not made.
    pub(super) fn give_back(&self, paid: Option<Withdrawal>) {
        if let Some((budget, paid)) = self.retry_budget.as_ref().zip(paid) {
            budget.give_back(paid);
        }
    }
}
