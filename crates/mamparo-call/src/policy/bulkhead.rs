//! At most so many futures under way, and a bounded line of those that wait.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig, Entry, Slot, Standing, Ticket};
use mamparo_core::call::pipeline::Refusal;
use mamparo_core::limits::BULKHEAD_WAIT_MAX;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::task::coop::unconstrained;
use tokio::time::Sleep;

use crate::Context as Request;
use crate::clock;
use crate::policy::listen::Ears;
use crate::policy::{GuardError, Listener, PolicyEvent, Refused};

/// The slots that all clones share, and the line in front of them.
///
/// A call takes its slot at the first poll and gives it back as soon as it has ended, not when its
/// future goes. Who finds no slot waits in line, asleep, until the deadline of the current
/// [`Context`](Request) or for 30 s, or is refused when the line is full or a slot would come too late.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use mamparo_call::policy::BulkheadPolicy;
/// use mamparo_core::call::bulkhead::BulkheadConfig;
///
/// let bulkhead = BulkheadPolicy::new(BulkheadConfig::new(20, 5)); // 20 at once, 5 in line
/// let answer = bulkhead.call(async { Ok::<_, Infallible>(7) }).await;
/// assert_eq!(answer, Ok(7));
/// assert_eq!(bulkhead.in_flight(), 0);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct BulkheadPolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    room: Arc<Room>,
    ears: Ears,
}

#[derive(Debug)]
struct Room {
    slots: Bulkhead,
    /// Who waits for which ticket; at most as many as the line is long.
    wakers: Mutex<BTreeMap<Ticket, Waker>>,
}

impl BulkheadPolicy {
    /// With all slots free.
    #[must_use]
    pub fn new(config: BulkheadConfig) -> Self {
        let room = Arc::new(Room { slots: Bulkhead::new(config), wakers: Mutex::default() });
        Self { shared: Arc::new(Shared { room, ears: Ears::default() }) }
    }

    /// The same slots with a listener of this handle and its clones: `Queued` and `Refused`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `future` in a slot.
    ///
    /// # Errors
    /// [`GuardError`]: no slot in time, or the future's own error.
    pub const fn call<F>(&self, future: F) -> Slotted<&Self, F> {
        Slotted::new(self, future)
    }

