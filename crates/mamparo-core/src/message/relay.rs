//! The relay: what becomes of an outbox row after it was handed to the broker.
//!
//! A row is done when the broker has confirmed it, and only then. Everything else is tried again
//! with the same message id, for ever: the row is the only copy of the event, so giving up would
//! lose it. What a row must not do is hold up others: a refusal parks the row's *key*, whose later
//! events wait behind it in order, and never the relay.

use std::time::Duration;

use crate::backoff::{Backoff, Jitter};
use crate::rng::Rng;
use crate::table::{Row, Table};
use crate::time::WallTime;

/// Where an outbox row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Committed, waiting for a relay.
    Pending,
    /// Read by the relay that holds its shard and handed to the broker, or about to be.
    InFlight,
    /// Refused by the broker: it and the later rows of its key wait for a while.
    Parked,
    /// Nobody knows whether the broker has it: it waits for a while and goes again under the same id.
    Doubtful,
    /// A row of its key before it is parked or doubtful: it waits behind that one.
    Behind,
    /// Confirmed by the broker.
    Done,
}

/// What can happen to an outbox row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The relay that holds its shard read it.
    Claimed,
    /// The broker confirmed it.
    Confirmed,
    /// The broker handed it back: no queue takes this routing key.
    Returned,
    /// The broker refused it: a full queue, a failed write.
    Nacked,
    /// No answer: a timeout, or the connection broke before the confirm.
    Unknown,
    /// The relay that held it shut down in order and gave it back.
    Released,
    /// The relay that held it died.
    LeaseExpired,
    /// Its wait is over.
    Due,
    /// A row of its key before it did not go out.
    KeyParked,
    /// The row that its key was parked for is confirmed.
    KeyFree,
}

/// Every transition of an outbox row.
pub const TABLE: Table<State, Event> = Table {
    name: "outbox row",
    rows: &[
        row(State::Pending, Event::Claimed, State::InFlight, "first of its key, and due"),
        row(State::InFlight, Event::Confirmed, State::Done, "the broker has it"),
        row(State::InFlight, Event::Returned, State::Parked, "no queue takes it yet"),
        row(State::InFlight, Event::Nacked, State::Parked, "the broker refused it"),
        row(State::InFlight, Event::Unknown, State::Doubtful, "same id again after a wait"),
        row(State::InFlight, Event::Released, State::Pending, "given back at shutdown"),
        row(State::InFlight, Event::LeaseExpired, State::Pending, "its relay died"),
        row(State::Parked, Event::Due, State::Pending, "its wait is over"),
        row(State::Doubtful, Event::Due, State::Pending, "its wait is over"),
        row(State::Pending, Event::KeyParked, State::Behind, "order: the one before it waits"),
        row(State::Behind, Event::KeyFree, State::Pending, "the one before it has left"),
    ],
};

const fn row(from: State, on: Event, to: State, why: &'static str) -> Row<State, Event> {
    Row { from, on, to, why }
}

/// What the broker said to a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Published {
    /// It has the message.
    Confirmed,
    /// It handed the message back as unroutable.
    Returned,
    /// It refused the message.
    Nacked,
    /// It did not say, within the time that it had.
    Unknown,
}

/// What the relay does with the row now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Record that it is confirmed.
    Done,
    /// Give it back to be tried again, under the same id, from `due` on. Its key waits until then.
    Postpone {
        /// When to try again.
        due: WallTime,
        /// The state it waits in: [`State::Parked`] or [`State::Doubtful`].
        state: State,
        /// How urgently people should know.
        alarm: Alarm,
    },
}

/// How urgently people should know about a row that did not go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alarm {
    /// It happens: log as a warning.
    Warn,
    /// It has failed so often that waiting alone won't mend it: log as an error.
    Error,
}

/// How a relay waits between tries. It never gives up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// The waits: base 1 s, factor 2, cap 30 s, equal jitter. A row remembers its tries and not
    /// its waits, so decorrelated jitter has nothing to grow from.
    pub backoff: Backoff,
    /// From this many tries on a failure is an error, not a warning. Default 5.
    pub error_from: u32,
}

impl Default for Policy {
    fn default() -> Self {
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(30));
        // Half of the ceiling is certain: the row is alone with its broker, so spreading the tries
        // matters less than not hammering a broker that has just refused.
        Self { backoff: Backoff { base, factor: 2.0, cap, jitter: Jitter::Equal }, error_from: 5 }
    }
}

impl Policy {
    /// Decides after try number `tries` (counted from one) ended with `published`.
    pub fn tell(
        &self,
        now: WallTime,
        tries: u32,
        published: Published,
        rng: &mut impl Rng,
    ) -> Decision {
        let state = match published {
            Published::Confirmed => return Decision::Done,
            Published::Returned | Published::Nacked => State::Parked,
            Published::Unknown => State::Doubtful,
        };
        let alarm = if tries >= self.error_from { Alarm::Error } else { Alarm::Warn };
        Decision::Postpone {
            due: now.plus(self.backoff.delay(tries, Duration::ZERO, rng)),
            state,
            alarm,
        }
    }
}

impl Published {
    /// The event of the transition table that this answer is.
    #[must_use]
    pub const fn event(self) -> Event {
        match self {
            Self::Confirmed => Event::Confirmed,
            Self::Returned => Event::Returned,
            Self::Nacked => Event::Nacked,
            Self::Unknown => Event::Unknown,
        }
    }
}
