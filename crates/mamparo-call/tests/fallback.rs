//! Lesser answers: where they stand in, and that they say what they are.

#![expect(clippy::unwrap_used, reason = "what tests share fails by panicking")]

mod support;

use std::time::Duration;

use mamparo_call::cache::Fetched;
use mamparo_call::fallback::{Answer, Degraded, Fallback, Fresh, Lesser, Source};
use mamparo_call::{Classify, Failure, Repeatable};
use mamparo_core::call::fallback::Reason;
use mamparo_core::outcome::failure_of_status;
use support::{Answer as Called, Broken, catalog, millis, touchy};

fn fallback() -> Fallback {
    Fallback::new("bff", "catalog")
}

fn stale(value: &'static str) -> Option<Lesser<&'static str>> {
    Some(Lesser::Stale(value, millis(1_500)))
}

fn degraded<T: std::fmt::Debug, E: std::fmt::Debug>(answer: Result<Answer<T>, E>) -> Degraded<T> {
    answer.unwrap_or_else(|error| unreachable!("{error:?}")).fresh().unwrap_err()
}

#[test]
fn a_success_is_fresh_and_nothing_lesser_is_asked_for() {
    let called: Result<_, Broken> = Ok("now");
    let answer = fallback().read(called, |_| unreachable!("nothing failed")).expect("fresh");
    assert!(answer.is_fresh());
    assert_eq!(answer.map(str::len).fresh().map(Fresh::into_inner), Ok(3));
}

#[test]
fn what_was_fetched_without_a_cache_is_fresh_unless_it_was_stale_at_its_source() {
    let fresh = Answer::from(Fetched::from("7")).fresh().expect("fresh");
    assert_eq!(fresh.try_map(str::parse::<u32>).map(Fresh::into_inner), Ok(7));
    assert!(fresh.try_map(str::parse::<bool>).is_err());
    let second_hand = Fetched { age: millis(9), stale: true, ..Fetched::from("7") };
    let stale = Answer::from(second_hand).fresh().expect_err("stale");
    assert_eq!((stale.reason(), stale.age()), (Reason::Upstream, Some(millis(9))));
}

#[test]
fn a_lesser_value_is_reached_by_its_own_name_only() {
    let read = |lesser| {
        let called: Result<&str, _> = Err(Broken(Failure::UNKNOWN));
        degraded(fallback().read(called, |_| Some(lesser)))
    };
    let (old, part, made) =
        (Lesser::Stale("old", millis(1_500)), Lesser::Partial("part"), Lesser::Default("made"));
    let answer = read(old);
    assert_eq!(answer.reason(), Reason::NoAnswer);
    assert_eq!(answer.source(), Source::Stale { age: millis(1_500) });
    assert_eq!(answer.age(), Some(millis(1_500)));
    assert_eq!(answer.accept_stale(millis(1_500)), Ok("old"));
    assert_eq!(answer.accept_stale(millis(1_499)), Err(answer), "too old for this caller");
    assert_eq!(answer.accept_partial(), Err(answer));
    assert_eq!(answer.accept_default(), Err(answer));
    assert_eq!(read(part).accept_partial(), Ok("part"));
    assert_eq!(read(part).accept_stale(Duration::MAX), Err(read(part)));
    assert_eq!(read(part).age(), None);
    assert_eq!(read(made).accept_default(), Ok("made"));
    assert_eq!(read(made).accept_partial(), Err(read(made)));
    assert_eq!(read(made).accept_degraded(), "made");
    let Answer::Degraded(mapped) = Answer::Degraded(read(old)).map(str::len) else {
        unreachable!("mapping changes the value only")
    };
    assert_eq!((mapped.source(), mapped.accept_degraded()), (read(old).source(), 3));
}

#[test]
fn nothing_stands_in_for_a_no_or_for_a_caller_that_is_gone() {
    for failure in [failure_of_status(404, None), failure_of_status(422, None), Failure::NEUTRAL] {
        let called: Result<&str, _> = Err(Broken(failure));
        let answer = fallback().read(called, |_| unreachable!("{failure:?}"));
        assert_eq!(answer, Err(Broken(failure)));
    }
    let called: Result<&str, _> = Err(Broken(Failure::TRANSIENT));
    assert_eq!(fallback().read(called, |_| None), Err(Broken(Failure::TRANSIENT)), "has nothing");
}

#[test]
fn a_write_is_stood_in_for_only_where_nothing_was_sent() {
    let write = |failure| {
        let called: Result<&str, _> = Err(Broken(failure));
        fallback().write(called, |_| Some("queued"))
    };
    assert_eq!(degraded(write(Failure::NOT_SENT)).accept_default(), Ok("queued"));
    for failure in [Failure::UNKNOWN, Failure::TRANSIENT, failure_of_status(500, None)] {
        assert_eq!(write(failure), Err(Broken(failure)), "it may have run");
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_stood_in_for_and_is_no_cancellation() {
    let dependency = catalog().retry(1, Default::default()).breaker(touchy(1));
    let dependency = dependency.build().expect("sound");
    let call = || async {
        let broken = |_| async { Err::<&str, _>(Broken(Failure::TRANSIENT)) };
        dependency.call(Repeatable::Idempotent, broken).await
    };
    let (first, second): (Called<&str>, Called<&str>) = (call().await, call().await);
    assert!(second.as_ref().is_err_and(Classify::is_refusal));
    let fallback = Fallback::of(&dependency);
    let reasons = [first, second].map(|called| degraded(fallback.read(called, |_| stale("old"))));
    assert_eq!(reasons.map(|it| it.reason()), [Reason::Unavailable, Reason::Refused]);
}
