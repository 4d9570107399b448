//! The combinators, one by one.

use mamparo_call::Repeatable;
use mamparo_call::policy::{
    BreakerPolicy, BulkheadPolicy, MetricsListener, RateLimitPolicy, RetryPolicy, TimeoutPolicy,
};

use super::super::LONG;
use super::{breaker, bulkhead, modes, rate, retry, tripped};
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later, no};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = breakers();
    cases.extend(limits());
    cases.extend(deadlines());
    cases.extend(retries());
    cases
}

/// Counts under the recorder that the program has installed.
pub(super) fn metrics() -> MetricsListener {
    MetricsListener::new("orders", "catalog")
}

fn breakers() -> Vec<Case> {
    let names = [
        "mamparo.breaker.consecutive",
        "mamparo.breaker.failures",
        "mamparo.breaker.calls",
        "mamparo.breaker.time",
        "mamparo.breaker.slow",
    ];
    let mode = |(name, config)| {
        let policy = shared(BreakerPolicy::new(config));
        Case::calls(name, Expect::Value, move |n| policy.call(answer(n)))
    };
    let mut cases: Vec<Case> = names.into_iter().zip(modes()).map(mode).collect();
    let plain = shared(BreakerPolicy::new(breaker()));
    let heard = shared(BreakerPolicy::new(breaker()).listened_by(metrics()));
    let open = shared(tripped());
    let open_heard = shared(tripped().listened_by(metrics()));
    cases.extend([
        Case::calls("mamparo.breaker.error", Expect::Error, move |n| plain.call(no(n))),
        Case::calls("mamparo.breaker.heard", Expect::Value, move |n| heard.call(answer(n))),
        Case::calls("mamparo.open", Expect::Error, move |n| open.call(answer(n))),
        Case::calls("mamparo.open.heard", Expect::Error, move |n| open_heard.call(answer(n))),
    ]);
    cases
}

fn limits() -> Vec<Case> {
    let slots = shared(BulkheadPolicy::new(bulkhead()));
    let heard = shared(BulkheadPolicy::new(bulkhead()).listened_by(metrics()));
    let limit = shared(RateLimitPolicy::new(rate()));
    vec![
        Case::calls("mamparo.bulkhead", Expect::Value, move |n| slots.call(answer(n))),
        Case::calls("mamparo.bulkhead.error", Expect::Error, move |n| slots.call(no(n))),
        Case::calls("mamparo.bulkhead.heard", Expect::Value, move |n| heard.call(answer(n))),
        Case::calls("mamparo.rate_limit.around", Expect::Value, move |n| limit.call(answer(n))),
    ]
}

fn deadlines() -> Vec<Case> {
    let plain = shared(TimeoutPolicy::new(LONG));
    let heard = shared(TimeoutPolicy::new(LONG).listened_by(metrics()));
    vec![
        Case::calls("mamparo.deadline", Expect::Value, move |n| plain.call(answer(n))),
        Case::calls("mamparo.deadline.yield", Expect::Value, move |n| plain.call(answer_later(n))),
        Case::calls("mamparo.deadline.error", Expect::Error, move |n| plain.call(no(n))),
        Case::calls("mamparo.deadline.heard", Expect::Value, move |n| heard.call(answer(n))),
    ]
}

fn retries() -> Vec<Case> {
    let call = Repeatable::Idempotent;
    let plain = shared(RetryPolicy::new(retry()));
    let heard = shared(RetryPolicy::new(retry()).listened_by(metrics()));
    vec![
        Case::calls("mamparo.retry", Expect::Value, move |n| plain.call(call, move |_| answer(n))),
        Case::calls("mamparo.retry.error", Expect::Error, move |n| {
            plain.call(call, move |_| no(n))
        }),
        Case::calls("mamparo.retry.heard", Expect::Value, move |n| {
            heard.call(call, move |_| answer(n))
        }),
    ]
}
