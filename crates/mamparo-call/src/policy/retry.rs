//! Another attempt, where that is safe and worth while, for any future that a closure can make again.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mamparo_core::call::deadline::too_near;
use mamparo_core::call::retry::{Decision, FailedAttempt, GiveUp, Retry};
use mamparo_core::call::retry_budget::{RetryBudget, Withdrawal};
use mamparo_core::outcome::{Failure, Kind, Repeatable, Sent};
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::Context as Request;
use crate::clock::{self, LazyRng};
use crate::deadline::wait;
use crate::policy::listen::Ears;
use crate::policy::{ByError, Judge, Listener, PolicyEvent, RetryError};

/// Attempts and the waits between them.
///
/// What may be repeated is asked of each failure ([`Judge`]) and of the caller ([`Repeatable`]);
/// refusals of own guards and errors that forbid it are not. No wait begins that would end after the
/// deadline of the current [`Context`](Request), and after one that was longer than asked for nothing is
/// sent too late. A first attempt that succeeds reads no clock.
///
/// ```
/// # #[derive(Debug)] struct Down;
/// # impl mamparo_call::Classify for Down {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use mamparo_call::{Repeatable, policy::RetryPolicy};
/// use mamparo_core::call::retry::Retry;
///
/// let retry = RetryPolicy::new(Retry::default()); // 3 attempts
/// let answer = retry
///     .call(Repeatable::Idempotent, |attempt| async move {
///         if attempt == 1 { Err(Down) } else { Ok(attempt) }
///     })
///     .await;
/// assert_eq!(answer.expect("the second attempt works"), 2);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    retry: Retry,
    budget: Option<Arc<RetryBudget>>,
    ears: Ears,
}

