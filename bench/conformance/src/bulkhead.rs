//! Limits of concurrency. Two slots each; ours and tower's have a line, tower-resilience's a wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use mamparo_call::policy::{BulkheadPolicy, GuardError};
use mamparo_core::call::bulkhead::BulkheadConfig;
use tokio::time::{sleep, timeout};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::util::BoxCloneSyncService;
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};
use tower_resilience::bulkhead::{BulkheadLayer, BulkheadServiceError};

use crate::calls::{
    Boxed, Down, Inner, Said, caught, dropped_after, good, good_after, hanging, panicking, run,
};
use crate::verdict::{Row, Table, Verdict};

const SLOTS: u32 = 2;
const SHORT: Duration = Duration::from_millis(20);

/// A bulkhead, whoever made it.
trait Bulkhead {
    fn call(&self, inner: Inner) -> Boxed<Said>;
}

struct Subject {
    name: &'static str,
    paused: bool,
    make: fn() -> Box<dyn Bulkhead>,
}

type Judge = fn(&Subject) -> Verdict;

const CASES: &[(&str, Judge)] = &[
    ("C17: never more than the limit at once", peak),
    ("C15: 20 dropped calls leave all slots free", after_drops),
    ("C20: 20 panics leave all slots free", after_panics),
    ("C16: a waiter that has given up takes no slot", after_giving_up),
    ("C18: a slot is free when its call is ready, not when its future is dropped", when_ready),
    ("a clone that was ready and is not called keeps no slot", ready_clone),
];

pub(crate) fn table() -> Table {
    let subjects = [
        Subject { name: "ours", paused: true, make: ours },
        Subject { name: "tower-resilience", paused: true, make: tower_resilience },
        Subject { name: "tower", paused: true, make: tower },
    ];
    let rows = CASES
        .iter()
        .map(|(case, judge)| Row { case, verdicts: subjects.iter().map(judge).collect() });
    let rows = rows.collect();
    Table { about: "bulkhead", subjects: subjects.iter().map(|s| s.name).collect(), rows }
}

impl Bulkhead for BulkheadPolicy {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let policy = self.clone();
        Box::pin(async move {
            match policy.call(inner).await {
                Ok(()) => Said::Value,
                Err(GuardError::Refused(_)) => Said::Refused,
                Err(_) => Said::Failure,
            }
        })
    }
}

fn ours() -> Box<dyn Bulkhead> {
    let config = BulkheadConfig { limit: SLOTS, queue: 100, ..BulkheadConfig::default() };
    Box::new(BulkheadPolicy::new(config))
}

struct Resilient(BoxCloneSyncService<Inner, (), BulkheadServiceError<Down>>);

impl Bulkhead for Resilient {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let service = self.0.clone();
        Box::pin(async move {
            match service.oneshot(inner).await {
                Ok(()) => Said::Value,
                Err(error) if error.is_bulkhead() => Said::Refused,
                Err(_) => Said::Failure,
            }
        })
    }
}

fn tower_resilience() -> Box<dyn Bulkhead> {
    let layer = BulkheadLayer::builder().max_concurrent_calls(SLOTS as usize).build();
    let service = layer.expect("sound values").layer(service_fn(|inner: Inner| inner));
    Box::new(Resilient(BoxCloneSyncService::new(service)))
}

struct Tower(BoxCloneSyncService<Inner, (), Down>);

impl Bulkhead for Tower {
    fn call(&self, inner: Inner) -> Boxed<Said> {
        let service = self.0.clone();
        Box::pin(
            async move { service.oneshot(inner).await.map_or(Said::Failure, |()| Said::Value) },
        )
    }
}

fn tower() -> Box<dyn Bulkhead> {
    let layer = GlobalConcurrencyLimitLayer::new(SLOTS as usize);
    Box::new(Tower(BoxCloneSyncService::new(layer.layer(service_fn(|inner: Inner| inner)))))
}

