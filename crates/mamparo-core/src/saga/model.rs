//! Everything that can happen to small sagas, in every order.
//!
//! A world of callees with books of their own, a process that dies, requests that arrive late, answers
//! that come twice, signals and a person who cancels. Each state is visited once; what must never be is
//! looked for in each of them.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::decide::{Ordered, Report};
use super::graph::{Graph, Kind, Step, StepId, Tries, Undo};
use super::log::{Entry, Fact, Failure, Order, Run};
use super::machine::Machine;
use super::next::{Command, Status};
use super::step::{Event, LIFE, Place};
use crate::rng::Rng;
use crate::time::WallTime;

const NOW: WallTime = WallTime::from_unix_millis(0);
const LATER: WallTime = WallTime::from_unix_millis(1_000_000_000);

/// Draws the shortest wait each time.
#[derive(Debug)]
struct Zero;

impl Rng for Zero {
    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// What one callee, or the saga's own database, has in its books for one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Book {
    /// The effect is there.
    applied: bool,
    /// It was there at some time, so an answer may exist.
    ever: bool,
    /// It was undone, and a request that comes later is refused.
    closed: bool,
    /// Requests that may still arrive.
    on_its_way: u8,
    /// It happened after its caller had gone; the answer will come.
    answer: bool,
}

/// Where an undo is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Undoing {
    No,
    Sent,
    Arrived,
}

/// Which step an entry moves, and by which event.
fn moved(fact: &Fact) -> Option<(Run, Event)> {
    let moved = match fact {
        Fact::Chosen(step, _) => (Run::of(*step), Event::Done),
        Fact::Passed(step) => (Run::of(*step), Event::Passed),
        Fact::Opened(step, _) => (Run::of(*step), Event::Opened),
        Fact::Begun(run, ..) => (*run, Event::Begun),
        Fact::Done(run) | Fact::Skipped(run, _) => (*run, Event::Done),
        Fact::FailedForNow(run, ..) => (*run, Event::FailedForNow),
        Fact::Failed(run, _) => (*run, Event::Failed),
        Fact::Lost(run) => (*run, Event::Lost),
        Fact::Absent(run) => (*run, Event::Absent),
        Fact::UndoBegun(run, ..) => (*run, Event::UndoBegun),
        Fact::Undone(run) | Fact::MarkedUndone(run, _) => (*run, Event::Undone),
        Fact::UndoFailed(run, ..) => (*run, Event::UndoFailed),
        Fact::UndoGivenUp(run, _) => (*run, Event::UndoGivenUp),
        Fact::Retried(run, _) => (*run, Event::Retried),
        Fact::Started { .. }
        | Fact::Counted(..)
        | Fact::Signalled(_)
        | Fact::Overdue
        | Fact::Cancelled(_)
        | Fact::Paused(_)
        | Fact::Resumed(_) => return None,
    };
    Some(moved)
}

/// How often each thing may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    crashes: u8,
    failures: u8,
    cancels: u8,
    signals: u8,
    late: u8,
    orders: u8,
}

#[derive(Debug, Clone)]
struct World<'g> {
    machine: Machine<'g>,
    books: Vec<Book>,
    /// Attempts that this process is at.
    hand: Vec<bool>,
    undoing: Vec<Undoing>,
    epoch: i64,
    left: Budget,
    skipped: bool,
    /// Callees refuse what comes after its undo, as they should. Those that don't always answer.
    tombstones: bool,
    /// Rows that led here.
    hits: Vec<(Place, Event)>,
}

impl<'g> World<'g> {
    fn new(graph: &'g Graph, left: Budget, tombstones: bool) -> Self {
        let steps = graph.steps.len();
        let mut machine = Machine::new(graph);
        let fact = Fact::Started { paused: false, due: None };
        machine.apply(&Entry { at: NOW, fact }).expect("it starts");
        let books = vec![Book::default(); steps];
        let (hand, undoing) = (vec![false; steps], vec![Undoing::No; steps]);
        Self {
            machine,
            books,
            hand,
            undoing,
            epoch: 1,
            left,
            skipped: false,
            tombstones,
            hits: Vec::new(),
        }
    }

