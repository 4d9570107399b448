//! Why a circuit is as it is, for people who are woken by it.

use std::fmt;
use std::time::Duration;

use super::config::{Over, Trip, percent};
use super::machine::{Machine, State};
use super::table::{Event, Phase};
use super::{Change, Counts, Override};
use crate::call::window::share;
use crate::time::{Moment, Readable};

/// What a breaker has to say for itself. `Display` says it in sentences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Explanation {
    /// The state, as the next caller will find it.
    pub phase: Phase,
    /// How long it has been so; `None` since the start.
    pub since: Option<Duration>,
    /// What brought it about; `None` at the start.
    pub cause: Option<Event>,
    /// A person's order that holds it there.
    pub overridden: Option<Override>,
    /// The rule that opens it.
    pub trip: Trip,
    /// What the window of the closed circuit holds.
    pub counts: Counts,
    /// What a closed circuit still lacks to open; `None` in other states, and under an order.
    pub missing: Option<Missing>,
    /// After what time an open circuit is tried; `None` in other states, and under an order.
    pub tries_in: Option<Duration>,
    /// Trials in a row that have failed.
    pub reopened: u32,
    /// The places of a half-open circuit.
    pub probes: Option<Probes>,
}

/// What a closed circuit lacks to open, if nothing leaves its window in the meantime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// So many more failures would open it. `None` where failures alone can't, as long as what is in
    /// the window stays there.
    pub failures: Option<u32>,
    /// So many more slow calls would open it; `None` likewise, and where slow calls do not count.
    pub slow: Option<u32>,
    /// So many calls are missing to the minimum that proves anything.
    pub calls: u32,
}

/// The places of a half-open circuit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probes {
    /// All of them.
    pub places: u32,
    /// Probes under way.
    pub in_flight: u32,
    /// Probes that succeeded.
    pub passed: u32,
    /// Probes that failed.
    pub failed: u32,
    /// How long it still waits; those that have ended then decide.
    pub waits: Duration,
}

/// Explains `machine`, a copy that may be moved on, at `now`.
pub(super) fn explain(mut machine: Machine, counts: Counts, now: Moment) -> Explanation {
    let _ = machine.advance(now);
    let (trip, automatic) = (machine.config.trip, machine.order.is_none());
    let (mut tries_in, mut missing, mut probes) = (None, None, None);
    match &machine.state {
        State::Closed => missing = automatic.then(|| Missing::of(&trip, counts)),
        State::Open { until } => tries_in = automatic.then(|| now.until(*until)),
        State::HalfOpen { trial } => {
            let until = trial.since.plus(machine.config.half_open_max);
            probes = Some(Probes {
                places: trial.probes,
                in_flight: trial.in_flight,
                passed: trial.passed,
                failed: trial.failed,
                waits: now.until(until),
            });
        }
    }
    Explanation {
        phase: machine.phase(),
        since: machine.last.map(|change| now.since(change.at)),
        cause: machine.last.map(|change| change.on),
        overridden: machine.order,
        trip,
        counts: if machine.phase() == Phase::Closed { counts } else { Counts::default() },
        missing,
        tries_in,
        reopened: machine.reopened,
        probes,
    }
}

impl Missing {
    fn of(trip: &Trip, counts: Counts) -> Self {
        match *trip {
            Trip::Consecutive { failures } | Trip::Failures { failures, .. } => {
                let more = failures.max(1).saturating_sub(counts.failed).max(1);
                Self { failures: Some(more), slow: None, calls: 0 }
            }
            Trip::Rate { failure_rate, slow_rate, min_calls, over } => {
                let most = match over {
                    Over::Calls(calls) => calls.max(1),
                    Over::Time(_) => u32::MAX,
                };
                let more = |part, rate| more_to_reach(rate, part, counts.calls, min_calls, most);
                Self {
                    failures: failure_rate.and_then(|rate| more(counts.failed, rate)),
                    slow: slow_rate.and_then(|rule| more(counts.slow, rule.rate)),
                    calls: min_calls.saturating_sub(counts.calls),
                }
            }
        }
    }
}

