//! How many messages a consumer may take now.
//!
//! An open circuit pauses the consumer instead of burning attempts. When the pause is over one
//! message goes through as a probe; the consumer flows again once one is done.

use std::time::Duration;

use crate::table::{Row, Table};
use crate::time::Moment;

/// Longest pause. The probe costs one message's handling, so asking again after this is cheap.
pub const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Shortest pause; a shorter one would spin.
pub const PAUSE_MIN: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Flowing,
    Paused { until: Moment },
    Probing,
}

/// The state's name, as in [`FLOW`] and in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// All of the prefetch may be used.
    Flowing,
    /// Nothing is taken.
    Paused,
    /// One message at a time, until one is done.
    Probing,
}

/// What the intake is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A message was handled to its end, whatever its end: the handler has what it needs.
    Handled,
    /// A handler said that nothing can be handled now.
    Unavailable,
    /// A handler deferred one message: no verdict.
    Deferred,
    /// The pause is over.
    PauseOver,
}

/// What may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Up to this many more; 0 while all places are taken.
    Take(u32),
    /// Nothing before this moment.
    Wait(Moment),
}

const fn row(from: Phase, on: Event, to: Phase, why: &'static str) -> Row<Phase, Event> {
    Row { from, on, to, why }
}

/// The intake's transitions.
pub const FLOW: Table<Phase, Event> = Table {
    name: "intake",
    rows: &[
        row(Phase::Flowing, Event::Handled, Phase::Flowing, "all is well"),
        row(Phase::Flowing, Event::Deferred, Phase::Flowing, "one message's own matter"),
        row(Phase::Flowing, Event::Unavailable, Phase::Paused, "no attempt is burnt on it"),
        row(Phase::Paused, Event::Handled, Phase::Paused, "began before the pause"),
        row(Phase::Paused, Event::Deferred, Phase::Paused, "began before the pause"),
        row(Phase::Paused, Event::Unavailable, Phase::Paused, "the later end counts"),
        row(Phase::Paused, Event::PauseOver, Phase::Probing, "one message goes through"),
        row(Phase::Probing, Event::Handled, Phase::Flowing, "the probe got through"),
        row(Phase::Probing, Event::Deferred, Phase::Probing, "no verdict, next probe"),
        row(Phase::Probing, Event::Unavailable, Phase::Paused, "still away"),
    ],
};

/// The machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intake {
    prefetch: u32,
    state: State,
}

impl Intake {
    /// A flowing intake for at most `prefetch` messages in hand.
    #[must_use]
    pub const fn new(prefetch: u32) -> Self {
        Self { prefetch, state: State::Flowing }
    }

    /// The present phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::Flowing => Phase::Flowing,
            State::Paused { .. } => Phase::Paused,
            State::Probing => Phase::Probing,
        }
    }

    /// How many messages may be taken at `now`, with `in_hand` taken already?
    ///
    /// A probe waits until everything from before the pause has been given back, so that what comes
    /// next is the probe's own verdict.
    pub fn ask(&mut self, now: Moment, in_hand: u32) -> Decision {
        if let State::Paused { until } = self.state {
            if now < until {
                return Decision::Wait(until);
            }
            self.tell(now, Event::PauseOver, Duration::ZERO);
        }
        match self.state {
            State::Flowing => Decision::Take(self.prefetch.saturating_sub(in_hand)),
            State::Probing => Decision::Take(u32::from(in_hand == 0)),
            State::Paused { until } => Decision::Wait(until),
        }
    }

    /// Takes an event; `delay` is how long an [`Event::Unavailable`] asks to pause, and means
    /// nothing elsewhere. Answers with the new phase when it changed. An event that does not fit
    /// the phase changes nothing.
    pub fn tell(&mut self, now: Moment, event: Event, delay: Duration) -> Option<Phase> {
        let before = self.phase();
        let to = FLOW.row(before, event)?.to;
        let until = now.plus(delay.clamp(PAUSE_MIN, PAUSE_MAX));
        self.state = match (to, self.state, event) {
            (Phase::Flowing, _, _) => State::Flowing,
            (Phase::Probing, _, _) => State::Probing,
            (Phase::Paused, State::Paused { until: present }, Event::Unavailable) => {
                State::Paused { until: present.max(until) }
            }
            (Phase::Paused, State::Paused { until: present }, _) => {
                State::Paused { until: present }
            }
            (Phase::Paused, State::Flowing | State::Probing, _) => State::Paused { until },
        };
        (before != to).then_some(to)
    }
}