    fn key(&self) -> u64 {
        let machine = &self.machine;
        let mut hasher = DefaultHasher::new();
        (&machine.cells, &machine.chosen, &machine.signals, &machine.back).hash(&mut hasher);
        let Self { books, hand, undoing, left, skipped, .. } = self;
        (books, hand, undoing, left, skipped).hash(&mut hasher);
        hasher.finish()
    }

    /// Writes a report down; a known one changes nothing.
    fn tell(mut self, report: Report) -> Self {
        let said = format!("{report:?}");
        let entry = self.machine.decide(report, NOW, &mut Zero);
        let entry = entry.unwrap_or_else(|why| panic!("{said}: {why}\n{self:#?}"));
        if let Some(entry) = entry {
            if let Some((run, event)) = moved(&entry.fact)
                && let Some(cell) = self.machine.cell(run)
            {
                self.hits.push((cell.place, event));
            }
            self.machine.apply(&entry).expect("what was decided can be applied");
        }
        self
    }

    fn book(&mut self, run: Run) -> &mut Book {
        &mut self.books[run.step.index()]
    }

    fn may(mut self, what: fn(&mut Budget) -> &mut u8) -> Option<Self> {
        let left = what(&mut self.left);
        *left = left.checked_sub(1)?;
        Some(self)
    }

