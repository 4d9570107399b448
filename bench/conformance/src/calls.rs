//! The calls that cases make, and how they are run.

use std::fmt;
use std::future::{Future, pending};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use mamparo_call::{Classify, Failure};

/// A future that can be handed to any policy.
pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A call, before it meets its policy.
pub(crate) struct Inner(Boxed<Result<(), Down>>);

impl Inner {
    pub(crate) fn new(call: impl Future<Output = Result<(), Down>> + Send + 'static) -> Self {
        Self(Box::pin(call))
    }
}

impl Future for Inner {
    type Output = Result<(), Down>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

/// The failure of the dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("down")
    }
}

impl std::error::Error for Down {}

impl Classify for Down {
    fn classify(&self) -> Failure {
        Failure::TRANSIENT
    }
}

/// What a policy said to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The call's value.
    Value,
    /// The call's own failure.
    Failure,
    /// The call was not made.
    Refused,
    /// The call panicked, and the panic came through.
    Panicked,
}

/// Counts the calls that reach the dependency.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reached(Arc<AtomicU32>);

impl Reached {
    /// So many.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// A call that is counted when it begins, takes its time and succeeds.
    pub(crate) fn call(&self, takes: Duration) -> Inner {
        let reached = self.clone();
        Inner::new(async move {
            reached.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(takes).await;
            Ok(())
        })
    }
}

/// A call that succeeds after some time.
pub(crate) fn good_after(takes: Duration) -> Inner {
    Reached::default().call(takes)
}

/// A call that fails after some time.
pub(crate) fn bad_after(takes: Duration) -> Inner {
    Inner::new(async move {
        tokio::time::sleep(takes).await;
        Err(Down)
    })
}

/// A call that succeeds at once.
pub(crate) fn good() -> Inner {
    Inner::new(async { Ok(()) })
}

/// A call that fails at once.
pub(crate) fn bad() -> Inner {
    Inner::new(async { Err(Down) })
}

/// A call that panics at once.
pub(crate) fn panicking() -> Inner {
    Inner::new(async { panic!("on purpose") })
}

/// A call that never ends.
pub(crate) fn hanging() -> Inner {
    Inner::new(pending())
}

/// What comes of `call`, a panic included.
pub(crate) async fn caught(call: Boxed<Said>) -> Said {
    AssertUnwindSafe(call).catch_unwind().await.unwrap_or(Said::Panicked)
}

/// Polls `call` for a while and drops it.
pub(crate) async fn dropped_after(call: Boxed<Said>, time: Duration) {
    tokio::time::timeout(time, call).await.ok();
}

/// Runs a case: on a paused clock, which runs ahead whenever everybody waits, or on the real one.
pub(crate) fn run<T>(paused: bool, case: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(paused).build();
    runtime.expect("a runtime of one thread needs no more than this process").block_on(case)
}

/// What `work` gives, or `None` when it panicked.
pub(crate) fn without_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).ok()
}
