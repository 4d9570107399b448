//! At most so many calls in flight, and a bounded queue in front of them.
//!
//! A slot is handed from the call that ends to a waiter, so a newcomer never overtakes and the limit
//! holds at every instant. Whoever leaves while a slot is already on its way hands it on. Who would
//! get a slot too late is refused on entry, not after the wait.
//!
//! While nobody waits, taking a slot and giving it back are one exchange of one word each, without a
//! lock. With waiters, whatever changes the line happens under a lock, and the word stays as it is
//! until the holder of the lock exchanges it.

mod config;
mod entry;
mod keyed;
mod line;
mod table;
mod word;

use std::time::Duration;

pub use config::{BulkheadConfig, Order};
pub use entry::{Entry, Slot, Woken};
pub use keyed::KeyedBulkhead;
pub use line::Ticket;
pub use table::{Event, Standing, TABLE};

use crate::limits::{BULKHEAD_ESTIMATE_AGE_MAX, BULKHEAD_PRESSURE_PERCENT, BULKHEAD_QUEUE_MAX};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Moment;
use line::{End, Line};
use word::Word;

/// The slots of one dependency, shared by all its calls.
///
/// A caller waits for about *service time × place in line ÷ limit*: with all slots busy, one comes
/// free each *service time ÷ limit*. The service time is how long slots are held, smoothed with a
/// weight of ⅛ (as a round trip in RFC 6298) and measured only while somebody waits, so that calls that
/// do not wait pay nothing for it. Before the first measurement everybody is let in; when the last one
/// is older than 1 s, so is whoever would be first in line, to find out what holds now. Else a bad minute
/// would keep the queue empty, and an empty queue measures nothing.
///
/// ```
/// use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig, Entry};
/// use mamparo_core::time::Moment;
///
/// let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 1));
/// let (now, deadline) = (Moment::ORIGIN, Moment::from_millis(500));
/// let Entry::Granted(slot) = bulkhead.ask(now, deadline) else { panic!("one slot is free") };
/// let Entry::Queued { ticket, .. } = bulkhead.ask(now, deadline) else { panic!("one may wait") };
/// assert!(matches!(bulkhead.ask(now, deadline), Entry::Full { .. }));
///
/// let later = Moment::from_millis(40);
/// assert_eq!(bulkhead.release(later, slot), Some(ticket)); // wake its holder, which then does this:
/// let slot = bulkhead.claim(later, ticket).expect("granted");
/// assert_eq!(bulkhead.release(later, slot), None);
/// ```
#[derive(Debug)]
pub struct Bulkhead {
    word: AtomicU64,
    queue: AtomicU32,
    adaptive_lifo: AtomicBool,
    /// In nanoseconds; 0 is not known yet. Written under the lock, with the moment of writing.
    service: AtomicU64,
    measured: AtomicU64,
    /// Whoever holds the lock, and nobody else, changes how many wait.
    line: Mutex<Line>,
}

impl Bulkhead {
    /// A bulkhead with all slots free.
    #[must_use]
    pub fn new(config: BulkheadConfig) -> Self {
        Self {
            word: AtomicU64::new(Word::new(config.limit).0),
            queue: AtomicU32::new(config.queue.min(BULKHEAD_QUEUE_MAX)),
            adaptive_lifo: AtomicBool::new(config.order == Order::AdaptiveLifo),
            service: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            line: Mutex::new(Line::default()),
        }
    }

    /// Asks for a slot. `until` is the last moment at which one is of use; a caller without a deadline
    /// says how long it will wait at most.
    #[inline]
    pub fn ask(&self, now: Moment, until: Moment) -> Entry {
        match self.take(now) {
            Ok(slot) => Entry::Granted(slot),
            Err(word) => self.queue_up(now, until, word),
        }
    }

    /// Takes a slot that is free, without a reading of the clock: how long it is held is not measured.
    /// `None` when there is none; then [`Bulkhead::ask`].
    #[inline(always)]
    #[must_use]
    pub fn take_free(&self) -> Option<Slot> {
        self.take(Moment::FAR_FUTURE).ok()
    }

