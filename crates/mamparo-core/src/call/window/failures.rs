//! *k* failures within a period.

use std::time::Duration;

use crate::limits::WINDOW_CALLS_MAX;
use crate::sync::{Mutex, lock};
use crate::time::Moment;

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
    /// Watches for `failures` (1 to [`WINDOW_CALLS_MAX`]) failures within `period`.
    #[must_use]
    pub fn new(failures: u32, period: Duration) -> Self {
        let failures = failures.clamp(1, WINDOW_CALLS_MAX) as usize;
        Self { moments: Vec::new(), next: 0, failures, period }
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
        // The oldest first: as a rule it is the one that has left, and no other need be looked at.
        let (newer, older) = self.moments.split_at(self.next.min(self.moments.len()));
        self.moments.len() == self.failures
            && older.iter().chain(newer).all(|moment| self.holds(now, *moment))
    }

    /// Failures within the period that ends now.
    #[must_use]
    pub fn count(&self, now: Moment) -> u32 {
        let inside = self.moments.iter().filter(|moment| self.holds(now, **moment));
        u32::try_from(inside.count()).unwrap_or(u32::MAX)
    }

    fn holds(&self, now: Moment, moment: Moment) -> bool {
        now.since(moment) < self.period
    }

    fn clear(&mut self) {
        self.moments.clear();
        self.next = 0;
    }
}

/// A [`FailureRing`] that threads share. Only failures take its lock.
#[derive(Debug)]
pub struct SharedFailures(Mutex<Tagged>);

#[derive(Debug)]
struct Tagged {
    generation: u64,
    ring: FailureRing,
}

impl SharedFailures {
    /// See [`FailureRing::new`]; belongs to generation 0.
    #[must_use]
    pub fn new(failures: u32, period: Duration) -> Self {
        Self(Mutex::new(Tagged { generation: 0, ring: FailureRing::new(failures, period) }))
    }

    /// Empties it for `generation`; failures of others are turned away from now on.
    pub fn renew(&self, generation: u64) {
        let mut tagged = lock(&self.0);
        tagged.generation = generation;
        tagged.ring.clear();
    }

    /// Records a failure; true when it completes the number, `None` when it is of another generation.
    pub fn record(&self, now: Moment, generation: u64) -> Option<bool> {
        let mut tagged = lock(&self.0);
        (tagged.generation == generation).then(|| tagged.ring.record(now))
    }

    /// Failures of `generation` within the period that ends now.
    #[must_use]
    pub fn count(&self, now: Moment, generation: u64) -> u32 {
        let tagged = lock(&self.0);
        if tagged.generation == generation { tagged.ring.count(now) } else { 0 }
    }
}
