//! Requests and accepts of the last while: twelve words in a circle, each a part of the window.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// Parts of the window; the oldest is forgotten as a whole.
const PARTS: usize = 12;

/// Bits of each count of a part. A part that has seen a million halves both its counts: what matters is
/// their ratio.
const COUNT_BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const NUMBER_SHIFT: u32 = 2 * COUNT_BITS;
const NUMBER_MASK: u64 = u64::MAX >> NUMBER_SHIFT;

/// What a window holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Requests that were wanted.
    pub requests: u64,
    /// Those of them that were accepted.
    pub accepts: u64,
}

/// Each word: the number of its part (24 bits), requests (20), accepts (20).
#[derive(Debug)]
pub(super) struct Tally {
    parts: [AtomicU64; PARTS],
    /// Nanoseconds of a part.
    length: u64,
}

impl Tally {
    pub(super) fn new(window: Duration) -> Self {
        let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        let length = (nanos / PARTS as u64).max(1);
        Self { parts: std::array::from_fn(|_| AtomicU64::new(0)), length }
    }

    /// How long a part is.
    pub(super) fn step(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// The number of the present part. The first is one window in, so that the zero of a fresh word is
    /// too old to count.
    fn number(&self, now: Moment) -> u64 {
        (now.nanos() / self.length).saturating_add(PARTS as u64)
    }

    pub(super) fn counts(&self, now: Moment) -> Counts {
        let number = self.number(now);
        let mut sum = Counts::default();
        for part in &self.parts {
            let word = part.load(Ordering::Relaxed);
            if age(number, word) < PARTS as u64 {
                sum.requests += word >> COUNT_BITS & COUNT_MAX;
                sum.accepts += word & COUNT_MAX;
            }
        }
        sum
    }

    /// Counts a request. One that comes late, with the number of a part that has been overwritten,
    /// counts in the newer one.
    pub(super) fn add(&self, now: Moment, accepted: bool) {
        let number = self.number(now);
        let Some(part) = self.parts.get((number % PARTS as u64) as usize) else { return };
        let mut word = part.load(Ordering::Relaxed);
        loop {
            let next = counted(number, word, accepted);
            match part.compare_exchange_weak(word, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => word = seen,
            }
        }
    }
}

/// How many parts the one of `word` lies behind `number`. One that lies a little ahead (the clock went
/// back, or a thread was slow) is of age zero. Numbers come again after 2²⁴ parts, 5 years of the default
/// window, so whatever is further off is just old.
fn age(number: u64, word: u64) -> u64 {
    let written = word >> NUMBER_SHIFT;
    let ahead = written.wrapping_sub(number) & NUMBER_MASK;
    if ahead <= PARTS as u64 { 0 } else { number.wrapping_sub(written) & NUMBER_MASK }
}

fn counted(number: u64, word: u64, accepted: bool) -> u64 {
    let accepted = u64::from(accepted);
    if age(number, word) >= PARTS as u64 {
        return (number & NUMBER_MASK) << NUMBER_SHIFT | 1 << COUNT_BITS | accepted;
    }
    let (mut requests, mut accepts) = (word >> COUNT_BITS & COUNT_MAX, word & COUNT_MAX);
    if requests == COUNT_MAX {
        (requests, accepts) = (requests / 2, accepts / 2);
    }
    (word >> NUMBER_SHIFT) << NUMBER_SHIFT | (requests + 1) << COUNT_BITS | (accepts + accepted)
}