    /// Slots taken.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.slots().in_flight()
    }

    /// Callers in line.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.slots().queued()
    }

    /// Most slots taken at a time.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.slots().limit()
    }

    /// Changes the limit, 1 to 100 000: a larger one lets waiters in at once, a smaller one interrupts
    /// nobody.
    pub fn set_limit(&self, limit: u32) {
        for ticket in self.slots().set_limit(clock::now(), limit) {
            self.wake(Some(ticket));
        }
    }

    /// A slot that is free.
    #[inline(always)]
    pub(crate) fn take_free(&self) -> Option<InHand<'_>> {
        self.slots().take_free().map(|slot| InHand::new(self, slot))
    }

    fn slots(&self) -> &Bulkhead {
        &self.shared.room.slots
    }

    /// Picks up the slot of a granted ticket.
    fn claim(&self, ticket: Ticket) -> Option<Slot> {
        let slot = self.slots().claim(clock::now(), ticket);
        self.forget(ticket);
        slot
    }

    #[inline(always)]
    fn release(&self, slot: Slot) {
        let next = self.slots().release_with(slot, clock::now);
        if next.is_some() {
            self.wake(next);
        }
    }

    fn leave(&self, ticket: Ticket) {
        self.forget(ticket);
        self.wake(self.slots().leave(clock::now(), ticket));
    }

    fn forget(&self, ticket: Ticket) {
        let waker = self.wakers().remove(&ticket);
        // The lock is free by now: what a waker does when it goes is not our code.
        drop(waker);
    }

    #[cold]
    fn wake(&self, ticket: Option<Ticket>) {
        let waker = ticket.and_then(|ticket| self.wakers().remove(&ticket));
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Leaves the waker where whoever grants the ticket finds it.
    fn sleep(&self, ticket: Ticket, waker: &Waker) {
        // Cloned before the lock is taken: a waker's code is not ours.
        let waker = waker.clone();
        let old = self.wakers().insert(ticket, waker);
        drop(old);
    }

    fn wakers(&self) -> MutexGuard<'_, BTreeMap<Ticket, Waker>> {
        self.shared.room.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call's place in a bulkhead: in line, in a slot, or neither. Whatever ends the call, slot and
/// ticket go back.
#[derive(Debug)]
pub(crate) struct Place<P: Borrow<BulkheadPolicy>> {
    policy: P,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The call has not asked yet.
    Outside,
    /// Boxed: who has to wait has the time, and who has not should not carry it along.
    Queued(Box<Waiting>),
    Inside(Slot),
    Refused(Refused),
    /// The call is over.
    Past,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    until: Moment,
    /// What it means when `until` has come: the caller's own deadline, or our longest wait.
    then: Refusal,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<P: Borrow<BulkheadPolicy>> Place<P> {
    pub(crate) const fn new(policy: P) -> Self {
        Self { policy, stage: Stage::Outside }
    }

    /// In the slot that is in hand.
    #[inline(always)]
    pub(crate) fn inside(policy: P, hand: InHand<'_>) -> Self {
        Self { policy, stage: hand.put_down() }
    }

    const fn is_inside(&self) -> bool {
        matches!(self.stage, Stage::Inside(_))
    }

    pub(crate) const fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused(_))
    }

    /// Takes the slot in hand: one that is free, that the last poll left, or that a wait in line
    /// brought. Pending for ever once the call is over.
    #[inline(always)]
    pub(crate) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Result<Slot, Refused>> {
        if let Stage::Outside = self.stage {
            if let Some(slot) = self.policy.borrow().slots().take_free() {
                self.overwrite(Stage::Past);
                return Poll::Ready(Ok(slot));
            }
            self.queue_up();
        } else if self.is_inside()
            && let Stage::Inside(slot) = std::mem::replace(&mut self.stage, Stage::Past)
        {
            return Poll::Ready(Ok(slot));
        }
        self.poll_turn(cx)
    }

    /// Runs `poll` with `slot` in hand, and gives it back when that is ready.
    #[inline(always)]
    pub(crate) fn with_slot<T, E>(
        &mut self,
        slot: Slot,
        poll: impl FnOnce() -> Poll<Result<T, E>>,
    ) -> Poll<Result<T, GuardError<E>>> {
        let hand = InHand::new(self.policy.borrow(), slot);
        match poll() {
            Poll::Pending => {
                let stage = hand.put_down();
                self.overwrite(stage);
                Poll::Pending
            }
            Poll::Ready(Ok(value)) => {
                hand.give_back();
                Poll::Ready(Ok(value))
            }
            Poll::Ready(Err(error)) => {
                hand.give_back();
                Poll::Ready(Err(GuardError::inner(error)))
            }
        }
    }

    /// Sets a stage where the one before owns nothing, and need not be looked at again to end it.
    #[inline(always)]
    const fn overwrite(&mut self, stage: Stage) {
        std::mem::forget(std::mem::replace(&mut self.stage, stage));
    }

    /// The way in when no slot is free.
    #[cold]
    pub(crate) fn queue_up(&mut self) {
        let policy = self.policy.borrow();
        let (now, deadline) = (clock::now(), Request::current_deadline());
        let until = deadline.unwrap_or_else(|| now.plus(BULKHEAD_WAIT_MAX));
        let retry_after = match policy.slots().ask(now, until) {
            Entry::Granted(slot) => return self.stage = Stage::Inside(slot),
            Entry::Queued { ticket, shed } => {
                policy.wake(shed);
                policy.shared.ears.tell(|| PolicyEvent::Queued);
                let then = deadline.map_or(Refusal::BulkheadFull, |_| Refusal::DeadlineExceeded);
                let waiting = Waiting { ticket, until, then, timer: None };
                self.stage = Stage::Queued(Box::new(waiting));
                return;
            }
            Entry::Full { retry_after } => retry_after,
            Entry::TooLate { retry_after } => Some(retry_after),
        };
        self.stage = Stage::Refused(Refused::new(Refusal::BulkheadFull, retry_after));
    }

    #[cold]
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<Slot, Refused>> {
        let policy = self.policy.borrow();
        let answer = match &mut self.stage {
            Stage::Queued(waiting) => ready!(waiting.poll(policy, cx)).map_err(|refusal| {
                policy.leave(waiting.ticket);
                Refused::new(refusal, None)
            }),
            Stage::Refused(refused) => Err(*refused),
            Stage::Inside(_) | Stage::Outside | Stage::Past => {
                return match std::mem::replace(&mut self.stage, Stage::Past) {
                    Stage::Inside(slot) => Poll::Ready(Ok(slot)),
                    Stage::Outside | Stage::Queued(_) | Stage::Refused(_) | Stage::Past => {
                        Poll::Pending
                    }
                };
            }
        };
        self.stage = Stage::Past;
        if let Err(refused) = answer {
            policy.shared.ears.tell(|| PolicyEvent::Refused(refused));
        }
        Poll::Ready(answer)
    }

    /// The call goes before its end.
    #[cold]
    fn abandon(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Past) {
            Stage::Queued(waiting) => self.policy.borrow().leave(waiting.ticket),
            Stage::Inside(slot) => self.policy.borrow().release(slot),
            Stage::Outside | Stage::Refused(_) | Stage::Past => {}
        }
    }
}

