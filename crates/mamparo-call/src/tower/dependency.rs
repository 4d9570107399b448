//! The whole pipeline of a dependency in front of a service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mamparo_core::call::deadline::AttemptLimit;
use mamparo_core::call::pipeline::{self, Event, Told};
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_layer::Layer;
use tower_service::Service;

use crate::deadline::{Deadline, Elapsed, wait};
use crate::driver::{Last, Run};
use crate::gate::{Gate, InLine};
use crate::race::{Flights, Raced};
use crate::running::within;
use crate::tower::Replay;
use crate::tower::oneshot::Oneshot;
use crate::{Attempt, CallError, Classify, Dependency, clock};

/// Puts a [`Dependency`] in front of a service: all its policies, in their one order.
///
/// The first attempt is made by the instance that was ready, the following ones by clones, which are
/// asked for readiness within the attempt's time. Failures have to be errors that can be asked
/// ([`Classify`]); map a response that is one to an error before it comes here.
///
/// A request that can't be made again is sent once; one whose copies run out is not repeated and not
/// hedged from there on.
///
/// ```
/// # #[derive(Debug)] struct Down;
/// # impl std::fmt::Display for Down {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("down") }
/// # }
/// # impl std::error::Error for Down {}
/// # impl mamparo_call::Classify for Down {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # use std::time::Duration;
/// # use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use mamparo_call::tower::{Cloned, DependencyLayer};
/// use mamparo_call::{Dependency, Repeatable};
///
/// let catalog = Dependency::builder("catalog")
///     .attempt_timeout(Duration::from_millis(700))
///     .bulkhead(20, 5)
///     .build()?;
/// let mut service = ServiceBuilder::new()
///     .layer(DependencyLayer::new(catalog, Cloned(Repeatable::Idempotent)))
///     .service(service_fn(|name: &'static str| async move { Ok::<_, Down>(name.len()) }));
/// assert_eq!(service.ready().await?.call("products").await?, 8);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct DependencyLayer<C> {
    dependency: Dependency,
    replay: C,
}

impl<C> DependencyLayer<C> {
    /// With this dependency; `replay` makes requests again.
    #[must_use]
    pub const fn new(dependency: Dependency, replay: C) -> Self {
        Self { dependency, replay }
    }
}

impl<S, C: Clone> Layer<S> for DependencyLayer<C> {
    type Service = DependencyService<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let (dependency, replay) = (self.dependency.clone(), self.replay.clone());
        DependencyService { inner, dependency, replay }
    }
}

/// A service behind a [`Dependency`].
#[derive(Debug, Clone)]
pub struct DependencyService<S, C> {
    inner: S,
    dependency: Dependency,
    replay: C,
}

impl<S, R, C> Service<R> for DependencyService<S, C>
where
    S: Service<R> + Clone,
    S::Error: Classify,
    C: Replay<R> + Clone,
{
    type Response = S::Response;
    type Error = CallError<S::Error>;
    type Future = DependencyCall<S, R, C>;

    /// The error of a readiness that failed is that of a call without attempts.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|source| CallError::Failed {
            dependency: Arc::clone(&self.dependency.gate().name),
            failure: source.classify(),
            source,
            attempts: 0,
            gave_up: pipeline::GiveUp::Permanent,
        })
    }

    #[inline]
    fn call(&mut self, request: R) -> Self::Future {
        let (now, gate) = (clock::now(), self.dependency.gate());
        let spare = self.replay.replay(&request);
        let repeatable = match spare {
            Some(_) => self.replay.repeatable(&request),
            None => Repeatable::OneShot,
        };
        let mut run = Run::new(Arc::clone(&gate), repeatable, gate.observer.stripe());
        let mut service = self.inner.clone();
        let (step, next) = match gate.start(&mut run.pipeline, now, &mut run.rng) {
            Ok(AttemptLimit { until }) => {
                let attempt = Attempt::new(1, now, until);
                let future = within(&mut run.running, &attempt, || self.inner.call(request));
                (Step::begin(attempt, Oneshot::Running { future }, None), spare)
            }
            Err(Ok(Told { step: pipeline::Step::Attempt { number, until, hedge_at }, .. })) => {
                let first = Attempt::new(number, now, until);
                let future = within(&mut run.running, &first, || self.inner.call(request));
                (Step::begin(first, Oneshot::Running { future }, hedge_at), spare)
            }
            Err(Ok(told)) => {
                let step = Step::after(told.step, &gate);
                if let Step::Queue { .. } = step {
                    std::mem::swap(&mut service, &mut self.inner);
                }
                (step, Some(request))
            }
            Err(Err(misfit)) => (Step::Broken { misfit }, spare),
        };
        DependencyCall { step, run, service, next, replay: self.replay.clone(), last: None }
    }
}

