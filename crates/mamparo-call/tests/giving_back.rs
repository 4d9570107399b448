//! Whatever happens to a call, its slot, ticket and probe place come back.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "each set is owned by its test, which joins it; helpers of tests end the test"
)]

mod support;

use std::cell::Cell;
use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use mamparo_call::{CallError, Dependency, Failure, Repeatable};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Phase};
use mamparo_core::call::pipeline::Refusal;
use support::{Answer, Broken, catalog, millis, touchy};
use tokio::sync::{Barrier, Notify};
use tokio::task::{JoinSet, yield_now};

async fn open(dependency: &Dependency) {
    let answer: Answer<()> =
        dependency.call(Repeatable::Unsafe, |_| async { Err(Broken(Failure::TRANSIENT)) }).await;
    answer.expect_err("it fails");
    assert_eq!(dependency.breaker_state(), Some(Phase::Open));
}

#[tokio::test(start_paused = true)]
async fn policies_c03_half_open_admits_exactly_its_probes_of_a_hundred_callers() {
    for probes in [1, 2, 5] {
        let catalog = catalog().breaker(touchy(probes)).build().expect("sound");
        open(&catalog).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        let (reached, barrier) = (Arc::new(AtomicU32::new(0)), Arc::new(Barrier::new(100)));
        let mut callers = JoinSet::new();
        for _ in 0..100 {
            let (catalog, reached) = (catalog.clone(), Arc::clone(&reached));
            let barrier = Arc::clone(&barrier);
            callers.spawn(async move {
                barrier.wait().await;
                catalog
                    .call(Repeatable::Idempotent, |_| async {
                        reached.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(millis(50)).await;
                        Ok::<_, Broken>(())
                    })
                    .await
                    .is_ok()
            });
        }
        let answers = callers.join_all().await;
        assert_eq!(answers.iter().filter(|ok| **ok).count(), probes as usize);
        assert_eq!(reached.load(Ordering::Relaxed), probes);
        assert_eq!(catalog.snapshot().refused_by(Refusal::CircuitOpen), u64::from(100 - probes));
        assert_eq!(catalog.breaker_state(), Some(Phase::Closed));
    }
}

#[tokio::test(start_paused = true)]
async fn policies_c04_a_dropped_probe_gives_its_place_back_without_a_verdict() {
    let catalog = catalog().breaker(touchy(1)).build().expect("sound");
    open(&catalog).await;
    tokio::time::advance(Duration::from_secs(30)).await;
    for _ in 0..20 {
        let mut probe =
            Box::pin(catalog.call(Repeatable::Idempotent, |_| pending::<Result<(), Broken>>()));
        assert!(poll_once(&mut probe).is_pending());
        let other: Answer<()> = catalog.call(Repeatable::Idempotent, |_| async { Ok(()) }).await;
        other.expect_err("the only place is taken");
        drop(probe);
        assert_eq!(catalog.breaker_state(), Some(Phase::HalfOpen));
    }
    let answer: Answer<()> = catalog.call(Repeatable::Idempotent, |_| async { Ok(()) }).await;
    answer.expect("the place is free");
    assert_eq!(catalog.snapshot().abandoned, 20);
}

#[tokio::test(start_paused = true)]
async fn policies_c20_a_panic_counts_as_a_failure_and_every_policy_stays_usable() {
    let breaker = BreakerConfig { probes: 1, ..BreakerConfig::default() };
    let catalog = catalog().breaker(breaker).bulkhead(1, 0).build().expect("sound");
    let panicking = || {
        let catalog = catalog.clone();
        async move {
            let mut task = JoinSet::new();
            task.spawn(async move {
                let _: Answer<()> =
                    catalog.call(Repeatable::Idempotent, |_| async { panic!("a bug") }).await;
            });
            let joined = task.join_next().await.expect("one task");
            assert!(joined.expect_err("it panicked").is_panic());
        }
    };
    for _ in 0..4 {
        panicking().await;
        assert_eq!(
            (catalog.snapshot().in_flight, catalog.breaker_state()),
            (0, Some(Phase::Closed))
        );
    }
    panicking().await;
    assert_eq!(catalog.breaker_state(), Some(Phase::Open), "five panics are five failures");
    tokio::time::advance(Duration::from_secs(30)).await;
    panicking().await;
    assert_eq!(catalog.breaker_state(), Some(Phase::Open), "so is that of a probe");
    tokio::time::advance(Duration::from_secs(30)).await;
    let answer: Answer<()> = catalog.call(Repeatable::Idempotent, |_| async { Ok(()) }).await;
    answer.expect("nothing is poisoned, nothing is held");
}

