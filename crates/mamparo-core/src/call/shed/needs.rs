//! What work of one kind needs at least, so that what can't be done in time is not begun.

use std::time::Duration;

use crate::call::latency::{Latency, samples_needed};
use crate::keyed::{Dispensable, Keep};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// How long a finished request is remembered, at most.
const WINDOW: Duration = Duration::from_secs(60);

/// The quantile that is taken for the least: nine of ten took longer.
const LEAST: f64 = 0.1;

/// How long a reading is used, in nanoseconds: 1 s. One looks at every bucket of the window.
const READ_EVERY_NANOS: u64 = 1_000_000_000;

/// The least time that requests of one kind (a route, say) need, learned from those that were done: the
/// tenth percentile of the last minute. Shared by reference.
///
/// Fewer than a hundred are no basis: then nobody knows.
#[derive(Debug)]
pub struct Needs {
    latency: Latency,
    /// When the next reading is due, in nanoseconds.
    due: AtomicU64,
    /// The last reading in nanoseconds; 0 when nobody knows.
    read: AtomicU64,
}

impl Default for Needs {
    fn default() -> Self {
        Self::new()
    }
}

impl Needs {
    /// Nothing is known yet.
    #[must_use]
    pub fn new() -> Self {
        Self { latency: Latency::new(WINDOW), due: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// A request was done after `took`. Tell only those that did what they are for: a quick refusal is
    /// not how long the work takes.
    pub fn tell(&self, now: Moment, took: Duration) {
        self.latency.record(now, took);
    }

    /// The least that such a request needs; `None` when nobody knows. At most a second old.
    #[must_use]
    pub fn ask(&self, now: Moment) -> Option<Duration> {
        let due = self.due.load(Ordering::Relaxed);
        if now.nanos() >= due {
            let next = now.nanos().saturating_add(READ_EVERY_NANOS);
            // One thread reads, the others go on with what was read before.
            let mine = self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed);
            if mine.is_ok() {
                self.read.store(self.observed(now), Ordering::Relaxed);
            }
        }
        let nanos = self.read.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    fn observed(&self, now: Moment) -> u64 {
        let observed = self.latency.observed(now, LEAST);
        // As many as the mirror image of the quantile would need.
        let enough = observed.samples() >= samples_needed(1.0 - LEAST);
        let value = observed.value.filter(|_| enough).unwrap_or_default();
        u64::try_from(value.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Dispensable for Needs {
    /// By the time of the last question: what was not asked about for a window knows nothing any more.
    fn keep(&self, now: Moment) -> Keep {
        let until = self.due.load(Ordering::Relaxed).saturating_add(WINDOW.as_nanos() as u64);
        if until <= now.nanos() { Keep::Idle } else { Keep::Nearest(until) }
    }
}
