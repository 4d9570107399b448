//! A second request to a service before the first has failed.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::deadline::wait;
use crate::policy::{HedgePolicy, Pace, Race, poll_copies};
use crate::tower::Replay;
use crate::tower::oneshot::Oneshot;

/// Puts a [`HedgePolicy`] in front of a service.
///
/// The first request is sent by the instance that was ready. A hedge is sent by a clone, which is asked
/// for readiness only then: before it is sent, a hedge holds nothing.
#[derive(Debug, Clone, Copy)]
pub struct HedgeLayer<C, P = HedgePolicy> {
    replay: C,
    policy: P,
}

impl<C, P: Borrow<HedgePolicy>> HedgeLayer<C, P> {
    /// With this policy; `replay` makes requests again.
    #[must_use]
    pub const fn new(policy: P, replay: C) -> Self {
        Self { replay, policy }
    }
}

impl<S, C: Clone, P: Clone> Layer<S> for HedgeLayer<C, P> {
    type Service = HedgeService<S, C, P>;

    fn layer(&self, inner: S) -> Self::Service {
        HedgeService { inner, replay: self.replay.clone(), policy: self.policy.clone() }
    }
}

/// A service behind a [`HedgePolicy`].
#[derive(Debug, Clone)]
pub struct HedgeService<S, C, P = HedgePolicy> {
    inner: S,
    replay: C,
    policy: P,
}

impl<S, R, C, P> Service<R> for HedgeService<S, C, P>
where
    S: Service<R> + Clone,
    C: Replay<R> + Clone,
    P: Borrow<HedgePolicy> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = HedgedCall<S, R, C, P>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let mut race = Race::new(self.policy.clone(), self.replay.repeatable(&request));
        let spare = self.replay.replay(&request);
        race.begin();
        HedgedCall {
            service: self.inner.clone(),
            first: Some(self.inner.call(request)),
            hedges: Vec::new(),
            timer: None,
            spare,
            replay: self.replay.clone(),
            race,
        }
    }
}

pin_project! {
    /// The future of a [`HedgeService`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct HedgedCall<S, R, C, P>
    where
        S: Service<R>,
        P: Borrow<HedgePolicy>,
    {
        #[pin]
        first: Option<S::Future>,
        // With the moment at which each was sent.
        hedges: Vec<(Moment, Pin<Box<Oneshot<S, R>>>)>,
        #[pin]
        timer: Option<Sleep>,
        service: S,
        // What the next hedge sends; `None` when it can't be had.
        spare: Option<R>,
        replay: C,
        race: Race<P>,
    }
}

impl<S: Service<R>, R, C, P: Borrow<HedgePolicy>> std::fmt::Debug for HedgedCall<S, R, C, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HedgedCall").finish_non_exhaustive()
    }
}

impl<S, R, C, P> Future for HedgedCall<S, R, C, P>
where
    S: Service<R> + Clone,
    C: Replay<R>,
    P: Borrow<HedgePolicy>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Pace::Over = this.race.pace() {
                return Poll::Pending;
            }
            let news = poll_copies(this.first.as_mut(), this.hedges, this.race, cx);
            if news.is_ready() {
                return news;
            }
            if let Pace::Alone = this.race.pace() {
                this.race.waits();
            }
            let Pace::Hedge { at, every } = this.race.pace() else { return Poll::Pending };
            // Without a copy of the request there is nothing to wait for but the answer.
            if this.spare.is_none() {
                return Poll::Pending;
            }
            ready!(wait(this.timer.as_mut(), at, cx));
            this.timer.set(None);
            let Some(now) = this.race.due(every) else { return Poll::Pending };
            let request = this.spare.take();
            *this.spare = request.as_ref().and_then(|request| this.replay.replay(request));
            let hedge = Oneshot::Unready { service: this.service.clone(), request };
            this.hedges.push((now, Box::pin(hedge)));
        }
    }
}
