//! From what a driver has seen to the entry that it writes.

use super::graph::{Kind, Step, StepId, Tries};
use super::illegal::Illegal;
use super::log::{Entry, Fact, Failure, Order, Run};
use super::machine::{Cell, Machine};
use super::step::Place;
use crate::rng::Rng;
use crate::time::WallTime;

/// What a driver has seen. The attempt says to which of several an answer belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The answer to [`Command::Pass`](super::next::Command::Pass).
    Passed(StepId),
    /// The answer to [`Command::Choose`](super::next::Command::Choose).
    Chose(StepId, u16),
    /// The answer to [`Command::Count`](super::next::Command::Count).
    Counted(StepId, u32),
    /// The answer to [`Command::Open`](super::next::Command::Open).
    Opened(StepId),
    /// An attempt is to begin, under this lease's epoch.
    Begins(Run, i64),
    /// It has happened; also the answer to [`Command::Settle`](super::next::Command::Settle).
    Done(Run),
    /// An attempt failed.
    Failed(Run, u32, Failure),
    /// The answer to [`Command::GiveUp`](super::next::Command::GiveUp).
    GaveUp(Run),
    /// Nobody is at this attempt any more: its process is gone, or its time was over.
    Lost(Run, u32),
    /// The probe's word: it has happened, or it has not.
    Probed(Run, bool),
    /// The probe does not know, or could not be asked.
    Unsure(Run, String),
    /// An attempt at an undo is to begin, under this lease's epoch.
    UndoBegins(Run, i64),
    /// It is taken back.
    Undone(Run),
    /// An attempt at an undo failed.
    UndoFailed(Run, Failure),
    /// Nobody is at the undo any more.
    UndoLost(Run),
    /// A signal came.
    Signalled(String),
    /// The time for going forward is over.
    Expired,
    /// A person's order; the fact is one of those that carry one.
    Ordered(Ordered),
}

/// What people may do to a saga.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// Have it go back.
    Cancel(Order),
    /// Have it rest.
    Pause(Order),
    /// Have it go on.
    Resume(Order),
    /// Have a step, or its undo, tried again.
    Retry(Run, Order),
    /// Have a step count as done.
    Skip(Run, Order),
    /// Have a step count as taken back.
    MarkUndone(Run, Order),
}

impl Ordered {
    fn fact(self) -> Fact {
        match self {
            Self::Cancel(order) => Fact::Cancelled(order),
            Self::Pause(order) => Fact::Paused(order),
            Self::Resume(order) => Fact::Resumed(order),
            Self::Retry(run, order) => Fact::Retried(run, order),
            Self::Skip(run, order) => Fact::Skipped(run, order),
            Self::MarkUndone(run, order) => Fact::MarkedUndone(run, order),
        }
    }
}

