//! A bulkhead that finds its own limit, in front of a service.

use std::borrow::Borrow;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use crate::policy::{AdaptivePolicy, BulkheadPolicy, ByError, Flattened, Guard, GuardError, Judge};
use crate::tower::{BulkheadLayer, BulkheadService, GuardLayer, GuardService, SlottedCall};

/// Puts an [`AdaptivePolicy`] in front of a service.
#[derive(Debug, Clone, Copy)]
pub struct AdaptiveLayer<P = AdaptivePolicy, J = ByError> {
    policy: P,
    judge: J,
}

impl<P: Borrow<BulkheadPolicy>> AdaptiveLayer<P> {
    /// With this policy, which takes every `Ok` for a success and asks every error.
    #[must_use]
    pub const fn new(policy: P) -> Self {
        Self { policy, judge: ByError }
    }

    /// With a [`Judge`] that looks into responses, or into errors that can't be asked.
    #[must_use]
    pub fn judged_by<J>(self, judge: J) -> AdaptiveLayer<P, J> {
        AdaptiveLayer { policy: self.policy, judge }
    }
}

impl<S, P, J> Layer<S> for AdaptiveLayer<P, J>
where
    P: Guard + Borrow<BulkheadPolicy> + Clone,
    J: Clone,
{
    type Service = AdaptiveService<S, P, J>;

    fn layer(&self, inner: S) -> Self::Service {
        let meter = GuardLayer::new(self.policy.clone()).judged_by(self.judge.clone());
        let inner = BulkheadLayer::new(self.policy.clone()).layer(meter.layer(inner));
        AdaptiveService { inner }
    }
}

/// A service behind an [`AdaptivePolicy`]: a bulkhead, and inside of it what measures.
#[derive(Debug, Clone)]
pub struct AdaptiveService<S, P = AdaptivePolicy, J = ByError> {
    inner: BulkheadService<GuardService<S, P, J>, P>,
}

impl<S, R, P, J> Service<R> for AdaptiveService<S, P, J>
where
    S: Service<R> + Clone,
    P: Guard + Borrow<BulkheadPolicy> + Clone,
    J: Judge<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = GuardError<S::Error>;
    type Future = Flattened<SlottedCall<GuardService<S, P, J>, R, P>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(GuardError::flatten)
    }

    fn call(&mut self, request: R) -> Self::Future {
        Flattened::new(self.inner.call(request))
    }
}
