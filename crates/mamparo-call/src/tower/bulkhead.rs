//! At most so many requests under way at a service.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::policy::{BulkheadPolicy, GuardError, Place};

/// Puts a [`BulkheadPolicy`] in front of a service.
///
/// The slot is taken by the call, not by readiness: an instance that is ready and never called holds
/// nothing. A request that waits in line takes the instance along that was ready for it.
#[derive(Debug, Clone, Copy)]
pub struct BulkheadLayer<P = BulkheadPolicy> {
    policy: P,
}

impl<P: Borrow<BulkheadPolicy>> BulkheadLayer<P> {
    /// With this policy.
    #[must_use]
    pub const fn new(policy: P) -> Self {
        Self { policy }
    }
}

impl<S, P: Clone> Layer<S> for BulkheadLayer<P> {
    type Service = BulkheadService<S, P>;

    fn layer(&self, inner: S) -> Self::Service {
        BulkheadService { inner, policy: self.policy.clone() }
    }
}

/// A service behind a [`BulkheadPolicy`].
#[derive(Debug, Clone)]
pub struct BulkheadService<S, P = BulkheadPolicy> {
    inner: S,
    policy: P,
}

impl<S, R, P> Service<R> for BulkheadService<S, P>
where
    S: Service<R> + Clone,
    P: Borrow<BulkheadPolicy> + Clone,
{
    type Response = S::Response;
    type Error = GuardError<S::Error>;
    type Future = SlottedCall<S, R, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(GuardError::Inner)
    }

    #[inline(always)]
    fn call(&mut self, request: R) -> Self::Future {
        if let Some(hand) = self.policy.borrow().take_free() {
            // The future is made where it stays: it can be large, and to move it is not for nothing.
            return SlottedCall {
                step: Step::Running { future: self.inner.call(request) },
                place: Place::inside(self.policy.clone(), hand),
            };
        }
        self.queue_up(request)
    }
}

impl<S, P> BulkheadService<S, P>
where
    P: Borrow<BulkheadPolicy> + Clone,
{
    /// The way in when no slot is free.
    #[cold]
    fn queue_up<R>(&mut self, request: R) -> SlottedCall<S, R, P>
    where
        S: Service<R> + Clone,
    {
        let mut place = Place::new(self.policy.clone());
        place.queue_up();
        let waiting = if place.is_refused() {
            None
        } else {
            let fresh = self.inner.clone();
            Some((std::mem::replace(&mut self.inner, fresh), request))
        };
        SlottedCall { step: Step::Waiting { waiting }, place }
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<S, R>
    where
        S: Service<R>,
    {
        Waiting { waiting: Option<(S, R)> },
        Running { #[pin] future: S::Future },
    }
}

pin_project! {
    /// The future of a [`BulkheadService`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct SlottedCall<S, R, P>
    where
        S: Service<R>,
        P: Borrow<BulkheadPolicy>,
    {
        // In this order: what runs inside ends before its slot is given back.
        #[pin]
        step: Step<S, R>,
        place: Place<P>,
    }
}

impl<S: Service<R>, R, P: Borrow<BulkheadPolicy>> std::fmt::Debug for SlottedCall<S, R, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlottedCall").finish_non_exhaustive()
    }
}

impl<S, R, P> Future for SlottedCall<S, R, P>
where
    S: Service<R>,
    P: Borrow<BulkheadPolicy>,
{
    type Output = Result<S::Response, GuardError<S::Error>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let slot = match ready!(this.place.poll_slot(cx)) {
            Ok(slot) => slot,
            Err(refused) => {
                if let StepProjection::Waiting { waiting } = this.step.project() {
                    *waiting = None;
                }
                return Poll::Ready(Err(GuardError::Refused(refused)));
            }
        };
        this.place.with_slot(slot, || {
            if let StepProjection::Waiting { waiting } = this.step.as_mut().project() {
                let Some((mut service, request)) = waiting.take() else { return Poll::Pending };
                let future = service.call(request);
                this.step.set(Step::Running { future });
            }
            match this.step.project() {
                StepProjection::Running { future } => future.poll(cx),
                StepProjection::Waiting { .. } => Poll::Pending,
            }
        })
    }
}