pin_project! {
    #[project = StepProjection]
    enum Step<S, R>
    where
        S: Service<R>,
    {
        Attempt { #[pin] future: Deadline<Oneshot<S, R>>, attempt: Attempt },
        // Another attempt, which has not begun.
        Due { number: u32, until: Option<Moment>, hedge_at: Option<Moment> },
        // An attempt that others may be sent beside.
        Race { flights: Flights<Oneshot<S, R>> },
        Wait { #[pin] timer: Option<Sleep>, until: Moment },
        Queue { #[pin] timer: Option<Sleep>, until: Moment, place: InLine<Arc<Gate>> },
        End { step: pipeline::Step },
        Broken { misfit: pipeline::Misfit },
        Over,
    }
}

impl<S: Service<R>, R> Step<S, R> {
    fn begin(attempt: Attempt, request: Oneshot<S, R>, hedge_at: Option<Moment>) -> Self {
        match hedge_at {
            Some(_) => Self::Race { flights: Flights::of(attempt, request, hedge_at) },
            None => Self::Attempt { future: Deadline::new(request, attempt.deadline), attempt },
        }
    }

    /// The last answer; what still runs is dropped.
    fn end<T>(mut self: Pin<&mut Self>, answer: T) -> Poll<T> {
        self.set(Self::Over);
        Poll::Ready(answer)
    }

    /// What the machine said.
    fn after(step: pipeline::Step, gate: &Arc<Gate>) -> Self {
        match step {
            pipeline::Step::Attempt { number, until, hedge_at } => {
                Self::Due { number, until, hedge_at }
            }
            pipeline::Step::Wait { until, .. } => Self::Wait { timer: None, until },
            pipeline::Step::Queue { ticket, until } => {
                let place = InLine { gate: Arc::clone(gate), ticket };
                Self::Queue { timer: None, until, place }
            }
            pipeline::Step::KeepOn
            | pipeline::Step::Reject { .. }
            | pipeline::Step::GiveUp { .. }
            | pipeline::Step::Done
            | pipeline::Step::Released => Self::End { step },
        }
    }
}

pin_project! {
    /// The future of a [`DependencyService`].
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct DependencyCall<S, R, C>
    where
        S: Service<R>,
    {
        // In this order: what runs inside ends before the call gives back what it holds.
        #[pin]
        step: Step<S, R>,
        run: Run<Arc<Gate>>,
        service: S,
        // What the next attempt sends; `None` when it can't be had.
        next: Option<R>,
        replay: C,
        last: Option<Last<S::Error>>,
    }
}

impl<S: Service<R>, R, C> std::fmt::Debug for DependencyCall<S, R, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DependencyCall").finish_non_exhaustive()
    }
}

impl<S, R, C> Future for DependencyCall<S, R, C>
where
    S: Service<R> + Clone,
    S::Error: Classify,
    C: Replay<R>,
{
    type Output = Result<S::Response, CallError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let event = match this.step.as_mut().project() {
                StepProjection::Attempt { future, attempt } => {
                    let poll = within(&mut this.run.running, attempt, || future.poll(cx));
                    let (event, last) = match ready!(poll) {
                        Ok(Ok(value)) => {
                            let ended = succeeded(this.run, attempt);
                            return this.step.end(ended.map(|()| value));
                        }
                        Ok(Err(error)) => this.run.judge(*attempt, error),
                        Err(Elapsed) => {
                            let number = attempt.number;
                            (Event::TimedOut { number }, Last::timed_out(*attempt))
                        }
                    };
                    *this.last = Some(last);
                    event
                }
                StepProjection::Due { number, until, hedge_at } => {
                    let (attempt, at) = (Attempt::new(*number, clock::now(), *until), *hedge_at);
                    let request = again(this.service, this.next, this.replay, this.run);
                    this.step.set(Step::begin(attempt, request, at));
                    continue;
                }
                StepProjection::Race { flights } => {
                    let make = |run: &mut _, _| again(this.service, this.next, this.replay, run);
                    let value = match ready!(flights.poll_over(this.run, make, cx)) {
                        Ok(Raced::Lost(last, told)) => {
                            *this.last = Some(last);
                            this.step.set(Step::after(told.step, &this.run.gate));
                            continue;
                        }
                        Ok(Raced::Won(value)) => Ok(value),
                        Err(error) => Err(error),
                    };
                    return this.step.end(value);
                }
                StepProjection::Wait { timer, until } => {
                    ready!(wait(timer, *until, cx));
                    Event::WaitOver
                }
                StepProjection::Queue { timer, until, place } => match place.poll(cx) {
                    Poll::Ready(event) => event,
                    Poll::Pending => {
                        ready!(wait(timer, *until, cx));
                        Event::QueueTimedOut
                    }
                },
                StepProjection::End { step } => {
                    let error = this.run.ended(this.last.take(), *step);
                    return this.step.end(Err(error));
                }
                StepProjection::Broken { misfit } => {
                    let error = this.run.misfit(*misfit);
                    return this.step.end(Err(error));
                }
                StepProjection::Over => return Poll::Pending,
            };
            let step = match this.run.tell(clock::now(), event) {
                Ok(told) => Step::after(told.step, &this.run.gate),
                Err(error) => return this.step.end(Err(error)),
            };
            this.step.set(step);
        }
    }
}

/// The request once more. Who waited in line holds the instance that was ready for it; all others
/// get a clone, which is asked for a readiness of its own.
fn again<S, R>(
    service: &mut S,
    next: &mut Option<R>,
    replay: &impl Replay<R>,
    run: &mut Run<Arc<Gate>>,
) -> Oneshot<S, R>
where
    S: Service<R> + Clone,
{
    let request = next.take();
    *next = request.as_ref().and_then(|request| replay.replay(request));
    if next.is_none() {
        run.pipeline.cannot_replay();
    }
    let fresh = service.clone();
    Oneshot::Unready { service: std::mem::replace(service, fresh), request }
}

/// An attempt gave the call its value.
fn succeeded<E>(run: &mut Run<Arc<Gate>>, attempt: &Attempt) -> Result<(), CallError<E>> {
    let gate = Arc::clone(&run.gate);
    run.succeeded(attempt, gate.observer.stripe())
}
