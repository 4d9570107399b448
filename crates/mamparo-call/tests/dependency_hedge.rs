//! A second attempt beside a slow one: the first value counts, the rest is settled.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use mamparo_call::{Attempt, Dependency, DependencyBuilder, Failure, Repeatable, clock};
use mamparo_core::call::breaker::Phase;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use support::{Answer, Broken, millis, touchy};

fn hedged(extra: u32) -> DependencyBuilder {
    let after = HedgeAfter::Fixed(millis(100));
    Dependency::builder("search")
        .attempt_timeout(millis(700))
        .hedge(HedgeConfig { after, extra })
        .bulkhead(1, 0)
}

/// Notes that an attempt was dropped before its end.
struct Loser<'a>(&'a Cell<u32>);

impl Drop for Loser<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_value_counts_and_the_loser_is_settled_without_a_verdict() {
    let search = hedged(1).breaker(touchy(1)).build().expect("sound");
    let (losers, began) = (Cell::new(0), clock::now());
    let answer: Answer<Vec<u32>> = search
        .call(Repeatable::Idempotent, |attempt: Attempt| {
            let loser = Loser(&losers);
            async move {
                let slow = if attempt.number == 1 { 650 } else { 20 };
                tokio::time::sleep(millis(slow)).await;
                std::mem::forget(loser);
                Ok(vec![attempt.number; 3])
            }
        })
        .await;
    assert_eq!(answer.expect("the hedge answers"), [2, 2, 2], "whole and readable");
    assert_eq!(clock::now().since(began), millis(120));
    assert_eq!(losers.get(), 1, "the first attempt is cancelled at once");
    let seen = search.snapshot();
    assert_eq!((seen.attempts, seen.hedges, seen.retries, seen.in_flight), (2, 1, 0, 0));
    assert_eq!(seen.breaker, Some(Phase::Closed), "cut off is no verdict");
    search
        .call(Repeatable::Idempotent, async |_| Ok::<_, Broken>(()))
        .await
        .expect("the slot is free");
}

#[tokio::test(start_paused = true)]
async fn a_quick_answer_sends_no_hedge_and_an_unsafe_call_never_does() {
    let search = hedged(2).build().expect("sound");
    for (repeatable, takes) in [(Repeatable::Idempotent, 90), (Repeatable::Unsafe, 600)] {
        let answer: Answer<u32> = search
            .call(repeatable, async |attempt| {
                tokio::time::sleep(millis(takes)).await;
                Ok(attempt.number)
            })
            .await;
        assert_eq!(answer.expect("it works"), 1);
    }
    assert_eq!(search.snapshot().hedges, 0);
}

#[tokio::test(start_paused = true)]
async fn policies_c28_without_a_budget_no_hedge_is_sent_and_those_under_way_go_on() {
    let one = RetryBudgetConfig { ratio: 0.0, reserve: 1 };
    let search = hedged(2).retry_budget(Some(one)).build().expect("sound");
    let began = clock::now();
    let answer: Answer<u32> = search
        .call(Repeatable::Idempotent, async |attempt| {
            tokio::time::sleep(millis(if attempt.number == 1 { 450 } else { 600 })).await;
            Ok(attempt.number)
        })
        .await;
    assert_eq!(answer.expect("the running attempts are not killed"), 1);
    assert_eq!(clock::now().since(began), millis(450));
    assert_eq!(search.snapshot().hedges, 1, "the second one had no token");
    // None left: the next call is not hedged, does not hang, and ends with its own value.
    let answer: Answer<u32> = search
        .call(Repeatable::Keyed, async |attempt| {
            tokio::time::sleep(millis(300)).await;
            Ok(attempt.number)
        })
        .await;
    assert_eq!(answer.expect("it works"), 1);
}

#[tokio::test(start_paused = true)]
async fn policies_c21_a_hedge_that_is_not_sent_holds_nothing() {
    let search = hedged(1).build().expect("sound");
    let before = search.explain().retry_budget;
    for _ in 0..50 {
        let answer: Answer<()> = search.call(Repeatable::Idempotent, async |_| Ok(())).await;
        answer.expect("each finds the only slot free");
    }
    assert_eq!(search.explain().retry_budget, before);
}

#[tokio::test(start_paused = true)]
async fn one_failure_waits_for_the_other_attempt_and_a_final_answer_does_not() {
    let search = hedged(1).build().expect("sound");
    for (failure, expected, ends) in
        [(Failure::TRANSIENT, Ok(1), 400), (Failure::PERMANENT, Err(()), 150)]
    {
        let began = clock::now();
        let answer: Answer<u32> = search
            .call(Repeatable::Idempotent, async |attempt| {
                let first = attempt.number == 1;
                tokio::time::sleep(millis(if first { 400 } else { 50 })).await;
                if first { Ok(1) } else { Err(Broken(failure)) }
            })
            .await;
        assert_eq!(answer.map_err(|_| ()), expected);
        assert_eq!(clock::now().since(began), millis(ends));
    }
    assert_eq!(search.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn both_failing_is_one_round_that_the_retry_repeats() {
    let search =
        hedged(1).retry(2, mamparo_core::backoff::Backoff::default()).build().expect("sound");
    let numbers = Rc::new(RefCell::new(Vec::new()));
    let answer: Answer<()> = search
        .call(Repeatable::Idempotent, async |attempt| {
            numbers.borrow_mut().push(attempt.number);
            tokio::time::sleep(millis(150)).await;
            Err(Broken(Failure::TRANSIENT))
        })
        .await;
    assert_eq!(answer.expect_err("all fail").attempts(), 4);
    assert_eq!(*numbers.borrow(), [1, 2, 3, 4]);
    let seen = search.snapshot();
    assert_eq!((seen.attempts, seen.retries, seen.hedges), (4, 1, 2));
}

/// An attempt that is busy whenever it is polled leaves nothing of the task's cooperative budget.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_never_yields_its_budget_is_still_hedged() {
    let search = hedged(1).build().expect("sound");
    let answer: Answer<u32> = search
        .call(Repeatable::Idempotent, async |attempt| {
            for _ in 0..if attempt.number == 1 { 600 } else { 0 } {
                std::future::poll_fn(|cx| {
                    while let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                        progress.made_progress();
                    }
                    Poll::Ready(())
                })
                .await;
                tokio::time::advance(millis(1)).await;
            }
            Ok(attempt.number)
        })
        .await;
    assert_eq!(answer.expect("the hedge answers"), 2);
}

#[tokio::test(start_paused = true)]
async fn no_hedge_is_sent_while_the_circuit_tries() {
    let search = hedged(1).breaker(touchy(2)).build().expect("sound");
    let opens: Answer<()> =
        search.call(Repeatable::Unsafe, async |_| Err(Broken(Failure::TRANSIENT))).await;
    opens.expect_err("it opens");
    tokio::time::advance(Duration::from_secs(30)).await;
    let probe: Answer<()> = search
        .call(Repeatable::Idempotent, async |_| {
            tokio::time::sleep(millis(300)).await;
            Ok(())
        })
        .await;
    probe.expect("the probe answers");
    assert_eq!((search.snapshot().hedges, search.breaker_state()), (0, Some(Phase::HalfOpen)));
}
