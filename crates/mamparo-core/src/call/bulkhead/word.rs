//! Everything that decides whether a caller may pass, in one word that is exchanged at once.

use crate::limits::{BULKHEAD_LIMIT_MAX, BULKHEAD_QUEUE_MAX};

const TAKEN_BITS: u32 = 24;
const CROWD_BITS: u32 = 40;
const TAKEN_MASK: u64 = (1 << TAKEN_BITS) - 1;
const CROWD_MASK: u64 = (1 << CROWD_BITS) - 1;

// Each field holds its limit, and the lowest never carries into the next.
const _: () = assert!((BULKHEAD_LIMIT_MAX as u64) < TAKEN_MASK);
const _: () = assert!((BULKHEAD_QUEUE_MAX as u64) < 1 << (CROWD_BITS - TAKEN_BITS));

/// From the lowest bit: 24 of slots taken, 16 of callers that wait, 24 of the limit.
///
/// Because they change together, nobody can take a slot that a waiter is owed, a lowered limit holds
/// from the instant it is set, and a slot can't come free between a look at it and the wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) const fn new(limit: u32) -> Self {
        Self(0).with_limit(limit)
    }

    /// Slots taken, those of granted but not yet claimed tickets included.
    pub(super) const fn taken(self) -> u32 {
        (self.0 & TAKEN_MASK) as u32
    }

    pub(super) const fn waiting(self) -> u32 {
        ((self.0 & CROWD_MASK) >> TAKEN_BITS) as u32
    }

    pub(super) const fn limit(self) -> u32 {
        (self.0 >> CROWD_BITS) as u32
    }

    /// Is a slot free that nobody waits for? One waiter makes the crowd, read as one number, larger
    /// than any limit, so one comparison asks both.
    pub(super) const fn has_free_slot(self) -> bool {
        self.0 & CROWD_MASK < self.0 >> CROWD_BITS
    }

    /// Slots that must come back before one can be handed on, because the limit was lowered.
    pub(super) const fn excess(self) -> u32 {
        self.taken().saturating_sub(self.limit())
    }

    /// One slot more is taken.
    pub(super) const fn taking(self) -> Self {
        Self(self.0 + 1)
    }

    /// One slot less is taken.
    pub(super) const fn giving_back(self) -> Self {
        Self(self.0 - (self.0 & TAKEN_MASK != 0) as u64)
    }

    /// One slot less is taken; `None` when somebody waits for it, or when none is taken. Such a crowd,
    /// read as one number, is larger than any limit or nothing, so one comparison asks both.
    pub(super) const fn freeing(self) -> Option<Self> {
        if (self.0 & CROWD_MASK).wrapping_sub(1) < TAKEN_MASK {
            Some(Self(self.0 - 1))
        } else {
            None
        }
    }

    pub(super) const fn with_waiting(self, waiting: u32) -> Self {
        Self(self.0 & !(CROWD_MASK ^ TAKEN_MASK) | (waiting as u64) << TAKEN_BITS)
    }

    /// With another limit, of at least 1 and at most [`BULKHEAD_LIMIT_MAX`].
    pub(super) const fn with_limit(self, limit: u32) -> Self {
        let limit = match limit {
            0 => 1,
            BULKHEAD_LIMIT_MAX.. => BULKHEAD_LIMIT_MAX,
            sound => sound,
        };
        Self(self.0 & CROWD_MASK | (limit as u64) << CROWD_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(word: Word) -> (u32, u32, u32) {
        (word.taken(), word.waiting(), word.limit())
    }

    #[test]
    fn fields_change_without_touching_each_other() {
        let word = Word::new(20).taking().taking().with_waiting(BULKHEAD_QUEUE_MAX);
        assert_eq!(fields(word), (2, BULKHEAD_QUEUE_MAX, 20));
        assert_eq!(fields(word.with_limit(u32::MAX)), (2, BULKHEAD_QUEUE_MAX, BULKHEAD_LIMIT_MAX));
        assert_eq!(fields(word.with_limit(0)), (2, BULKHEAD_QUEUE_MAX, 1));
        assert_eq!(fields(word.giving_back().with_waiting(0)), (1, 0, 20));
        assert_eq!(fields(Word::new(1).giving_back()), (0, 0, 1), "nothing below nothing");
    }

    #[test]
    fn a_slot_is_freed_only_when_taken_and_with_nobody_waiting() {
        let full = Word::new(BULKHEAD_LIMIT_MAX);
        assert_eq!(full.freeing(), None, "nothing below nothing");
        assert_eq!(full.taking().freeing(), Some(full));
        assert_eq!(full.taking().with_waiting(1).freeing(), None);
        assert_eq!(full.with_waiting(BULKHEAD_QUEUE_MAX).freeing(), None);
        let most = Word(full.0 | TAKEN_MASK);
        assert_eq!(most.freeing(), Some(most.giving_back()));
    }

    #[test]
    fn a_slot_is_free_only_below_the_limit_and_with_nobody_waiting() {
        let one = Word::new(2).taking();
        assert!(one.has_free_slot());
        assert!(!one.taking().has_free_slot());
        assert!(!one.with_waiting(1).has_free_slot());
        assert!(!one.with_limit(1).has_free_slot());
        assert_eq!((one.excess(), one.taking().with_limit(1).excess()), (0, 1));
    }
}
