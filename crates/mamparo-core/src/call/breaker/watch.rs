//! What a closed circuit remembers, held against the rule that opens it.

use super::config::{BreakerConfig, Over, Trip};
use crate::call::window::{
    CallRing, Counts, Mark, SharedFailures, Standing, Streak, StripedBuckets,
};
use crate::time::Moment;

/// The rule and its window.
#[derive(Debug)]
pub(super) struct Watch {
    rule: Trip,
    window: Window,
}

#[derive(Debug)]
enum Window {
    Streak(Streak),
    Failures(SharedFailures),
    Calls(CallRing),
    Time(StripedBuckets),
}

impl Watch {
    /// An empty window, of generation 0.
    pub(super) fn new(config: &BreakerConfig) -> Self {
        let window = match config.trip {
            Trip::Consecutive { .. } => Window::Streak(Streak::new()),
            Trip::Failures { failures, window } => {
                Window::Failures(SharedFailures::new(failures, window))
            }
            Trip::Rate { over: Over::Calls(calls), .. } => Window::Calls(CallRing::new(calls)),
            Trip::Rate { over: Over::Time(period), .. } => {
                Window::Time(StripedBuckets::new(period))
            }
        };
        Self { rule: config.trip, window }
    }

    /// Begins anew for `generation`. Runs under the machine's lock, before anybody is admitted by it.
    pub(super) fn renew(&self, generation: u64) {
        match &self.window {
            Window::Streak(streak) => streak.renew(generation),
            Window::Failures(failures) => failures.renew(generation),
            Window::Calls(ring) => ring.renew(generation),
            // The first verdict of a newer generation empties a stripe by itself.
            Window::Time(_) => {}
        }
    }

    /// Records a verdict and says how the window stands with it; `None` when it comes too late.
    #[inline]
    pub(super) fn record(&self, now: Moment, generation: u64, mark: Mark) -> Option<Standing> {
        match &self.window {
            // A success leaves no trace.
            Window::Failures(_) if !mark.failed => Some(Standing::Below),
            Window::Failures(failures) => failures.record(now, generation).map(reached_if),
            Window::Streak(streak) => {
                let in_a_row = streak.record(generation, mark.failed)?;
                Some(reached_if(mark.failed && in_a_row >= self.failures()))
            }
            Window::Calls(ring) => {
                ring.record(generation, mark).map(|counts| self.rule.standing(counts))
            }
            Window::Time(buckets) => {
                buckets.record(now, generation, mark, |counts| self.rule.standing(counts))
            }
        }
    }

    /// What the window of `generation` holds. Where successes leave no trace, `calls` equals `failed`.
    pub(super) fn counts(&self, now: Moment, generation: u64) -> Counts {
        let failures = |failed| Counts { calls: failed, failed, slow: 0 };
        match &self.window {
            Window::Streak(streak) => failures(streak.count(generation)),
            Window::Failures(ring) => failures(ring.count(now, generation)),
            Window::Calls(ring) => ring.counts(generation),
            Window::Time(buckets) => buckets.counts(now, generation),
        }
    }

    const fn failures(&self) -> u32 {
        match self.rule {
            Trip::Consecutive { failures } | Trip::Failures { failures, .. } => failures,
            Trip::Rate { .. } => u32::MAX,
        }
    }
}

const fn reached_if(reached: bool) -> Standing {
    if reached { Standing::Reached } else { Standing::Below }
}