impl Machine<'_> {
    /// The entry for `report`; `None` when the log knows it already: a duplicate, or the late failure of
    /// an attempt that another one has followed. The machine itself does not move: that is for
    /// [`apply`](Machine::apply), once the entry is written.
    ///
    /// # Errors
    /// Why this can't have happened here, or may not be done.
    pub fn decide(
        &self,
        report: Report,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Option<Entry>, Illegal> {
        let Some(fact) = self.fact(report, now, rng)? else { return Ok(None) };
        let entry = Entry { at: now, fact };
        self.clone().apply(&entry)?;
        Ok(Some(entry))
    }

    /// The attempts that were begun under an older epoch than `epoch`: nobody is at them any more. What
    /// a process reports first of a saga that it takes over.
    #[must_use]
    pub fn lost(&self, epoch: i64) -> Vec<Report> {
        let old = self.runs().filter(|(_, _, cell)| cell.epoch < epoch && cell.place.is_busy());
        old.map(|(run, _, cell)| {
            if cell.place.is_undoing() {
                Report::UndoLost(run)
            } else {
                Report::Lost(run, cell.attempts)
            }
        })
        .collect()
    }

    fn fact(
        &self,
        report: Report,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Option<Fact>, Illegal> {
        let fact = match report {
            Report::Passed(step) => Fact::Passed(step),
            Report::Chose(step, arm) => Fact::Chosen(step, arm),
            Report::Counted(step, count) => Fact::Counted(step, count),
            Report::Opened(step) => match self.graph.step(step).map(|step| step.kind) {
                Some(Kind::Wait(length) | Kind::Sleep(length)) => {
                    Fact::Opened(step, now.plus(length))
                }
                _ => return Err(Illegal::WrongKind(step)),
            },
            Report::Begins(run, epoch) => {
                self.awake()?;
                Fact::Begun(run, self.at(run)?.attempts + 1, epoch)
            }
            Report::Done(run) => return self.happened(run),
            Report::Failed(run, attempt, failure) => {
                return self.failed(run, attempt, failure, now, rng);
            }
            Report::GaveUp(run) => self.gave_up(run)?,
            Report::Lost(run, attempt) => {
                let cell = self.at(run)?;
                if cell.place != Place::Running || cell.attempts != attempt {
                    return Ok(None);
                }
                Fact::Lost(run)
            }
            Report::Probed(run, applied) => return self.probed(run, Ok(applied), now, rng),
            Report::Unsure(run, error) => return self.probed(run, Err(error), now, rng),
            Report::UndoBegins(run, epoch) => {
                self.awake()?;
                Fact::UndoBegun(run, self.at(run)?.undo_attempts + 1, epoch)
            }
            Report::Undone(run) if self.at(run)?.place == Place::Undone => return Ok(None),
            Report::Undone(run) => Fact::Undone(run),
            Report::UndoFailed(run, failure) => self.undo_failed(run, failure, now, rng)?,
            Report::UndoLost(run) if self.at(run)?.place.is_undoing() => Fact::Lost(run),
            Report::UndoLost(_) => return Ok(None),
            Report::Signalled(name) => return self.signalled(name),
            Report::Expired => Fact::Overdue,
            Report::Ordered(ordered) => ordered.fact(),
        };
        Ok(Some(fact))
    }

    fn happened(&self, run: Run) -> Result<Option<Fact>, Illegal> {
        // Known; or an undo is owed already, and will be told that it may have happened.
        let known = [Place::Done, Place::Overtaken, Place::UndoWaiting, Place::Stuck];
        Ok((!known.contains(&self.at(run)?.place)).then_some(Fact::Done(run)))
    }

    fn gave_up(&self, run: Run) -> Result<Fact, Illegal> {
        let cell = self.at(run)?;
        let error = if cell.place == Place::Open {
            "no signal came in time"
        } else if cell.error.is_empty() {
            "no attempt is left"
        } else {
            &cell.error
        };
        Ok(Fact::Failed(run, Failure { error: error.to_owned(), may_have_run: cell.maybe }))
    }

    fn probed(
        &self,
        run: Run,
        answer: Result<bool, String>,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Option<Fact>, Illegal> {
        if self.at(run)?.place != Place::Unknown {
            // An answer came in while the probe was on its way.
            return Ok(None);
        }
        let fact = match answer {
            Ok(true) => Fact::Done(run),
            // On the way back "not found" is no proof: what is still on its way is undone too.
            Ok(false) if self.cause().is_some() => {
                Fact::Failed(run, Failure::unclear("its probe did not find it"))
            }
            Ok(false) => Fact::Absent(run),
            Err(error) => {
                let made = self.at(run)?.attempts;
                self.next_try(run, made, Failure::unclear(error), now, rng)?
            }
        };
        Ok(Some(fact))
    }

    fn signalled(&self, name: String) -> Result<Option<Fact>, Illegal> {
        let Some(step) = self.graph.named(&name) else { return Err(Illegal::NoSuchSignal(name)) };
        if !self.graph.step(step).is_some_and(|step| matches!(step.kind, Kind::Wait(_))) {
            return Err(Illegal::WrongKind(step));
        }
        Ok((!self.signals.contains(&name)).then_some(Fact::Signalled(name)))
    }

    fn failed(
        &self,
        run: Run,
        attempt: u32,
        failure: Failure,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Option<Fact>, Illegal> {
        let cell = self.at(run)?;
        if !self.of(run)?.kind.is_remote() {
            return self.next_try(run, cell.attempts + 1, failure, now, rng).map(Some);
        }
        let open = matches!(cell.place, Place::Running | Place::Unknown);
        if !open || attempt != cell.attempts {
            return Ok(None);
        }
        self.next_try(run, attempt, failure, now, rng).map(Some)
    }

    /// Attempt `made` has failed.
    fn next_try(
        &self,
        run: Run,
        made: u32,
        failure: Failure,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Fact, Illegal> {
        let Tries { attempts, backoff } = &self.of(run)?.tries;
        // Nothing is tried again on the way back.
        if made >= *attempts || self.cause().is_some() {
            return Ok(Fact::Failed(run, failure));
        }
        let wait = backoff.delay(made, backoff.base, rng);
        Ok(Fact::FailedForNow(run, failure, now.plus(wait)))
    }

    fn undo_failed(
        &self,
        run: Run,
        failure: Failure,
        now: WallTime,
        rng: &mut impl Rng,
    ) -> Result<Fact, Illegal> {
        let step = self.of(run)?;
        let cell = self.at(run)?;
        // A remote attempt is counted by its intent, a local one by its outcome.
        let made = cell.undo_attempts + u32::from(!step.kind.is_remote());
        let Tries { attempts, backoff } = &step.undo_tries;
        if made >= *attempts {
            return Ok(Fact::UndoGivenUp(run, failure));
        }
        let wait = backoff.delay(made, backoff.base, rng);
        Ok(Fact::UndoFailed(run, failure, now.plus(wait)))
    }

    fn at(&self, run: Run) -> Result<&Cell, Illegal> {
        self.cell(run).ok_or(Illegal::NoSuchRun(run))
    }

    fn of(&self, run: Run) -> Result<&Step, Illegal> {
        self.graph.step(run.step).ok_or(Illegal::NoSuchRun(run))
    }

    fn awake(&self) -> Result<(), Illegal> {
        if self.is_paused() { Err(Illegal::Paused) } else { Ok(()) }
    }
}
