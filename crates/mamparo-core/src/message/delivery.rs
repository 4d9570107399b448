//! Where a message goes after a handler has had it.
//!
//! A message is always in one [`Place`]. [`LIFE`] says which event moves it where; [`take`] and
//! [`settle`] look that up and add what the driver needs: headers, delays, reasons.

use std::time::Duration;

use super::headers::{self, Headers};
use super::topology::{QueuePolicy, RETRY_DELAY_MAX};
use crate::table::{Row, Table};
use crate::time::WallTime;

/// Process deaths while a message ran alone after which it is given up.
///
/// The death before these made it a suspect: everything in hand was lost with the process, and the
/// broker's record of the hand-out says so. That one may be another message's fault, so suspects run
/// alone from then on, each with an attempt row; two deaths while alone, three in all, are proof
/// enough. A handler that was cut off in a process that lives is no death.
pub const CRASHES_MAX: u32 = 2;

/// Shortest time after which a message that was given back is handed out again. Without it a
/// deferral of zero would spin.
pub const GIVE_BACK_MIN: Duration = Duration::from_millis(50);

/// What came of handling one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Handled. A business refusal is handled too: it emits its event.
    Done,
    /// It failed and may work later. Counts as an attempt.
    RetryAfter {
        /// Wait at least this long, when that is longer than the queue's retry delay. At most 24 h.
        delay: Option<Duration>,
        /// What went wrong, for people.
        reason: String,
    },
    /// This message can't be handled now, through no fault of its own (a lock, a bulkhead). No
    /// attempt is counted.
    Defer {
        /// When to hand it out again.
        delay: Duration,
    },
    /// No message of this queue can be handled now: circuit open, database down. No attempt is
    /// counted, the consumer pauses, then lets one message through until one is done.
    Unavailable {
        /// How long to pause.
        delay: Duration,
        /// What is missing, for people.
        reason: String,
    },
    /// It will never work: a missing field, a bug.
    Dead {
        /// Why, for people.
        reason: String,
    },
    /// The body can't be read.
    Undecodable {
        /// Why, for people.
        reason: String,
    },
    /// The handler panicked. Counts as an attempt.
    Panicked {
        /// The panic's message.
        reason: String,
    },
    /// The handler did not answer in time. Counts as an attempt.
    TimedOut {
        /// The limit it ran into.
        after: Duration,
    },
}

impl Answer {
    /// [`Answer::RetryAfter`] with the queue's own delay.
    #[must_use]
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::RetryAfter { delay: None, reason: reason.into() }
    }

    /// [`Answer::Dead`].
    #[must_use]
    pub fn dead(reason: impl Into<String>) -> Self {
        Self::Dead { reason: reason.into() }
    }

    /// The event that this answer is in [`LIFE`].
    #[must_use]
    pub const fn event(&self) -> Event {
        match self {
            Self::Done => Event::Done,
            Self::RetryAfter { .. } => Event::Failed,
            Self::Defer { .. } => Event::Deferred,
            Self::Unavailable { .. } => Event::Unavailable,
            Self::Dead { .. } => Event::Poison,
            Self::Undecodable { .. } => Event::Undecodable,
            Self::Panicked { .. } => Event::Panicked,
            Self::TimedOut { .. } => Event::TimedOut,
        }
    }

    /// What went wrong, in words; empty when nothing did.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Done => String::new(),
            Self::Defer { .. } => "deferred".to_owned(),
            Self::Panicked { reason } => format!("panicked: {reason}"),
            Self::TimedOut { after } => format!("no answer within {after:?}"),
            Self::RetryAfter { reason, .. }
            | Self::Unavailable { reason, .. }
            | Self::Dead { reason }
            | Self::Undecodable { reason } => reason.clone(),
        }
    }
}

/// Where a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the main queue.
    Queued,
    /// With the handler, attempts left after this one.
    InHand,
    /// With the handler for the last time.
    LastAttempt,
    /// In the waiting room.
    Waiting,
    /// In the dead-letter queue.
    DeadLettered,
    /// Acknowledged or archived: no queue has it.
    Gone,
}

/// What happens to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// Handed out with attempts to spare.
    Taken,
    /// Handed out, and the policy allows no attempt after this one.
    TakenLast,
    /// Handed out, but too many processes died of it.
    TakenAfterCrashes,
    /// Handed out before the time that it names.
    TakenEarly,
    /// The handler is done.
    Done,
    /// The handler asks for another attempt.
    Failed,
    /// The handler did not answer in time.
    TimedOut,
    /// The handler panicked.
    Panicked,
    /// The handler can't take this message now.
    Deferred,
    /// The handler can't take any message now.
    Unavailable,
    /// The handler says that it will never work.
    Poison,
    /// The body can't be read.
    Undecodable,
    /// The process died with the message in hand; the broker noticed.
    Crashed,
    /// The waiting time is over.
    WaitOver,
    /// A person put it back.
    Replayed,
    /// A person threw it away, with a reason.
    Discarded,
}

