//! What a dependency that is down gets, and what its answers say about the timeout: on a paused clock.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_call::{CallError, Dependency, Failure, Repeatable, clock};
use mamparo_core::call::latency::NoAdvice;
use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use support::{Broken, millis};

fn layer(budget: Option<RetryBudgetConfig>) -> Dependency {
    let plan = Plan { retry: Retry::default(), retry_budget: budget, ..Plan::new("below") };
    Dependency::from_plan(plan).expect("sound")
}

/// One call through all of `layers`, each in front of the next, the last in front of a dead end.
async fn call(layers: &[Dependency], reached: &AtomicU64) -> Result<(), CallError<Broken>> {
    let Some((layer, below)) = layers.split_first() else { return Ok(()) };
    layer
        .call(Repeatable::Idempotent, async |_| {
            if below.is_empty() {
                reached.fetch_add(1, Ordering::Relaxed);
            } else if Box::pin(call(below, reached)).await.is_ok() {
                return Ok(());
            }
            // What a service answers whose own dependency is down: 503.
            Err(Broken(Failure::TRANSIENT))
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn three_layers_of_three_attempts_make_27_calls_of_one_and_with_budgets_a_third_more() {
    let reached = AtomicU64::new(0);
    let unbounded = [layer(None), layer(None), layer(None)];
    call(&unbounded, &reached).await.expect_err("a dead end");
    assert_eq!(reached.swap(0, Ordering::Relaxed), 27);

    let tenth = Some(RetryBudgetConfig { ratio: 0.1, reserve: 20 });
    let bounded = [layer(tenth), layer(tenth), layer(tenth)];
    // The reserves are spent first, once.
    for _ in 0..200 {
        call(&bounded, &reached).await.expect_err("a dead end");
    }
    reached.store(0, Ordering::Relaxed);
    let calls = 1_000;
    for _ in 0..calls {
        call(&bounded, &reached).await.expect_err("a dead end");
    }
    let reached = reached.load(Ordering::Relaxed);
    // 1.1³, and less than one token that each layer may have carried over.
    assert!(reached * 1_000 <= calls * 1_331 + 4_000, "{reached}");
}

#[tokio::test(start_paused = true)]
async fn policies_c30_the_default_budget_is_wired_and_full_again_when_all_is_well() {
    let down = layer(Some(RetryBudgetConfig::default()));
    let fails = async |_| Err::<(), _>(Broken(Failure::TRANSIENT));
    for calls in 1..=1_000 {
        let error = down.call(Repeatable::Idempotent, fails).await.expect_err("it is down");
        let seen = down.snapshot();
        assert!(seen.retries <= calls / 5 + 20, "{} retries of {calls} calls", seen.retries);
        let CallError::Failed { gave_up, .. } = error else { panic!("{error:?}") };
        assert!(matches!(gave_up, GiveUp::AttemptsSpent | GiveUp::BudgetSpent), "{gave_up:?}");
    }
    let before = down.snapshot().retries;
    for _ in 0..100 {
        down.call(Repeatable::Idempotent, async |_| Ok::<_, Broken>(())).await.expect("it is up");
    }
    for _ in 0..10 {
        let error = down.call(Repeatable::Idempotent, fails).await.expect_err("down again");
        let CallError::Failed { gave_up, .. } = error else { panic!("{error:?}") };
        assert_eq!(gave_up, GiveUp::AttemptsSpent, "there is a token for each retry");
    }
    assert_eq!(down.snapshot().retries - before, 20);
}

/// A token that was taken for a retry comes back when the caller leaves while it waits.
#[tokio::test(start_paused = true)]
async fn policies_c32_a_caller_that_leaves_while_it_waits_gives_its_token_back() {
    let down = layer(Some(RetryBudgetConfig { ratio: 0.0, reserve: 1 }));
    for _ in 0..3 {
        let call = down.call(Repeatable::Idempotent, async |_| {
            Err::<(), _>(Broken(Failure::TRANSIENT.with_retry_after(Some(millis(1_000)))))
        });
        let left = tokio::time::timeout(millis(500), call).await;
        assert!(left.is_err(), "it was waiting, not refused");
    }
    assert_eq!(down.snapshot().retries, 0);
}

/// Envoy counted a retry only once it was sent: while a thousand waited, each found the budget free.
#[tokio::test(start_paused = true)]
async fn policies_c32_retries_that_wait_hold_their_tokens_against_all_others() {
    let down = layer(Some(RetryBudgetConfig { ratio: 0.0, reserve: 3 }));
    let sent = AtomicU64::new(0);
    let calls = (0..100).map(|_| {
        down.call(Repeatable::Idempotent, async |_| {
            sent.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>(Broken(Failure::TRANSIENT.with_retry_after(Some(millis(1_000)))))
        })
    });
    let began = clock::now();
    let answers = support::all(calls).await;
    let spent = |answer: &Result<(), CallError<Broken>>| {
        matches!(answer, Err(CallError::Failed { gave_up: GiveUp::BudgetSpent, .. }))
    };
    assert_eq!(sent.load(Ordering::Relaxed), 103, "three tokens, three retries");
    assert!(answers.iter().all(spent), "none is left for anybody's next one");
    assert!(clock::now().since(began) >= millis(1_000), "three did wait");
    let seen = down.snapshot();
    assert_eq!((seen.retries, seen.gave_up, seen.in_flight), (3, 100, 0));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_proposed_from_the_answers_that_came() {
    let window = Some(Duration::from_secs(120));
    let catalog = Dependency::from_plan(Plan { latency: window, ..Plan::new("catalog") });
    let catalog = catalog.expect("sound");
    let few = catalog.timeout_advice().expect("latency is observed");
    assert_eq!(few, Err(NoAdvice::TooFewSamples { samples: 0, needed: 1_000 }));
    for _ in 0..1_000 {
        let answer = catalog.call(Repeatable::Idempotent, async |_| {
            clock::sleep_until(clock::now().plus(millis(40))).await;
            Ok::<_, Broken>(())
        });
        answer.await.expect("it answers");
    }
    let advice = catalog.timeout_advice().expect("latency is observed").expect("enough");
    assert!((millis(43)..=millis(47)).contains(&advice.timeout), "{advice}");
    assert_eq!(layer(None).timeout_advice(), None);
}