impl RetryPolicy {
    /// As often and as far apart as `retry` says.
    #[must_use]
    pub fn new(retry: Retry) -> Self {
        let shared = Shared { retry, budget: None, ears: Ears::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The same within a budget, which all retries and hedges of a dependency share.
    #[must_use]
    pub fn with_budget(self, budget: Arc<RetryBudget>) -> Self {
        let shared = Shared { budget: Some(budget), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// The same with a listener: each attempt's `Succeeded` or `Failed`, `Retrying` and
    /// `GaveUp`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn budget(&self) -> Option<&Arc<RetryBudget>> {
        self.shared.budget.as_ref()
    }

    /// Runs what `operation` makes, once for each attempt; it gets the attempt's number, counted from
    /// one.
    ///
    /// # Errors
    /// [`RetryError`] holds the last attempt's error and says why no other followed.
    pub fn call<Op, Fut>(
        &self,
        repeatable: Repeatable,
        operation: Op,
    ) -> Retrying<&Self, ByError, Op, Fut>
    where
        Op: FnMut(u32) -> Fut,
        Fut: Future,
    {
        self.call_judged(repeatable, ByError, operation)
    }

    /// The same with a [`Judge`] of values. The last attempt's `Ok` is handed back as it is, even
    /// when the judge took it for a failure.
    pub fn call_judged<J, Op, Fut>(
        &self,
        repeatable: Repeatable,
        judge: J,
        operation: Op,
    ) -> Retrying<&Self, J, Op, Fut>
    where
        Op: FnMut(u32) -> Fut,
        Fut: Future,
    {
        let attempts = Attempts::new(self, repeatable);
        Retrying { step: Step::New, judge, operation, attempts }
    }
}

/// The attempts of one call: what was made, what their failures add up to, and the token of the one
/// that waits.
#[derive(Debug)]
pub(crate) struct Attempts<P: Borrow<RetryPolicy>> {
    policy: P,
    repeatable: Repeatable,
    made: u32,
    /// The last wait.
    waited: Duration,
    earlier: Option<Failure>,
    /// For an attempt that is not sent yet.
    paid: Option<Withdrawal>,
    /// For the attempt under way.
    spent: Option<Withdrawal>,
    over: bool,
}

/// What follows an attempt.
#[derive(Debug)]
pub(crate) enum Next<T, E> {
    Done(Result<T, RetryError<E>>),
    /// Another attempt at this moment, unless it is too late by then: what to end with in that case.
    Wait(Moment, Result<T, E>),
}

impl<P: Borrow<RetryPolicy>> Attempts<P> {
    pub(crate) const fn new(policy: P, repeatable: Repeatable) -> Self {
        Self {
            policy,
            repeatable,
            made: 0,
            waited: Duration::ZERO,
            earlier: None,
            paid: None,
            spent: None,
            over: false,
        }
    }

    fn shared(&self) -> &Shared {
        &self.policy.borrow().shared
    }

    /// Counts another attempt, which is sent now, and tells its number.
    #[inline]
    pub(crate) fn begin(&mut self) -> u32 {
        self.spent = self.paid.take();
        self.made = self.made.saturating_add(1);
        self.made
    }

    /// The last attempt was a success.
    #[inline]
    pub(crate) fn succeeded(&mut self) {
        self.over = true;
        self.settle(true);
        self.shared().ears.tell(|| PolicyEvent::Succeeded);
    }

    /// Is the call over?
    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    /// No request can be made again: the next failure is the last.
    pub(crate) const fn cannot_replay(&mut self) {
        self.repeatable = Repeatable::OneShot;
    }

    /// The end at a service that can't be used any more: `error` came instead of readiness.
    #[cold]
    pub(crate) fn unready<E>(&mut self, source: E) -> RetryError<E> {
        self.over = true;
        let failure = self.earlier.unwrap_or(Failure::NOT_SENT);
        RetryError { source, attempts: self.made, gave_up: GiveUp::Permanent, failure }
    }

    /// The last attempt is over: the first pays in, and each other has cost its token. One that an own
    /// guard refused was never sent, and neither pays nor costs.
    #[inline]
    fn settle(&mut self, sent: bool) {
        let unspent = self.spent.take().filter(|_| !sent);
        let Some(budget) = self.shared().budget.as_deref() else { return };
        match unspent {
            Some(unspent) => budget.give_back(unspent),
            None if sent && self.made == 1 => budget.deposit(),
            None => {}
        }
    }

    #[cold]
    fn give_back(&mut self) {
        if let Some((paid, budget)) = self.paid.take().zip(self.shared().budget.as_deref()) {
            budget.give_back(paid);
        }
    }

    /// The last attempt was a failure, or an error that the judge takes for a success; such an error
    /// is not repeated.
    #[cold]
    pub(crate) fn failed<T, E>(
        &mut self,
        failure: Option<Failure>,
        result: Result<T, E>,
    ) -> Next<T, E> {
        let failure = failure.unwrap_or(Failure::PERMANENT);
        let now = clock::now();
        self.earlier = Some(self.earlier.map_or(failure, |earlier| failure.after(earlier)));
        self.settle(!(failure.kind == Kind::Neutral && failure.sent == Sent::Nothing));
        let policy = self.shared();
        policy.ears.tell(|| PolicyEvent::Failed(failure));
        let failed = FailedAttempt {
            number: self.made,
            waited: self.waited,
            failure,
            repeatable: self.repeatable,
            left: Request::current_deadline().map(|deadline| now.until(deadline)),
        };
        match policy.retry.ask(&failed, policy.budget.as_deref(), &mut LazyRng::default()) {
            Decision::Again { after, paid } => {
                policy.ears.tell(|| PolicyEvent::Retrying { attempt: failed.number, after });
                self.paid = paid;
                self.waited = after;
                Next::Wait(now.plus(after), result)
            }
            Decision::GiveUp(reason) => Next::Done(self.give_up(reason, result)),
        }
    }

    /// The wait is over. Was it so long that there is no time left for the attempt? A busy runtime
    /// wakes nobody to the millisecond.
    #[cold]
    pub(crate) fn overslept(&self) -> bool {
        let deadline = Request::current_deadline();
        deadline.is_some() && too_near(clock::now(), deadline)
    }

    /// The end: nothing follows the last attempt.
    #[cold]
    pub(crate) fn give_up<T, E>(
        &mut self,
        gave_up: GiveUp,
        last: Result<T, E>,
    ) -> Result<T, RetryError<E>> {
        let attempts = self.made;
        self.shared().ears.tell(|| PolicyEvent::GaveUp { attempts, reason: gave_up });
        self.give_back();
        self.over = true;
        let failure = self.earlier.unwrap_or(Failure::PERMANENT);
        last.map_err(|source| RetryError { source, attempts, gave_up, failure })
    }
}

impl<P: Borrow<RetryPolicy>> Drop for Attempts<P> {
    #[inline]
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if self.paid.is_some() {
            self.give_back();
        } else if self.made == 1 {
            // Given up on its way, or by a panic: it was sent.
            self.settle(true);
        }
    }
}

pin_project! {
    #[project = StepProjection]
    #[derive(Debug)]
    enum Step<Fut, Out> {
        New,
        Attempt { #[pin] future: Fut },
        Wait { #[pin] timer: Option<Sleep>, until: Moment, last: Option<Out> },
    }
}

pin_project! {
    /// The future of [`RetryPolicy::call`].
    #[project = RetryingProjection]
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Retrying<P, J, Op, Fut>
    where
        P: Borrow<RetryPolicy>,
        Fut: Future,
    {
        #[pin]
        step: Step<Fut, Fut::Output>,
        judge: J,
        operation: Op,
        attempts: Attempts<P>,
    }
}

impl<P, J, Op, Fut, T, E> Future for Retrying<P, J, Op, Fut>
where
    P: Borrow<RetryPolicy>,
    J: Judge<T, E>,
    Op: FnMut(u32) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Output = Result<T, RetryError<E>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let StepProjection::New = this.step.as_mut().project() {
            this.begin();
        }
        // The first attempt, mostly: what follows a failure has a function of its own.
        let result = match this.step.as_mut().project() {
            StepProjection::Attempt { future } if !this.attempts.is_over() => {
                ready!(future.poll(cx))
            }
            StepProjection::New | StepProjection::Attempt { .. } | StepProjection::Wait { .. } => {
                return this.poll_again(cx);
            }
        };
        match (this.judge.judge(&result), result) {
            (None, Ok(value)) => {
                this.attempts.succeeded();
                Poll::Ready(Ok(value))
            }
            (failure, result) => this.poll_failed(failure, result, cx),
        }
    }
}

impl<P, J, Op, Fut, T, E> RetryingProjection<'_, P, J, Op, Fut>
where
    P: Borrow<RetryPolicy>,
    J: Judge<T, E>,
    Op: FnMut(u32) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    /// Begins another attempt.
    #[inline(always)]
    fn begin(&mut self) {
        let future = (self.operation)(self.attempts.begin());
        self.step.set(Step::Attempt { future });
    }

    /// Ends the call with a failed attempt, or waits and makes others.
    #[cold]
    fn poll_failed(
        mut self,
        failure: Option<Failure>,
        result: Result<T, E>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, RetryError<E>>> {
        match self.failed(failure, result) {
            Some(result) => Poll::Ready(result),
            None => self.poll_again(cx),
        }
    }

    /// How the call ends with this failure; `None` when another attempt follows after a wait.
    fn failed(
        &mut self,
        failure: Option<Failure>,
        result: Result<T, E>,
    ) -> Option<Result<T, RetryError<E>>> {
        match self.attempts.failed(failure, result) {
            Next::Done(result) => Some(result),
            Next::Wait(until, last) => {
                self.step.set(Step::Wait { timer: None, until, last: Some(last) });
                None
            }
        }
    }

    /// Waits, and makes further attempts.
    #[cold]
    fn poll_again(mut self, cx: &mut Context<'_>) -> Poll<Result<T, RetryError<E>>> {
        loop {
            match self.step.as_mut().project() {
                StepProjection::New => return Poll::Pending,
                StepProjection::Attempt { .. } | StepProjection::Wait { .. }
                    if self.attempts.is_over() =>
                {
                    return Poll::Pending;
                }
                StepProjection::Attempt { future } => {
                    let result = ready!(future.poll(cx));
                    match (self.judge.judge(&result), result) {
                        (None, Ok(value)) => {
                            self.attempts.succeeded();
                            return Poll::Ready(Ok(value));
                        }
                        (failure, result) => {
                            if let Some(result) = self.failed(failure, result) {
                                return Poll::Ready(result);
                            }
                        }
                    }
                }
                StepProjection::Wait { timer, until, last } => {
                    ready!(wait(timer, *until, cx));
                    if self.attempts.overslept()
                        && let Some(last) = last.take()
                    {
                        let ended = self.attempts.give_up(GiveUp::DeadlineTooNear, last);
                        return Poll::Ready(ended);
                    }
                    self.begin();
                }
            }
        }
    }
}
