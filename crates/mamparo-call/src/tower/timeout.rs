//! A limit of time in front of a service.

use std::borrow::Borrow;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::policy::{Timed, TimeoutError, TimeoutPolicy};

/// Puts a [`TimeoutPolicy`] in front of a service. The time to become ready is not in it.
#[derive(Debug, Clone, Copy)]
pub struct TimeoutLayer<P = TimeoutPolicy> {
    policy: P,
}

impl<P: Borrow<TimeoutPolicy>> TimeoutLayer<P> {
    /// With this policy.
    #[must_use]
    pub const fn new(policy: P) -> Self {
        Self { policy }
    }
}

impl<S, P: Clone> Layer<S> for TimeoutLayer<P> {
    type Service = TimeoutService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        TimeoutService { inner, policy: self.policy.clone() }
    }
}

/// A service behind a [`TimeoutPolicy`].
#[derive(Debug, Clone)]
pub struct TimeoutService<S, P = TimeoutPolicy> {
    inner: S,
    policy: P,
}

impl<S, R, P> Service<R> for TimeoutService<S, P>
where
    S: Service<R>,
    P: Borrow<TimeoutPolicy> + Clone,
{
    type Response = S::Response;
    type Error = TimeoutError<S::Error>;
    type Future = Timed<P, S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(TimeoutError::Inner)
    }

    #[inline(always)]
    fn call(&mut self, request: R) -> Self::Future {
        Timed::begin(self.policy.clone(), || self.inner.call(request))
    }
}