    /// Every state that can follow.
    fn followers(&self) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for now in [NOW, LATER] {
            for command in self.machine.next(now) {
                all.extend(self.obeyed(&command));
            }
        }
        for id in self.machine.graph.ids() {
            all.extend(self.called(Run::of(id)));
        }
        all.extend(self.clone().may(|left| &mut left.crashes).map(Self::crashed));
        all.extend(self.disturbed());
        all
    }

    /// What a process does with a command.
    fn obeyed(&self, command: &Command) -> Vec<Self> {
        let one = |report| vec![self.clone().tell(report)];
        let refused = || Failure::refused("no");
        match *command {
            Command::Pass(step) => one(Report::Passed(step)),
            Command::Count(step) => one(Report::Counted(step, 1)),
            Command::Open(step) => one(Report::Opened(step)),
            Command::Settle(run) => one(Report::Done(run)),
            Command::GiveUp(run) => one(Report::GaveUp(run)),
            Command::Expire => one(Report::Expired),
            Command::Stop(_) => Vec::new(),
            Command::Choose(step) => {
                let Some(Kind::Choice(arms)) = self.machine.graph.step(step).map(|step| step.kind)
                else {
                    panic!("{step:?} is no choice")
                };
                (0..arms).map(|arm| self.clone().tell(Report::Chose(step, arm))).collect()
            }
            Command::Local(run) => {
                let mut done = self.clone().tell(Report::Done(run));
                *done.book(run) = Book { applied: true, ever: true, ..Book::default() };
                let failed = self.clone().may(|left| &mut left.failures);
                let failed = failed.map(|world| world.tell(Report::Failed(run, 0, refused())));
                failed.into_iter().chain([done]).collect()
            }
            Command::LocalUndo(run) => {
                let mut done = self.clone().tell(Report::Undone(run));
                done.book(run).applied = false;
                let failed = self.clone().may(|left| &mut left.failures);
                let failed = failed.map(|world| world.tell(Report::UndoFailed(run, refused())));
                failed.into_iter().chain([done]).collect()
            }
            Command::Begin(run, _) => {
                let mut world = self.clone().tell(Report::Begins(run, self.epoch));
                world.hand[run.step.index()] = true;
                world.book(run).on_its_way += 1;
                vec![world]
            }
            Command::Probe(run) => {
                let applied = self.books[run.step.index()].applied;
                let unsure = self.clone().may(|left| &mut left.failures);
                let unsure = unsure.map(|world| world.tell(Report::Unsure(run, "?".to_owned())));
                let sure = self.clone().tell(Report::Probed(run, applied));
                unsure.into_iter().chain([sure]).collect()
            }
            Command::Undo { run, applied, .. } => {
                let busy = self.machine.runs().any(|(.., cell)| cell.place == Place::Running);
                assert!(!busy, "nobody undoes while something is being done");
                assert!(
                    !applied || self.books[run.step.index()].ever,
                    "it is known to have happened"
                );
                let mut world = self.clone().tell(Report::UndoBegins(run, self.epoch));
                world.undoing[run.step.index()] = Undoing::Sent;
                vec![world]
            }
        }
    }

    /// What a callee does, and what its caller hears.
    fn called(&self, run: Run) -> Vec<Self> {
        let mut all = Vec::new();
        let index = run.step.index();
        let book = self.books[index];
        if book.on_its_way > 0 {
            let mut arrived = self.clone();
            let effect = book.applied || !book.closed;
            let (on_its_way, ever) = (book.on_its_way - 1, book.ever || effect);
            let answer = book.answer || (effect && !self.hand[index] && !self.tombstones);
            *arrived.book(run) = Book { on_its_way, applied: effect, ever, answer, ..book };
            all.push(arrived);
        }
        if book.answer {
            let mut answered = self.clone();
            answered.book(run).answer = false;
            all.push(answered.tell(Report::Done(run)));
        }
        let attempt = self.machine.cell(run).map_or(0, |cell| cell.attempts);
        if self.hand[index] {
            let mut over = self.clone();
            over.hand[index] = false;
            if book.applied {
                all.push(over.clone().tell(Report::Done(run)));
            }
            if let Some(mut world) = over.may(|left| &mut left.failures) {
                let unclear = Failure::unclear("no answer");
                let mut timed_out = world.clone();
                timed_out.book(run).answer |= book.applied && !self.tombstones;
                all.push(timed_out.tell(Report::Failed(run, attempt, unclear)));
                if !book.applied && book.on_its_way > 0 {
                    // The callee has heard it, and said no.
                    world.book(run).on_its_way = book.on_its_way.saturating_sub(1);
                    all.push(world.tell(Report::Failed(run, attempt, Failure::refused("no"))));
                }
            }
        }
        if self.undoing[index] == Undoing::Sent {
            let mut arrived = self.clone();
            arrived.undoing[index] = Undoing::Arrived;
            *arrived.book(run) = Book { applied: false, closed: self.tombstones, ..book };
            all.push(arrived);
        }
        if self.undoing[index] != Undoing::No {
            let mut over = self.clone();
            over.undoing[index] = Undoing::No;
            if self.undoing[index] == Undoing::Arrived {
                all.push(over.clone().tell(Report::Undone(run)));
            }
            let failed = over.may(|left| &mut left.failures);
            all.extend(failed.map(|w| w.tell(Report::UndoFailed(run, Failure::unclear("?")))));
        }
        // An answer that was on its way all the time, or comes twice.
        let remote = self.machine.graph.step(run.step).is_some_and(|step| step.kind.is_remote());
        if remote && book.ever && !self.hand[index] && self.tombstones {
            let late = self.clone().may(|left| &mut left.late);
            all.extend(late.map(|world| world.tell(Report::Done(run))));
        }
        all
    }

    /// The process dies, and another one takes over.
    fn crashed(mut self) -> Self {
        for (hand, book) in self.hand.iter().zip(&mut self.books) {
            book.answer |= *hand && book.applied && !self.tombstones;
        }
        self.hand.fill(false);
        self.undoing.fill(Undoing::No);
        self.epoch += 1;
        for report in self.machine.lost(self.epoch) {
            self = self.tell(report);
        }
        self
    }

    /// What comes from outside.
    fn disturbed(&self) -> Vec<Self> {
        let order = || Order { actor: "somebody".to_owned(), reason: "because".to_owned() };
        let mut all = Vec::new();
        let status = self.machine.status();
        let goes = status == Status::Running && !self.machine.is_past_pivot();
        if goes && let Some(world) = self.clone().may(|left| &mut left.cancels) {
            all.push(world.tell(Report::Ordered(Ordered::Cancel(order()))));
        }
        for (run, step, cell) in self.machine.runs() {
            if matches!(step.kind, Kind::Wait(_))
                && !status.is_end()
                && let Some(world) = self.clone().may(|left| &mut left.signals)
            {
                all.push(world.tell(Report::Signalled(step.name.clone())));
            }
            if status == Status::NeedsOperator
                && matches!(cell.place, Place::Failed | Place::Stuck)
                && (cell.place == Place::Stuck || self.machine.cause().is_none())
                && let Some(world) = self.clone().may(|left| &mut left.orders)
            {
                all.push(world.clone().tell(Report::Ordered(Ordered::Retry(run, order()))));
                let mut by_hand = world;
                by_hand.skipped = true;
                let ordered = if cell.place == Place::Stuck {
                    Ordered::MarkUndone(run, order())
                } else {
                    Ordered::Skip(run, order())
                };
                all.push(by_hand.tell(Report::Ordered(ordered)));
            }
        }
        all
    }

    /// What must hold in every state.
    fn check(&self) {
        let status = self.machine.status();
        for (run, step, cell) in self.machine.runs().filter(|_| !self.skipped) {
            let book = self.books[run.step.index()];
            let lets_go = match self.tombstones {
                true => !book.applied && (book.on_its_way == 0 || book.closed),
                false => !book.applied || book.answer || self.hand[run.step.index()],
            };
            if status == Status::Completed && cell.place == Place::Done && step.undo == Undo::By {
                assert!(book.applied, "{}: completed without it\n{self:#?}", step.name);
            }
            if status == Status::Compensated && step.undo == Undo::By {
                assert!(lets_go, "{}: it stays, or may still come\n{self:#?}", step.name);
            }
            if cell.place == Place::NotTaken {
                assert!(!book.ever && book.on_its_way == 0, "{}: on another arm", step.name);
            }
            if book.ever && step.undo == Undo::By {
                assert!(cell.maybe || cell.place == Place::Undone, "{}: forgotten", step.name);
            }
        }
        if status == Status::NeedsOperator {
            assert!(!self.machine.why().is_empty(), "who is asked is told why");
        }
    }

    /// Does it end here, or wait for a person?
    fn may_rest(&self) -> bool {
        let status = self.machine.status();
        status.is_end() || status == Status::NeedsOperator
    }
}

