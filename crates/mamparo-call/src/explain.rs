//! A dependency in the words of the person who is on call.

use std::fmt;

use mamparo_core::call::breaker;
use mamparo_core::call::latency::{Advice, Adviser, NoAdvice};
use mamparo_core::call::pipeline::Policies;
use mamparo_core::call::plan::Plan;
use mamparo_core::time::Moment;

/// What stands in front of a dependency and where it stands now. `Display` prints all of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// The policies' values, in their order.
    pub plan: Plan,
    /// Why the circuit is as it is; `None` without a breaker.
    pub breaker: Option<breaker::Explanation>,
    /// Retries and hedges that are left, and the most there can be; `None` without a budget.
    pub retry_budget: Option<(u64, u64)>,
    /// Slots taken, slots in all, and callers that wait; `None` without a bulkhead.
    pub bulkhead: Option<(u32, u32, u32)>,
    /// The attempt timeout that the observed latency asks for, or why there is no advice; `None`
    /// where latency is not observed.
    pub timeout: Option<Result<Advice, NoAdvice>>,
}

impl Explanation {
    pub(crate) fn of(plan: &Plan, policies: &Policies, now: Moment) -> Self {
        let adviser = Adviser::default();
        Self {
            plan: plan.clone(),
            breaker: policies.breaker.as_ref().map(|breaker| breaker.explain(now)),
            retry_budget: policies
                .retry_budget
                .as_ref()
                .map(|budget| (budget.left(), budget.capacity())),
            bulkhead: policies
                .bulkhead
                .as_ref()
                .map(|bulkhead| (bulkhead.in_flight(), bulkhead.limit(), bulkhead.queued())),
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
        if let Some((left, capacity)) = self.retry_budget {
            write!(f, "\n  retry budget     {left} of {capacity} retries and hedges left")?;
        }
        if let Some((taken, limit, queued)) = self.bulkhead {
            write!(f, "\n  bulkhead         {taken} of {limit} slots taken, {queued} waiting")?;
        }
        match &self.timeout {
            Some(Ok(advice)) => write!(f, "\n  timeout advice   {advice}"),
            Some(Err(none)) => write!(f, "\n  timeout advice   none: {none}"),
            None => Ok(()),
        }
    }
}
