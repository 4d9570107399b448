//! recloser, failsafe, governor, backon, quanta.

use std::num::NonZeroU32;

use backon::{ExponentialBuilder, Retryable as _};
use failsafe::{backoff, failure_policy};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use recloser::{AsyncRecloser, Recloser};

use super::{FOR_GOOD, KEYS, key_of};
use crate::case::{Case, Expect, shared};
use crate::work::{Down, answer, down};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = breakers();
    cases.extend(limits());
    let clock = shared(quanta::Clock::new());
    cases.push(Case::calls("quanta.now", Expect::Value, move |_| async move {
        Ok::<_, Down>(clock.now())
    }));
    cases.push(Case::calls("backon.retry", Expect::Value, |n| async move {
        let again = move || answer(n);
        again.retry(ExponentialBuilder::default().with_max_times(2)).await
    }));
    cases
}

fn breakers() -> Vec<Case> {
    let closed = shared(AsyncRecloser::from(Recloser::custom().closed_len(100).build()));
    let open = Recloser::custom().closed_len(10).open_wait(FOR_GOOD).build();
    for _ in 0..20 {
        open.call(|| Err::<(), Down>(Down)).ok();
    }
    let open = shared(AsyncRecloser::from(open));
    let rate = shared(failsafe::Config::new().build());
    let constant = || backoff::constant(FOR_GOOD);
    let consecutive = failure_policy::consecutive_failures(5, constant());
    let consecutive = shared(failsafe::Config::new().failure_policy(consecutive).build());
    let tripped = failure_policy::consecutive_failures(1, constant());
    let tripped = shared(failsafe::Config::new().failure_policy(tripped).build());
    failsafe::CircuitBreaker::call(tripped, || Err::<(), Down>(Down)).ok();
    vec![
        Case::calls("recloser.breaker", Expect::Value, move |n| closed.call(answer(n))),
        Case::calls("recloser.open", Expect::Error, move |n| open.call(answer(n))),
        Case::calls("failsafe.breaker.rate", Expect::Value, move |n| {
            failsafe::futures::CircuitBreaker::call(rate, answer(n))
        }),
        Case::calls("failsafe.breaker.consecutive", Expect::Value, move |n| {
            failsafe::futures::CircuitBreaker::call(consecutive, answer(n))
        }),
        Case::calls("failsafe.open", Expect::Error, move |n| {
            failsafe::futures::CircuitBreaker::call(tripped, down(n))
        }),
    ]
}

fn limits() -> Vec<Case> {
    // So much that no call of a run is refused: a refusal costs less.
    let quota = Quota::per_second(NonZeroU32::MAX);
    let direct: &DefaultDirectRateLimiter = shared(RateLimiter::direct(quota));
    let one: &DefaultKeyedRateLimiter<u64> = shared(RateLimiter::keyed(quota));
    let many: &DefaultKeyedRateLimiter<u64> = shared(RateLimiter::keyed(quota));
    for key in 0..KEYS {
        many.check_key(&key).ok();
    }
    vec![
        Case::calls("governor.direct", Expect::Value, move |_| async move { direct.check() }),
        Case::calls("governor.keyed.1", Expect::Value, move |_| async move { one.check_key(&7) }),
        Case::calls("governor.keyed.10000", Expect::Value, move |n| async move {
            many.check_key(&key_of(n))
        }),
    ]
}