/// What a walk through all states has seen.
#[derive(Debug, Default)]
struct Seen {
    statuses: HashSet<Status>,
    hits: HashSet<(Place, Event)>,
}

fn explore(graph: &Graph, budget: Budget, tombstones: bool) -> Seen {
    graph.check().expect("a graph that can be run");
    let mut seen = Seen::default();
    let first = World::new(graph, budget, tombstones);
    let mut known = HashSet::from([first.key()]);
    let mut open = vec![first];
    while let Some(world) = open.pop() {
        world.check();
        seen.statuses.insert(world.machine.status());
        let followers = world.followers();
        if followers.is_empty() {
            assert!(world.may_rest(), "it hangs\n{world:#?}");
        }
        for mut follower in followers {
            seen.hits.extend(follower.hits.drain(..));
            if known.insert(follower.key()) {
                open.push(follower);
            }
        }
    }
    seen
}

fn step(name: &str, kind: Kind, after: &[u16]) -> Step {
    let has_effect = matches!(kind, Kind::Local | Kind::Call | Kind::Sub | Kind::Emit);
    Step {
        name: name.to_owned(),
        kind,
        after: after.iter().map(|id| StepId(*id)).collect(),
        arm: None,
        each: false,
        undo: if has_effect { Undo::By } else { Undo::ReadOnly },
        probe: false,
        tries: Tries::of(2),
        undo_tries: Tries::of(2),
    }
}

fn graph(steps: Vec<Step>) -> Graph {
    Graph { name: "model".to_owned(), version: 1, steps, deadline: None }
}

const BUDGET: Budget =
    Budget { crashes: 1, failures: 2, cancels: 1, signals: 1, late: 1, orders: 1 };

#[test]
fn calls_in_a_row_leave_nothing_behind_whatever_happens() {
    let probed = Step { probe: true, ..step("charge", Kind::Call, &[0]) };
    let seen = explore(&graph(vec![step("reserve", Kind::Call, &[]), probed]), BUDGET, true);
    for status in [Status::Completed, Status::Compensated, Status::NeedsOperator] {
        assert!(seen.statuses.contains(&status), "{seen:?}");
    }
}

#[test]
fn branches_settle_before_anything_is_undone() {
    let steps = vec![
        step("reserve", Kind::Local, &[]),
        step("charge", Kind::Call, &[0]),
        step("label", Kind::Call, &[0]),
        step("ship", Kind::Emit, &[1, 2]),
    ];
    let seen = explore(&graph(steps), Budget { failures: 1, orders: 0, ..BUDGET }, true);
    for status in [Status::Completed, Status::Compensated, Status::NeedsOperator] {
        assert!(seen.statuses.contains(&status), "{seen:?}");
    }
}

