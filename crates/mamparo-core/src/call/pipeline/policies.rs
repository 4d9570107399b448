//! What all calls of a dependency share.

use std::time::Duration;

use crate::call::breaker::Breaker;
use crate::call::bulkhead::{Bulkhead, Ticket};
use crate::call::plan::Plan;
use crate::call::rate_limit::RateLimit;
use crate::call::retry::Retry;
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
    /// Asked before each attempt.
    pub breaker: Option<Breaker>,
    /// A slot is held for the whole call, waits included.
    pub bulkhead: Option<Bulkhead>,
    /// Asked once a call.
    pub rate_limit: Option<RateLimit>,
}

impl Policies {
    /// Fresh policies for `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            attempt_timeout: plan.attempt_timeout,
            budget: plan.budget,
            retry: plan.retry,
            breaker: plan.breaker.map(Breaker::new),
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
        self.breaker.as_ref().is_some_and(Breaker::success_needs_now)
            || self.bulkhead.as_ref().is_some_and(Bulkhead::release_needs_now)
    }

    pub(super) fn leave(&self, now: Moment, ticket: Ticket) -> Option<Ticket> {
        self.bulkhead.as_ref().and_then(|bulkhead| bulkhead.leave(now, ticket))
    }
}
