//! What all calls of a dependency share.

use std::time::Duration;

use crate::call::breaker::{Admission, Breaker, Change, Verdict};
use crate::call::bulkhead::Bulkhead;
use crate::call::hedge::Hedge;
use crate::call::latency::Latency;
use crate::call::plan::Plan;
use crate::call::rate_limit::RateLimit;
use crate::call::retry::Retry;
use crate::call::retry_budget::{RetryBudget, Withdrawal};
use crate::time::Moment;

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
    /// Asked once a call.
    pub rate_limit: Option<RateLimit>,
    /// Does the end of every attempt matter, and not only of those that fail?
    timed: bool,
}

impl Policies {
    /// Fresh policies for `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let breaker = plan.breaker.map(Breaker::new);
        let latency = plan.latency_window().map(Latency::new);
        Self {
            attempt_timeout: plan.attempt_timeout,
            budget: plan.budget,
            retry: plan.retry,
            retry_budget: plan.effective_retry_budget().map(RetryBudget::new),
            hedge: plan.hedge.map(Hedge::new),
            timed: latency.is_some() || breaker.as_ref().is_some_and(Breaker::success_needs_now),
            latency,
            breaker,
            bulkhead: plan.bulkhead.map(Bulkhead::new),
            rate_limit: plan.rate_limit.map(RateLimit::new),
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

    /// Does nobody count the success of this attempt?
    #[inline]
    pub(super) fn forgets_success(&self, admission: Option<&Admission>) -> bool {
        !self.timed
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

    #[inline]
    pub(super) fn record(&self, now: Moment, took: Option<Duration>) {
        if let Some((latency, took)) = self.latency.as_ref().zip(took) {
            latency.record(now, took);
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