/// The least number of further calls, all of the kind that `part` counts, with which its share of all
/// reaches `rate`; `None` when no number does. The window holds `most` calls.
fn more_to_reach(rate: f64, part: u32, calls: u32, min_calls: u32, most: u32) -> Option<u32> {
    let reached = |more: u32| {
        let all = calls.saturating_add(more).min(most);
        all >= min_calls && share(part.saturating_add(more).min(all), all) >= rate
    };
    // With each of them the share grows, so the first that does can be searched by halves.
    let (mut least, mut most_more) = (1, u32::MAX - calls);
    if !reached(most_more) {
        return None;
    }
    while least < most_more {
        let middle = least + (most_more - least) / 2;
        if reached(middle) {
            most_more = middle;
        } else {
            least = middle + 1;
        }
    }
    Some(least)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.phase.name())?;
        match self.since {
            None => write!(f, "since the start")?,
            Some(since) => write!(f, "for {}", Readable::new(since))?,
        }
        if let Some(order) = self.overridden {
            let what = match order {
                Override::Open => "every call is refused",
                Override::Closed => "every call passes and is counted",
                Override::Disabled => "every call passes and none is counted",
            };
            write!(f, ", by order: {what} until the order is taken back")?;
        } else if let Some(cause) = self.cause {
            write!(f, ", because {}", Because(cause, self.trip))?;
        }
        if self.phase == Phase::Closed && self.overridden != Some(Override::Disabled) {
            write!(f, "; ")?;
            self.fmt_counts(f)?;
        }
        if let Some(missing) = self.missing {
            self.fmt_missing(missing, f)?;
        }
        if let Some(after) = self.tries_in {
            write!(f, "; calls are refused, and tried again in {}", Readable::wait(after))?;
        }
        if let Some(probes) = self.probes {
            write!(f, "; {probes}")?;
        }
        match self.reopened {
            0 => Ok(()),
            1 => write!(f, "; the last trial failed"),
            times => write!(f, "; the last {times} trials failed"),
        }
    }
}

impl Explanation {
    fn fmt_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { calls, failed, slow } = self.counts;
        match self.trip {
            Trip::Consecutive { .. } => write!(f, "{} in a row", Number(failed, "failure")),
            Trip::Failures { window, .. } => {
                write!(f, "{} in the last {}", Number(failed, "failure"), Readable::new(window))
            }
            Trip::Rate { failure_rate, slow_rate, over, .. } => {
                match over {
                    Over::Calls(_) => write!(f, "of the last {}", Number(calls, "call"))?,
                    Over::Time(period) => {
                        write!(
                            f,
                            "of {} in the last {}",
                            Number(calls, "call"),
                            Readable::new(period)
                        )?;
                    }
                }
                if failure_rate.is_some() {
                    write!(f, ", {failed} failed ({} %)", percent(self.counts.failure_rate()))?;
                }
                if slow_rate.is_some() {
                    write!(f, ", {slow} slow ({} %)", percent(self.counts.slow_rate()))?;
                }
                Ok(())
            }
        }
    }

    fn fmt_missing(&self, missing: Missing, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "; opens at {}: ", self.trip)?;
        if missing.calls > 0 {
            write!(f, "{} short of the minimum, ", Number(missing.calls, "call"))?;
        }
        match (missing.failures, missing.slow) {
            (Some(failures), None) => write!(f, "{} to go", Number(failures, "more failure")),
            (None, Some(slow)) => write!(f, "{} to go", Number(slow, "more slow call")),
            (Some(failures), Some(slow)) => {
                let (failures, slow) =
                    (Number(failures, "more failure"), Number(slow, "more slow call"));
                write!(f, "{failures} or {slow} to go")
            }
            (None, None) => write!(f, "not before older calls leave the window"),
        }
    }
}

impl fmt::Display for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { places, in_flight, passed, failed, waits } = *self;
        write!(f, "{} of {} under way, ", in_flight, Number(places, "probe"))?;
        write!(f, "{passed} passed, {failed} failed; ")?;
        if in_flight == 0 && passed == 0 && failed == 0 {
            write!(f, "the next call is one")
        } else {
            write!(f, "decided in {} at the latest", Readable::wait(waits))
        }
    }
}

impl Change {
    /// The reason, as it follows "because"; `trip` is the rule of the breaker that changed.
    #[must_use]
    pub fn because(&self, trip: Trip) -> impl fmt::Display + use<> {
        Because(self.on, trip)
    }
}

/// The reason for a change, as it follows "because".
struct Because(Event, Trip);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            Event::Tripped => return write!(f, "the limit was reached, {}", self.1),
            Event::OpenTimeOver => "the open time was over",
            Event::ProbesPassed => "enough probes succeeded",
            Event::ProbeFailed => "too many probes failed",
            Event::AgedPassing => "the half-open time was over and the probes until then succeeded",
            Event::AgedFailing => "the half-open time was over and too many probes had failed",
            Event::AgedHanging => "the half-open time was over and no probe had ended",
            Event::ForcedOpen | Event::ForcedClosed | Event::Disabled => "of an order",
            Event::Automatic => "an order was taken back",
            Event::Counted
            | Event::ProbePassed
            | Event::ProbeMissed
            | Event::Returned
            | Event::Stale => "a call ended",
        };
        f.write_str(text)
    }
}

/// `1 failure`, `3 failures`.
struct Number(u32, &'static str);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}
