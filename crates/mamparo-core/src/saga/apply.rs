//! The law of a saga's log: which entry may stand where, and what it changes.

use super::graph::{Kind, StepId};
use super::illegal::Illegal;
use super::log::{Entry, Fact, Failure, Run};
use super::machine::{Cause, Cell, ITEMS_MAX, Machine};
use super::step::{Event, LIFE, Place};

impl Machine<'_> {
    /// Takes an entry.
    ///
    /// # Errors
    /// Why it can't stand here. Nothing is changed then.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), Illegal> {
        let first = matches!(entry.fact, Fact::Started { .. });
        if first == self.started {
            return Err(if first { Illegal::StartedTwice } else { Illegal::NotStarted });
        }
        self.take(entry)?;
        self.entries += 1;
        Ok(())
    }

    fn take(&mut self, entry: &Entry) -> Result<(), Illegal> {
        match &entry.fact {
            Fact::Started { paused, due } => {
                (self.started, self.due, self.paused) = (true, *due, paused.then_some(None));
                Ok(())
            }
            Fact::Chosen(step, arm) => self.choose(*step, *arm),
            Fact::Counted(step, count) => self.count(*step, *count),
            Fact::Passed(step) => self.go(Run::of(*step), Event::Passed).map(drop),
            Fact::Opened(step, due) => {
                self.forward()?;
                self.of_kind(*step, Kind::is_pause)?;
                self.begins(*step)?;
                self.go(Run::of(*step), Event::Opened)?.due = *due;
                Ok(())
            }
            Fact::Begun(run, attempt, epoch) => self.begin(*run, *attempt, *epoch),
            Fact::Done(run) => self.done(*run),
            Fact::FailedForNow(run, failure, due) => {
                self.fail(*run, Event::FailedForNow, failure)?.due = *due;
                Ok(())
            }
            Fact::Failed(run, failure) => {
                self.fail(*run, Event::Failed, failure)?;
                if !self.is_past_pivot() && self.back.is_none() {
                    self.back = Some(Cause::Failed(*run));
                }
                Ok(())
            }
            Fact::Lost(run) => {
                let cell = self.go(*run, Event::Lost)?;
                (cell.due, cell.error) = (entry.at, "nobody knows how it ended".to_owned());
                Ok(())
            }
            Fact::Absent(run) => {
                // It may still be on its way: "not found" is no proof that it never will be.
                self.forward()?;
                self.go(*run, Event::Absent)?.due = entry.at;
                Ok(())
            }
            Fact::UndoBegun(run, attempt, epoch) => self.undo_begun(*run, *attempt, *epoch),
            Fact::Undone(run) => self.undone(*run),
            Fact::UndoFailed(run, failure, due) => {
                self.undo_failed_with(*run, Event::UndoFailed, failure)?.due = *due;
                Ok(())
            }
            Fact::UndoGivenUp(run, failure) => {
                self.undo_failed_with(*run, Event::UndoGivenUp, failure).map(drop)
            }
            Fact::Signalled(name) => {
                self.going()?;
                self.signals.push(name.clone());
                Ok(())
            }
            Fact::Overdue => self.turn_back(Cause::Overdue),
            Fact::Cancelled(order) => {
                order.check()?;
                self.turn_back(Cause::Cancelled(order.clone()))
            }
            Fact::Paused(order) => self.pause(order),
            Fact::Resumed(order) => self.resume(order),
            Fact::Retried(run, order) => self.retry(*run, order, entry.at),
            Fact::Skipped(run, order) => self.skip(*run, order),
            Fact::MarkedUndone(run, order) => self.mark_undone(*run, order),
        }
    }

    /// Moves one run as the table says.
    pub(super) fn go(&mut self, run: Run, event: Event) -> Result<&mut Cell, Illegal> {
        let missing = Illegal::NoSuchRun(run);
        let item = usize::try_from(run.item).map_err(|_| missing.clone())?;
        let each = self.graph.step(run.step).is_some_and(|step| step.each);
        let uncounted = each && !self.counted.get(run.step.index()).is_some_and(|counted| *counted);
        if uncounted && event != Event::Passed {
            return Err(Illegal::NotCounted(run.step));
        }
        let cells = self.cells.get_mut(run.step.index()).ok_or_else(|| missing.clone())?;
        let cell = cells.get_mut(item).ok_or(missing)?;
        let row = LIFE.row(cell.place, event).ok_or(Illegal::Row(cell.place, event))?;
        cell.place = row.to;
        Ok(cell)
    }

    fn choose(&mut self, step: StepId, arm: u16) -> Result<(), Illegal> {
        self.forward()?;
        let Some(Kind::Choice(arms)) = self.graph.step(step).map(|step| step.kind) else {
            return Err(Illegal::WrongKind(step));
        };
        if arm >= arms {
            return Err(Illegal::NoSuchArm(arm));
        }
        self.begins(step)?;
        self.go(Run::of(step), Event::Done)?;
        self.chosen[step.index()] = Some(arm);
        Ok(())
    }

    fn count(&mut self, step: StepId, count: u32) -> Result<(), Illegal> {
        self.forward()?;
        if !self.graph.step(step).is_some_and(|step| step.each) || self.counted[step.index()] {
            return Err(Illegal::WrongKind(step));
        }
        if count > ITEMS_MAX {
            return Err(Illegal::TooMany(count));
        }
        self.begins(step)?;
        self.counted[step.index()] = true;
        self.cells[step.index()] = vec![Cell::default(); usize::try_from(count).unwrap_or(0)];
        Ok(())
    }

    fn begin(&mut self, run: Run, attempt: u32, epoch: i64) -> Result<(), Illegal> {
        self.forward()?;
        self.of_kind(run.step, Kind::is_remote)?;
        self.begins(run.step)?;
        let turn = self.turns + 1;
        let made = self.cell(run).map_or(0, |cell| cell.attempts);
        if attempt != made + 1 {
            return Err(Illegal::Attempt { asked: attempt, next: made + 1 });
        }
        let cell = self.go(run, Event::Begun)?;
        (cell.attempts, cell.epoch, cell.before, cell.maybe) = (attempt, epoch, cell.maybe, true);
        if cell.turn == 0 {
            cell.turn = turn;
            self.turns = turn;
        }
        Ok(())
    }

    fn done(&mut self, run: Run) -> Result<(), Illegal> {
        let kind = self.graph.step(run.step).ok_or(Illegal::NoSuchRun(run))?.kind;
        if matches!(kind, Kind::Choice(_)) {
            return Err(Illegal::WrongKind(run.step));
        }
        let cell = self.cell(run).ok_or(Illegal::NoSuchRun(run))?;
        if kind.is_remote() {
            // A late answer may come whatever the saga does now, but never before an attempt.
            if cell.turn == 0 {
                return Err(Illegal::NeverBegun(run));
            }
        } else {
            self.forward()?;
            self.begins(run.step)?;
        }
        let turn = self.turns + 1;
        let cell = self.go(run, Event::Done)?;
        cell.maybe = true;
        if cell.turn == 0 {
            cell.turn = turn;
            self.turns = turn;
        }
        Ok(())
    }

    fn fail(&mut self, run: Run, event: Event, failure: &Failure) -> Result<&mut Cell, Illegal> {
        let kind = self.graph.step(run.step).ok_or(Illegal::NoSuchRun(run))?.kind;
        let place = self.cell(run).ok_or(Illegal::NoSuchRun(run))?.place;
        if place != Place::Running && place != Place::Unknown {
            self.forward()?;
            self.begins(run.step)?;
        }
        if kind.is_remote() && place == Place::Idle {
            return Err(Illegal::NeverBegun(run));
        }
        let cell = self.go(run, event)?;
        cell.error.clone_from(&failure.error);
        if matches!(place, Place::Running | Place::Unknown) {
            cell.maybe = cell.before || failure.may_have_run;
        }
        if !kind.is_remote() {
            cell.attempts = cell.attempts.saturating_add(1);
        }
        Ok(cell)
    }

    pub(super) fn of_kind(&self, step: StepId, fits: impl Fn(Kind) -> bool) -> Result<(), Illegal> {
        let fits = self.graph.step(step).is_some_and(|step| fits(step.kind));
        if fits { Ok(()) } else { Err(Illegal::WrongKind(step)) }
    }

    pub(super) fn begins(&self, step: StepId) -> Result<(), Illegal> {
        if self.ready(step) { Ok(()) } else { Err(Illegal::NotItsTurn) }
    }

    pub(super) fn forward(&self) -> Result<(), Illegal> {
        if self.back.is_none() { Ok(()) } else { Err(Illegal::GoesBack) }
    }

    pub(super) fn going(&self) -> Result<(), Illegal> {
        let status = self.status();
        if status.is_end() { Err(Illegal::Ended(status)) } else { Ok(()) }
    }
}