/// Are all slots free, seen from outside: do as many calls as there are slots run at once?
async fn all_free(bulkhead: &dyn Bulkhead) -> Verdict {
    let calls = join_all((0..SLOTS).map(|_| bulkhead.call(good_after(SHORT))));
    let free = timeout(SHORT * 3 / 2, calls).await;
    let free = free.is_ok_and(|said| said.iter().all(|said| *said == Said::Value));
    Verdict::when(free, if free { "" } else { "slots are lost" })
}

fn peak(subject: &Subject) -> Verdict {
    run(subject.paused, async {
        let bulkhead = (subject.make)();
        let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let call = || {
            let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
            let inner = Inner::new(async move {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(SHORT).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            });
            bulkhead.call(inner)
        };
        join_all((0..50).map(|_| call())).await;
        let most = most.load(Ordering::SeqCst);
        Verdict::when(most == SLOTS, format_args!("{most} at once"))
    })
}

fn after_drops(subject: &Subject) -> Verdict {
    run(subject.paused, async {
        let bulkhead = (subject.make)();
        for _ in 0..20 {
            dropped_after(bulkhead.call(hanging()), SHORT).await;
        }
        all_free(&*bulkhead).await
    })
}

fn after_panics(subject: &Subject) -> Verdict {
    run(subject.paused, async {
        let bulkhead = (subject.make)();
        for _ in 0..20 {
            caught(bulkhead.call(panicking())).await;
        }
        all_free(&*bulkhead).await
    })
}

fn after_giving_up(subject: &Subject) -> Verdict {
    run(subject.paused, async {
        let bulkhead = (subject.make)();
        let holders = join_all((0..SLOTS).map(|_| bulkhead.call(good_after(SHORT * 2))));
        let waiters = join_all((0..20).map(|_| dropped_after(bulkhead.call(good()), SHORT)));
        futures_util::future::join(holders, waiters).await;
        all_free(&*bulkhead).await
    })
}

fn when_ready(subject: &Subject) -> Verdict {
    run(subject.paused, async {
        let bulkhead = (subject.make)();
        // Ready, looked at through a reference, and still held.
        let mut held: Vec<_> = (0..SLOTS).map(|_| bulkhead.call(good())).collect();
        for call in &mut held {
            call.await;
        }
        let verdict = all_free(&*bulkhead).await;
        drop(held);
        verdict
    })
}

/// Only tower and its layers know readiness.
fn ready_clone(subject: &Subject) -> Verdict {
    let service =
        |slots| GlobalConcurrencyLimitLayer::new(slots).layer(service_fn(|inner: Inner| inner));
    run(subject.paused, async {
        match subject.name {
            "tower" => {
                let mut service = service(1);
                let mut idle = service.clone();
                idle.ready().await.ok();
                let blocked = service.ready().now_or_never().is_none();
                Verdict::when(
                    !blocked,
                    if blocked { "the idle clone blocks the other" } else { "" },
                )
                .never_promised()
            }
            "tower-resilience" => {
                let layer = BulkheadLayer::builder().max_concurrent_calls(1).build();
                let mut service =
                    layer.expect("sound values").layer(service_fn(|inner: Inner| inner));
                let mut idle = service.clone();
                idle.ready().await.ok();
                let ready = service.ready().now_or_never().is_some();
                let called = ready && service.call(good()).await.is_ok();
                Verdict::when(called, "").never_promised()
            }
            _ => {
                let config = BulkheadConfig { limit: 1, ..BulkheadConfig::default() };
                let layer = mamparo_call::tower::BulkheadLayer::new(BulkheadPolicy::new(config));
                let mut service = layer.layer(service_fn(|inner: Inner| inner));
                let mut idle = service.clone();
                idle.ready().await.ok();
                let ready = service.ready().now_or_never().is_some();
                let called = ready && service.call(good()).await.is_ok();
                Verdict::when(called, if called { "" } else { "the idle clone blocks the other" })
            }
        }
    })
}
