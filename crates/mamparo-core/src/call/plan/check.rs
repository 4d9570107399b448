//! What a plan can't mean, policy by policy and across them.

use std::time::Duration;

use super::{Mistake, Plan};
use crate::call::arithmetic;
use crate::call::hedge::HedgeConfig;
use crate::call::mistake::Mistakes;
use crate::call::retry::Retry;
use crate::limits;

pub(super) fn mistakes(plan: &Plan) -> Vec<Mistake> {
    let mut mistakes = Mistakes::new();
    mistakes.unless(!plan.dependency.is_empty(), "name", || "must not be empty".into());
    times(plan, &mut mistakes);
    retry(plan, &mut mistakes);
    if let Some(config) = &plan.hedge {
        hedge(plan, config, &mut mistakes);
    }
    if let Some(window) = plan.latency {
        mistakes.positive("latency", window);
    }
    if let Some(breaker) = &plan.breaker {
        breaker.check(&mut mistakes);
    }
    if let Some(bulkhead) = &plan.bulkhead {
        bulkhead.check(&mut mistakes);
    }
    if let Some(limit) = &plan.rate_limit {
        limit.check(&mut mistakes);
    }
    if let Some(throttle) = &plan.throttle {
        mistakes.extend(throttle.mistakes());
    }
    if let Some(adaptive) = &plan.adaptive {
        mistakes.extend(adaptive.mistakes());
    }
    if let Some(shed) = &plan.shed {
        mistakes.extend(shed.mistakes());
        mistakes.unless(plan.effective_bulkhead().is_some(), "shed", || {
            "needs a bulkhead, whose slots are the capacity that it goes by".into()
        });
    }
    if let Some(detached) = plan.detached {
        mistakes.range("detached", detached, 1, limits::DETACHED_MAX);
    }
    mistakes.into_vec()
}

fn times(plan: &Plan, mistakes: &mut Mistakes) {
    for (key, time) in [("attempt_timeout", plan.attempt_timeout), ("budget", plan.budget)] {
        let least = limits::ATTEMPT_MIN_USABLE;
        mistakes.unless(time.is_none_or(|time| time > least), key, || {
            format!("must be more than {least:?}, the least that an attempt can use")
        });
    }
    if let (Some(timeout), Some(budget)) = (plan.attempt_timeout, plan.budget) {
        // The last hedge begins after all delays, with a timeout of its own.
        let hedging = plan.hedge.map_or(Duration::ZERO, |hedge| hedge.longest_delay());
        let longest = timeout.saturating_add(hedging);
        if let Err(error) =
            arithmetic::fits(plan.retry.attempts, longest, &plan.retry.backoff, budget)
        {
            mistakes.add("budget", error.to_string());
        }
    }
}

fn retry(plan: &Plan, mistakes: &mut Mistakes) {
    let Retry { attempts, backoff } = plan.retry;
    mistakes.range("retry.attempts", attempts, 1, limits::ATTEMPTS_MAX);
    mistakes.unless(backoff.factor.is_finite() && backoff.factor >= 1.0, "retry.factor", || {
        format!("is {}, must be a number of at least 1", backoff.factor)
    });
    mistakes.unless(backoff.base <= backoff.cap, "retry.cap", || {
        format!("is {:?}, less than the base of {:?}", backoff.cap, backoff.base)
    });
    if let Some(budget) = plan.retry_budget {
        budget.check(mistakes);
    }
}

fn hedge(plan: &Plan, config: &HedgeConfig, mistakes: &mut Mistakes) {
    config.check(mistakes);
    let delay = config.after.least();
    let in_time = plan.attempt_timeout.is_none_or(|timeout| delay < timeout);
    mistakes.unless(in_time, "hedge.after", || {
        format!("is {delay:?}, not less than the attempt timeout: no hedge would ever be sent")
    });
}
