//! A limit of time for any future, with a timer that is armed only when the future has to wait.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mamparo_core::call::deadline::attempt_limit;
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::deadline::wait;
use crate::policy::listen::Ears;
use crate::policy::{Listener, PolicyEvent, Refused, TimeoutError};
use crate::{Context as Request, clock};

/// The longest that a future may take.
///
/// The limit counts from the first time that the future has to wait: one that is ready at once costs
/// neither a timer nor a reading of the clock. Inside a [`Context`](Request) with a deadline the
/// lesser of both holds, counted from the start, and with 10 ms or less left the future is not begun.
/// A future that is cut off is dropped at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::{convert::Infallible, future::pending, time::Duration};
/// use mamparo_call::policy::{TimeoutError, TimeoutPolicy};
///
/// let limit = TimeoutPolicy::new(Duration::from_millis(5));
/// assert_eq!(limit.call(async { Ok::<_, Infallible>(7) }).await, Ok(7));
/// let cut = limit.call(pending::<Result<(), Infallible>>()).await;
/// assert!(matches!(cut, Err(TimeoutError::TimedOut { .. })));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TimeoutPolicy {
    limit: Duration,
    ears: Ears,
}

impl TimeoutPolicy {
    /// At most `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, ears: Ears::default() }
    }

    /// The same with a listener: `TimedOut` and `Refused`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        Self { ears: Ears::new(listener), ..self }
    }

    /// Runs `future` for at most the limit.
    ///
    /// # Errors
    /// [`TimeoutError`]: cut off, not begun, or the future's own error.
    pub const fn call<F>(&self, future: F) -> Timed<&Self, F> {
        Timed::new(self, future)
    }

    /// May a future begin now? Says when it has to be over, if the caller's deadline has a say in that.
    #[inline]
    fn admit(&self, span: &mut Span) {
        *span = Span::Open;
        if let Some(deadline) = Request::current_deadline() {
            self.admit_until(deadline, span);
        }
    }

    #[cold]
    fn admit_until(&self, deadline: Moment, span: &mut Span) {
        let now = clock::now();
        *span = match attempt_limit(now, Some(self.limit), Some(deadline)).and_then(|l| l.until) {
            Some(until) => Span::Until { after: now.until(until), until },
            None => {
                self.ears.tell(|| PolicyEvent::Refused(TOO_LATE));
                Span::TooLate
            }
        };
    }

    /// The future has to wait. Ready when its time is over, with the time that it had.
    #[cold]
    fn poll_limit(
        &self,
        span: &mut Span,
        timer: Pin<&mut Option<Sleep>>,
        cx: &mut Context<'_>,
    ) -> Poll<Duration> {
        if let Span::Open = span {
            *span = Span::Until { after: self.limit, until: clock::now().plus(self.limit) };
        }
        let Span::Until { after, until } = *span else { return Poll::Pending };
        ready!(wait(timer, until, cx));
        self.ears.tell(|| PolicyEvent::TimedOut(after));
        Poll::Ready(after)
    }
}

const TOO_LATE: Refused = Refused::new(Refusal::DeadlineExceeded, None);

/// How long a future may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Span {
    /// It has not begun.
    Unknown,
    /// The limit alone counts, from the first wait.
    Open,
    Until {
        after: Duration,
        until: Moment,
    },
    /// It must not begin.
    TooLate,
}

pin_project! {
    /// The future of [`TimeoutPolicy::call`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Timed<P, F> {
        #[pin]
        future: Option<F>,
        #[pin]
        timer: Option<Sleep>,
        policy: P,
        span: Span,
    }
}

impl<P, F> Timed<P, F> {
    pub(crate) const fn new(policy: P, future: F) -> Self {
        Self { future: Some(future), timer: None, policy, span: Span::Unknown }
    }
}

impl<P: Borrow<TimeoutPolicy>, F> Timed<P, F> {
    /// Looks at the caller's deadline at once, and begins with `start` only when enough is left.
    #[inline(always)]
    pub(crate) fn begin(policy: P, start: impl FnOnce() -> F) -> Self {
        let mut span = Span::Unknown;
        policy.borrow().admit(&mut span);
        if let Span::TooLate = span {
            return Self { future: None, timer: None, policy, span };
        }
        Self { future: Some(start()), timer: None, policy, span }
    }
}

impl<P, F, T, E> Future for Timed<P, F>
where
    P: Borrow<TimeoutPolicy>,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, TimeoutError<E>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let policy = (*this.policy).borrow();
        if let Span::Unknown = this.span {
            policy.admit(this.span);
        }
        if let Span::TooLate = this.span {
            *this.span = Span::Open;
            this.future.set(None);
            return Poll::Ready(Err(TimeoutError::Refused(TOO_LATE)));
        }
        // Nothing is left to poll once it was refused or cut off.
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
        match future.poll(cx) {
            Poll::Ready(Ok(value)) => return Poll::Ready(Ok(value)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(TimeoutError::inner(error))),
            Poll::Pending => {}
        }
        let after = ready!(policy.poll_limit(this.span, this.timer, cx));
        this.future.set(None);
        Poll::Ready(Err(TimeoutError::TimedOut { after, limit: policy.limit }))
    }
}
