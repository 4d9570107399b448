//! What everything is built from: the bare call, locks, clocks, tokio's primitives.

use std::convert::Infallible;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use super::{LONG, SLOTS};
use crate::case::{Case, Expect, shared};
use crate::work::{Down, answer, answer_later};
use crate::{clock, work};

type Answer = Result<u64, Down>;

pub(super) fn cases() -> Vec<Case> {
    let value = Expect::Value;
    let counter = shared(AtomicU64::new(0));
    let lock = shared(std::sync::Mutex::new(0_u64));
    let async_lock = shared(tokio::sync::Mutex::new(0_u64));
    let semaphore = shared(Semaphore::new(SLOTS));
    vec![
        Case::calls("base.bare", value, answer),
        Case::calls("base.bare.yield", value, answer_later),
        Case::calls("base.bare.error", Expect::Error, work::no),
        Case::calls("base.boxed", value, |n| {
            let boxed: Pin<Box<dyn Future<Output = Answer> + Send>> = Box::pin(answer(n));
            boxed
        }),
        Case::service("base.service", value, ::tower::service_fn(answer)),
        Case::calls("std.instant", value, move |_| async move { sure(black_box(clock::now())) }),
        Case::calls("std.fetch_add", value, move |n| async move {
            sure(counter.fetch_add(n, Ordering::AcqRel))
        }),
        Case::calls("std.mutex", value, move |n| async move {
            lock.lock()
                .map(|mut value| {
                    *value = value.wrapping_add(n);
                    *value
                })
                .map_err(drop)
        }),
        Case::calls("tokio.mutex", value, move |n| async move {
            let mut value = async_lock.lock().await;
            *value = value.wrapping_add(n);
            sure(*value)
        }),
        Case::calls("tokio.semaphore.acquire", value, move |n| async move {
            let permit = semaphore.acquire().await.map_err(|_| Down)?;
            let answer = answer(n).await;
            drop(permit);
            answer
        }),
        Case::calls("tokio.semaphore.try_acquire", value, move |n| async move {
            let permit = semaphore.try_acquire().map_err(|_| Down)?;
            let answer = answer(n).await;
            drop(permit);
            answer
        }),
        Case::calls("tokio.timeout", value, |n| tokio::time::timeout(LONG, answer(n))),
        Case::calls("tokio.timeout.yield", value, |n| tokio::time::timeout(LONG, answer_later(n))),
    ]
}

/// A value of a call that can't fail.
const fn sure<T>(value: T) -> Result<T, Infallible> {
    Ok(value)
}