    /// Gives a slot back. Answers with the waiter that owns it now, if there is one: wake it.
    ///
    /// `now` may be the moment at which the slot was taken, to save a reading of the clock, unless
    /// [`Bulkhead::release_needs_now`].
    #[inline]
    pub fn release(&self, now: Moment, slot: Slot) -> Option<Ticket> {
        self.release_with(slot, || now)
    }

    /// [`Bulkhead::release`] with a clock that is read only when somebody waits.
    #[inline(always)]
    #[expect(clippy::needless_pass_by_value, reason = "the slot ends here")]
    pub fn release_with(&self, slot: Slot, now: impl FnOnce() -> Moment) -> Option<Ticket> {
        let mut word = self.word();
        while let Some(freed) = word.freeing() {
            match self.exchange(word, freed) {
                Ok(()) => return None,
                Err(seen) => word = seen,
            }
        }
        self.hand_over(now(), slot.since)
    }

    /// Does somebody wait, so that the next release is a measurement?
    #[must_use]
    pub fn release_needs_now(&self) -> bool {
        self.word().waiting() > 0
    }

    /// How does the holder of this ticket stand?
    #[must_use]
    pub fn standing(&self, ticket: Ticket) -> Standing {
        self.line().standing(ticket)
    }

    /// Picks up the slot of a granted ticket. `None` when it is not granted (yet, or any more).
    pub fn claim(&self, now: Moment, ticket: Ticket) -> Option<Slot> {
        self.line().tell(ticket, Event::Claim).map(|_| Slot { since: now })
    }

    /// Ends a ticket without a slot: timed out, cancelled, or shed. A slot that was granted meanwhile
    /// is handed on, and the answer is the waiter that owns it now.
    pub fn leave(&self, now: Moment, ticket: Ticket) -> Option<Ticket> {
        let mut line = self.line();
        match line.tell(ticket, Event::Leave)? {
            Standing::Granted => self.pass_on(now, &mut line),
            Standing::Waiting => {
                self.update(|word| word.with_waiting(line.waiting()));
                None
            }
            Standing::Shed | Standing::Gone => None,
        }
    }

    /// Changes the limit, clamped to 1 to 100 000. A larger one grants slots at once; a smaller one
    /// takes none away: slots that come back are not handed on until fewer are taken than it allows.
    pub fn set_limit(&self, now: Moment, limit: u32) -> Woken {
        self.set_limit_of(now, limit, &mut self.line())
    }

    fn set_limit_of(&self, now: Moment, limit: u32, line: &mut Line) -> Woken {
        self.update(|word| word.with_limit(limit));
        let mut woken = Woken::default();
        loop {
            let word = self.word();
            if word.waiting() == 0 || word.taken() >= word.limit() {
                return woken;
            }
            let next = line.grant(now, self.served_end(word.waiting()));
            self.update(|word| {
                let word = word.with_waiting(line.waiting());
                if next.is_some() { word.taking() } else { word }
            });
            next.into_iter().for_each(|ticket| woken.add(ticket));
        }
    }

    /// Changes all settings at once, as [`Bulkhead::set_limit`] does with the limit. Nobody who waits
    /// loses the place because the queue got shorter.
    pub fn set_config(&self, now: Moment, config: BulkheadConfig) -> Woken {
        // Under the lock, so that who queues up there finds the same queue at every look: one that was
        // let in by the longer queue would else join a line that the shorter one has no place in.
        let mut line = self.line();
        self.queue.store(config.queue.min(BULKHEAD_QUEUE_MAX), Ordering::Relaxed);
        self.adaptive_lifo.store(config.order == Order::AdaptiveLifo, Ordering::Relaxed);
        self.set_limit_of(now, config.limit, &mut line)
    }

