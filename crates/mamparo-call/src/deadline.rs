//! A limit on a future that costs nothing until it is needed.
//!
//! Most calls answer before anybody has to wait. The future is polled first, and only when it has to
//! wait is a timer made: an answer that is ready at once touches neither tokio's timer wheel nor the
//! runtime's shared handle.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::task::coop::unconstrained;
use tokio::time::Sleep;

use crate::clock;

/// The future did not end before its limit; it has not been polled since, and is dropped with
/// the [`Deadline`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer before the deadline")]
pub struct Elapsed;

pin_project! {
    /// A future that ends at a moment at the latest.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use std::time::Duration;
    /// use mamparo_call::clock;
    /// use mamparo_call::deadline::{Deadline, Elapsed};
    ///
    /// let soon = clock::now().plus(Duration::from_millis(5));
    /// assert_eq!(Deadline::new(async { 7 }, Some(soon)).await, Ok(7));
    /// assert_eq!(Deadline::new(std::future::pending::<()>(), Some(soon)).await, Err(Elapsed));
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Deadline<F> {
        #[pin]
        future: F,
        until: Option<Moment>,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F> Deadline<F> {
    /// Lets `future` run until `until`; without a limit when that is `None`.
    pub const fn new(future: F, until: Option<Moment>) -> Self {
        Self { future, until, timer: None }
    }
}

impl<F: Future> Future for Deadline<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        match *this.until {
            Some(until) => wait(this.timer, until, cx).map(Err),
            None => Poll::Pending,
        }
    }
}

/// Polls the timer, which is made by the first wait and keeps its moment until it is set to `None`.
#[cold]
pub(crate) fn wait(
    mut timer: Pin<&mut Option<Sleep>>,
    until: Moment,
    cx: &mut Context<'_>,
) -> Poll<Elapsed> {
    if timer.is_none() {
        timer.set(Some(tokio::time::sleep_until(clock::instant_of(until))));
    }
    match timer.as_pin_mut() {
        // A future that uses up the task's cooperative budget must not starve its own limit.
        Some(timer) => Pin::new(&mut unconstrained(timer)).poll(cx).map(|()| Elapsed),
        None => Poll::Pending,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::pin::pin;
    use std::task::Waker;
    use std::time::Duration;

    use super::*;

    fn after(millis: u64) -> Option<Moment> {
        Some(clock::now().plus(Duration::from_millis(millis)))
    }

    #[test]
    fn what_is_ready_needs_no_runtime() {
        let mut limited = pin!(Deadline::new(ready(7), Some(Moment::ORIGIN)));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(limited.as_mut().poll(&mut cx), Poll::Ready(Ok(7)));
        let mut unlimited = pin!(Deadline::new(pending::<()>(), None));
        assert_eq!(unlimited.as_mut().poll(&mut cx), Poll::Pending);
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_at_the_moment_and_the_future_stays_asleep() {
        let (began, mut polls) = (clock::now(), 0);
        let counted = poll_fn(|_| {
            polls += 1;
            Poll::<()>::Pending
        });
        assert_eq!(Deadline::new(counted, after(700)).await, Err(Elapsed));
        assert_eq!(clock::now().since(began).as_millis(), 700);
        assert_eq!(polls, 2, "once at the start, once more when the timer woke the task");
        assert_eq!(Deadline::new(pending::<()>(), Some(began)).await, Err(Elapsed), "long past");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_at_the_last_moment_counts() {
        let until = after(700);
        let answer = async {
            clock::sleep_until(until.unwrap_or_default()).await;
            7
        };
        assert_eq!(Deadline::new(answer, until).await, Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_never_yields_its_budget_is_still_cut_off() {
        let exhaust = || {
            poll_fn(|cx| {
                while let Poll::Ready(progress) = tokio::task::coop::poll_proceed(cx) {
                    progress.made_progress();
                }
                Poll::Ready(())
            })
        };
        let busy = async {
            for _ in 0..1_000 {
                exhaust().await;
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        };
        assert_eq!(Deadline::new(busy, after(300)).await, Err(Elapsed));
    }
}
