//! What a saga is, what may be done for it now, and what it waits for.

use super::graph::{Kind, Step, StepId, Undo};
use super::log::Run;
use super::machine::{Cause, Cell, Machine};
use super::step::Place;
use crate::time::WallTime;

/// Where a saga stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// It goes forward.
    Running,
    /// It goes back.
    Compensating,
    /// Every step is done, or was not taken.
    Completed,
    /// Everything that may have happened and can be taken back is taken back.
    Compensated,
    /// A step past the pivot, or an undo, was given up. What else can go on does.
    NeedsOperator,
}

impl Status {
    /// As stored and shown.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Compensating => "compensating",
            Self::Completed => "completed",
            Self::Compensated => "compensated",
            Self::NeedsOperator => "needs-operator",
        }
    }

    /// Is it over? A late success can still reopen a saga that was compensated.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Completed | Self::Compensated)
    }
}

/// What may be done now. Each is answered by a report, and nothing of it is done twice at once by one
/// process: what has an intent shows up again only after it is [lost](super::decide::Report::Lost).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Command {
    /// Note that the step's arm was not chosen.
    Pass(StepId),
    /// Choose an arm.
    Choose(StepId),
    /// Count the items.
    Count(StepId),
    /// Note that a wait or a sleep begins.
    Open(StepId),
    /// Note that it is done: a signal is there, a time is over, the pivot is crossed.
    Settle(Run),
    /// Note that it failed: no signal came in time, or no attempt is left.
    GiveUp(Run),
    /// Run a local step, and note its outcome in the same transaction.
    Local(Run),
    /// Write the intent of this attempt, then call.
    Begin(Run, u32),
    /// Ask whether it has happened.
    Probe(Run),
    /// Tell whoever is at it that its outcome is not wanted any more. It still has to report.
    Stop(Run),
    /// Undo a local step, and note that in the same transaction.
    LocalUndo(Run),
    /// Write the intent of this attempt, then undo.
    Undo {
        /// What.
        run: Run,
        /// The attempt.
        attempt: u32,
        /// It is known to have happened; else it only may have.
        applied: bool,
    },
    /// Note that its time is over.
    Expire,
}

/// Why a saga, or a part of it, does not move at the moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// It rests; by whom and why, or because it was started so.
    Paused(Option<super::log::Order>),
    /// A signal is awaited until then.
    Signal(StepId, WallTime),
    /// It sleeps until then.
    Sleep(StepId, WallTime),
    /// An attempt is under way, under this lease's epoch.
    InHand(Run, i64),
    /// The next attempt is due then; what the last one said.
    Again(Run, WallTime, String),
    /// The next attempt of its undo is due then; what the last one said.
    UndoAgain(Run, WallTime, String),
    /// It was given up past the pivot; what it said last.
    Failed(Run, String),
    /// Its undo was given up; what it said last.
    Stuck(Run, String),
}