    /// Slots taken, those of granted but not yet claimed tickets included.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.word().taken()
    }

    /// Callers that wait.
    #[must_use]
    pub fn queued(&self) -> u32 {
        self.word().waiting()
    }

    /// Most slots taken at a time.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.word().limit()
    }

    /// How long slots are held under load, smoothed; `None` before the first release with somebody
    /// waiting.
    #[must_use]
    pub fn service_time(&self) -> Option<Duration> {
        match self.service.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    #[inline(always)]
    fn take(&self, since: Moment) -> Result<Slot, Word> {
        let mut word = self.word();
        while word.has_free_slot() {
            match self.exchange(word, word.taking()) {
                Ok(()) => return Ok(Slot { since }),
                Err(seen) => word = seen,
            }
        }
        Err(word)
    }

    /// The way in when no slot is free: refusals without the lock, the queue under it.
    #[cold]
    fn queue_up(&self, now: Moment, until: Moment, seen: Word) -> Entry {
        if let Some(refusal) = self.refuses(now, until, seen) {
            return refusal;
        }
        let mut line = self.line();
        loop {
            let word = self.word();
            if word.has_free_slot() {
                if self.exchange(word, word.taking()).is_ok() {
                    return Entry::Granted(Slot { since: now });
                }
            } else if let Some(refusal) = self.refuses(now, until, word) {
                return refusal;
            } else if word.waiting() >= self.queue() {
                // One goes, one comes: the word stays as it is.
                let shed = line.shed_oldest();
                return Entry::Queued { ticket: line.join(until), shed };
            } else if self.exchange(word, word.with_waiting(word.waiting() + 1)).is_ok() {
                return Entry::Queued { ticket: line.join(until), shed: None };
            }
        }
    }

    /// Why a caller may not wait, if so.
    fn refuses(&self, now: Moment, until: Moment, word: Word) -> Option<Entry> {
        let (waiting, queue) = (word.waiting(), self.queue());
        let sheds = queue > 0 && self.adaptive_lifo.load(Ordering::Relaxed);
        if waiting >= queue && !sheds {
            return Some(Entry::Full { retry_after: self.wait(word, waiting + 1) });
        }
        let place = match self.served_end(waiting + 1) {
            End::Oldest => waiting + 1,
            End::Newest => 1,
        };
        let retry_after = self.wait(word, place)?;
        let scouts = waiting == 0 && self.estimate_is_old(now);
        (now.plus(retry_after) > until && !scouts).then_some(Entry::TooLate { retry_after })
    }

    /// How long until the `place`-th slot from now comes free, by estimate. Slots above a lowered
    /// limit come back first.
    fn wait(&self, word: Word, place: u32) -> Option<Duration> {
        let places = place.saturating_add(word.excess());
        let all = self.service_time()?.saturating_mul(places);
        Some(all / word.limit().max(1))
    }

    fn served_end(&self, waiting: u32) -> End {
        let pressed = waiting > self.queue() * BULKHEAD_PRESSURE_PERCENT / 100;
        if pressed && self.adaptive_lifo.load(Ordering::Relaxed) {
            End::Newest
        } else {
            End::Oldest
        }
    }

    /// The way out when somebody waits.
    #[cold]
    fn hand_over(&self, now: Moment, since: Moment) -> Option<Ticket> {
        let mut line = self.line();
        self.measure(now, now.since(since));
        self.pass_on(now, &mut line)
    }

    /// Gives a slot to the next in line, or frees it.
    fn pass_on(&self, now: Moment, line: &mut Line) -> Option<Ticket> {
        let word = self.word();
        let next = match word.excess() {
            0 => line.grant(now, self.served_end(word.waiting())),
            _ => None,
        };
        self.update(|word| {
            let word = word.with_waiting(line.waiting());
            if next.is_some() { word } else { word.giving_back() }
        });
        next
    }

    /// A slot that was held for no time was released with the moment of its start: no measurement.
    fn measure(&self, now: Moment, held: Duration) {
        let held = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        if held > 0 {
            let smoothed = match self.service.load(Ordering::Relaxed) {
                0 => held,
                known => known - known / 8 + held / 8,
            };
            self.service.store(smoothed.max(1), Ordering::Relaxed);
            self.measured.store(now.nanos(), Ordering::Relaxed);
        }
    }

    /// Was nothing measured for long, or after `now` (the clock went back)?
    fn estimate_is_old(&self, now: Moment) -> bool {
        let measured = Moment::from_nanos(self.measured.load(Ordering::Relaxed));
        now < measured || now.since(measured) > BULKHEAD_ESTIMATE_AGE_MAX
    }

    fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        lock(&self.line)
    }

    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    fn exchange(&self, seen: Word, next: Word) -> Result<(), Word> {
        self.word
            .compare_exchange_weak(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(Word)
    }

    fn update(&self, change: impl Fn(Word) -> Word) {
        let mut word = self.word();
        while let Err(seen) = self.exchange(word, change(word)) {
            word = seen;
        }
    }
}
