//! What a breaker remembers: three windows, each of which slides with every event.
//!
//! A window that only counts up forgets nothing: after ten thousand good calls it takes ten thousand
//! bad ones to notice. Each window here equals a recount of the events that are still inside it, the
//! present one included.

use std::time::Duration;

use crate::time::Moment;

/// Calls and failures inside a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// All calls with a verdict.
    pub calls: u32,
    /// Those of them that failed.
    pub failed: u32,
}

impl Counts {
    /// Share of failed calls, `0.0..=1.0`; zero without calls.
    #[must_use]
    pub fn failure_rate(self) -> f64 {
        // A correctly rounded quotient equals the literal that a person writes for it (7 of 100 is
        // 0.07); rate × calls would miss it by one rounding.
        if self.calls == 0 { 0.0 } else { f64::from(self.failed) / f64::from(self.calls) }
    }
}

/// The moments of the last *k* failures: answers "*k* failures within the period" exactly.
///
/// Successes leave no trace, so they need no clock reading.
#[derive(Debug, Clone)]
pub struct FailureRing {
    moments: Vec<Moment>,
    next: usize,
    failures: usize,
    period: Duration,
}

impl FailureRing {
    /// Watches for `failures` (at least 1) failures within `period`.
    #[must_use]
    pub fn new(failures: u32, period: Duration) -> Self {
        let failures = failures.max(1) as usize;
        Self { moments: Vec::with_capacity(failures), next: 0, failures, period }
    }

    /// Records a failure; true when it completes the number within the period. A failure that is
    /// exactly one period old no longer counts.
    pub fn record(&mut self, now: Moment) -> bool {
        if self.moments.len() < self.failures {
            self.moments.push(now);
        } else if let Some(oldest) = self.moments.get_mut(self.next) {
            *oldest = now;
        }
        self.next = (self.next + 1) % self.failures;
        self.count(now) as usize >= self.failures
    }

    /// Failures within the period that ends now.
    #[must_use]
    pub fn count(&self, now: Moment) -> u32 {
        let inside = self.moments.iter().filter(|moment| now.since(**moment) < self.period);
        u32::try_from(inside.count()).unwrap_or(u32::MAX)
    }
}

/// The verdicts of the last *n* calls, one bit each.
#[derive(Debug, Clone)]
pub struct CallRing {
    bits: Vec<u64>,
    size: u32,
    next: u32,
    counts: Counts,
}

impl CallRing {
    /// Remembers the last `size` (at least 1) calls.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let size = size.max(1);
        let words = size.div_ceil(64) as usize;
        Self { bits: vec![0; words], size, next: 0, counts: Counts::default() }
    }

    /// Records a verdict in place of the oldest one, and counts with it.
    pub fn record(&mut self, failed: bool) -> Counts {
        let mask = 1_u64 << (self.next % 64);
        if let Some(word) = self.bits.get_mut((self.next / 64) as usize) {
            let forgotten = *word & mask != 0;
            if self.counts.calls < self.size {
                self.counts.calls += 1;
            } else {
                self.counts.failed -= u32::from(forgotten);
            }
            *word = if failed { *word | mask } else { *word & !mask };
            self.counts.failed += u32::from(failed);
        }
        self.next = (self.next + 1) % self.size;
        self.counts
    }

    /// What is inside.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }
}

/// Number of buckets of a time window: the window slides in steps of a tenth.
pub const BUCKETS: usize = 10;

/// Verdicts of the last period, in ten buckets.
#[derive(Debug, Clone)]
pub struct TimeBuckets {
    buckets: [Bucket; BUCKETS],
    width: u64,
    /// The latest epoch seen; a clock that steps back keeps counting there.
    latest: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Number of the time slice, counted in bucket widths from the origin.
    epoch: u64,
    counts: Counts,
}

impl TimeBuckets {
    /// Remembers the last `period`, which is rounded down to ten equal buckets of at least 1 ns.
    #[must_use]
    pub fn new(period: Duration) -> Self {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        Self {
            buckets: [Bucket::default(); BUCKETS],
            width: (nanos / BUCKETS as u64).max(1),
            latest: 0,
        }
    }

    /// Records a verdict and counts with it.
    pub fn record(&mut self, now: Moment, failed: bool) -> Counts {
        self.latest = self.epoch(now);
        let slot = (self.latest % BUCKETS as u64) as usize;
        if let Some(bucket) = self.buckets.get_mut(slot) {
            if bucket.epoch != self.latest {
                *bucket = Bucket { epoch: self.latest, counts: Counts::default() };
            }
            bucket.counts.calls = bucket.counts.calls.saturating_add(1);
            bucket.counts.failed = bucket.counts.failed.saturating_add(u32::from(failed));
        }
        self.counts(now)
    }

    /// What is inside the window that ends now.
    #[must_use]
    pub fn counts(&self, now: Moment) -> Counts {
        let epoch = self.epoch(now);
        let inside = self.buckets.iter().filter(|b| epoch - b.epoch.min(epoch) < BUCKETS as u64);
        inside.fold(Counts::default(), |sum, bucket| Counts {
            calls: sum.calls.saturating_add(bucket.counts.calls),
            failed: sum.failed.saturating_add(bucket.counts.failed),
        })
    }

    fn epoch(&self, now: Moment) -> u64 {
        (now.nanos() / self.width).max(self.latest)
    }
}
