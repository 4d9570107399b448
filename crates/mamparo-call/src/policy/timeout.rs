//! A limit of time for any future, with a timer that is armed only when the future has to wait.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
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

    /// When a future that begins now has to be over; `None` when only the limit says so, which is
    /// counted from the first wait.
    pub(crate) fn admit(&self) -> Result<Option<Bound>, Refused> {
        let Some(deadline) = Request::current_deadline() else { return Ok(None) };
        let now = clock::now();
        let limit = attempt_limit(now, Some(self.limit), Some(deadline));
        match limit.and_then(|limit| limit.until) {
            Some(until) => Ok(Some(Bound { after: now.until(until), until })),
            None => {
                let refused = Refused::new(Refusal::DeadlineExceeded, None);
                self.ears.tell(|| PolicyEvent::Refused(refused));
                Err(refused)
            }
        }
    }

    fn bound_from_now(&self) -> Bound {
        Bound { after: self.limit, until: clock::now().plus(self.limit) }
    }
}

/// The end of a future's time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    after: Duration,
    until: Moment,
}

#[derive(Debug)]
enum State {
    New,
    Refused(Refused),
    Begun(Option<Bound>),
    Over,
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
        state: State,
    }
}

impl<P, F> Timed<P, F> {
    pub(crate) const fn new(policy: P, future: F) -> Self {
        Self { future: Some(future), timer: None, policy, state: State::New }
    }
}

impl<P: Borrow<TimeoutPolicy>, F> Timed<P, F> {
    /// Looks at the caller's deadline at once, and begins with `start` only when enough is left.
    pub(crate) fn begin(policy: P, start: impl FnOnce() -> F) -> Self {
        let (future, state) = match policy.borrow().admit() {
            Ok(bound) => (Some(start()), State::Begun(bound)),
            Err(refused) => (None, State::Refused(refused)),
        };
        Self { future, timer: None, policy, state }
    }
}

impl<P, F, T, E> Future for Timed<P, F>
where
    P: Borrow<TimeoutPolicy>,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, TimeoutError<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let policy = (*this.policy).borrow();
        if let State::New = this.state {
            *this.state = policy.admit().map_or_else(State::Refused, State::Begun);
        }
        let bound = match this.state {
            State::Begun(bound) => bound,
            State::New | State::Over => return Poll::Pending,
            State::Refused(refused) => {
                let refused = *refused;
                *this.state = State::Over;
                this.future.set(None);
                return Poll::Ready(Err(TimeoutError::Refused(refused)));
            }
        };
        // Nothing is left to poll once it was cut off.
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
        if let Poll::Ready(result) = future.poll(cx) {
            return Poll::Ready(result.map_err(TimeoutError::Inner));
        }
        let Bound { after, until } = *bound.get_or_insert_with(|| policy.bound_from_now());
        if wait(this.timer, until, cx).is_pending() {
            return Poll::Pending;
        }
        this.future.set(None);
        policy.ears.tell(|| PolicyEvent::TimedOut(after));
        Poll::Ready(Err(TimeoutError::TimedOut { after, limit: policy.limit }))
    }
}
