//! One call through all policies, on a paused clock.

#![expect(clippy::wildcard_enum_match_arm, reason = "any other variant ends the test")]

mod support;

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::{
    Attempt, CallError, Classify, Context, Dependency, Failure, Repeatable, clock, retry_in_process,
};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Phase};
use mamparo_core::call::pipeline::{self, GiveUp, Misfit, Refusal};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::outcome::{Kind, Repeat, Sent, failure_of_status};
use support::{Answer, Broken, catalog, millis, touchy};

#[tokio::test(start_paused = true)]
async fn it_fails_twice_and_then_answers() {
    let catalog = catalog().build().expect("sound");
    let answer = catalog
        .call(Repeatable::Idempotent, |attempt| async move {
            if attempt.number < 3 { Err(Broken(Failure::TRANSIENT)) } else { Ok(attempt.number) }
        })
        .await;
    assert_eq!(answer.expect("the third works"), 3);
    let seen = catalog.snapshot();
    assert_eq!((seen.calls, seen.succeeded, seen.attempts, seen.retries), (1, 1, 3, 2));
    assert_eq!(seen.in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_an_unsafe_operation_is_not_repeated() {
    let catalog = catalog().build().expect("sound");
    let before = clock::now();
    let answer: Answer<()> = catalog.call(Repeatable::Unsafe, |_| pending()).await;
    match answer.expect_err("no answer") {
        CallError::TimedOut { after, attempts, gave_up, .. } => {
            assert_eq!((after, attempts, gave_up), (millis(700), 1, GiveUp::MayHaveRun));
        }
        other => panic!("{other:?}"),
    }
    assert!(clock::now().since(before) < millis(705));
}

/// What instances of a service do: the same history at the same time, and no trial in step.
#[tokio::test(start_paused = true)]
async fn instances_whose_circuits_open_together_try_apart() {
    let mut open_times = Vec::new();
    for _ in 0..8 {
        let config = BreakerConfig { open_jitter: 0.5, ..touchy(1) };
        let catalog = catalog().breaker(config).retry(1, Backoff::default()).build();
        let catalog = catalog.expect("sound");
        let fails = |_: Attempt| async { Err::<(), _>(Broken(Failure::TRANSIENT)) };
        catalog.call(Repeatable::Idempotent, fails).await.expect_err("down");
        let CallError::Refused { retry_after, .. } =
            catalog.call(Repeatable::Idempotent, fails).await.expect_err("open")
        else {
            panic!("an open circuit refuses");
        };
        open_times.push(retry_after.expect("known"));
    }
    open_times.sort_unstable();
    assert!(open_times.windows(2).all(|two| two[0] < two[1]), "{open_times:?}");
}

#[tokio::test(start_paused = true)]
async fn policies_c24_the_callers_deadline_ends_attempts_and_waits() {
    let catalog = catalog().retry(100, Backoff::default()).build().expect("sound");
    let started = Mutex::new(Vec::new());
    let deadline = clock::now().plus(millis(3_000));
    let answer: Answer<()> = Context::default()
        .with_deadline(deadline)
        .scope(catalog.call(Repeatable::Idempotent, |attempt| {
            started.lock().unwrap().push(attempt.started);
            assert!(attempt.deadline.is_some_and(|until| until <= deadline));
            async { Err(Broken(Failure::TRANSIENT)) }
        }))
        .await;
    match answer.expect_err("it never works") {
        CallError::Failed { gave_up, .. } => assert_eq!(gave_up, GiveUp::DeadlineTooNear),
        other => panic!("{other:?}"),
    }
    assert!(clock::now() < deadline);
    assert!(started.lock().unwrap().iter().all(|moment| *moment < deadline));
}

#[tokio::test(start_paused = true)]
async fn ten_milliseconds_left_are_refused_before_any_attempt() {
    let catalog = catalog().build().expect("sound");
    let answer: Answer<()> = Context::default()
        .with_budget(clock::now(), millis(10))
        .scope(catalog.call(Repeatable::Idempotent, |_| async { panic!("called") }))
        .await;
    let error = answer.expect_err("too late");
    assert_eq!(error.attempts(), 0);
    assert!(matches!(error, CallError::Refused { reason: Refusal::DeadlineExceeded, .. }));
    assert_eq!(catalog.snapshot().refused_by(Refusal::DeadlineExceeded), 1);
}

#[tokio::test(start_paused = true)]
async fn deadlines_shrink_through_nested_calls() {
    let outer = Dependency::builder("orders").attempt_timeout(millis(2_000)).build().expect("ok");
    let inner = catalog().build().expect("sound");
    let answer: Answer<Duration> = Context::default()
        .with_budget(clock::now(), millis(3_000))
        .scope(outer.call(Repeatable::Idempotent, |attempt| {
            // The closure itself is inside the attempt's context too.
            assert_eq!(Context::current_deadline(), attempt.deadline);
            let inner = inner.clone();
            async move {
                clock::sleep_until(clock::now().plus(millis(1_500))).await;
                let nested: Answer<Duration> = inner
                    .call(Repeatable::Idempotent, |_| async {
                        Ok(Context::current().left(clock::now()).unwrap_or_default())
                    })
                    .await;
                nested.map_err(|_| Broken(Failure::PERMANENT))
            }
        }))
        .await;
    // 2 s of the outer attempt, less 1.5 s: shorter than the inner timeout of 700 ms.
    let left = answer.expect("it answers");
    assert!(left <= millis(500) && left > millis(490), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn lesson_h09_an_open_circuit_is_an_error_of_its_own_that_nobody_retries() {
    let catalog = catalog().breaker(touchy(1)).build().expect("sound");
    let answer: Answer<()> =
        catalog.call(Repeatable::Idempotent, |_| async { Err(Broken(Failure::TRANSIENT)) }).await;
    match answer.expect_err("it fails") {
        CallError::Failed { attempts, gave_up, failure, .. } => {
            assert_eq!((attempts, gave_up), (1, GiveUp::CircuitOpen), "the loop ends at once");
            assert_eq!(failure.retry_after, Some(Duration::from_secs(30)));
        }
        other => panic!("{other:?}"),
    }
    tokio::time::advance(millis(10_000)).await;
    let answer: Answer<()> =
        catalog.call(Repeatable::Idempotent, |_| async { panic!("called") }).await;
    let error = answer.expect_err("open");
    assert!(matches!(error, CallError::Refused { reason: Refusal::CircuitOpen, attempts: 0, .. }));
    let left = error.retry_after().expect("it says when");
    assert!(left <= Duration::from_secs(20) && left > Duration::from_secs(19), "{left:?}");
    let says = error.classify();
    assert_eq!((says.kind, says.repeat), (Kind::Neutral, Repeat::Never));
    assert_eq!(error.to_string(), "call catalog: refused (circuit-open), again in 20s");
}

/// "It was refused" is a proof for the attempt that was refused, and for no other.
#[tokio::test(start_paused = true)]
async fn a_refused_connection_does_not_hide_that_an_earlier_attempt_may_have_run() {
    let psp = catalog().retry(2, Backoff::default()).build().expect("sound");
    let charge = |attempt: Attempt| async move {
        if attempt.number == 1 { pending().await } else { Err(Broken(Failure::NOT_SENT)) }
    };
    let answer: Answer<()> = psp.call(Repeatable::Keyed, charge).await;
    let error = answer.expect_err("no attempt worked");
    let CallError::Failed { failure, .. } = &error else { panic!("{error:?}") };
    assert_eq!((failure.kind, failure.sent), (Kind::Unknown, Sent::Maybe));
    assert_eq!((error.classify().kind, error.classify().sent), (Kind::Unknown, Sent::Maybe));
    assert_eq!(error.cause(), Some(&Broken(Failure::NOT_SENT)), "the last cause is kept");
}

#[tokio::test(start_paused = true)]
async fn retries_stay_in_one_layer_and_a_500_is_no_final_no() {
    for (status, permanent) in [(503, false), (500, false), (404, true)] {
        let catalog = catalog().build().expect("sound");
        let failure = failure_of_status(status, None);
        let answer: Answer<()> =
            catalog.call(Repeatable::Keyed, |_| async move { Err(Broken(failure)) }).await;
        let error = answer.expect_err("no attempt works");
        assert_eq!(error.classify().repeat, Repeat::Never, "an outer layer asks once: {status}");
        assert_eq!(error.is_permanent(), permanent, "{status}");
    }
}

#[test]
fn a_chain_of_causes_says_nothing_twice() {
    let source = Misfit { phase: pipeline::Phase::New, event: pipeline::Event::WaitOver };
    let error: CallError<Broken> =
        CallError::Misfit { dependency: Arc::from("catalog"), source, attempts: 0 };
    let cause = std::error::Error::source(&error).expect("it has one").to_string();
    assert!(!error.to_string().contains(&cause), "{error} / {cause}");
}

#[tokio::test(start_paused = true)]
async fn a_probes_change_happens_when_it_ends() {
    let seen = Arc::new(Mutex::new(None));
    let hook = Arc::clone(&seen);
    let catalog = catalog()
        .breaker(touchy(1))
        .on_change(move |change| *hook.lock().unwrap() = Some((change.to, change.at)))
        .build()
        .expect("sound");
    let failing: Answer<()> =
        catalog.call(Repeatable::Unsafe, |_| async { Err(Broken(Failure::TRANSIENT)) }).await;
    failing.expect_err("it opens");
    tokio::time::advance(Duration::from_secs(30)).await;
    let probe = |_| async {
        tokio::time::sleep(millis(500)).await;
        Ok::<_, Broken>(())
    };
    catalog.call(Repeatable::Unsafe, probe).await.expect("the probe works");
    assert_eq!(*seen.lock().unwrap(), Some((Phase::Closed, clock::now())));
}

#[tokio::test(start_paused = true)]
async fn a_hook_sees_each_change_once() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let hook = Arc::clone(&seen);
    let catalog = catalog()
        .breaker(touchy(1))
        .on_change(move |change| hook.lock().unwrap().push((change.from, change.to)))
        .build()
        .expect("sound");
    let call = |fails: bool| {
        catalog.call(Repeatable::Idempotent, move |_| async move {
            if fails { Err(Broken(Failure::TRANSIENT)) } else { Ok(()) }
        })
    };
    call(true).await.expect_err("it opens");
    call(true).await.expect_err("it is open");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(catalog.breaker_state(), Some(Phase::HalfOpen));
    call(false).await.expect("the probe works");
    assert_eq!(
        *seen.lock().unwrap(),
        [
            (Phase::Closed, Phase::Open),
            (Phase::Open, Phase::HalfOpen),
            (Phase::HalfOpen, Phase::Closed)
        ]
    );
    assert_eq!(catalog.snapshot().openings, 1);
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_names_the_time() {
    let limit = RateLimitConfig::new(2, Duration::from_secs(60));
    let catalog = catalog().rate_limit(limit).build().expect("sound");
    let call = || catalog.call(Repeatable::Idempotent, |_| async { Ok::<_, Broken>(()) });
    call().await.expect("first");
    call().await.expect("second");
    let error = call().await.expect_err("third");
    assert!(matches!(error, CallError::Refused { reason: Refusal::RateLimited, .. }));
    assert!(error.retry_after().is_some_and(|after| after > Duration::from_secs(29)));
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_the_dependency_lengthens_the_wait() {
    let catalog = catalog().build().expect("sound");
    let before = clock::now();
    let answer = catalog
        .call(Repeatable::Idempotent, |attempt| async move {
            if attempt.number == 1 {
                Err(Broken(Failure::TRANSIENT.with_retry_after(Some(millis(5_000)))))
            } else {
                Ok(())
            }
        })
        .await;
    answer.expect("the second works");
    let waited = clock::now().since(before);
    assert!(waited >= millis(5_000) && waited < millis(5_010), "{waited:?}");
}

#[test]
fn building_reports_every_mistake() {
    let error = catalog()
        .attempt_timeout(Duration::from_secs(2))
        .budget(Duration::from_secs(3))
        .breaker(BreakerConfig { probes: 0, ..BreakerConfig::default() })
        .bulkhead(0, 0)
        .build()
        .expect_err("three mistakes");
    assert_eq!(error.mistakes.len(), 3);
    let text = error.to_string();
    assert!(text.contains("3 × 2s + 300ms of waits = 6.3s does not fit 3s"), "{text}");
    assert!(text.contains("breaker.probes") && text.contains("bulkhead.limit"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_deadlock_repeats_the_whole_transaction_three_times_at_most() {
    let runs = AtomicU32::new(0);
    let run = |failure: Failure, works_at: u32| {
        runs.store(0, Ordering::Relaxed);
        let runs = &runs;
        retry_in_process("order.cancel", Retry::TRANSACTION, move |attempt| async move {
            runs.fetch_add(1, Ordering::Relaxed);
            if attempt < works_at { Err(Broken(failure)) } else { Ok(attempt) }
        })
    };
    let before = clock::now();
    assert_eq!(run(Failure::TRANSIENT, 3).await, Ok(3));
    assert!(clock::now().since(before) <= millis(155));
    run(Failure::TRANSIENT, 9).await.expect_err("three attempts are all");
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    run(Failure::UNKNOWN, 2).await.expect_err("it may have committed");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