#[test]
fn past_the_pivot_it_only_goes_forward() {
    let steps = vec![
        step("reserve", Kind::Call, &[]),
        step("no way back", Kind::Pivot, &[0]),
        step("ship", Kind::Call, &[1]),
        step("tell", Kind::Emit, &[2]),
    ];
    let graph = graph(steps);
    let seen = explore(&graph, BUDGET, true);
    for status in [Status::Completed, Status::Compensated, Status::NeedsOperator] {
        assert!(seen.statuses.contains(&status), "{seen:?}");
    }
}

#[test]
fn an_arm_that_is_not_taken_never_happens() {
    let arm = |name, arm| Step { arm: Some((StepId(0), arm)), ..step(name, Kind::Call, &[]) };
    let steps = vec![
        step("which", Kind::Choice(2), &[]),
        arm("by card", 0),
        arm("by transfer", 1),
        step("ship", Kind::Call, &[1, 2]),
    ];
    let seen = explore(&graph(steps), Budget { failures: 1, orders: 0, ..BUDGET }, true);
    assert!(seen.statuses.contains(&Status::Completed), "{seen:?}");
}

#[test]
fn a_signal_counts_when_it_comes_early_and_not_when_it_comes_too_late() {
    let minute = std::time::Duration::from_secs(60);
    let steps = vec![
        step("reserve", Kind::Call, &[]),
        step("paid", Kind::Wait(minute), &[0]),
        step("rest", Kind::Sleep(minute), &[1]),
        step("ship", Kind::Sub, &[2]),
    ];
    let seen = explore(&graph(steps), BUDGET, true);
    for status in [Status::Completed, Status::Compensated, Status::NeedsOperator] {
        assert!(seen.statuses.contains(&status), "{seen:?}");
    }
}

#[test]
fn four_calls_in_a_row() {
    let probed = |name, after| Step { probe: true, ..step(name, Kind::Call, after) };
    let steps = vec![
        step("reserve", Kind::Call, &[]),
        probed("charge", &[0]),
        step("ship", Kind::Call, &[1]),
        step("tell", Kind::Call, &[2]),
    ];
    let seen = explore(&graph(steps), Budget { failures: 1, orders: 0, ..BUDGET }, true);
    for status in [Status::Completed, Status::Compensated] {
        assert!(seen.statuses.contains(&status), "{seen:?}");
    }
}

#[test]
fn a_late_success_is_undone_again_where_callees_take_what_comes_too_late() {
    let steps = vec![step("reserve", Kind::Call, &[]), step("charge", Kind::Call, &[0])];
    let seen = explore(&graph(steps), Budget { orders: 0, ..BUDGET }, false);
    assert!(seen.statuses.contains(&Status::Compensated), "{seen:?}");
}

#[test]
fn every_row_of_a_steps_life_is_driven() {
    let minute = std::time::Duration::from_secs(60);
    let probed = Step { probe: true, ..step("charge", Kind::Call, &[]) };
    let waits = graph(vec![probed, step("paid", Kind::Wait(minute), &[0])]);
    let local = |tries| Step {
        tries: Tries::of(tries),
        undo_tries: Tries::of(tries),
        ..step("book", Kind::Local, &[])
    };
    let often = graph(vec![local(3), step("ship", Kind::Call, &[0])]);
    let once = graph(vec![local(1), step("ship", Kind::Call, &[0])]);
    let forward =
        graph(vec![step("no way back", Kind::Pivot, &[]), step("tell", Kind::Emit, &[0])]);
    let arm = |name, arm| Step { arm: Some((StepId(0), arm)), ..step(name, Kind::Call, &[]) };
    let arms = graph(vec![step("which", Kind::Choice(2), &[]), arm("this", 0), arm("that", 1)]);
    let more = Budget { failures: 3, late: 0, ..BUDGET };
    let walks = [
        (&waits, BUDGET, false),
        (&waits, BUDGET, true),
        (&once, BUDGET, true),
        (&often, more, true),
        (&forward, BUDGET, true),
        (&arms, BUDGET, true),
    ];
    let hits = walks.map(|(graph, budget, tombstones)| explore(graph, budget, tombstones).hits);
    let hits: Vec<_> = hits.into_iter().flatten().collect();
    assert_eq!(LIFE.untested(&hits), [""; 0]);
}
