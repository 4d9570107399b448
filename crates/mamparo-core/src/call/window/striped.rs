//! A time window that threads write to without meeting.

use std::cmp::Ordering;
use std::time::Duration;

use super::{Counts, Mark, Standing, TimeBuckets};
use crate::sync::atomic::{self, AtomicU64};
use crate::sync::{Apart, Mutex, lock, thread_number};
use crate::time::Moment;

/// Number of stripes, a power of two. Eight of 256 bytes keep a breaker under 4 KiB, and runtimes of
/// more threads than that share a stripe between few.
#[cfg(not(loom))]
pub const STRIPES: usize = 8;
/// Two stripes show every interleaving that eight would, at a fraction of the states.
#[cfg(loom)]
pub const STRIPES: usize = 2;

/// [`TimeBuckets`] in stripes: a thread writes to its own, and only who has to judge the whole window
/// adds them up.
///
/// Most successes need not judge. Within one epoch nothing leaves the window, so a success only lowers
/// the shares, and if they were below their thresholds before it, they still are. `calm` certifies
/// that: it names the epoch in which somebody added up and found the shares below, and how many bad
/// marks there had been until then. One more bad mark, or the next epoch, and it no longer holds.
#[derive(Debug)]
pub struct StripedBuckets {
    stripes: Box<[Apart<Mutex<Stripe>>]>,
    /// Bad marks so far.
    alarms: AtomicU64,
    /// See [`certificate`].
    calm: AtomicU64,
    /// For the width; it stays empty.
    scale: TimeBuckets,
}

#[derive(Debug)]
struct Stripe {
    generation: u64,
    buckets: TimeBuckets,
}

impl StripedBuckets {
    /// See [`TimeBuckets::new`]; belongs to generation 0.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        let scale = TimeBuckets::new(period);
        let stripe = || Apart(Mutex::new(Stripe { generation: 0, buckets: scale.clone() }));
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            alarms: AtomicU64::new(0),
            calm: AtomicU64::new(u64::MAX),
            scale,
        }
    }

    /// Records a verdict of `generation` and judges the window with it: `judge` says how counts stand.
    /// `None` when the generation is older than what the thread's stripe has seen.
    ///
    /// Where several threads record at once, each judges with everything that was recorded before it
    /// began to, so the last to judge sees them all.
    pub fn record(
        &self,
        now: Moment,
        generation: u64,
        mark: Mark,
        judge: impl FnOnce(Counts) -> Standing,
    ) -> Option<Standing> {
        let epoch = self.scale.epoch(now);
        let own = thread_number() % STRIPES;
        if !lock(&self.stripes[own].0).add(generation, epoch, mark) {
            return None;
        }
        let alarms = if mark.is_good() {
            self.alarms.load(atomic::Ordering::Acquire)
        } else {
            self.alarms.fetch_add(1, atomic::Ordering::AcqRel).wrapping_add(1)
        };
        let calm = certificate(alarms, epoch);
        if mark.is_good() && self.calm.load(atomic::Ordering::Acquire) == calm {
            return Some(Standing::Below);
        }
        let standing = judge(self.sum(epoch, generation)?);
        if standing == Standing::Below {
            self.calm.store(calm, atomic::Ordering::Release);
        }
        Some(standing)
    }

    /// What the window of `generation` that ends now holds.
    #[must_use]
    pub fn counts(&self, now: Moment, generation: u64) -> Counts {
        self.sum(self.scale.epoch(now), generation).unwrap_or_default()
    }

    /// Locks one stripe after the other: while it adds up, no thread waits for more than one step.
    /// `None` when a stripe belongs to a newer generation: who comes late certifies nothing.
    fn sum(&self, epoch: u64, generation: u64) -> Option<Counts> {
        let mut sum = Counts::default();
        for stripe in &self.stripes {
            let stripe = lock(&stripe.0);
            match stripe.generation.cmp(&generation) {
                Ordering::Less => {}
                Ordering::Equal => sum = sum.plus(stripe.buckets.counts_at(epoch)),
                Ordering::Greater => return None,
            }
        }
        Some(sum)
    }
}

impl Stripe {
    /// False when the verdict is of an older generation. The first of a newer one empties the stripe.
    fn add(&mut self, generation: u64, epoch: u64, mark: Mark) -> bool {
        if generation < self.generation {
            return false;
        }
        if generation > self.generation {
            self.generation = generation;
            self.buckets.clear();
        }
        self.buckets.add(epoch, mark);
        true
    }
}

/// Alarms above, epoch below, each modulo 2³². It would be mistaken for another only after four
/// billion bad marks, or epochs, without one between that replaces it.
const fn certificate(alarms: u64, epoch: u64) -> u64 {
    (alarms << 32) | (epoch & 0xFFFF_FFFF)
}
