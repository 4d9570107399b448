//! The state of a saga, read from its log.
//!
//! [`apply`](Machine::apply) is the law: it takes an entry, or says why that entry can't stand there.
//! [`decide`](Machine::decide) finds the entry for what a driver has seen, and [`next`](Machine::next) says
//! what a driver may do. Whoever drives writes an entry down first and acts on it then; an entry that
//! another process has written in the meantime ends the attempt to write one at the same number.

use super::graph::{Graph, Step, StepId};
use super::illegal::Illegal;
use super::log::{Entry, Order, Run};
use super::step::Place;
use crate::time::WallTime;

/// Most items of a step that runs for each of several.
pub const ITEMS_MAX: u32 = 10_000;

/// Why a saga goes back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A step failed for good.
    Failed(Run),
    /// Its time is over.
    Overdue,
    /// A person cancelled it.
    Cancelled(Order),
}

/// Where one run of a step stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Cell {
    /// Where it is.
    pub place: Place,
    /// Attempts begun, forward.
    pub attempts: u32,
    /// Attempts at its undo.
    pub undo_attempts: u32,
    /// It may have happened.
    pub maybe: bool,
    /// The same before the attempt that runs.
    pub(super) before: bool,
    /// Its turn among all that began, from 1; 0 when it never did.
    pub turn: u32,
    /// The lease's epoch under which it is tried.
    pub epoch: i64,
    /// When it is due again, or over.
    pub due: WallTime,
    /// What the last failure said.
    pub error: String,
}

/// A saga.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine<'g> {
    pub(super) graph: &'g Graph,
    pub(super) cells: Vec<Vec<Cell>>,
    pub(super) counted: Vec<bool>,
    pub(super) chosen: Vec<Option<u16>>,
    pub(super) signals: Vec<String>,
    pub(super) started: bool,
    pub(super) due: Option<WallTime>,
    pub(super) paused: Option<Option<Order>>,
    pub(super) back: Option<Cause>,
    pub(super) turns: u32,
    pub(super) entries: u64,
}

impl<'g> Machine<'g> {
    /// A saga on `graph` with an empty log.
    #[must_use]
    pub fn new(graph: &'g Graph) -> Self {
        let steps = graph.steps.len();
        Self {
            graph,
            cells: vec![vec![Cell::default()]; steps],
            counted: vec![false; steps],
            chosen: vec![None; steps],
            signals: Vec::new(),
            started: false,
            due: None,
            paused: None,
            back: None,
            turns: 0,
            entries: 0,
        }
    }

    /// Reads a log.
    ///
    /// # Errors
    /// The number of the first entry that can't stand where it stands, from 1, and why.
    pub fn replay<'e>(
        graph: &'g Graph,
        log: impl IntoIterator<Item = &'e Entry>,
    ) -> Result<Self, (u64, Illegal)> {
        let mut machine = Self::new(graph);
        for entry in log {
            machine.apply(entry).map_err(|why| (machine.entries + 1, why))?;
        }
        Ok(machine)
    }

    /// Entries so far; the next one's number is one more.
    #[must_use]
    pub const fn entries(&self) -> u64 {
        self.entries
    }

    /// Why it goes back, if it does.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        self.back.as_ref()
    }

    /// One run of a step; `None` when there is no such one, or not yet.
    #[must_use]
    pub fn cell(&self, run: Run) -> Option<&Cell> {
        self.cells.get(run.step.index())?.get(usize::try_from(run.item).ok()?)
    }

    /// All runs, with their steps.
    pub fn runs(&self) -> impl Iterator<Item = (Run, &'g Step, &Cell)> {
        self.graph.ids().zip(&self.graph.steps).zip(&self.cells).flat_map(|((id, step), cells)| {
            (0_u32..).zip(cells).map(move |(item, cell)| (Run { step: id, item }, step, cell))
        })
    }

    /// Is the pivot behind it? Then it never goes back.
    #[must_use]
    pub fn is_past_pivot(&self) -> bool {
        self.graph.pivot().is_some_and(|pivot| self.settled(pivot))
    }

    /// Is a step done in all its items, or not taken?
    pub(super) fn settled(&self, id: StepId) -> bool {
        let Some(cells) = self.cells.get(id.index()) else { return false };
        let each = self.graph.step(id).is_some_and(|step| step.each);
        if each && !self.counted[id.index()] {
            return cells.iter().all(|cell| cell.place == Place::NotTaken);
        }
        cells.iter().all(|cell| matches!(cell.place, Place::Done | Place::NotTaken))
    }
}
