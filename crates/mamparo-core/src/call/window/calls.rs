//! The last *n* calls.

use super::{Counts, Mark};
use crate::limits::WINDOW_CALLS_MAX;
use crate::sync::Apart;
use crate::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// The verdicts of the last *n* calls, in a ring that threads write to without a lock.
///
/// One word, the head, says how far the ring has come and what the calls inside it add up to. A call
/// claims its slot and exchanges the slot's old mark for its own in the sums, both with one
/// compare-and-swap of the head; then it writes the mark into the slot. When nothing but good calls
/// is inside and another comes, the ring would look the same afterwards, and nothing is written.
///
/// Told by one thread at a time it equals a recount of the last *n* calls. Told by several, it equals
/// one of the orders in which they can have ended, but for a call that is delayed, between its claim
/// and its slot, for as long as *n* others take: it then replaces the call that was to replace it.
/// Sums and slots agree again as soon as nobody is in between.
#[derive(Debug)]
pub struct CallRing {
    head: Apart<AtomicU64>,
    slots: Box<[AtomicU16]>,
}

impl CallRing {
    /// Remembers the last `size` (1 to [`WINDOW_CALLS_MAX`]) calls; belongs to generation 0.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let size = size.clamp(1, WINDOW_CALLS_MAX);
        Self {
            head: Apart(AtomicU64::new(Head::empty(0).0)),
            slots: (0..size).map(|_| AtomicU16::new(Slot::EMPTY.0)).collect(),
        }
    }

    /// Empties it for `generation`; verdicts of others are turned away from now on.
    ///
    /// The caller sees to it that no two of these run at once.
    pub fn renew(&self, generation: u64) {
        // Swaps and not stores, so that they have their place among the others' swaps.
        for slot in &self.slots {
            slot.swap(Slot::EMPTY.0, Ordering::Relaxed);
        }
        self.head.0.swap(Head::empty(generation).0, Ordering::AcqRel);
    }

    /// Records a verdict in place of the oldest one, and counts with it. `None` when it is of another
    /// generation.
    #[inline]
    pub fn record(&self, generation: u64, mark: Mark) -> Option<Counts> {
        if mark.is_good() && self.is_all_good(generation) {
            return Some(Counts { calls: self.size(), failed: 0, slow: 0 });
        }
        self.take_slot(generation, mark)
    }

    /// Does it hold good calls of `generation` and nothing else, so that another changes nothing?
    #[must_use]
    #[inline]
    pub fn is_all_good(&self, generation: u64) -> bool {
        Head(self.head.0.load(Ordering::Acquire)).is_all_good_of(generation)
    }

    #[inline(never)]
    fn take_slot(&self, generation: u64, mark: Mark) -> Option<Counts> {
        let mut seen = Head(self.head.0.load(Ordering::Acquire));
        let (slot, expected) = loop {
            if !seen.is_of(generation) {
                return None;
            }
            let slot = self.slots.get(seen.position())?;
            let old = Slot(slot.load(Ordering::Acquire)).mark_of(generation);
            let next = seen.claimed(self.slots.len()).exchanged(old, mark);
            match self.swap_head(seen, next) {
                Ok(()) => {
                    seen = next;
                    break (slot, old);
                }
                Err(newer) => seen = newer,
            }
        };
        let own = Slot::new(generation, mark);
        // The same mark is there already, or nothing is and nothing need be.
        if expected == mark {
            return Some(self.counts_of(seen));
        }
        let replaced = self.write(slot, generation, own)?;
        if replaced == expected {
            return Some(self.counts_of(seen));
        }
        // A whole lap overtook this call, or this call overtook one: what was really replaced leaves
        // the sums, and what was expected to be comes back.
        self.exchange(generation, replaced, expected)
    }

    /// What is inside, as far as `generation` is concerned.
    #[must_use]
    pub fn counts(&self, generation: u64) -> Counts {
        let head = Head(self.head.0.load(Ordering::Acquire));
        if head.is_of(generation) { self.counts_of(head) } else { Counts::default() }
    }

    /// Most calls that it remembers.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// Writes `own` and answers with the mark that it replaced; `None` where a newer generation has
    /// taken over.
    fn write(&self, slot: &AtomicU16, generation: u64, own: Slot) -> Option<Mark> {
        let mut seen = Slot(slot.load(Ordering::Acquire));
        loop {
            // A foreign mark is a leftover, or a newer one's, and then the head is newer too.
            let foreign = seen != Slot::EMPTY && !seen.is_of(generation);
            if foreign && !Head(self.head.0.load(Ordering::Acquire)).is_of(generation) {
                return None;
            }
            let swapped =
                slot.compare_exchange_weak(seen.0, own.0, Ordering::AcqRel, Ordering::Acquire);
            match swapped {
                Ok(_) => return Some(seen.mark_of(generation)),
                Err(newer) => seen = Slot(newer),
            }
        }
    }

    fn exchange(&self, generation: u64, out: Mark, back: Mark) -> Option<Counts> {
        let mut seen = Head(self.head.0.load(Ordering::Acquire));
        loop {
            if !seen.is_of(generation) {
                return None;
            }
            let next = seen.exchanged(out, back);
            match self.swap_head(seen, next) {
                Ok(()) => return Some(self.counts_of(next)),
                Err(newer) => seen = newer,
            }
        }
    }

    fn swap_head(&self, seen: Head, next: Head) -> Result<(), Head> {
        let head = &self.head.0;
        head.compare_exchange_weak(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
            .map_err(Head)
    }

    fn counts_of(&self, head: Head) -> Counts {
        let size = self.size();
        let calls = if head.is_full() { size } else { head.0 as u32 & POSITION_MASK };
        // More than there are calls can only be on its way out.
        let count = |sum: u64| u32::try_from(sum.saturating_sub(BIAS)).unwrap_or(0).min(calls);
        let (failed, slow) = (count(head.sum(FAILED_AT)), count(head.sum(SLOW_AT)));
        Counts { calls, failed, slow }
    }
}

