//! What a closed circuit remembers, held against the rule that opens it.

use std::time::Duration;

use super::config::{BreakerConfig, Over, Trip};
use crate::call::window::{
    CallRing, Counts, Mark, SharedFailures, Standing, Streak, StripedBuckets,
};
use crate::time::Moment;

/// The rule and its window.
#[derive(Debug)]
pub(super) struct Watch {
    rule: Trip,
    /// A call that took longer is slow; endless where slow calls do not count.
    slower_than: Duration,
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
        let slower_than = config.slow_rate().map_or(Duration::MAX, |rule| rule.slower_than);
        Self { rule: config.trip, slower_than, window }
    }

    /// How windows and trials see a verdict. An unknown time is not slow.
    #[inline]
    pub(super) fn mark(&self, failed: bool, took: Option<Duration>) -> Mark {
        Mark { failed, slow: took.is_some_and(|took| took > self.slower_than) }
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

    /// Would the window look the same after a success of `generation`, and open nothing?
    ///
    /// A generation that is over may be told so too: its success would be turned away.
    #[inline]
    pub(super) fn forgets_success(&self, generation: u64) -> bool {
        match &self.window {
            Window::Failures(_) => true,
            Window::Streak(streak) => streak.is_clear(generation),
            Window::Calls(ring) => {
                self.slower_than == Duration::MAX && ring.is_all_good(generation)
            }
            Window::Time(_) => false,
        }
    }

    /// Records a verdict and says how the window stands with it; `None` when it comes too late.
    #[inline]
    pub(super) fn record(
        &self,
        now: Moment,
        generation: u64,
        failed: bool,
        took: Option<Duration>,
    ) -> Option<Standing> {
        match &self.window {
            // A success leaves no trace.
            Window::Failures(_) if !failed => Some(Standing::Below),
            Window::Failures(failures) => failures.record(now, generation).map(reached_if),
            Window::Streak(streak) => {
                let in_a_row = streak.record(generation, failed)?;
                Some(reached_if(failed && in_a_row >= self.failures()))
            }
            Window::Calls(ring) => {
                let counts = ring.record(generation, self.mark(failed, took))?;
                Some(self.rule.standing(counts))
            }
            Window::Time(buckets) => {
                let judge = |counts| self.rule.standing(counts);
                buckets.record(now, generation, self.mark(failed, took), judge)
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
