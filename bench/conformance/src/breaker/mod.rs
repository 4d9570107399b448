//! Circuit breakers.

mod cases;
mod subjects;

use std::time::Duration;

use crate::calls::{Boxed, Inner, Said, run};
use crate::verdict::{Row, Table, Verdict};

/// When a breaker opens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Trip {
    /// As soon as this breaker can: after one or two failures.
    Soon,
    /// At a share of the last so many calls, once there are that many.
    Calls(u32, f64),
    /// At half of at least 10 calls in a second.
    Second,
    /// Values that nobody means: windows of zero, waits for ever.
    Absurd,
}

/// A breaker, whoever made it.
pub(super) trait Breaker {
    /// Puts the call through.
    fn call(&self, inner: Inner) -> Boxed<Said>;
}

/// A kind of breaker.
pub(super) struct Subject {
    name: &'static str,
    /// Does it read tokio's clock, so that a paused one moves it?
    paused: bool,
    /// How long it stays open; whole seconds for one that knows nothing shorter.
    open_for: Duration,
    /// One that opens so and then admits `probes`; `None` when it has no such thing.
    make: fn(Trip, u32) -> Option<Box<dyn Breaker>>,
}

impl Subject {
    /// The verdict of `case` on a breaker that opens as `trip` says and lets `probes` in.
    fn judge<F>(
        &self,
        trip: Trip,
        probes: u32,
        case: impl FnOnce(Box<dyn Breaker>, Duration) -> F,
    ) -> Verdict
    where
        F: Future<Output = Verdict>,
    {
        match (self.make)(trip, probes) {
            Some(breaker) => run(self.paused, async { case(breaker, self.open_for).await }),
            None => Verdict::None,
        }
    }
}

pub(super) fn table() -> Table {
    let subjects = subjects::all();
    let rows = cases::CASES.iter().map(|(case, judge)| {
        let verdicts = subjects.iter().map(judge).collect();
        Row { case, verdicts }
    });
    let rows = rows.collect();
    Table { about: "breaker", subjects: subjects.iter().map(|s| s.name).collect(), rows }
}
