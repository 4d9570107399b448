//! From window to window: which law applies, and when the base latency has to be measured anew.

use crate::call::adaptive::base::Base;
use crate::call::adaptive::table::{Event, Phase};
use crate::call::adaptive::window::{Mean, Needs, Summary, Window};
use crate::call::adaptive::{AdaptiveConfig, Algorithm, Sample, law};
use crate::limits::{ADAPTIVE_PROBE_SAMPLES_MIN, ADAPTIVE_SAMPLES_MIN, BULKHEAD_LIMIT_MAX};
use crate::time::Moment;

#[derive(Debug)]
pub(super) struct Machine {
    config: AdaptiveConfig,
    limit: f64,
    window: Window,
    /// `None` before the first probe.
    base: Option<Base>,
    /// When drops last lowered the limit.
    lowered: Moment,
    state: State,
}

/// `resume` is the limit that a probe goes back to.
#[derive(Debug, Clone, Copy)]
enum State {
    Seeking,
    Draining { resume: f64 },
    Probing { resume: f64 },
}

impl Machine {
    /// Begins with a probe of the initial limit. Whatever ends in a first window is what ends early.
    pub(super) fn new(config: AdaptiveConfig) -> Self {
        let min = config.min.clamp(1, BULKHEAD_LIMIT_MAX);
        let max = config.max.clamp(min, BULKHEAD_LIMIT_MAX);
        let limit = f64::from(config.initial.clamp(min, max));
        Self {
            config: AdaptiveConfig { min, max, ..config },
            limit,
            window: Window::default(),
            base: None,
            lowered: Moment::ORIGIN,
            state: State::Draining { resume: limit },
        }
    }

    /// Whole calls, rounded down: the fraction is on its way.
    pub(super) const fn limit(&self) -> u32 {
        self.limit as u32
    }

    pub(super) const fn phase(&self) -> Phase {
        match self.state {
            State::Seeking => Phase::Seeking,
            State::Draining { .. } => Phase::Draining,
            State::Probing { .. } => Phase::Probing,
        }
    }

    /// Takes a call, and answers with what its window showed when it closes one.
    pub(super) fn tell(&mut self, now: Moment, sample: Sample) -> Option<Event> {
        // A clock that went back must not make every drop an old one.
        self.lowered = self.lowered.min(now);
        let calls = match self.state {
            State::Seeking | State::Draining { .. } => ADAPTIVE_SAMPLES_MIN,
            State::Probing { .. } => ADAPTIVE_PROBE_SAMPLES_MIN,
        };
        let summary = self.window.tell(now, sample, Needs { calls, lowered: self.lowered })?;
        let (event, limit, state) = match summary.took {
            Some(took) if summary.dropped == 0.0 => self.passed(now, took, summary.in_flight),
            Some(_) | None => self.dropped(now, &summary),
        };
        self.limit = limit.clamp(f64::from(self.config.min), f64::from(self.config.max));
        self.state = state;
        Some(event)
    }

    fn dropped(&mut self, now: Moment, summary: &Summary) -> (Event, f64, State) {
        self.lowered = now;
        (Event::Dropped, law::on_drops(self.limit, summary.dropped), State::Seeking)
    }

    fn passed(&mut self, now: Moment, took: Mean, in_flight: u32) -> (Event, f64, State) {
        match self.state {
            State::Seeking => self.seek(now, took, in_flight),
            State::Draining { resume } => (Event::Drained, self.limit, State::Probing { resume }),
            State::Probing { resume } => {
                self.base = Some(Base::new(now, took));
                (Event::Measured, resume, State::Seeking)
            }
        }
    }

    fn seek(&mut self, now: Moment, took: Mean, in_flight: u32) -> (Event, f64, State) {
        let base = self.base.get_or_insert(Base::new(now, took));
        base.tell(now, took);
        let stale = base.is_stale(now) && self.config.algorithm.reads_latency();
        // Half of the limit counts as use.
        if u64::from(in_flight) * 2 < u64::from(self.limit as u32) {
            if stale {
                // No queue of ours stands there: it is slower now.
                *base = Base::new(now, took);
            }
            return (Event::Unused, self.limit, State::Seeking);
        }
        if stale {
            let probed = self.limit * self.config.algorithm.probed_share();
            return (Event::Stale, probed, State::Draining { resume: self.limit });
        }
        let limit = match self.config.algorithm {
            Algorithm::Aimd => law::aimd(self.limit),
            Algorithm::Vegas => law::vegas(self.limit, base.least(), took.seconds),
            Algorithm::Gradient2 { tolerance } => {
                // Not a number is no tolerance at all.
                law::gradient(self.limit, tolerance.max(1.0), base.long(), took.seconds)
            }
        };
        (Event::Judged, limit, State::Seeking)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::adaptive::table::TABLE;

    struct Driven {
        machine: Machine,
        now: Moment,
        hits: Vec<(Phase, Event)>,
    }

    impl Driven {
        /// Feeds a call, and checks against the table if it closes a window.
        fn call(&mut self, took: u64, in_flight: u32, dropped: bool) {
            self.now = self.now.plus(Duration::from_millis(2));
            let before = self.machine.phase();
            let sample = Sample { took: Duration::from_millis(took), in_flight, dropped };
            if let Some(event) = self.machine.tell(self.now, sample) {
                let row = TABLE.row(before, event).expect("every window is in the table");
                assert_eq!(self.machine.phase(), row.to, "{before:?} on {event:?}");
                self.hits.push((before, event));
            }
        }

        fn seconds(&mut self, seconds: u64, in_flight: u32, dropped: bool) {
            for _ in 0..seconds * 500 {
                self.call(20, in_flight, dropped);
            }
        }

        /// Feeds calls that are slow for the base until it is measured anew.
        fn until(&mut self, phase: Phase) {
            for _ in 0..20_000 {
                if self.machine.phase() == phase {
                    return;
                }
                self.call(40, 200, false);
            }
            panic!("never {phase:?}");
        }
    }

    #[test]
    fn every_row_of_the_table_is_driven() {
        let config = AdaptiveConfig { algorithm: Algorithm::Vegas, ..AdaptiveConfig::default() };
        let (now, hits) = (Moment::ORIGIN, Vec::new());
        let mut driven = Driven { machine: Machine::new(config), now, hits };
        driven.seconds(1, 1, true);
        driven.seconds(5, 1, false);
        driven.seconds(5, 200, false);
        driven.until(Phase::Draining);
        driven.until(Phase::Probing);
        driven.until(Phase::Seeking);
        driven.seconds(1, 200, false);
        driven.until(Phase::Draining);
        driven.seconds(1, 200, true);
        driven.until(Phase::Probing);
        driven.seconds(1, 200, true);
        assert_eq!(TABLE.untested(&driven.hits), Vec::<String>::new());
    }
}
