//! An instance of a service that makes one call once it is ready.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

pin_project! {
    /// One request: an instance of the service gets ready, and then is called.
    #[project = OneshotProjection]
    pub(super) enum Oneshot<S, R>
    where
        S: Service<R>,
    {
        Unready { service: S, request: Option<R> },
        Running { #[pin] future: S::Future },
    }
}

impl<S: Service<R>, R> Future for Oneshot<S, R> {
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                OneshotProjection::Unready { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let Some(request) = request.take() else { return Poll::Pending };
                    let future = service.call(request);
                    self.set(Self::Running { future });
                }
                OneshotProjection::Running { future } => return future.poll(cx),
            }
        }
    }
}