#[tokio::test(start_paused = true)]
async fn policies_c20_a_panic_elsewhere_is_not_blamed_on_the_dependency() {
    let catalog = catalog().breaker(touchy(1)).build().expect("sound");
    let mut task = JoinSet::new();
    let inner = catalog.clone();
    task.spawn(async move {
        let mut call =
            Box::pin(inner.call(Repeatable::Idempotent, |_| pending::<Result<(), Broken>>()));
        assert!(poll_once(&mut call).is_pending());
        panic!("a bug of the caller");
    });
    task.join_next().await.expect("one task").expect_err("it panicked");
    assert_eq!(catalog.breaker_state(), Some(Phase::Closed));
    assert_eq!(catalog.snapshot().abandoned, 1);
}

#[tokio::test(start_paused = true)]
async fn policies_c02_a_late_success_of_an_old_generation_does_not_close() {
    let catalog = catalog().attempt_timeout(Duration::from_secs(90)).breaker(touchy(1));
    let catalog = catalog.build().expect("sound");
    let answer = Arc::new(Notify::new());
    let mut slow = JoinSet::new();
    let (inner, signal) = (catalog.clone(), Arc::clone(&answer));
    slow.spawn(async move {
        let call = inner.call(Repeatable::Idempotent, |_| async {
            signal.notified().await;
            Ok::<_, Broken>(())
        });
        call.await.is_ok()
    });
    yield_now().await;
    open(&catalog).await;
    answer.notify_one();
    assert_eq!(slow.join_all().await, [true], "the caller gets its value");
    assert_eq!(catalog.breaker_state(), Some(Phase::Open), "the circuit stays open");
}

#[tokio::test(start_paused = true)]
async fn policies_c16_waiters_that_time_out_leave_all_slots_free() {
    let catalog = catalog().bulkhead(2, 50).build().expect("sound");
    let mut callers = JoinSet::new();
    for n in 0..40_u64 {
        let catalog = catalog.clone();
        callers.spawn(async move {
            // Attempts of 20 ms, deadlines that fall upon the very moments of the grants.
            let context = mamparo_call::Context::default()
                .with_budget(mamparo_call::clock::now(), millis(30 + 20 * (n % 7)));
            let call = catalog.call(Repeatable::Idempotent, |_| async {
                tokio::time::sleep(millis(20)).await;
                Ok::<_, Broken>(())
            });
            context.scope(call).await.is_ok()
        });
    }
    let answers = callers.join_all().await;
    assert!(answers.contains(&true) && answers.contains(&false));
    let seen = catalog.snapshot();
    assert_eq!((seen.in_flight, seen.queued), (0, 0));
    let mut held: Vec<_> = (0..2)
        .map(|_| Box::pin(catalog.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>())))
        .collect();
    assert!(held.iter_mut().all(|call| poll_once(call).is_pending()));
    assert_eq!(catalog.snapshot().in_flight, 2, "both slots can be had");
}

