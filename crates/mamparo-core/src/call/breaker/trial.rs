//! The trial of a half-open circuit: who may probe, and when the outcome is certain.

use super::config::BreakerConfig;
use super::table::Event;
use crate::call::window::{Mark, least_reaching, share};
use crate::time::Moment;

/// A trial under way. It ends as soon as no probe that is still missing could change its outcome.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// When the first probe that may still decide went out, or the trial was called for.
    pub(super) since: Moment,
    pub(super) in_flight: u32,
    pub(super) passed: u32,
    pub(super) failed: u32,
    slow: u32,
    pub(super) probes: u32,
    /// So many failures, and the share of successes can't be reached.
    failed_at: u32,
    /// So many slow probes, and the share of slow calls is reached.
    slow_at: u32,
}

impl Trial {
    pub(super) fn new(config: &BreakerConfig, now: Moment) -> Self {
        let probes = config.probes.max(1);
        let needed = least_reaching(config.probe_success, probes).min(probes);
        Self {
            since: now,
            in_flight: 0,
            passed: 0,
            failed: 0,
            slow: 0,
            probes,
            failed_at: probes - needed + 1,
            slow_at: config.slow_rate().map_or(u32::MAX, |rule| least_reaching(rule.rate, probes)),
        }
    }

    /// Is there no place for one more probe?
    pub(super) const fn is_full(&self) -> bool {
        self.in_flight.saturating_add(self.ended()) >= self.probes
    }

    /// A probe goes out. The half-open time runs from the first that may still decide: with none under
    /// way and none that has ended, a wait of years says nothing about the dependency.
    pub(super) const fn begin(&mut self, now: Moment) {
        if self.in_flight == 0 && self.ended() == 0 {
            self.since = now;
        }
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// Takes the end of a probe; `None` is one without a verdict.
    pub(super) fn end(&mut self, mark: Option<Mark>) -> Event {
        self.in_flight = self.in_flight.saturating_sub(1);
        let Some(mark) = mark else { return Event::Returned };
        self.passed = self.passed.saturating_add(u32::from(!mark.failed));
        self.failed = self.failed.saturating_add(u32::from(mark.failed));
        self.slow = self.slow.saturating_add(u32::from(mark.slow));
        let missing = self.probes.saturating_sub(self.ended());
        if self.failed >= self.failed_at || self.slow >= self.slow_at {
            Event::ProbeFailed
        } else if self.failed.saturating_add(missing) < self.failed_at
            && self.slow.saturating_add(missing) < self.slow_at
        {
            Event::ProbesPassed
        } else if mark.failed {
            Event::ProbeMissed
        } else {
            Event::ProbePassed
        }
    }

    /// What the half-open time brings about when it is over at `now`: those that have ended decide.
    pub(super) fn aged(&self, config: &BreakerConfig, now: Moment) -> Option<Event> {
        if now.since(self.since) < config.half_open_max {
            return None;
        }
        if self.ended() == 0 {
            // With nothing in flight there is nothing to decide upon: the next caller is the probe.
            return (self.in_flight > 0).then_some(Event::AgedHanging);
        }
        let enough = self.passed > 0 && share(self.passed, self.ended()) >= config.probe_success;
        let quick = config
            .slow_rate()
            .is_none_or(|rule| self.slow == 0 || share(self.slow, self.ended()) < rule.rate);
        Some(if enough && quick { Event::AgedPassing } else { Event::AgedFailing })
    }

    const fn ended(&self) -> u32 {
        self.passed.saturating_add(self.failed)
    }
}
