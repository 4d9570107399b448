//! A dependency in the words of the person who is on call.

use std::fmt;
use std::time::Duration;

use mamparo_core::call::breaker;
use mamparo_core::call::latency::{Advice, Adviser, NoAdvice};
use mamparo_core::call::pipeline::Policies;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::Answer;
use mamparo_core::time::{Moment, Readable};

/// What stands in front of a dependency and where it stands now. `Display` prints all of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The policies' values, in their order.
    pub plan: Plan,
    /// Why the circuit is as it is; `None` without a breaker.
    pub breaker: Option<breaker::Explanation>,
    /// The share of calls that the throttle holds back now, 0 to 1; `None` without one.
    pub throttled: Option<f64>,
    /// After what time the rate limit lets the next call pass, zero for at once; `None` without one.
    pub rate_limited: Option<Duration>,
    /// What is left of the retry budget; `None` without one.
    pub retry_budget: Option<BudgetLeft>,
    /// The bulkhead's slots; `None` without one.
    pub bulkhead: Option<Slots>,
    /// The attempt timeout that the observed latency asks for, or why there is no advice; `None`
    /// where latency is not observed.
    pub timeout: Option<Result<Advice, NoAdvice>>,
}

/// What is left of a retry budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLeft {
    /// Retries and hedges that may be sent now.
    pub left: u64,
    /// Most that can be saved up.
    pub capacity: u64,
}

/// The slots of a bulkhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Taken by calls that run, waits between their attempts included.
    pub taken: u32,
    /// There are in all.
    pub limit: u32,
    /// Callers that wait for one.
    pub queued: u32,
}

impl Explanation {
    pub(crate) fn of(plan: &Plan, policies: &Policies, now: Moment) -> Self {
        let adviser = Adviser::default();
        Self {
            plan: plan.clone(),
            breaker: policies.breaker.as_ref().map(|breaker| breaker.explain(now)),
            throttled: policies.throttle.as_ref().map(|throttle| throttle.refused(now)),
            rate_limited: policies.rate_limit.as_ref().map(|limit| match limit.peek(now) {
                Answer::Allowed { .. } => Duration::ZERO,
                Answer::NotUntil { retry_after } => retry_after,
            }),
            retry_budget: policies
                .retry_budget
                .as_ref()
                .map(|budget| BudgetLeft { left: budget.left(), capacity: budget.capacity() }),
            bulkhead: policies.bulkhead.as_ref().map(|bulkhead| Slots {
                taken: bulkhead.in_flight(),
                limit: bulkhead.limit(),
                queued: bulkhead.queued(),
            }),
            timeout: policies
                .latency
                .as_ref()
                .map(|latency| adviser.propose(now, latency, &plan.retry, plan.budget)),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}now", self.plan)?;
        if let Some(breaker) = &self.breaker {
            write!(f, "\n  circuit          {breaker}")?;
        }
        if let Some(share) = self.throttled {
            write!(f, "\n  throttle         {:.0} % of calls held back", share * 100.0)?;
        }
        match self.rate_limited {
            None => {}
            Some(Duration::ZERO) => write!(f, "\n  rate limit       the next call passes")?,
            Some(after) => {
                let after = Readable::wait(after);
                write!(f, "\n  rate limit       the next call passes in {after}")?;
            }
        }
        if let Some(BudgetLeft { left, capacity }) = self.retry_budget {
            write!(f, "\n  retry budget     {left} of {capacity} retries and hedges left")?;
        }
        if let Some(Slots { taken, limit, queued }) = self.bulkhead {
            write!(f, "\n  bulkhead         {taken} of {limit} slots taken, {queued} waiting")?;
        }
        match &self.timeout {
            Some(Ok(advice)) => write!(f, "\n  timeout advice   {advice}"),
            Some(Err(none)) => write!(f, "\n  timeout advice   none: {none}"),
            None => Ok(()),
        }
    }
}