#[tokio::test(start_paused = true)]
async fn policies_c17_the_peak_is_the_limit_and_waiters_sleep() {
    let catalog = catalog().attempt_timeout(millis(5_000)).bulkhead(3, 100);
    let catalog = catalog.build().expect("sound");
    let (now, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..60 {
        let (catalog, now, peak) = (catalog.clone(), Arc::clone(&now), Arc::clone(&peak));
        callers.spawn(async move {
            let call = catalog.call(Repeatable::Idempotent, |_| async {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Broken>(())
            });
            call.await.is_ok()
        });
    }
    assert!(callers.join_all().await.into_iter().all(|ok| ok));
    assert_eq!(peak.load(Ordering::SeqCst), 3);

    // A waiter is woken by its slot, not polled round and round.
    let catalog = support::catalog().bulkhead(1, 1).build().expect("sound");
    let mut holder =
        Box::pin(catalog.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>()));
    assert!(poll_once(&mut holder).is_pending());
    let woken = Arc::new(Woken::default());
    let mut waiter = Box::pin(catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(waiter.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    assert!(!woken.0.load(Ordering::SeqCst));
    drop(holder);
    assert!(woken.0.load(Ordering::SeqCst));
    assert!(waiter.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_ready());
}

#[tokio::test(start_paused = true)]
async fn policies_c18_a_slot_is_free_when_the_call_is_ready_not_when_it_is_dropped() {
    let catalog = catalog().bulkhead(1, 0).build().expect("sound");
    let mut first = pin!(catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }));
    assert!(poll_once(&mut first).is_ready());
    // `first` still exists.
    let second = catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }).await;
    second.expect("the slot is free");
}

#[tokio::test(start_paused = true)]
async fn lesson_h08_a_rejection_is_instant() {
    let catalog = catalog().breaker(touchy(1)).bulkhead(1, 10).build().expect("sound");
    let mut slow = Box::pin(catalog.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>()));
    assert!(poll_once(&mut slow).is_pending());
    let rejected: Answer<()> = support::catalog()
        .bulkhead(1, 0)
        .build()
        .expect("sound")
        .call(Repeatable::Unsafe, |_| async { Ok(()) })
        .await;
    rejected.expect("an empty bulkhead lets through");
    tokio::time::advance(millis(700)).await;
    assert!(poll_once(&mut slow).is_ready(), "the timeout opened the circuit");
    let before = mamparo_call::clock::now();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }).await);
    }
    assert!(held.iter().all(|answer| matches!(
        answer,
        Err(CallError::Refused { reason: Refusal::CircuitOpen, .. })
    )));
    assert_eq!(mamparo_call::clock::now(), before, "no time has passed");
}

