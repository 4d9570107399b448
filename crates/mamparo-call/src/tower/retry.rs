//! Attempts at a service.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::outcome::{Failure, Repeatable};
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::deadline::wait;
use crate::policy::{Attempts, ByError, Judge, Next, RetryError, RetryPolicy};
use crate::tower::Replay;

/// Puts a [`RetryPolicy`] in front of a service.
///
/// The first attempt is made by the instance that was ready, the following ones by a clone, which is
/// asked for readiness before each.
#[derive(Debug, Clone, Copy)]
pub struct RetryLayer<C, P = RetryPolicy, J = ByError> {
    replay: C,
    policy: P,
    judge: J,
}

impl<C, P: Borrow<RetryPolicy>> RetryLayer<C, P> {
    /// With this policy; `replay` makes requests again.
    #[must_use]
    pub const fn new(policy: P, replay: C) -> Self {
        Self { replay, policy, judge: ByError }
    }

    /// With a [`Judge`] that looks into responses. The last attempt's response is handed back as it
    /// is, whatever the judge says.
    #[must_use]
    pub fn judged_by<J>(self, judge: J) -> RetryLayer<C, P, J> {
        RetryLayer { replay: self.replay, policy: self.policy, judge }
    }
}

impl<S, C: Clone, P: Clone, J: Clone> Layer<S> for RetryLayer<C, P, J> {
    type Service = RetryService<S, C, P, J>;

    fn layer(&self, inner: S) -> Self::Service {
        let (replay, policy) = (self.replay.clone(), self.policy.clone());
        RetryService { inner, replay, policy, judge: self.judge.clone() }
    }
}

/// A service behind a [`RetryPolicy`].
#[derive(Debug, Clone)]
pub struct RetryService<S, C, P = RetryPolicy, J = ByError> {
    inner: S,
    replay: C,
    policy: P,
    judge: J,
}

impl<S, R, C, P, J> Service<R> for RetryService<S, C, P, J>
where
    S: Service<R> + Clone,
    C: Replay<R> + Clone,
    P: Borrow<RetryPolicy> + Clone,
    J: Judge<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = RetryError<S::Error>;
    type Future = Repeating<S, R, C, P, J>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let mut first = Attempts::new(self.policy.borrow(), Repeatable::OneShot);
        self.inner.poll_ready(cx).map_err(|error| first.unready(error))
    }

    #[inline(always)]
    fn call(&mut self, request: R) -> Self::Future {
        let repeatable = self.replay.repeatable(&request);
        let mut attempts = Attempts::new(self.policy.clone(), repeatable);
        let spare = self.replay.replay(&request);
        if spare.is_none() {
            attempts.cannot_replay();
        }
        attempts.begin();
        Repeating {
            service: self.inner.clone(),
            step: Step::Attempt { future: self.inner.call(request) },
            spare,
            replay: self.replay.clone(),
            judge: self.judge.clone(),
            attempts,
        }
    }
}

pin_project! {
    #[project = StepProjection]
    #[derive(Debug)]
    enum Step<Fut, Out> {
        Attempt { #[pin] future: Fut },
        Wait { #[pin] timer: Option<Sleep>, until: Moment, last: Option<Out> },
        Ready { last: Option<Out> },
    }
}

pin_project! {
    /// The future of a [`RetryService`].
    #[project = RepeatingProjection]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Repeating<S, R, C, P, J>
    where
        S: Service<R>,
        P: Borrow<RetryPolicy>,
    {
        #[pin]
        step: Step<S::Future, Result<S::Response, S::Error>>,
        service: S,
        // What the next attempt sends; `None` when it can't be had.
        spare: Option<R>,
        replay: C,
        judge: J,
        attempts: Attempts<P>,
    }
}

impl<S: Service<R>, R, C, P: Borrow<RetryPolicy>, J> std::fmt::Debug for Repeating<S, R, C, P, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repeating").finish_non_exhaustive()
    }
}

impl<S, R, C, P, J> Future for Repeating<S, R, C, P, J>
where
    S: Service<R>,
    C: Replay<R>,
    P: Borrow<RetryPolicy>,
    J: Judge<S::Response, S::Error>,
{
    type Output = Result<S::Response, RetryError<S::Error>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The first attempt, mostly: what follows a failure has a function of its own.
        let result = match this.step.as_mut().project() {
            StepProjection::Attempt { future } if !this.attempts.is_over() => {
                ready!(future.poll(cx))
            }
            StepProjection::Attempt { .. }
            | StepProjection::Wait { .. }
            | StepProjection::Ready { .. } => return this.poll_again(cx),
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

impl<S, R, C, P, J> RepeatingProjection<'_, S, R, C, P, J>
where
    S: Service<R>,
    C: Replay<R>,
    P: Borrow<RetryPolicy>,
    J: Judge<S::Response, S::Error>,
{
    /// Ends the call with a failed attempt, or waits and makes others.
    #[cold]
    fn poll_failed(
        mut self,
        failure: Option<Failure>,
        result: Result<S::Response, S::Error>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, RetryError<S::Error>>> {
        match self.failed(failure, result) {
            Some(result) => Poll::Ready(result),
            None => self.poll_again(cx),
        }
    }

    /// How the call ends with this failure; `None` when another attempt follows after a wait.
    fn failed(
        &mut self,
        failure: Option<Failure>,
        result: Result<S::Response, S::Error>,
    ) -> Option<Result<S::Response, RetryError<S::Error>>> {
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
    fn poll_again(
        mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<S::Response, RetryError<S::Error>>> {
        loop {
            match self.step.as_mut().project() {
                StepProjection::Attempt { .. } | StepProjection::Ready { .. }
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
                    let last = last.take();
                    self.step.set(Step::Ready { last });
                }
                StepProjection::Ready { last } => {
                    // Looked at before the service is asked: a readiness is not thrown away.
                    if self.attempts.overslept()
                        && let Some(last) = last.take()
                    {
                        let ended = self.attempts.give_up(GiveUp::DeadlineTooNear, last);
                        return Poll::Ready(ended);
                    }
                    if let Err(error) = ready!(self.service.poll_ready(cx)) {
                        return Poll::Ready(Err(self.attempts.unready(error)));
                    }
                    let Some(request) = self.spare.take() else { return Poll::Pending };
                    *self.spare = self.replay.replay(&request);
                    if self.spare.is_none() {
                        self.attempts.cannot_replay();
                    }
                    self.attempts.begin();
                    self.step.set(Step::Attempt { future: self.service.call(request) });
                }
            }
        }
    }
}
