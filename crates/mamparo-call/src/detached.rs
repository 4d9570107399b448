//! Attempts that go on when nobody waits for them any more.
//!
//! An attempt that is cut off is dropped, and with it the work. Some work must not stop half-way
//! (a charge that is on its way, a file that is half written): it is *detached* and goes on in the
//! background to its end, named and counted. Its outcome is told to the metrics only: the call has
//! ended, and its verdict on the dependency has been given.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{self, Poll};

use crate::gate::Gate;
use crate::{Classify, Context, observe};

/// Work for a spawner.
pub type BackgroundWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Who runs what goes on in the background: [`crate::DependencyBuilder::detached`].
pub(crate) type Spawner = Arc<dyn Fn(BackgroundWork) + Send + Sync>;

/// The background of one dependency.
pub(crate) struct Background {
    spawner: Spawner,
    max: u32,
    running: AtomicU32,
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").field("running", &self.running()).finish_non_exhaustive()
    }
}

impl Background {
    pub(crate) const fn new(spawner: Spawner, max: u32) -> Self {
        Self { spawner, max, running: AtomicU32::new(0) }
    }

    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    /// Takes a place; false when all are taken.
    fn enter(&self) -> bool {
        let more = |running: u32| (running < self.max).then_some(running + 1);
        self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn leave(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An attempt that is detached when it is dropped before its end.
pub(crate) struct Detachable<T, E, Fut>
where
    T: Send + 'static,
    E: Classify + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    gate: Arc<Gate>,
    context: Context,
    /// Gone when it has ended, or has panicked.
    attempt: Option<Pin<Box<Fut>>>,
    begun: bool,
}

impl<T, E, Fut> Detachable<T, E, Fut>
where
    T: Send + 'static,
    E: Classify + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    pub(crate) fn new(gate: Arc<Gate>, attempt: Fut) -> Self {
        // Its deadline was the caller's, who is gone.
        let context = Context { deadline: None, ..Context::current() };
        Self { gate, context, attempt: Some(Box::pin(attempt)), begun: false }
    }
}

impl<T, E, Fut> Future for Detachable<T, E, Fut>
where
    T: Send + 'static,
    E: Classify + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        // Taken out while it runs: one that panics is not put back.
        let Some(mut attempt) = self.attempt.take() else { return Poll::Pending };
        self.begun = true;
        let poll = attempt.as_mut().poll(cx);
        if poll.is_pending() {
            self.attempt = Some(attempt);
        }
        poll
    }
}

impl<T, E, Fut> Drop for Detachable<T, E, Fut>
where
    T: Send + 'static,
    E: Classify + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take()
            && self.begun
        {
            let context = std::mem::take(&mut self.context);
            detach(&self.gate, context, attempt);
        }
    }
}

/// Lets the attempt go on in the background, if there is one and room in it.
fn detach<T, E, Fut>(gate: &Arc<Gate>, context: Context, attempt: Pin<Box<Fut>>)
where
    T: Send + 'static,
    E: Classify + Send + 'static,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
{
    let Some(background) = &gate.background else { return };
    if !background.enter() {
        return gate.observer.not_detached(&gate.plan);
    }
    gate.observer.detached(&gate.plan, background.running());
    let place = Place(Arc::clone(gate));
    let work = Box::pin(async move {
        let place = place;
        let outcome = context.scope(attempt).await;
        let failure = outcome.as_ref().err().map(Classify::classify);
        place.0.observer.detached_ended(&place.0.plan, failure);
    });
    // This runs while an attempt is dropped, perhaps by a panic: another one would end the process.
    if std::panic::catch_unwind(AssertUnwindSafe(|| (background.spawner)(work))).is_err() {
        observe::spawner_panicked(&gate.plan);
    }
}

/// A place in the background; given back however the work ends.
struct Place(Arc<Gate>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(background) = &self.0.background {
            background.leave();
            self.0.observer.show_detached(background.running());
        }
    }
}
