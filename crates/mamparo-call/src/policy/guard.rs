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

    #[inline(always)]
    fn enter(&self) -> Result<Self::Pass, Refused> {
        (**self).enter()
    }

    #[inline(always)]
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

    #[inline(always)]
    fn enter(&self) -> Result<Self::Pass, Refused> {
        (**self).enter()
    }

    #[inline(always)]
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
}

#[derive(Debug)]
enum Stage<P> {
    /// The call has not asked yet.
    Outside,
    Inside(P),
    Refused(Refused),
    /// The call is over, or its pass is in hand.
    Past,
}

impl<G: Guard> Seat<G> {
    const fn new(guard: G) -> Self {
        Self { guard, stage: Stage::Outside }
    }

    /// Takes the pass in hand: asks the guard for it, or picks up what the last poll left. Pending for
    /// ever once the call is over.
    #[inline(always)]
    fn poll_pass(&mut self) -> Poll<Result<G::Pass, Refused>> {
        match std::mem::replace(&mut self.stage, Stage::Past) {
            Stage::Outside => Poll::Ready(self.guard.enter()),
            Stage::Inside(pass) => Poll::Ready(Ok(pass)),
            Stage::Refused(refused) => Poll::Ready(Err(refused)),
            Stage::Past => Poll::Pending,
        }
    }

    /// The call goes between two polls.
    #[cold]
    fn cancel(&mut self) {
        if let Stage::Inside(pass) = std::mem::replace(&mut self.stage, Stage::Past) {
            self.guard.leave(pass, Ending::Cancelled);
        }
    }
}

impl<G: Guard> Drop for Seat<G> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Inside(_) = self.stage {
            self.cancel();
        }
    }
}

/// The pass while user code runs: its drop is the unwinding of a panic, unless it was used up.
///
/// In hand and not in the seat, so that a call which is ready at once never writes it there.
pub(crate) struct InHand<'a, G: Guard> {
    guard: &'a G,
    pass: Option<G::Pass>,
}

impl<'a, G: Guard> InHand<'a, G> {
    #[inline(always)]
    pub(crate) const fn new(guard: &'a G, pass: G::Pass) -> Self {
        Self { guard, pass: Some(pass) }
    }

    /// The call goes on later: the pass for its seat.
    #[inline(always)]
    fn put_down(mut self) -> Stage<G::Pass> {
        self.pass.take().map_or(Stage::Past, Stage::Inside)
    }

    /// The call has ended.
    #[inline(always)]
    fn leave(mut self, ending: Ending) {
        if let Some(pass) = self.pass.take() {
            self.guard.leave(pass, ending);
        }
    }
}

impl<G: Guard> Drop for InHand<'_, G> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            unwind(self.guard, pass);
        }
    }
}

#[cold]
fn unwind<G: Guard>(guard: &G, pass: G::Pass) {
    guard.leave(pass, Ending::Panicked);
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
        future: Option<F>,
        seat: Seat<G>,
        judge: J,
    }
}

impl<G: Guard, J, F> Guarded<G, J, F> {
    /// `future` behind `guard`, which is asked at the first poll. The combinators of the policies make
    /// these; for a [`Guard`] of one's own.
    pub const fn new(guard: G, judge: J, future: F) -> Self {
        Self { future: Some(future), seat: Seat::new(guard), judge }
    }

    /// Asks the guard at once, and begins with `start` if it lets the call through.
    #[inline(always)]
    pub(crate) fn begin(guard: &G, judge: J, start: impl FnOnce() -> F) -> Self
    where
        G: Clone,
    {
        match guard.enter() {
            Ok(pass) => {
                let hand = InHand::new(guard, pass);
                // The future is made where it stays: it can be large, and to move it is not for nothing.
                Self {
                    future: Some(start()),
                    seat: Seat { guard: guard.clone(), stage: hand.put_down() },
                    judge,
                }
            }
            Err(refused) => Self::refused(guard.clone(), judge, refused),
        }
    }

    /// Never begins. Asks the guard all the same, so that the refusal is counted where it can be.
    pub(crate) fn shut(guard: &G, judge: J, shut: Refused) -> Self
    where
        G: Clone,
    {
        let refused = match guard.enter() {
            Ok(pass) => {
                guard.leave(pass, Ending::Cancelled);
                shut
            }
            Err(refused) => refused,
        };
        Self::refused(guard.clone(), judge, refused)
    }

    const fn refused(guard: G, judge: J, refused: Refused) -> Self {
        Self { future: None, seat: Seat { guard, stage: Stage::Refused(refused) }, judge }
    }
}

impl<G, J, F, T, E> Future for Guarded<G, J, F>
where
    G: Guard,
    J: Judge<T, E>,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, GuardError<E>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let pass = match ready!(this.seat.poll_pass()) {
            Ok(pass) => pass,
            Err(refused) => return Poll::Ready(Err(GuardError::Refused(refused))),
        };
        let hand = InHand::new(&this.seat.guard, pass);
        let Some(future) = this.future.as_pin_mut() else { return Poll::Pending };
        let Poll::Ready(result) = future.poll(cx) else {
            let stage = hand.put_down();
            this.seat.stage = stage;
            return Poll::Pending;
        };
        match (this.judge.judge(&result), result) {
            (None, Ok(value)) => {
                hand.leave(Ending::Succeeded);
                Poll::Ready(Ok(value))
            }
            (failure, result) => {
                hand.leave(failure.map_or(Ending::Succeeded, Ending::Failed));
                Poll::Ready(result.map_err(GuardError::inner))
            }
        }
    }
}
