//! What breaker, rate limit and throttle have in common: asked before, told after, exactly once.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mamparo_core::outcome::Failure;
use pin_project_lite::pin_project;

use crate::policy::{GuardError, Judge, PolicyEvent, Refused};

/// How a guarded call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It gave a value.
    Succeeded,
    /// It failed in this way.
    Failed(Failure),
    /// It panicked: bad health, as far as anybody can tell.
    Panicked,
    /// It was dropped before its end: no verdict.
    Cancelled,
}

impl Ending {
    pub(crate) const fn event(self) -> PolicyEvent {
        match self {
            Self::Succeeded => PolicyEvent::Succeeded,
            Self::Failed(failure) => PolicyEvent::Failed(failure),
            Self::Panicked => PolicyEvent::Panicked,
            Self::Cancelled => PolicyEvent::Cancelled,
        }
    }
}

/// A policy that lets a call through or refuses it, and is told how it ended.
///
/// A reference to a guard and an `Arc` of one are guards too. So a combinator borrows its policy, and
/// a layer owns a handle; a `&'static` policy makes a layer that counts no references.
pub trait Guard {
    /// What a call that was let through carries until its end.
    type Pass: fmt::Debug;

    /// Who says how calls ended, where nobody else is named: [`ByError`](crate::policy::ByError), or
    /// [`Unjudged`](crate::policy::Unjudged) for a guard to which all ends are alike.
    type Judge: Default;

    /// May a call be made now?
    ///
    /// # Errors
    /// [`Refused`] says why not, and until when.
    fn enter(&self) -> Result<Self::Pass, Refused>;

    /// Takes the end of a call that was let through.
    fn leave(&self, pass: Self::Pass, ending: Ending);

    /// The refusal that [`Guard::enter`] would give now, when that can be told without taking
    /// anything. A layer asks this while the service behind it is not ready, so that a refusal does
    /// not have to wait for readiness.
    fn shut(&self) -> Option<Refused> {
        None
    }
}

impl<G: Guard + ?Sized> Guard for &G {
    type Pass = G::Pass;
    type Judge = G::Judge;

    fn enter(&self) -> Result<Self::Pass, Refused> {
        (**self).enter()
    }

    fn leave(&self, pass: Self::Pass, ending: Ending) {
        (**self).leave(pass, ending);
    }

    fn shut(&self) -> Option<Refused> {
        (**self).shut()
    }
}

impl<G: Guard + ?Sized> Guard for Arc<G> {
    type Pass = G::Pass;
    type Judge = G::Judge;

    fn enter(&self) -> Result<Self::Pass, Refused> {
        (**self).enter()
    }

    fn leave(&self, pass: Self::Pass, ending: Ending) {
        (**self).leave(pass, ending);
    }

    fn shut(&self) -> Option<Refused> {
        (**self).shut()
    }
}

/// One call's place at a guard. However the call ends, the guard is told, and told once.
#[derive(Debug)]
pub(crate) struct Seat<G: Guard> {
    guard: G,
    stage: Stage<G::Pass>,
    /// Does code run now whose unwinding would drop this?
    pub(crate) panics: bool,
}

#[derive(Debug)]
pub(crate) enum Stage<P> {
    /// The call has not asked yet.
    Outside,
    Inside(P),
    Refused(Refused),
    /// The call is over.
    Past,
}

impl<G: Guard> Seat<G> {
    pub(crate) const fn new(guard: G) -> Self {
        Self { guard, stage: Stage::Outside, panics: false }
    }

    pub(crate) const fn is_inside(&self) -> bool {
        matches!(self.stage, Stage::Inside(_))
    }

    /// Asks the guard.
    #[inline]
    pub(crate) fn enter(&mut self) {
        self.stage = self.guard.enter().map_or_else(Stage::Refused, Stage::Inside);
    }

    /// Goes inside, if it is not yet. Pending for ever once the call is over.
    #[inline]
    fn poll_enter(&mut self) -> Poll<Result<(), Refused>> {
        let refused = match self.stage {
            Stage::Inside(_) => return Poll::Ready(Ok(())),
            Stage::Outside => match self.guard.enter() {
                Ok(pass) => {
                    self.stage = Stage::Inside(pass);
                    return Poll::Ready(Ok(()));
                }
                Err(refused) => refused,
            },
            Stage::Refused(refused) => refused,
            Stage::Past => return Poll::Pending,
        };
        self.stage = Stage::Past;
        Poll::Ready(Err(refused))
    }

    #[inline(always)]
    fn leave(&mut self, ending: Ending) {
        if self.is_inside()
            && let Stage::Inside(pass) = std::mem::replace(&mut self.stage, Stage::Past)
        {
            self.guard.leave(pass, ending);
        }
    }

    /// [`Seat::leave`] on the ways that are not a success.
    #[cold]
    fn abandon(&mut self, ending: Ending) {
        self.leave(ending);
    }
}

impl<G: Guard> Drop for Seat<G> {
    #[inline]
    fn drop(&mut self) {
        if self.is_inside() {
            self.abandon(if self.panics { Ending::Panicked } else { Ending::Cancelled });
        }
    }
}

/// Lives while user code runs; its drop is the unwinding of a panic.
struct Unwinding<'a, G: Guard>(&'a mut Seat<G>);

impl<G: Guard> Unwinding<'_, G> {
    fn came_back(self) {
        std::mem::forget(self);
    }
}

impl<G: Guard> Drop for Unwinding<'_, G> {
    fn drop(&mut self) {
        self.0.abandon(Ending::Panicked);
    }
}

pin_project! {
    /// The future of a guarded call: refuses without polling the future within, or lets it run and
    /// tells the guard how it ended, as soon as it has.
    ///
    /// Dropping it at any point and a panic within settle the guard.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Guarded<G, J, F>
    where
        G: Guard,
    {
        // In this order: what runs inside ends before its seat is given up.
        #[pin]
        pub(crate) future: Option<F>,
        pub(crate) seat: Seat<G>,
        pub(crate) judge: J,
    }
}

impl<G: Guard, J, F> Guarded<G, J, F> {
    /// `future` behind `guard`, which is asked at the first poll. The combinators of the policies make
    /// these; for a [`Guard`] of one's own.
    pub const fn new(guard: G, judge: J, future: F) -> Self {
        Self { future: Some(future), seat: Seat::new(guard), judge }
    }

    /// Never begins. Asks the guard all the same, so that the refusal is counted where it can be.
    pub(crate) fn shut(guard: G, judge: J, shut: Refused) -> Self {
        let mut seat = Seat::new(guard);
        seat.enter();
        if seat.is_inside() {
            seat.abandon(Ending::Cancelled);
            seat.stage = Stage::Refused(shut);
        }
        Self { future: None, seat, judge }
    }
}

impl<G, J, F, T, E> Future for Guarded<G, J, F>
where
    G: Guard,
    J: Judge<T, E>,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, GuardError<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Err(refused) = ready!(this.seat.poll_enter()) {
            return Poll::Ready(Err(GuardError::Refused(refused)));
        }
        let Some(future) = this.future.as_pin_mut() else { return Poll::Pending };
        let unwinding = Unwinding(this.seat);
        let Poll::Ready(result) = future.poll(cx) else {
            unwinding.came_back();
            return Poll::Pending;
        };
        let failure = this.judge.judge(&result);
        unwinding.came_back();
        match failure {
            None => this.seat.leave(Ending::Succeeded),
            Some(failure) => this.seat.abandon(Ending::Failed(failure)),
        }
        Poll::Ready(result.map_err(GuardError::inner))
    }
}
