//! The combinators, one by one and stacked.

use mamparo_call::Repeatable;
use mamparo_call::policy::{MetricsListener, RetryPolicy, TimeoutPolicy};

use super::super::LONG;
use super::retry;
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later, no};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = deadlines();
    cases.extend(retries());
    cases
}

fn deadlines() -> Vec<Case> {
    let plain = shared(TimeoutPolicy::new(LONG));
    let heard = shared(TimeoutPolicy::new(LONG).listened_by(MetricsListener::new("a", "b")));
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
    let heard = shared(RetryPolicy::new(retry()).listened_by(MetricsListener::new("a", "b")));
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
