//! Failures in a row.

use crate::sync::Apart;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many of the last calls failed in a row, in one word: generation above, count below.
///
/// A success writes only where it ends a streak, so calls of a healthy dependency share nothing that
/// they would have to take from each other.
#[derive(Debug, Default)]
pub struct Streak(Apart<AtomicU64>);

impl Streak {
    /// No failure yet; belongs to generation 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts at zero for `generation`; verdicts of others are turned away from now on.
    pub fn renew(&self, generation: u64) {
        // A swap and not a store, so that it has its place among the others' swaps.
        self.word().swap(tag(generation), Ordering::AcqRel);
    }

    /// Records a verdict. The answer is the failures in a row, this one included; `None` when it is
    /// of another generation.
    #[inline]
    pub fn record(&self, generation: u64, failed: bool) -> Option<u32> {
        if !failed && self.is_clear(generation) {
            return Some(0);
        }
        self.write(generation, failed)
    }

    /// Is there no streak that a success of `generation` could end?
    #[must_use]
    #[inline]
    pub fn is_clear(&self, generation: u64) -> bool {
        self.word().load(Ordering::Acquire) == tag(generation)
    }

    fn write(&self, generation: u64, failed: bool) -> Option<u32> {
        let mut seen = self.word().load(Ordering::Acquire);
        loop {
            if seen & TAG != tag(generation) {
                return None;
            }
            let count = if failed { count(seen).saturating_add(1) } else { 0 };
            let next = tag(generation) | u64::from(count);
            if next == seen {
                return Some(count);
            }
            match self.word().compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(count),
                Err(newer) => seen = newer,
            }
        }
    }

    /// Failures of `generation` in a row.
    #[must_use]
    pub fn count(&self, generation: u64) -> u32 {
        let seen = self.word().load(Ordering::Acquire);
        if seen & TAG == tag(generation) { count(seen) } else { 0 }
    }

    const fn word(&self) -> &AtomicU64 {
        &self.0.0
    }
}

/// The upper half holds the generation, modulo 2³²: no call outlives four billion changes of state.
const TAG: u64 = 0xFFFF_FFFF_0000_0000;

const fn tag(generation: u64) -> u64 {
    generation << 32
}

const fn count(word: u64) -> u32 {
    (word & !TAG) as u32
}
