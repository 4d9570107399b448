//! Bulkhead > breaker > retry > timeout, as combinators.

use std::future::Future;

use mamparo_call::policy::{
    BreakerPolicy, BulkheadPolicy, GuardError, RetryError, RetryPolicy, TimeoutError, TimeoutPolicy,
};
use mamparo_call::{Classify, Repeatable};

use super::super::LONG;
use super::policies::metrics;
use super::{breaker, bulkhead, modes, retry, tripped};
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later, no};

/// The four policies of a stack, shared by all tasks.
struct Stack {
    bulkhead: BulkheadPolicy,
    breaker: BreakerPolicy,
    retry: RetryPolicy,
    timeout: TimeoutPolicy,
}

/// What a stack fails with.
type StackError<E> = GuardError<GuardError<RetryError<TimeoutError<E>>>>;

impl Stack {
    fn new(breaker: BreakerPolicy) -> Self {
        Self {
            bulkhead: BulkheadPolicy::new(bulkhead()),
            breaker,
            retry: RetryPolicy::new(retry()),
            timeout: TimeoutPolicy::new(LONG),
        }
    }

    /// Whose metrics the breaker and the bulkhead report, as one listener a policy would.
    fn heard() -> Self {
        let plain = Self::new(BreakerPolicy::new(breaker()));
        Self {
            bulkhead: plain.bulkhead.listened_by(metrics()),
            breaker: plain.breaker.listened_by(metrics()),
            ..plain
        }
    }

    fn call<T, E, F>(
        &self,
        number: u64,
        inner: fn(u64) -> F,
    ) -> impl Future<Output = Result<T, StackError<E>>>
    where
        E: Classify,
        F: Future<Output = Result<T, E>>,
    {
        let attempts =
            self.retry.call(Repeatable::Idempotent, move |_| self.timeout.call(inner(number)));
        self.bulkhead.call(self.breaker.call(attempts))
    }
}

pub(super) fn cases() -> Vec<Case> {
    let new = |config| shared(Stack::new(BreakerPolicy::new(config)));
    let (ready, later, error) = (new(breaker()), new(breaker()), new(breaker()));
    let over_time = new(modes()[3]);
    let open = shared(Stack::new(tripped()));
    let heard = shared(Stack::heard());
    let value = Expect::Value;
    vec![
        Case::calls("mamparo.stack.combinators", value, move |n| ready.call(n, answer)),
        Case::calls("mamparo.stack.combinators.yield", value, move |n| later.call(n, answer_later)),
        Case::calls("mamparo.stack.combinators.time", value, move |n| over_time.call(n, answer)),
        Case::calls("mamparo.stack.combinators.heard", value, move |n| heard.call(n, answer)),
        Case::calls("mamparo.stack.combinators.error", Expect::Error, move |n| error.call(n, no)),
        Case::calls("mamparo.stack.combinators.open", Expect::Error, move |n| open.call(n, answer)),
    ]
}
