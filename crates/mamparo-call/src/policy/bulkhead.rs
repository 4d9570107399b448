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

    /// Gets a slot at once, where one is free, or else a place in line or a refusal.
    #[inline]
    pub(crate) fn enter(&mut self) {
        match self.policy.borrow().slots().take_free() {
            Some(slot) => self.stage = Stage::Inside(slot),
            None => self.queue_up(),
        }
    }

    pub(crate) const fn is_inside(&self) -> bool {
        matches!(self.stage, Stage::Inside(_))
    }

    pub(crate) const fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued(_))
    }

    /// Ready with the slot taken, or with a refusal; pending for ever once the call is over.
    #[inline]
    pub(crate) fn poll_slot(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        if let Stage::Outside = self.stage {
            self.enter();
        }
        if self.is_inside() { Poll::Ready(Ok(())) } else { self.poll_turn(cx) }
    }

    /// Gives the slot back: the call has ended.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if self.is_inside()
            && let Stage::Inside(slot) = std::mem::replace(&mut self.stage, Stage::Past)
        {
            self.policy.borrow().release(slot);
        }
    }

    /// The way in when no slot is free.
    #[cold]
    fn queue_up(&mut self) {
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
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Refused>> {
        let policy = self.policy.borrow();
        let refused = match &mut self.stage {
            Stage::Outside | Stage::Inside(_) | Stage::Past => return Poll::Pending,
            Stage::Refused(refused) => *refused,
            Stage::Queued(waiting) => match ready!(waiting.poll(policy, cx)) {
                Ok(slot) => {
                    self.stage = Stage::Inside(slot);
                    return Poll::Ready(Ok(()));
                }
                Err(refusal) => {
                    policy.leave(waiting.ticket);
                    Refused::new(refusal, None)
                }
            },
        };
        policy.shared.ears.tell(|| PolicyEvent::Refused(refused));
        self.stage = Stage::Past;
        Poll::Ready(Err(refused))
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

/// Lives while user code runs; its drop is the unwinding of a panic.
pub(crate) struct SlotUnwinding<'a, P: Borrow<BulkheadPolicy>>(pub(crate) &'a mut Place<P>);

impl<P: Borrow<BulkheadPolicy>> SlotUnwinding<'_, P> {
    pub(crate) fn came_back(self) {
        std::mem::forget(self);
    }
}

impl<P: Borrow<BulkheadPolicy>> Drop for SlotUnwinding<'_, P> {
    fn drop(&mut self) {
        self.0.abandon();
    }
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

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Err(refused) = ready!(this.place.poll_slot(cx)) {
            return Poll::Ready(Err(GuardError::Refused(refused)));
        }
        let unwinding = SlotUnwinding(this.place);
        let poll = this.future.poll(cx);
        unwinding.came_back();
        let result = ready!(poll);
        this.place.settle();
        Poll::Ready(result.map_err(GuardError::inner))
    }
}
