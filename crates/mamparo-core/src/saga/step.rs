//! The life of one step, and of its undo, as a table.
//!
//! The one question behind every row: *may it have happened?* A step without an outcome is not a step
//! that failed; it is one of which nobody knows, until its probe, its key or its undo settles it.

use crate::table::{Row, Table};

/// Where a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Place {
    /// Not begun.
    #[default]
    Idle,
    /// Its choice took another arm.
    NotTaken,
    /// It waits for its signal or its time.
    Open,
    /// Its intent is written; whoever wrote it is at it.
    Running,
    /// It failed, and is tried again later.
    Waiting,
    /// Its intent has no outcome, and nobody is at it any more.
    Unknown,
    /// It has happened.
    Done,
    /// It failed for good.
    Failed,
    /// Its undo is being tried.
    Undoing,
    /// The same, and in the meantime its own success came in.
    Overtaken,
    /// Its undo failed, and is tried again later.
    UndoWaiting,
    /// It is taken back.
    Undone,
    /// Its undo was given up; a person is asked.
    Stuck,
}

impl Place {
    /// Is its undo under way?
    #[must_use]
    pub const fn is_undoing(self) -> bool {
        matches!(self, Self::Undoing | Self::Overtaken)
    }

    /// Is an attempt under way, forward or back?
    #[must_use]
    pub const fn is_busy(self) -> bool {
        matches!(self, Self::Running | Self::Undoing | Self::Overtaken)
    }

    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Idle,
        Self::NotTaken,
        Self::Open,
        Self::Running,
        Self::Waiting,
        Self::Unknown,
        Self::Done,
        Self::Failed,
        Self::Undoing,
        Self::Overtaken,
        Self::UndoWaiting,
        Self::Undone,
        Self::Stuck,
    ];
}

/// What happens to a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Its choice took another arm.
    Passed,
    /// It waits from now on, until a time that is written down.
    Opened,
    /// An intent: it is tried from now on, elsewhere.
    Begun,
    /// It has happened: an answer, a probe's word, a signal, a person's.
    Done,
    /// It failed, and will be tried again.
    FailedForNow,
    /// It failed, and will not be tried again.
    Failed,
    /// Whoever was at it is gone, or has waited too long.
    Lost,
    /// Its probe says that it has not happened.
    Absent,
    /// Its undo is tried from now on.
    UndoBegun,
    /// Its undo has worked, or a person says that it is taken back.
    Undone,
    /// Its undo failed, and will be tried again.
    UndoFailed,
    /// Its undo failed too often.
    UndoGivenUp,
    /// A person has it tried again.
    Retried,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Passed,
        Self::Opened,
        Self::Begun,
        Self::Done,
        Self::FailedForNow,
        Self::Failed,
        Self::Lost,
        Self::Absent,
        Self::UndoBegun,
        Self::Undone,
        Self::UndoFailed,
        Self::UndoGivenUp,
        Self::Retried,
    ];
}

const fn row(from: Place, on: Event, to: Place, why: &'static str) -> Row<Place, Event> {
    Row { from, on, to, why }
}

