//! The states of a call and what moves it from one to the next.

use crate::table::{Row, Table};

/// The name of a state of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing has happened.
    New,
    /// In the bulkhead's queue.
    Queued,
    /// An attempt is being made.
    Attempting,
    /// Between two attempts.
    Waiting,
    /// Over; nothing is held.
    Finished,
}

/// How an event was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// An attempt begins.
    Admit,
    /// Another attempt begins beside those under way.
    Hedge,
    /// Those under way go on.
    KeepOn,
    /// Into the queue.
    Enqueue,
    /// A guard refused.
    Reject,
    /// The attempt succeeded.
    Finish,
    /// Another attempt after a wait.
    Retry,
    /// No further attempt.
    GiveUp,
    /// The caller has gone.
    Cancel,
    /// The attempt panicked.
    Panic,
}

const fn row(from: Phase, on: Move, to: Phase, why: &'static str) -> Row<Phase, Move> {
    Row { from, on, to, why }
}

/// Which state follows which decision.
pub const TABLE: Table<Phase, Move> = Table {
    name: "pipeline",
    rows: &[
        row(Phase::New, Move::Admit, Phase::Attempting, "every guard says yes"),
        row(Phase::New, Move::Enqueue, Phase::Queued, "all slots are taken"),
        row(Phase::New, Move::Reject, Phase::Finished, "a guard says no"),
        row(Phase::New, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Queued, Move::Admit, Phase::Attempting, "a slot came free"),
        row(Phase::Queued, Move::Reject, Phase::Finished, "no slot in time, or a guard says no"),
        row(Phase::Queued, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Attempting, Move::Hedge, Phase::Attempting, "another beside it, it takes long"),
        row(Phase::Attempting, Move::KeepOn, Phase::Attempting, "others are under way"),
        row(Phase::Attempting, Move::Finish, Phase::Finished, "there is a value"),
        row(Phase::Attempting, Move::Retry, Phase::Waiting, "it may work later"),
        row(Phase::Attempting, Move::GiveUp, Phase::Finished, "no attempt may follow"),
        row(Phase::Attempting, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Attempting, Move::Panic, Phase::Finished, "a panic is a failure"),
        row(Phase::Waiting, Move::Admit, Phase::Attempting, "the wait is over"),
        row(Phase::Waiting, Move::GiveUp, Phase::Finished, "the circuit or the deadline says no"),
        row(Phase::Waiting, Move::Cancel, Phase::Finished, "the caller has gone"),
    ],
};