/// From below: 16 bits of position, one that says whether the ring has been full, 18 each of failed
/// and slow calls, 11 of the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head(u64);

const POSITION_MASK: u32 = 0xFFFF;
const FULL: u64 = 1 << 16;
const FAILED_AT: u32 = 17;
const SLOW_AT: u32 = 35;
const SUM_MASK: u64 = (1 << 18) - 1;
const TAG_AT: u32 = 53;
const TAG_MASK: u64 = (1 << 11) - 1;

/// Sums are kept this much higher, so that a call whose mark is taken out twice for a moment, when a
/// lap overtakes it, never makes a field borrow from its neighbour.
const BIAS: u64 = 1 << 16;

/// The generation modulo 2048. A call would have to be interrupted between two instructions for as
/// long as 2048 changes of state take to be taken for one of now.
const fn tag(generation: u64) -> u64 {
    generation & TAG_MASK
}

impl Head {
    const fn empty(generation: u64) -> Self {
        Self((tag(generation) << TAG_AT) | (BIAS << SLOW_AT) | (BIAS << FAILED_AT))
    }

    const fn is_of(self, generation: u64) -> bool {
        self.0 >> TAG_AT == tag(generation)
    }

    const fn position(self) -> usize {
        (self.0 as u32 & POSITION_MASK) as usize
    }

    const fn is_full(self) -> bool {
        self.0 & FULL != 0
    }

    const fn sum(self, at: u32) -> u64 {
        (self.0 >> at) & SUM_MASK
    }

    /// Of `generation`, full, and without a failed or slow call. Only the position is not looked at.
    const fn is_all_good_of(self, generation: u64) -> bool {
        self.0 & !(POSITION_MASK as u64) == Self::empty(generation).0 | FULL
    }

    const fn claimed(self, size: usize) -> Self {
        let position = self.0 & POSITION_MASK as u64;
        if position + 1 >= size as u64 {
            Self((self.0 - position) | FULL)
        } else {
            Self(self.0 + 1)
        }
    }

    /// `out` leaves the sums and `into` joins them.
    const fn exchanged(self, out: Mark, into: Mark) -> Self {
        let leaves = ((out.failed as u64) << FAILED_AT) + ((out.slow as u64) << SLOW_AT);
        let joins = ((into.failed as u64) << FAILED_AT) + ((into.slow as u64) << SLOW_AT);
        Self(self.0 + joins - leaves)
    }
}

/// From below: failed, slow, taken; then the generation's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot(u16);

impl Slot {
    const EMPTY: Self = Self(0);
    const TAKEN: u16 = 4;

    const fn new(generation: u64, mark: Mark) -> Self {
        let tag = (tag(generation) as u16) << 3;
        Self(tag | Self::TAKEN | ((mark.slow as u16) << 1) | mark.failed as u16)
    }

    const fn is_of(self, generation: u64) -> bool {
        self.0 & Self::TAKEN != 0 && (self.0 >> 3) as u64 == tag(generation)
    }

    /// The mark, if it is of `generation`; a slot that is empty, or was left by another, counts as good.
    const fn mark_of(self, generation: u64) -> Mark {
        if self.is_of(generation) {
            Mark { failed: self.0 & 1 != 0, slow: self.0 & 2 != 0 }
        } else {
            Mark::GOOD
        }
    }
}
