//! Attempts at a service.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::outcome::Repeatable;
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

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.step.as_mut().project() {
                StepProjection::Attempt { .. } | StepProjection::Ready { .. }
                    if this.attempts.is_over() =>
                {
                    return Poll::Pending;
                }
                StepProjection::Attempt { future } => {
                    let result = ready!(future.poll(cx));
                    match (this.judge.judge(&result), result) {
                        (None, Ok(value)) => {
                            this.attempts.succeeded();
                            return Poll::Ready(Ok(value));
                        }
                        (failure, result) => match this.attempts.failed(failure, result) {
                            Next::Wait(until, last) => {
                                let (timer, last) = (None, Some(last));
                                this.step.set(Step::Wait { timer, until, last });
                            }
                            Next::Done(result) => return Poll::Ready(result),
                        },
                    }
                }
                StepProjection::Wait { timer, until, last } => {
                    ready!(wait(timer, *until, cx));
                    let last = last.take();
                    this.step.set(Step::Ready { last });
                }
                StepProjection::Ready { last } => {
                    // Looked at before the service is asked: a readiness is not thrown away.
                    if this.attempts.overslept()
                        && let Some(last) = last.take()
                    {
                        let ended = this.attempts.give_up(GiveUp::DeadlineTooNear, last);
                        return Poll::Ready(ended);
                    }
                    if let Err(error) = ready!(this.service.poll_ready(cx)) {
                        return Poll::Ready(Err(this.attempts.unready(error)));
                    }
                    let Some(request) = this.spare.take() else { return Poll::Pending };
                    *this.spare = this.replay.replay(&request);
                    if this.spare.is_none() {
                        this.attempts.cannot_replay();
                    }
                    this.attempts.begin();
                    this.step.set(Step::Attempt { future: this.service.call(request) });
                }
            }
        }
    }
}
