//! Is the process ready, and may it still take work?
//!
//! A dependency that is down makes a process not ready, and ready again when it is back; nothing
//! makes a draining one ready again.

use std::fmt;
use std::time::Duration;

use crate::table::{Row, Table};
use crate::time::Moment;

/// Where a process stands in its life, without the data that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Components are coming up; no check has been looked at.
    Starting,
    /// All checks pass.
    Ready,
    /// At least one check fails; requests that come anyway are served as well as can be.
    NotReady,
    /// No new work; what is in hand is being finished.
    Draining,
    /// Over.
    Stopped,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// All checks passed.
    ChecksPassed,
    /// At least one check failed.
    CheckFailed,
    /// A signal came, or an essential task was lost.
    StopAsked,
    /// The last step of the shutdown is over.
    Drained,
}

const fn row(from: Stage, on: Event, to: Stage, why: &'static str) -> Row<Stage, Event> {
    Row { from, on, to, why }
}

/// Every transition there is. A stopped process has none.
pub static TABLE: Table<Stage, Event> = Table {
    name: "lifecycle",
    rows: &[
        row(Stage::Starting, Event::ChecksPassed, Stage::Ready, "everything is up"),
        row(Stage::Starting, Event::CheckFailed, Stage::NotReady, "a dependency isn't up yet"),
        row(Stage::Starting, Event::StopAsked, Stage::Draining, "stopped while starting"),
        row(Stage::Ready, Event::ChecksPassed, Stage::Ready, "still up"),
        row(Stage::Ready, Event::CheckFailed, Stage::NotReady, "a dependency went down"),
        row(Stage::Ready, Event::StopAsked, Stage::Draining, "asked to stop"),
        row(Stage::NotReady, Event::ChecksPassed, Stage::Ready, "everything is back"),
        row(Stage::NotReady, Event::CheckFailed, Stage::NotReady, "still down"),
        row(Stage::NotReady, Event::StopAsked, Stage::Draining, "asked to stop"),
        row(Stage::Draining, Event::ChecksPassed, Stage::Draining, "too late to be ready"),
        row(Stage::Draining, Event::CheckFailed, Stage::Draining, "components go down now"),
        row(Stage::Draining, Event::StopAsked, Stage::Draining, "it is stopping already"),
        row(Stage::Draining, Event::Drained, Stage::Stopped, "all steps are over"),
    ],
};

/// Where a process stands, with what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Starting { since: Moment },
    Ready { since: Moment },
    NotReady { since: Moment },
    Draining { since: Moment },
    Stopped { since: Moment },
}

/// The answer to "how does it stand?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The stage.
    pub stage: Stage,
    /// What `/health/ready` says.
    pub ready: bool,
    /// Whether new requests and messages may be taken at all.
    pub takes_work: bool,
    /// How long it has been in this stage.
    pub lasted: Duration,
}

/// A stage that was left for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The stage before.
    pub from: Stage,
    /// The stage after.
    pub to: Stage,
    /// How long the stage before lasted.
    pub lasted: Duration,
    /// Why, for logs.
    pub why: &'static str,
}

/// An event that has no row in the stage it came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfit {
    /// The stage.
    pub stage: Stage,
    /// The event.
    pub event: Event,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:?} does not fit a process that is {:?}", self.event, self.stage)
    }
}

impl std::error::Error for Unfit {}

/// The life of one process.
#[derive(Debug, Clone)]
pub struct Lifecycle {
    state: State,
}

impl Lifecycle {
    /// A process that starts at `now`.
    #[must_use]
    pub const fn new(now: Moment) -> Self {
        Self { state: State::Starting { since: now } }
    }

    /// How does it stand at `now`?
    #[must_use]
    pub fn ask(&self, now: Moment) -> Standing {
        let (stage, since) = self.place();
        let takes_work = match stage {
            Stage::Starting | Stage::Ready | Stage::NotReady => true,
            Stage::Draining | Stage::Stopped => false,
        };
        let ready = stage == Stage::Ready;
        Standing { stage, ready, takes_work, lasted: now.since(since) }
    }

    /// Something happened at `now`; answers with the change of stage, if it made one.
    ///
    /// # Errors
    /// [`Unfit`] when the event has no row in the present stage; nothing changes then.
    pub fn tell(&mut self, now: Moment, event: Event) -> Result<Option<Change>, Unfit> {
        let (from, since) = self.place();
        let row = TABLE.row(from, event).ok_or(Unfit { stage: from, event })?;
        if row.to == from {
            return Ok(None);
        }
        self.state = match row.to {
            Stage::Starting => State::Starting { since: now },
            Stage::Ready => State::Ready { since: now },
            Stage::NotReady => State::NotReady { since: now },
            Stage::Draining => State::Draining { since: now },
            Stage::Stopped => State::Stopped { since: now },
        };
        Ok(Some(Change { from, to: row.to, lasted: now.since(since), why: row.why }))
    }

    const fn place(&self) -> (Stage, Moment) {
        match self.state {
            State::Starting { since } => (Stage::Starting, since),
            State::Ready { since } => (Stage::Ready, since),
            State::NotReady { since } => (Stage::NotReady, since),
            State::Draining { since } => (Stage::Draining, since),
            State::Stopped { since } => (Stage::Stopped, since),
        }
    }
}
