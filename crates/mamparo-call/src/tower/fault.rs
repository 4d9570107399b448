//! Faults on purpose in front of a service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::fault::{Fake, FaultInjector};

/// Puts a [`FaultInjector`] in front of a service; goes innermost, where the transport would be.
///
/// `made` makes what looks real to the policies around it. What is drawn by key is drawn by the client of
/// the current [`Context`](crate::Context). A request that nothing befalls goes
/// straight through; one that is struck is boxed, and takes along the instance that was ready for it.
#[derive(Debug, Clone)]
pub struct FaultLayer<M> {
    injector: Arc<FaultInjector>,
    made: M,
}

impl<M> FaultLayer<M> {
    /// With this injector.
    #[must_use]
    pub const fn new(injector: Arc<FaultInjector>, made: M) -> Self {
        Self { injector, made }
    }
}

impl<S, M: Clone> Layer<S> for FaultLayer<M> {
    type Service = FaultService<S, M>;

    fn layer(&self, inner: S) -> Self::Service {
        FaultService { inner, injector: Arc::clone(&self.injector), made: self.made.clone() }
    }
}

/// A service behind a [`FaultInjector`].
#[derive(Debug, Clone)]
pub struct FaultService<S, M> {
    inner: S,
    injector: Arc<FaultInjector>,
    made: M,
}

impl<S, R, M> Service<R> for FaultService<S, M>
where
    S: Service<R> + Clone,
    M: Fn(Fake) -> Result<S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Faulty<S, R, M>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let injection = if self.injector.is_on() { self.injector.ask_for_client() } else { None };
        let Some(injection) = injection else {
            return Faulty { step: Step::Running { future: self.inner.call(request) } };
        };
        let injector = Arc::clone(&self.injector);
        let struck: Struck = Box::pin(async move { injector.carry_out(injection).await });
        let fresh = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, fresh);
        let call = Some((ready, request, self.made.clone()));
        Faulty { step: Step::Struck { struck, call } }
    }
}

type Struck = Pin<Box<dyn Future<Output = Option<Fake>> + Send>>;

pin_project! {
    #[project = StepProjection]
    enum Step<S, R, M>
    where
        S: Service<R>,
    {
        Struck { struck: Struck, call: Option<(S, R, M)> },
        Running { #[pin] future: S::Future },
    }
}

pin_project! {
    /// The future of a [`FaultService`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Faulty<S, R, M>
    where
        S: Service<R>,
    {
        #[pin]
        step: Step<S, R, M>,
    }
}

impl<S: Service<R>, R, M> std::fmt::Debug for Faulty<S, R, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl<S, R, M> Future for Faulty<S, R, M>
where
    S: Service<R>,
    M: Fn(Fake) -> Result<S::Response, S::Error>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.step.as_mut().project() {
                StepProjection::Struck { struck, call } => {
                    if call.is_none() {
                        return Poll::Pending;
                    }
                    let fake = ready!(struck.as_mut().poll(cx));
                    let Some((mut service, request, made)) = call.take() else {
                        return Poll::Pending;
                    };
                    if let Some(fake) = fake {
                        return Poll::Ready(made(fake));
                    }
                    let future = service.call(request);
                    this.step.set(Step::Running { future });
                }
                StepProjection::Running { future } => return future.poll(cx),
            }
        }
    }
}
