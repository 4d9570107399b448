//! The plain machine behind the lock: what the circuit's state is, and what moves it.

use std::time::Duration;

use super::config::BreakerConfig;
use super::table::{Event, Phase, TABLE};
use super::trial::Trial;
use super::word::Mode;
use super::{Change, Override};
use crate::call::window::Mark;
use crate::limits::{HALF_OPEN_RETRY_AFTER, RETRY_AFTER_MAX};
use crate::rng::{Rng, SeededRng};
use crate::time::Moment;

#[derive(Debug, Clone)]
pub(super) enum State {
    Closed,
    Open { until: Moment },
    HalfOpen { trial: Trial },
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) config: BreakerConfig,
    pub(super) generation: u64,
    pub(super) state: State,
    pub(super) order: Option<Override>,
    /// Trials in a row that have failed.
    pub(super) reopened: u32,
    pub(super) last: Option<Change>,
    rng: SeededRng,
}

impl Machine {
    pub(super) const fn new(config: BreakerConfig, seed: u64) -> Self {
        Self {
            config,
            generation: 0,
            state: State::Closed,
            order: None,
            reopened: 0,
            last: None,
            rng: SeededRng::new(seed),
        }
    }

    pub(super) const fn phase(&self) -> Phase {
        match self.state {
            State::Closed => Phase::Closed,
            State::Open { .. } => Phase::Open,
            State::HalfOpen { .. } => Phase::HalfOpen,
        }
    }

    /// The phase at `now`, without changing anything.
    pub(super) fn phase_at(&self, now: Moment) -> Phase {
        let present = self.phase();
        self.due(now).and_then(|on| TABLE.row(present, on)).map_or(present, |row| row.to)
    }

    pub(super) const fn mode(&self) -> Mode {
        match (self.order, &self.state) {
            (Some(Override::Open), _) => Mode::ForcedOpen,
            (Some(Override::Closed), _) => Mode::ForcedClosed,
            (Some(Override::Disabled), _) => Mode::Disabled,
            (None, State::Closed) => Mode::Closed,
            (None, State::Open { .. }) => Mode::Open,
            (None, State::HalfOpen { trial }) if trial.is_full() => Mode::Full,
            (None, State::HalfOpen { .. }) => Mode::Trying,
        }
    }

    /// May a call be made, and is it a probe? Or after what time to ask again.
    pub(super) fn ask(&mut self, now: Moment) -> (Result<bool, Duration>, Option<Change>) {
        let change = self.advance(now);
        let answer = match &mut self.state {
            State::Closed => Ok(false),
            State::Open { until } => {
                Err(self.order.map_or(now.until(*until), |_| self.config.open_for))
            }
            State::HalfOpen { trial } if trial.is_full() => Err(HALF_OPEN_RETRY_AFTER),
            State::HalfOpen { trial } => {
                trial.begin(now);
                Ok(true)
            }
        };
        (answer, change)
    }

    /// Would [`Machine::ask`] refuse, and until when?
    pub(super) fn refuses(&self, now: Moment) -> Option<Duration> {
        let mut then = self.clone();
        then.ask(now).0.err()
    }

    /// Takes the end of a probe; `None` for `mark` is one without a verdict.
    pub(super) fn end_probe(
        &mut self,
        now: Moment,
        generation: u64,
        mark: Option<Mark>,
        asked: Option<Duration>,
    ) -> (Event, Option<Change>) {
        match &mut self.state {
            State::HalfOpen { trial } if generation == self.generation => {
                let event = trial.end(mark);
                (event, self.go(now, event, asked))
            }
            State::Closed | State::Open { .. } | State::HalfOpen { .. } => (Event::Stale, None),
        }
    }

    /// Opens the circuit of `generation`, whose window has reached the threshold, unless somebody
    /// ordered that it stays closed.
    pub(super) fn trip(
        &mut self,
        now: Moment,
        generation: u64,
        asked: Option<Duration>,
    ) -> (Event, Option<Change>) {
        if generation != self.generation {
            return (Event::Stale, None);
        }
        if self.order == Some(Override::Closed) {
            return (Event::Counted, None);
        }
        (Event::Tripped, self.go(now, Event::Tripped, asked))
    }

    /// Carries out an order, or takes it back; `None` when nothing changes.
    pub(super) fn order(&mut self, now: Moment, order: Option<Override>) -> Option<Change> {
        if order == self.order {
            return None;
        }
        let on = match order {
            Some(Override::Open) => Event::ForcedOpen,
            Some(Override::Closed) => Event::ForcedClosed,
            Some(Override::Disabled) => Event::Disabled,
            None => Event::Automatic,
        };
        let to = TABLE.row(self.phase(), on)?.to;
        self.order = order;
        Some(self.enter(now, on, to, None))
    }

    /// The change that has become due by the mere passing of time.
    pub(super) fn advance(&mut self, now: Moment) -> Option<Change> {
        self.due(now).and_then(|on| self.go(now, on, None))
    }

    pub(super) fn due(&self, now: Moment) -> Option<Event> {
        match &self.state {
            _ if self.order.is_some() => None,
            State::Closed => None,
            State::Open { until } => (now >= *until).then_some(Event::OpenTimeOver),
            State::HalfOpen { trial } => trial.aged(&self.config, now),
        }
    }

    /// Looks the next state up and enters it when it differs.
    fn go(&mut self, now: Moment, on: Event, asked: Option<Duration>) -> Option<Change> {
        let from = self.phase();
        let to = TABLE.row(from, on)?.to;
        (to != from).then(|| self.enter(now, on, to, asked))
    }

    fn enter(&mut self, now: Moment, on: Event, to: Phase, asked: Option<Duration>) -> Change {
        let from = self.phase();
        self.generation = self.generation.wrapping_add(1);
        self.state = match to {
            Phase::Closed => {
                self.reopened = 0;
                State::Closed
            }
            Phase::HalfOpen => State::HalfOpen { trial: Trial::new(&self.config, now) },
            Phase::Open => {
                let again = from == Phase::HalfOpen && self.order.is_none();
                self.reopened = if again { self.reopened.saturating_add(1) } else { 0 };
                State::Open { until: now.plus(self.open_time(asked)) }
            }
        };
        let change = Change { from, to, on, at: now };
        self.last = Some(change);
        change
    }

    /// How long the circuit stays open this time: grown, spread, and at least what the dependency
    /// `asked` for.
    fn open_time(&mut self, asked: Option<Duration>) -> Duration {
        let grown = self.grown();
        let jitter = self.config.open_jitter.clamp(0.0, 0.5);
        let spread = if jitter > 0.0 {
            let most = u64::try_from(grown.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(self.rng.up_to((most as f64 * jitter) as u64))
        } else {
            Duration::ZERO
        };
        grown.saturating_sub(spread).max(asked.unwrap_or_default().min(RETRY_AFTER_MAX))
    }

    fn grown(&self) -> Duration {
        let BreakerConfig { open_for, open_growth, open_max, .. } = self.config;
        // No time at all does not grow, and zero × infinity would be no number.
        if self.reopened == 0 || open_growth <= 1.0 || open_growth.is_nan() || open_for.is_zero() {
            return open_for;
        }
        let times = open_growth.powi(i32::try_from(self.reopened).unwrap_or(i32::MAX));
        let grown = Duration::try_from_secs_f64(open_for.as_secs_f64() * times);
        grown.unwrap_or(Duration::MAX).min(open_max).max(open_for)
    }
}
