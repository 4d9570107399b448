//! The last period, in ten steps.

use std::time::Duration;

use super::{Counts, Mark};
use crate::time::Moment;

/// Number of buckets of a time window: the window slides in steps of a tenth.
pub const BUCKETS: usize = 10;

/// Verdicts of the last period, in ten buckets. Recording costs the same however many calls the
/// window holds.
#[derive(Debug, Clone)]
pub struct TimeBuckets {
    /// The bucket of epoch *e* stands at *e* modulo ten.
    buckets: [Counts; BUCKETS],
    /// The latest epoch that was written to; a clock that steps back keeps counting there.
    latest: u64,
    /// Nanoseconds of an epoch.
    width: u64,
}

impl TimeBuckets {
    /// Remembers the last `period`, which is rounded down to ten equal buckets of at least 1 ns.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let width = (nanos / BUCKETS as u64).max(1);
        Self { buckets: [Counts::default(); BUCKETS], latest: 0, width }
    }

    /// The number of the time slice that `now` lies in, counted from the origin.
    #[must_use]
    pub const fn epoch(&self, now: Moment) -> u64 {
        now.nanos() / self.width
    }

    /// Records a verdict and counts with it.
    pub fn record(&mut self, now: Moment, mark: Mark) -> Counts {
        self.add(self.epoch(now), mark);
        self.counts(now)
    }

    /// Records a verdict without counting.
    pub(super) fn add(&mut self, epoch: u64, mark: Mark) {
        self.roll(epoch);
        if let Some(bucket) = self.buckets.get_mut(slot(self.latest)) {
            bucket.add(mark);
        }
    }

    /// What is inside the window that ends now.
    #[must_use]
    pub fn counts(&self, now: Moment) -> Counts {
        self.counts_at(self.epoch(now))
    }

    /// What is inside the window that ends with `epoch`, or with the latest one if that is later.
    pub(super) fn counts_at(&self, epoch: u64) -> Counts {
        // Buckets that the window has left since the last event, oldest first.
        let left = epoch.saturating_sub(self.latest).min(BUCKETS as u64);
        let inside = (left..BUCKETS as u64).map(|age| self.latest.wrapping_add(1 + age));
        inside.fold(Counts::default(), |sum, epoch| {
            sum.plus(self.buckets.get(slot(epoch)).copied().unwrap_or_default())
        })
    }

    /// Moves on to `epoch` and empties what the window leaves behind, at most ten buckets.
    fn roll(&mut self, epoch: u64) {
        let passed = epoch.saturating_sub(self.latest);
        if passed == 0 {
            return;
        }
        for step in 1..=passed.min(BUCKETS as u64) {
            if let Some(bucket) = self.buckets.get_mut(slot(self.latest + step)) {
                *bucket = Counts::default();
            }
        }
        self.latest = epoch;
    }

    pub(super) fn clear(&mut self) {
        self.buckets = [Counts::default(); BUCKETS];
        self.latest = 0;
    }
}

const fn slot(epoch: u64) -> usize {
    (epoch % BUCKETS as u64) as usize
}