const fn row(from: Place, on: Event, to: Place, why: &'static str) -> Row<Place, Event> {
    Row { from, on, to, why }
}

/// The life of a message with one consumer.
pub const LIFE: Table<Place, Event> = Table {
    name: "delivery",
    rows: &[
        row(Place::Queued, Event::Taken, Place::InHand, "attempts are left after this one"),
        row(Place::Queued, Event::TakenLast, Place::LastAttempt, "no attempt follows"),
        row(Place::Queued, Event::TakenAfterCrashes, Place::DeadLettered, "it kills processes"),
        row(Place::Queued, Event::TakenEarly, Place::Queued, "it named a later time"),
        row(Place::InHand, Event::Done, Place::Gone, "effects are committed"),
        row(Place::InHand, Event::Failed, Place::Waiting, "another attempt, after a wait"),
        row(Place::InHand, Event::TimedOut, Place::Waiting, "a hung handler is an attempt"),
        row(Place::InHand, Event::Panicked, Place::Waiting, "a panic is an attempt"),
        row(Place::InHand, Event::Deferred, Place::Queued, "not its fault, not counted"),
        row(Place::InHand, Event::Unavailable, Place::Queued, "not its fault, not counted"),
        row(Place::InHand, Event::Poison, Place::DeadLettered, "repeating is pointless"),
        row(Place::InHand, Event::Undecodable, Place::DeadLettered, "repeating is pointless"),
        row(Place::InHand, Event::Crashed, Place::Queued, "the lease ran out"),
        row(Place::LastAttempt, Event::Done, Place::Gone, "effects are committed"),
        row(Place::LastAttempt, Event::Failed, Place::DeadLettered, "attempts are spent"),
        row(Place::LastAttempt, Event::TimedOut, Place::DeadLettered, "attempts are spent"),
        row(Place::LastAttempt, Event::Panicked, Place::DeadLettered, "attempts are spent"),
        row(Place::LastAttempt, Event::Deferred, Place::Queued, "not its fault, not counted"),
        row(Place::LastAttempt, Event::Unavailable, Place::Queued, "not its fault, not counted"),
        row(Place::LastAttempt, Event::Poison, Place::DeadLettered, "repeating is pointless"),
        row(Place::LastAttempt, Event::Undecodable, Place::DeadLettered, "repeating is pointless"),
        row(Place::LastAttempt, Event::Crashed, Place::Queued, "the lease ran out"),
        row(Place::Waiting, Event::WaitOver, Place::Queued, "back by name, key and type kept"),
        row(Place::DeadLettered, Event::Replayed, Place::Queued, "attempts start over"),
        row(Place::DeadLettered, Event::Discarded, Place::Gone, "archived with actor and reason"),
    ],
};

/// What is known about a message as it is handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Attempts made, from [`headers::attempts`].
    pub attempts: u32,
    /// Starts alone that never ended, from the attempt rows.
    pub crashes: u32,
}

impl History {
    /// The event of handing the message out at `now`.
    #[must_use]
    pub fn event(&self, headers: &Headers, policy: &QueuePolicy, now: WallTime) -> Event {
        if self.crashes >= CRASHES_MAX {
            Event::TakenAfterCrashes
        } else if headers::not_before(headers).is_some_and(|due| due > now) {
            Event::TakenEarly
        } else if self.attempts.saturating_add(1) < policy.attempts {
            Event::Taken
        } else {
            Event::TakenLast
        }
    }
}

/// What to do with a message before its handler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Hand it to the handler; the place is [`Place::InHand`] or [`Place::LastAttempt`].
    Handle(Place),
    /// Don't; settle it like this.
    Settle(Decision),
}

/// What to do with a message after its handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Acknowledge.
    Ack,
    /// Put a copy with these headers into the waiting room, and acknowledge once it is safe there.
    /// For how long, [`waiting::stay`](super::waiting::stay) says.
    Wait {
        /// The copy's headers.
        headers: Headers,
        /// Attempts made, this one included.
        attempts: u32,
        /// The least wait that the handler asks for.
        asked: Option<Duration>,
        /// Why, for the log.
        reason: String,
    },
    /// Give it back to its place in the queue. No attempt is counted.
    GiveBack {
        /// Hand it out again after this long.
        delay: Duration,
        /// Why, for the log.
        reason: String,
    },
    /// Put a copy with these headers among the queue's own dead letters, and acknowledge once it is
    /// safe there.
    DeadLetter {
        /// The copy's headers.
        headers: Headers,
        /// Attempts made, this one included.
        attempts: u32,
        /// Why, for the log.
        reason: String,
    },
}

