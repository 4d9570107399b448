//! Breaker, rate limit and throttle in front of a service.

use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::policy::{
    BreakerPolicy, ByError, Guard, GuardError, Guarded, Judge, RateLimitPolicy, Refused,
    ThrottlePolicy, Unjudged,
};

/// Puts a [`Guard`] in front of a service.
#[derive(Debug, Clone, Copy)]
pub struct GuardLayer<G, J = ByError> {
    guard: G,
    judge: J,
}

/// Puts a [`BreakerPolicy`] in front of a service.
pub type BreakerLayer<G = BreakerPolicy, J = ByError> = GuardLayer<G, J>;

/// Puts a [`ThrottlePolicy`] in front of a service.
pub type ThrottleLayer<G = ThrottlePolicy, J = ByError> = GuardLayer<G, J>;

/// Puts a [`RateLimitPolicy`] in front of a service.
pub type RateLimitLayer<G = RateLimitPolicy> = GuardLayer<G, Unjudged>;

impl<G: Guard> GuardLayer<G, G::Judge> {
    /// With this guard and its own [judge](Guard::Judge).
    #[must_use]
    pub fn new(guard: G) -> Self {
        Self { guard, judge: G::Judge::default() }
    }

    /// With a [`Judge`] that looks into responses, or into errors that can't be asked.
    #[must_use]
    pub fn judged_by<J>(self, judge: J) -> GuardLayer<G, J> {
        GuardLayer { guard: self.guard, judge }
    }
}

impl<S, G: Clone, J: Clone> Layer<S> for GuardLayer<G, J> {
    type Service = GuardService<S, G, J>;

    fn layer(&self, inner: S) -> Self::Service {
        let (guard, judge) = (self.guard.clone(), self.judge.clone());
        GuardService { inner, guard, judge, shut: None }
    }
}

/// A service behind a [`Guard`].
///
/// It is ready when the service within is, and also while the guard refuses anyway: a refusal does
/// not wait for a service that is stuck.
#[derive(Debug, Clone)]
pub struct GuardService<S, G, J = ByError> {
    inner: S,
    guard: G,
    judge: J,
    /// Why this is called ready although the service within is not.
    shut: Option<Refused>,
}

impl<S, R, G, J> Service<R> for GuardService<S, G, J>
where
    S: Service<R>,
    G: Guard + Clone,
    J: Judge<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = GuardError<S::Error>;
    type Future = Guarded<G, J, S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self.inner.poll_ready(cx) {
            Poll::Ready(ready) => {
                self.shut = None;
                Poll::Ready(ready.map_err(GuardError::Inner))
            }
            Poll::Pending => {
                self.shut = self.guard.shut();
                if self.shut.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending }
            }
        }
    }

    #[inline(always)]
    fn call(&mut self, request: R) -> Self::Future {
        let judge = self.judge.clone();
        match self.shut.take() {
            None => Guarded::begin(&self.guard, judge, || self.inner.call(request)),
            Some(shut) => Guarded::shut(&self.guard, judge, shut),
        }
    }
}