impl Waiting {
    fn poll(
        &mut self,
        policy: &BulkheadPolicy,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Slot, Refusal>> {
        // Before the look at the standing: a grant in between finds the waker.
        policy.sleep(self.ticket, cx.waker());
        match policy.slots().standing(self.ticket) {
            Standing::Granted => Poll::Ready(policy.claim(self.ticket).ok_or(self.then)),
            Standing::Waiting => {
                let until = self.until;
                let timer = self.timer.get_or_insert_with(|| {
                    Box::pin(tokio::time::sleep_until(clock::instant_of(until)))
                });
                Pin::new(&mut unconstrained(timer.as_mut())).poll(cx).map(|()| Err(self.then))
            }
            // Made room for a newer caller, or its turn came too late.
            Standing::Shed | Standing::Gone => Poll::Ready(Err(Refusal::BulkheadFull)),
        }
    }
}

impl<P: Borrow<BulkheadPolicy>> Drop for Place<P> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Past) {
            self.abandon();
        }
    }
}

/// The slot while user code runs: its drop is the unwinding of a panic, unless the slot went on.
///
/// In hand and not in the place, so that a call which is ready at once never writes it there.
pub(crate) struct InHand<'a> {
    policy: &'a BulkheadPolicy,
    slot: Option<Slot>,
}

impl<'a> InHand<'a> {
    #[inline(always)]
    pub(crate) const fn new(policy: &'a BulkheadPolicy, slot: Slot) -> Self {
        Self { policy, slot: Some(slot) }
    }

    /// The call goes on later: the slot for its place.
    #[inline(always)]
    fn put_down(mut self) -> Stage {
        self.slot.take().map_or(Stage::Past, Stage::Inside)
    }

    /// The call has ended.
    #[inline(always)]
    pub(crate) fn give_back(mut self) {
        if let Some(slot) = self.slot.take() {
            self.policy.release(slot);
        }
    }
}

impl Drop for InHand<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            unwind(self.policy, slot);
        }
    }
}

#[cold]
fn unwind(policy: &BulkheadPolicy, slot: Slot) {
    policy.release(slot);
}

pin_project! {
    /// The future of [`BulkheadPolicy::call`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Slotted<P, F>
    where
        P: Borrow<BulkheadPolicy>,
    {
        // In this order: what runs inside ends before its slot is given back.
        #[pin]
        future: F,
        place: Place<P>,
    }
}

impl<P: Borrow<BulkheadPolicy>, F> Slotted<P, F> {
    pub(crate) const fn new(policy: P, future: F) -> Self {
        Self { future, place: Place::new(policy) }
    }
}

impl<P, F, T, E> Future for Slotted<P, F>
where
    P: Borrow<BulkheadPolicy>,
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, GuardError<E>>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match ready!(this.place.poll_slot(cx)) {
            Ok(slot) => this.place.with_slot(slot, || this.future.poll(cx)),
            Err(refused) => Poll::Ready(Err(GuardError::Refused(refused))),
        }
    }
}