impl Decision {
    /// The label of metrics: `done`, `retried`, `deferred` or `dead`.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Ack => "done",
            Self::Wait { .. } => "retried",
            Self::GiveBack { .. } => "deferred",
            Self::DeadLetter { .. } => "dead",
        }
    }
}

/// May the handler have this message now?
#[must_use]
pub fn take(headers: &Headers, history: History, policy: &QueuePolicy, now: WallTime) -> Admission {
    let event = history.event(headers, policy, now);
    match LIFE.row(Place::Queued, event).map(|row| row.to) {
        Some(place @ (Place::InHand | Place::LastAttempt)) => Admission::Handle(place),
        Some(Place::DeadLettered) => {
            let error = format!("{} processes died while it ran alone", history.crashes);
            Admission::Settle(dead(headers, history, policy, "crashes", error, now))
        }
        Some(Place::Queued | Place::Waiting | Place::Gone) | None => {
            let due = headers::not_before(headers).map_or(Duration::ZERO, |due| due.since(now));
            let delay = due.clamp(GIVE_BACK_MIN, RETRY_DELAY_MAX);
            let reason = "it named a later time".to_owned();
            Admission::Settle(Decision::GiveBack { delay, reason })
        }
    }
}

/// Where does a message go from `place` (as [`take`] said) after `answer`?
///
/// An answer that does not fit the place, which no driver produces, gives the message back: the
/// safe side is that it is handled again.
#[must_use]
pub fn settle(
    headers: &Headers,
    place: Place,
    history: History,
    answer: &Answer,
    policy: &QueuePolicy,
    now: WallTime,
) -> Decision {
    let reason = answer.reason();
    match LIFE.row(place, answer.event()).map(|row| row.to) {
        Some(Place::Gone) => Decision::Ack,
        Some(Place::Waiting) => wait(headers, history, answer, policy, now),
        Some(Place::DeadLettered) => {
            let slug = match answer.event() {
                Event::Poison => "poison",
                Event::Undecodable => "undecodable",
                Event::Failed | Event::TimedOut | Event::Panicked => "attempts-spent",
                // No row leads from these to the dead letters; the label would be honest anyway.
                Event::Taken
                | Event::TakenLast
                | Event::TakenAfterCrashes
                | Event::TakenEarly
                | Event::Done
                | Event::Deferred
                | Event::Unavailable
                | Event::Crashed
                | Event::WaitOver
                | Event::Replayed
                | Event::Discarded => "unexpected",
            };
            dead(headers, history, policy, slug, reason, now)
        }
        Some(Place::Queued | Place::InHand | Place::LastAttempt) | None => {
            let delay = match answer {
                Answer::Defer { delay } | Answer::Unavailable { delay, .. } => *delay,
                Answer::Done
                | Answer::RetryAfter { .. }
                | Answer::Dead { .. }
                | Answer::Undecodable { .. }
                | Answer::Panicked { .. }
                | Answer::TimedOut { .. } => GIVE_BACK_MIN,
            };
            Decision::GiveBack { delay: delay.clamp(GIVE_BACK_MIN, RETRY_DELAY_MAX), reason }
        }
    }
}

/// A copy for the waiting room.
fn wait(
    headers: &Headers,
    history: History,
    answer: &Answer,
    policy: &QueuePolicy,
    now: WallTime,
) -> Decision {
    let reason = answer.reason();
    let attempts = history.attempts.saturating_add(1);
    let asked = match answer {
        Answer::RetryAfter { delay, .. } => *delay,
        Answer::Done
        | Answer::Defer { .. }
        | Answer::Unavailable { .. }
        | Answer::Dead { .. }
        | Answer::Undecodable { .. }
        | Answer::Panicked { .. }
        | Answer::TimedOut { .. } => None,
    };
    let headers = headers::after_failure(headers, policy.consumer(), attempts, &reason, now);
    Decision::Wait { headers, attempts, asked, reason }
}

fn dead(
    headers: &Headers,
    history: History,
    policy: &QueuePolicy,
    slug: &str,
    reason: String,
    now: WallTime,
) -> Decision {
    let attempts = history.attempts.saturating_add(1);
    let mut headers = headers::after_failure(headers, policy.consumer(), attempts, &reason, now);
    headers::set(&mut headers, headers::DEAD_REASON, slug);
    Decision::DeadLetter { headers, attempts, reason }
}
