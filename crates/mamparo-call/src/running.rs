//! The operation's own code, which may read its deadline and may panic.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::{Attempt, context};

/// Runs code of the attempt: noted as such, and with the attempt's deadline as the current one.
#[inline]
pub(crate) fn within<T>(running: &mut u32, attempt: &Attempt, work: impl FnOnce() -> T) -> T {
    *running = attempt.number;
    let done = context::with_deadline(attempt.deadline, work);
    *running = 0;
    done
}

pin_project! {
    /// One attempt. The operation is called by the first poll: like the future that it gives, it runs
    /// in the attempt's context and may read what is left of the time.
    pub(crate) struct Running<'a, F, Fut> {
        running: &'a mut u32,
        attempt: &'a Attempt,
        operation: &'a mut F,
        #[pin]
        future: Option<Fut>,
    }
}

impl<'a, F, Fut> Running<'a, F, Fut> {
    #[inline]
    pub(crate) const fn new(
        running: &'a mut u32,
        attempt: &'a Attempt,
        operation: &'a mut F,
    ) -> Self {
        Self { running, attempt, operation, future: None }
    }
}

impl<F, Fut> Future for Running<'_, F, Fut>
where
    F: FnMut(Attempt) -> Fut,
    Fut: Future,
{
    type Output = Fut::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fut::Output> {
        let mut this = self.project();
        let (attempt, operation) = (*this.attempt, this.operation);
        within(this.running, attempt, || {
            if this.future.is_none() {
                this.future.set(Some(operation(*attempt)));
            }
            this.future.as_pin_mut().map_or(Poll::Pending, |future| future.poll(cx))
        })
    }
}
