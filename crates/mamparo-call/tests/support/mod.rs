//! What the tests of this crate share: an error that can be anything, and a dependency to call.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use mamparo_call::{CallError, Classify, Dependency, DependencyBuilder, Failure};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Trip};

/// An error that says of itself what it is told to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it failed")]
pub struct Broken(pub Failure);

impl Classify for Broken {
    fn classify(&self) -> Failure {
        self.0
    }
}

pub type Answer<T> = Result<T, CallError<Broken>>;

pub fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// 700 ms, 3 attempts, no further policy.
pub fn catalog() -> DependencyBuilder {
    Dependency::builder("catalog")
        .service("orders")
        .attempt_timeout(millis(700))
        .retry(3, Backoff::default())
}

/// Opens at the first failure.
pub fn touchy(probes: u32) -> BreakerConfig {
    BreakerConfig {
        trip: Trip::Failures { failures: 1, window: Duration::from_secs(10) },
        probes,
        ..BreakerConfig::default()
    }
}

/// The call, or its panic.
pub async fn caught<T>(call: AssertUnwindSafe<impl Future<Output = T>>) -> std::thread::Result<T> {
    let mut call = pin!(call.0);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// What all of them answer, each polled in turn.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|it| (Box::pin(it), None)).collect();
    poll_fn(|cx| {
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                *output = Some(value);
            }
        }
        let over = running.iter().all(|(_, output)| output.is_some());
        if over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}