#[tokio::test(start_paused = true)]
async fn lesson_h08_whoever_queues_is_told_as_soon_as_the_circuit_opens() {
    let catalog = catalog().attempt_timeout(Duration::from_secs(5)).breaker(touchy(1));
    let catalog = catalog.bulkhead(2, 10).build().expect("sound");
    let fail = Notify::new();
    let mut failing = Box::pin(catalog.call(Repeatable::Unsafe, |_| async {
        fail.notified().await;
        Err::<(), _>(Broken(Failure::TRANSIENT))
    }));
    let mut hanging =
        Box::pin(catalog.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>()));
    assert!(poll_once(&mut failing).is_pending() && poll_once(&mut hanging).is_pending());
    let woken: [Arc<Woken>; 3] = std::array::from_fn(|_| Arc::default());
    let mut queued: Vec<_> = (0..3)
        .map(|_| Box::pin(catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) })))
        .collect();
    for (call, woken) in queued.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(call.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    }
    fail.notify_one();
    assert!(poll_once(&mut failing).is_ready());
    // All of them, not one after the other: whoever brings the change about may hold no slot to
    // hand on.
    assert!(woken.iter().all(|woken| woken.0.load(Ordering::SeqCst)));
    for call in &mut queued {
        assert!(matches!(
            poll_once(call),
            Poll::Ready(Err(CallError::Refused {
                reason: Refusal::CircuitOpen,
                retry_after: Some(_),
                ..
            }))
        ));
    }
    drop(hanging);
    assert_eq!((catalog.snapshot().in_flight, catalog.snapshot().queued), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_leaves_takes_its_waker_along() {
    let catalog = catalog().bulkhead(1, 1).build().expect("sound");
    let mut slow = Box::pin(catalog.call(Repeatable::Unsafe, |_| pending::<Result<(), Broken>>()));
    assert!(poll_once(&mut slow).is_pending());
    let woken = Arc::new(Woken::default());
    let mut queued = Box::pin(catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(queued.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    drop((queued, waker));
    assert_eq!(Arc::strong_count(&woken), 1, "nobody keeps a task that has gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn policies_c17_four_threads_keep_the_limit_and_lose_no_waiter() {
    let catalog = Dependency::builder("catalog").bulkhead(3, 2_000).build().expect("sound");
    let (now, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..2_000 {
        let (catalog, now, peak) = (catalog.clone(), Arc::clone(&now), Arc::clone(&peak));
        callers.spawn(async move {
            let call = catalog.call(Repeatable::Idempotent, |_| async {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Broken>(())
            });
            call.await.is_ok()
        });
    }
    assert!(callers.join_all().await.into_iter().all(|ok| ok), "nobody was left in the queue");
    assert!(peak.load(Ordering::SeqCst) <= 3);
    let seen = catalog.snapshot();
    assert_eq!((seen.in_flight, seen.queued, seen.succeeded), (0, 0, 2_000));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_panics_ends_neither_the_call_nor_the_process() {
    let catalog = catalog().breaker(touchy(1)).bulkhead(1, 0).on_change(|_| panic!("a bug"));
    let catalog = catalog.build().expect("sound");
    // The worst moment: while a panicking operation unwinds.
    let mut task = JoinSet::new();
    let inner = catalog.clone();
    task.spawn(async move {
        let _: Answer<()> = inner.call(Repeatable::Unsafe, |_| async { panic!("a bug") }).await;
    });
    task.join_next().await.expect("one task").expect_err("the operation panicked");
    assert_eq!(catalog.breaker_state(), Some(Phase::Open));
    tokio::time::advance(Duration::from_secs(30)).await;
    let answer: Answer<()> = catalog.call(Repeatable::Unsafe, |_| async { Ok(()) }).await;
    answer.expect("the hook panics again, the call goes on");
}

/// Lets calls run for a number of polls, drops them there, and looks for what they left behind.
#[tokio::test(start_paused = true)]
async fn policies_c15_dropped_at_every_await_everything_comes_back() {
    for holders in [0, 1] {
        for polls in 0..14 {
            let catalog = catalog()
                .retry(4, Backoff { base: millis(1), ..Backoff::default() })
                .breaker(BreakerConfig::default())
                .bulkhead(1, 2)
                .build()
                .expect("sound");
            let release = Notify::new();
            let mut holder = Box::pin(catalog.call(Repeatable::Unsafe, |_| async {
                release.notified().await;
                Ok::<_, Broken>(())
            }));
            if holders == 1 {
                assert!(poll_once(&mut holder).is_pending());
            }
            let began = Cell::new(0);
            let mut call = Box::pin(catalog.call(Repeatable::Idempotent, |attempt| {
                began.set(attempt.number);
                async {
                    yield_now().await;
                    yield_now().await;
                    Err::<(), _>(Broken(Failure::TRANSIENT))
                }
            }));
            for poll in 0..polls {
                if poll_once(&mut call).is_ready() {
                    break;
                }
                if poll == 1 && holders == 1 {
                    // The slot is granted while the waiter is not looking.
                    release.notify_one();
                    assert!(poll_once(&mut holder).is_ready());
                }
                tokio::time::advance(millis(3)).await;
            }
            drop(call);
            drop(holder);
            let seen = catalog.snapshot();
            assert_eq!((seen.in_flight, seen.queued), (0, 0), "{holders} holders, {polls} polls");
            if polls == 13 {
                assert_eq!(began.get(), 4, "the last round goes all the way");
            }
            let next = catalog.call(Repeatable::Unsafe, |_| async { Ok::<_, Broken>(()) }).await;
            next.expect("the slot can be had");
        }
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