impl Machine<'_> {
    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let any = |place: Place| self.runs().any(|(_, _, cell)| cell.place == place);
        if self.cause().is_none() {
            return if any(Place::Failed) {
                Status::NeedsOperator
            } else if self.started && self.graph.ids().all(|id| self.settled(id)) {
                Status::Completed
            } else {
                Status::Running
            };
        }
        if any(Place::Stuck) {
            Status::NeedsOperator
        } else if self.is_busy() || self.runs().any(|(_, step, cell)| owes(step, cell)) {
            Status::Compensating
        } else {
            Status::Compensated
        }
    }

    /// Does it rest?
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Steps whose effect stays although the saga goes back, with the reason that the graph gives.
    pub fn stays(&self) -> impl Iterator<Item = (Run, &str)> {
        let back = self.cause().is_some();
        self.runs().filter(move |(_, _, cell)| back && cell.maybe).filter_map(|(run, step, _)| {
            let Undo::Irreversible(reason) = &step.undo else { return None };
            Some((run, reason.as_str()))
        })
    }

    /// Is an attempt under way, forward or back?
    pub(super) fn is_busy(&self) -> bool {
        self.runs().any(|(_, _, cell)| cell.place.is_busy())
    }

    /// Is everything over that `id` comes after, and its arm chosen?
    pub(super) fn ready(&self, id: StepId) -> bool {
        let Some(step) = self.graph.step(id) else { return false };
        let chosen = step.arm.is_none_or(|(choice, arm)| self.arm(choice) == Some(arm));
        chosen && step.after.iter().all(|after| self.settled(*after))
    }

    fn arm(&self, choice: StepId) -> Option<u16> {
        self.chosen.get(choice.index()).copied().flatten()
    }

    /// Was another arm chosen than the one that `step` stands on?
    fn is_passed(&self, step: &Step) -> bool {
        step.arm.is_some_and(|(choice, arm)| {
            let left = self.cell(Run::of(choice)).is_some_and(|c| c.place == Place::NotTaken);
            left || self.arm(choice).is_some_and(|chosen| chosen != arm)
        })
    }

    /// What may be done now, in the order in which it should be.
    #[must_use]
    pub fn next(&self, now: WallTime) -> Vec<Command> {
        if !self.started || self.is_paused() || self.status().is_end() {
            Vec::new()
        } else if self.cause().is_some() {
            self.next_back(now)
        } else if self.due.is_some_and(|due| due <= now) && !self.is_past_pivot() {
            vec![Command::Expire]
        } else {
            self.next_forward(now)
        }
    }

    fn next_forward(&self, now: WallTime) -> Vec<Command> {
        let mut commands = Vec::new();
        for (run, step, cell) in self.runs() {
            if cell.place == Place::Idle && self.is_passed(step) {
                commands.push(Command::Pass(run.step));
            } else if self.ready(run.step) {
                commands.extend(self.step_forward(run, step, cell, now));
            }
        }
        commands
    }

    fn step_forward(&self, run: Run, step: &Step, cell: &Cell, now: WallTime) -> Option<Command> {
        let idle = cell.place == Place::Idle;
        if step.each && !self.counted[run.step.index()] {
            return idle.then_some(Command::Count(run.step));
        }
        let is_due = cell.due <= now;
        match (step.kind, cell.place) {
            (Kind::Choice(_), Place::Idle) => Some(Command::Choose(run.step)),
            (Kind::Pivot, Place::Idle) => Some(Command::Settle(run)),
            (Kind::Wait(_), Place::Idle | Place::Open) if self.signals.contains(&step.name) => {
                Some(Command::Settle(run))
            }
            (Kind::Wait(_) | Kind::Sleep(_), Place::Idle) => Some(Command::Open(run.step)),
            (Kind::Wait(_), Place::Open) if is_due => Some(Command::GiveUp(run)),
            (Kind::Sleep(_), Place::Open) if is_due => Some(Command::Settle(run)),
            (Kind::Local | Kind::Emit, Place::Idle) => Some(Command::Local(run)),
            (Kind::Local | Kind::Emit, Place::Waiting) if is_due => Some(Command::Local(run)),
            (Kind::Call | Kind::Sub, Place::Unknown) if step.probe => Some(Command::Probe(run)),
            (Kind::Call | Kind::Sub, Place::Idle | Place::Unknown) => {
                Some(attempt(run, step, cell))
            }
            (Kind::Call | Kind::Sub, Place::Waiting) if is_due => Some(attempt(run, step, cell)),
            _ => None,
        }
    }

    fn next_back(&self, now: WallTime) -> Vec<Command> {
        let running = |cell: &Cell| cell.place == Place::Running;
        let stops: Vec<Command> = self
            .runs()
            .filter(|(_, _, cell)| running(cell))
            .map(|(run, ..)| Command::Stop(run))
            .collect();
        // Whatever runs ends first: nobody undoes what is still being done.
        if !stops.is_empty() || self.is_busy() {
            return stops;
        }
        let mut owed: Vec<(Run, &Step, &Cell)> =
            self.runs().filter(|(_, step, cell)| owes(step, cell)).collect();
        owed.sort_by_key(|(_, _, cell)| std::cmp::Reverse(cell.turn));
        // One that waits for its next attempt holds nobody up.
        let next = owed
            .into_iter()
            .find(|(_, _, cell)| cell.place != Place::UndoWaiting || cell.due <= now);
        next.map(|(run, step, cell)| undo(run, step, cell)).into_iter().collect()
    }

    /// When [`next`](Self::next) has something new to say although nothing happens: the first time
    /// after `now` that something is due.
    #[must_use]
    pub fn wake_at(&self, now: WallTime) -> Option<WallTime> {
        if self.is_paused() || self.status().is_end() {
            return None;
        }
        let back = self.cause().is_some();
        let cells = self.runs().filter(|(_, _, cell)| {
            let forward = matches!(cell.place, Place::Open | Place::Waiting);
            if back { cell.place == Place::UndoWaiting } else { forward }
        });
        let whole = self.due.filter(|_| !back && !self.is_past_pivot());
        cells.map(|(_, _, cell)| cell.due).chain(whole).filter(|due| *due > now).min()
    }

    /// What it waits for.
    #[must_use]
    pub fn why(&self) -> Vec<Why> {
        if let Some(by) = &self.paused {
            return vec![Why::Paused(by.clone())];
        }
        let back = self.cause().is_some();
        let of = |(run, step, cell): (Run, &Step, &Cell)| {
            let error = || cell.error.clone();
            match (cell.place, back) {
                (Place::Open, false) if matches!(step.kind, Kind::Sleep(_)) => {
                    Some(Why::Sleep(run.step, cell.due))
                }
                (Place::Open, false) => Some(Why::Signal(run.step, cell.due)),
                (Place::Waiting, false) => Some(Why::Again(run, cell.due, error())),
                (Place::Failed, false) => Some(Why::Failed(run, error())),
                (Place::UndoWaiting, _) => Some(Why::UndoAgain(run, cell.due, error())),
                (Place::Stuck, _) => Some(Why::Stuck(run, error())),
                (place, _) if place.is_busy() => Some(Why::InHand(run, cell.epoch)),
                _ => None,
            }
        };
        self.runs().filter_map(of).collect()
    }
}

fn attempt(run: Run, step: &Step, cell: &Cell) -> Command {
    match cell.attempts < step.tries.attempts {
        true => Command::Begin(run, cell.attempts + 1),
        false => Command::GiveUp(run),
    }
}

/// Is there something that must be taken back?
fn owes(step: &Step, cell: &Cell) -> bool {
    use Place::{Done, Failed, UndoWaiting, Unknown, Waiting};
    let left = matches!(cell.place, Done | Failed | Waiting | Unknown | UndoWaiting);
    left && cell.maybe && step.undo == Undo::By
}

fn undo(run: Run, step: &Step, cell: &Cell) -> Command {
    if !step.kind.is_remote() {
        Command::LocalUndo(run)
    } else if cell.place == Place::Unknown && step.probe {
        Command::Probe(run)
    } else {
        let applied = cell.place == Place::Done;
        Command::Undo { run, attempt: cell.undo_attempts + 1, applied }
    }
}

impl Cause {
    /// In a few words.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Failed(_) => "failed",
            Self::Overdue => "overdue",
            Self::Cancelled(_) => "cancelled",
        }
    }
}