/// The life of a step.
pub const LIFE: Table<Place, Event> = Table {
    name: "saga step",
    rows: &[
        row(Place::Idle, Event::Passed, Place::NotTaken, "another arm was chosen"),
        row(Place::Idle, Event::Opened, Place::Open, "the end of its wait is written down"),
        row(Place::Idle, Event::Begun, Place::Running, "the intent is there before the call"),
        row(Place::Idle, Event::Done, Place::Done, "effect and log commit together"),
        row(Place::Idle, Event::FailedForNow, Place::Waiting, "a local step; nothing was changed"),
        row(Place::Idle, Event::Failed, Place::Failed, "a local step; nothing was changed"),
        row(Place::Open, Event::Done, Place::Done, "its signal came, or its time"),
        row(Place::Open, Event::Failed, Place::Failed, "its signal did not come in time"),
        row(Place::Running, Event::Done, Place::Done, "its answer"),
        row(Place::Running, Event::FailedForNow, Place::Waiting, "attempts are left"),
        row(Place::Running, Event::Failed, Place::Failed, "no attempt follows"),
        row(Place::Running, Event::Lost, Place::Unknown, "did it run or not?"),
        row(Place::Waiting, Event::Begun, Place::Running, "the same key again"),
        row(
            Place::Waiting,
            Event::Done,
            Place::Done,
            "a local step, a late answer, or a person's word",
        ),
        row(Place::Waiting, Event::FailedForNow, Place::Waiting, "a local step once more"),
        row(Place::Waiting, Event::Failed, Place::Failed, "the last attempt of a local step"),
        row(Place::Waiting, Event::UndoBegun, Place::Undoing, "it may have happened"),
        row(Place::Unknown, Event::Begun, Place::Running, "the same key again"),
        row(
            Place::Unknown,
            Event::Done,
            Place::Done,
            "its probe's word, a late answer, or a person's word",
        ),
        row(
            Place::Unknown,
            Event::Absent,
            Place::Waiting,
            "its probe's word; the request may still arrive",
        ),
        row(Place::Unknown, Event::FailedForNow, Place::Waiting, "a late answer"),
        row(Place::Unknown, Event::Failed, Place::Failed, "no attempt follows"),
        row(Place::Unknown, Event::UndoBegun, Place::Undoing, "it may have happened"),
        row(Place::Done, Event::UndoBegun, Place::Undoing, "the saga goes back"),
        row(Place::Done, Event::Undone, Place::Undone, "a local undo commits with the log"),
        row(Place::Done, Event::UndoFailed, Place::UndoWaiting, "a local undo"),
        row(Place::Done, Event::UndoGivenUp, Place::Stuck, "a local undo, the last attempt"),
        row(Place::Failed, Event::Done, Place::Done, "a late answer, or a person's word"),
        row(Place::Failed, Event::UndoBegun, Place::Undoing, "it may have happened"),
        row(
            Place::Failed,
            Event::Retried,
            Place::Waiting,
            "past the pivot, a person has it tried again",
        ),
        row(Place::Undoing, Event::Undone, Place::Undone, "its answer"),
        row(Place::Undoing, Event::UndoFailed, Place::UndoWaiting, "attempts are left"),
        row(Place::Undoing, Event::UndoGivenUp, Place::Stuck, "no attempt follows"),
        row(Place::Undoing, Event::Lost, Place::UndoWaiting, "undos may run twice, so again"),
        row(Place::Undoing, Event::Done, Place::Overtaken, "a late success while its undo runs"),
        row(
            Place::Overtaken,
            Event::Undone,
            Place::Done,
            "that undo may have come first, so again",
        ),
        row(Place::Overtaken, Event::UndoFailed, Place::UndoWaiting, "attempts are left"),
        row(Place::Overtaken, Event::UndoGivenUp, Place::Stuck, "no attempt follows"),
        row(Place::Overtaken, Event::Lost, Place::UndoWaiting, "undos may run twice, so again"),
        row(Place::UndoWaiting, Event::UndoBegun, Place::Undoing, "the next attempt"),
        row(Place::UndoWaiting, Event::Undone, Place::Undone, "a local undo, or a person's word"),
        row(Place::UndoWaiting, Event::UndoFailed, Place::UndoWaiting, "a local undo once more"),
        row(Place::UndoWaiting, Event::UndoGivenUp, Place::Stuck, "no attempt follows"),
        row(Place::Undone, Event::Done, Place::Done, "a late success: it is undone again"),
        row(Place::Stuck, Event::Undone, Place::Undone, "a person's word"),
        row(Place::Stuck, Event::Retried, Place::UndoWaiting, "a person has it tried again"),
    ],
};
