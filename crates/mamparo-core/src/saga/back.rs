//! The way back, and what people do to a saga.

use super::graph::{Kind, Undo};
use super::illegal::Illegal;
use super::log::{Failure, Order, Run};
use super::machine::{Cause, Cell, Machine};
use super::step::{Event, Place};
use crate::time::WallTime;

impl Machine<'_> {
    pub(super) fn turn_back(&mut self, cause: Cause) -> Result<(), Illegal> {
        self.going()?;
        self.forward()?;
        if self.is_past_pivot() {
            return Err(Illegal::PastPivot);
        }
        self.back = Some(cause);
        Ok(())
    }

    pub(super) fn undo_begun(&mut self, run: Run, attempt: u32, epoch: i64) -> Result<(), Illegal> {
        self.owes(run, Event::UndoBegun)?;
        let next = self.cell(run).map_or(0, |cell| cell.undo_attempts) + 1;
        if attempt != next {
            return Err(Illegal::Attempt { asked: attempt, next });
        }
        let cell = self.go(run, Event::UndoBegun)?;
        (cell.undo_attempts, cell.epoch) = (attempt, epoch);
        Ok(())
    }

    pub(super) fn undone(&mut self, run: Run) -> Result<(), Illegal> {
        self.owes(run, Event::Undone)?;
        let cell = self.go(run, Event::Undone)?;
        // A success that came in while it was undone may have happened after that undo.
        (cell.maybe, cell.undo_attempts) = (cell.place == Place::Done, 0);
        Ok(())
    }

    pub(super) fn undo_failed_with(
        &mut self,
        run: Run,
        event: Event,
        failure: &Failure,
    ) -> Result<&mut Cell, Illegal> {
        let remote = self.owes(run, event)?;
        let cell = self.go(run, event)?;
        cell.error.clone_from(&failure.error);
        // A remote attempt was counted with its intent.
        cell.undo_attempts += u32::from(!remote);
        Ok(cell)
    }

    /// May this happen to the undo of `run` now? Whether it is one elsewhere.
    fn owes(&self, run: Run, event: Event) -> Result<bool, Illegal> {
        if self.back.is_none() {
            return Err(Illegal::GoesForward);
        }
        let step = self.graph.step(run.step).ok_or(Illegal::NoSuchRun(run))?;
        let cell = self.cell(run).ok_or(Illegal::NoSuchRun(run))?;
        if step.undo != Undo::By || !cell.maybe {
            return Err(Illegal::NothingToUndo(run));
        }
        let (remote, under_way) = (step.kind.is_remote(), cell.place.is_undoing());
        if remote != (event == Event::UndoBegun || under_way) {
            return Err(Illegal::Row(cell.place, event));
        }
        // Whatever runs ends first: nobody undoes while something is still being done.
        if !under_way && self.is_busy() { Err(Illegal::NotItsTurn) } else { Ok(remote) }
    }

    pub(super) fn pause(&mut self, order: &Order) -> Result<(), Illegal> {
        order.check()?;
        self.going()?;
        if self.paused.is_some() {
            return Err(Illegal::Paused);
        }
        self.paused = Some(Some(order.clone()));
        Ok(())
    }

    pub(super) fn resume(&mut self, order: &Order) -> Result<(), Illegal> {
        order.check()?;
        self.paused.take().map(drop).ok_or(Illegal::NotPaused)
    }

    pub(super) fn retry(&mut self, run: Run, order: &Order, now: WallTime) -> Result<(), Illegal> {
        order.check()?;
        if self.cell(run).is_some_and(|cell| cell.place == Place::Failed) {
            self.forward()?;
        }
        let cell = self.go(run, Event::Retried)?;
        cell.due = now;
        if cell.place == Place::UndoWaiting {
            cell.undo_attempts = 0;
        } else {
            cell.attempts = 0;
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, run: Run, order: &Order) -> Result<(), Illegal> {
        order.check()?;
        self.forward()?;
        self.of_kind(run.step, |kind| !matches!(kind, Kind::Choice(_) | Kind::Pivot))?;
        self.among(run, Event::Done, &[Place::Waiting, Place::Unknown, Place::Failed])?;
        self.go(run, Event::Done).map(drop)
    }

    pub(super) fn mark_undone(&mut self, run: Run, order: &Order) -> Result<(), Illegal> {
        order.check()?;
        self.among(run, Event::Undone, &[Place::Stuck, Place::UndoWaiting])?;
        let cell = self.go(run, Event::Undone)?;
        (cell.maybe, cell.undo_attempts) = (false, 0);
        Ok(())
    }

    fn among(&self, run: Run, event: Event, places: &[Place]) -> Result<(), Illegal> {
        let place = self.cell(run).ok_or(Illegal::NoSuchRun(run))?.place;
        if places.contains(&place) { Ok(()) } else { Err(Illegal::Row(place, event)) }
    }
}
