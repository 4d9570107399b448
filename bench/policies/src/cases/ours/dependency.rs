//! A whole dependency: one machine that holds the order of its policies.

use mamparo_call::{Dependency, Repeatable};
use mamparo_core::backoff::Backoff;

use super::super::{LONG, SLOTS, settle};
use super::breaker;
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later, down, no};

/// Bulkhead > retry < breaker > timeout.
fn stack() -> &'static Dependency {
    shared(
        Dependency::builder("catalog")
            .attempt_timeout(LONG)
            .retry(3, Backoff::default())
            .breaker(breaker())
            .bulkhead(SLOTS as u32, 0)
            .build()
            .expect("a sound plan"),
    )
}

pub(super) fn cases() -> Vec<Case> {
    let (ready, later, refused, error) = (stack(), stack(), stack(), stack());
    settle(async {
        for _ in 0..10 {
            refused.call(Repeatable::Unsafe, |_| down(0)).await.ok();
        }
    });
    let call = Repeatable::Idempotent;
    vec![
        Case::calls("mamparo.stack.dependency", Expect::Value, move |n| {
            ready.call(call, move |_| answer(n))
        }),
        Case::calls("mamparo.stack.dependency.yield", Expect::Value, move |n| {
            later.call(call, move |_| answer_later(n))
        }),
        Case::calls("mamparo.stack.dependency.open", Expect::Error, move |n| {
            refused.call(call, move |_| answer(n))
        }),
        Case::calls("mamparo.stack.dependency.error", Expect::Error, move |n| {
            error.call(call, move |_| no(n))
        }),
    ]
}
