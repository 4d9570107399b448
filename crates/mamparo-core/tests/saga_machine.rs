//! Sagas as logs: what they do step by step, what is refused, and what a log that nobody wrote does.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::time::Duration;

use mamparo_core::rng::SeededRng;
use mamparo_core::saga::decide::{Ordered, Report};
use mamparo_core::saga::graph::{Graph, Kind, Step, StepId, Tries, Undo};
use mamparo_core::saga::illegal::Illegal;
use mamparo_core::saga::log::{Entry, Fact, Failure, Order, Run};
use mamparo_core::saga::machine::{Cause, Machine};
use mamparo_core::saga::next::{Command, Status, Why};
use mamparo_core::saga::step::{Event, Place};
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(millis: i64) -> WallTime {
    WallTime::from_unix_millis(millis)
}

fn step(name: &str, kind: Kind, after: &[u16]) -> Step {
    let effect = matches!(kind, Kind::Local | Kind::Call | Kind::Sub | Kind::Emit);
    Step {
        name: name.to_owned(),
        kind,
        after: after.iter().map(|id| StepId(*id)).collect(),
        arm: None,
        each: false,
        undo: if effect { Undo::By } else { Undo::ReadOnly },
        probe: false,
        tries: Tries::of(3),
        undo_tries: Tries::of(2),
    }
}

fn graph(steps: Vec<Step>) -> Graph {
    Graph { name: "checkout".to_owned(), version: 1, steps, deadline: None }
}

/// Reserve, charge, ship: the sagas of the lesson.
fn checkout() -> Graph {
    graph(vec![
        step("reserve", Kind::Call, &[]),
        step("charge", Kind::Call, &[0]),
        step("ship", Kind::Call, &[1]),
    ])
}

fn run(step: u16) -> Run {
    Run::of(StepId(step))
}

fn order() -> Order {
    Order { actor: "ada".to_owned(), reason: "the customer called".to_owned() }
}

/// A saga with its log.
struct Saga<'g> {
    machine: Machine<'g>,
    log: Vec<Entry>,
    rng: SeededRng,
    now: WallTime,
}

impl<'g> Saga<'g> {
    fn start(graph: &'g Graph) -> Self {
        graph.check().unwrap();
        let (machine, rng) = (Machine::new(graph), SeededRng::new(7));
        let mut saga = Self { machine, log: Vec::new(), rng, now: at(0) };
        let fact =
            Fact::Started { paused: false, due: graph.deadline.map(|after| at(0).plus(after)) };
        saga.write(Entry { at: at(0), fact });
        saga
    }

    fn write(&mut self, entry: Entry) {
        self.machine.apply(&entry).unwrap();
        self.log.push(entry);
    }

    fn try_tell(&mut self, report: Report) -> Result<bool, Illegal> {
        let entry = self.machine.decide(report, self.now, &mut self.rng)?;
        Ok(entry.map(|entry| self.write(entry)).is_some())
    }

    fn tell(&mut self, report: Report) {
        assert!(self.try_tell(report).unwrap(), "it was new");
    }

    fn call(&mut self, step: u16) {
        self.tell(Report::Begins(run(step), 1));
        self.tell(Report::Done(run(step)));
    }

    fn fails(&mut self, step: u16, failure: Failure) {
        self.tell(Report::Begins(run(step), 1));
        let attempt = self.machine.cell(run(step)).unwrap().attempts;
        self.tell(Report::Failed(run(step), attempt, failure));
    }

    fn next(&self) -> Vec<Command> {
        self.machine.next(self.now)
    }

    fn place(&self, step: u16) -> Place {
        self.machine.cell(run(step)).unwrap().place
    }
}

#[test]
fn what_is_undone_is_undone_in_the_reverse_order_of_its_beginnings() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.call(0);
    saga.call(1);
    for _ in 0..3 {
        saga.now = saga.now.plus(MINUTE);
        saga.fails(2, Failure::refused("no van"));
    }
    assert_eq!(saga.machine.cause(), Some(&Cause::Failed(run(2))));
    // The callee has said no three times: there is nothing of it to undo.
    let undo = |step| Command::Undo { run: run(step), attempt: 1, applied: true };
    assert_eq!(saga.next(), [undo(1)]);
    saga.tell(Report::UndoBegins(run(1), 1));
    assert_eq!(saga.next(), [], "one after the other");
    saga.tell(Report::Undone(run(1)));
    assert_eq!(saga.next(), [undo(0)]);
    saga.tell(Report::UndoBegins(run(0), 1));
    saga.tell(Report::Undone(run(0)));
    assert_eq!((saga.machine.status(), saga.next()), (Status::Compensated, Vec::new()));
}

/// The lesson's saga registers an undo once its step has succeeded.
#[test]
fn lesson_g01_a_step_that_timed_out_after_its_effect_is_undone() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    for _ in 0..3 {
        saga.now = saga.now.plus(MINUTE);
        saga.fails(0, Failure::unclear("no answer within 2s"));
    }
    let command = Command::Undo { run: run(0), attempt: 1, applied: false };
    assert_eq!(saga.next(), [command]);
}

/// The lesson's saga stops at the first undo that fails, and hides why it went back.
#[test]
fn lesson_g02_an_undo_that_is_given_up_stops_no_other_and_hides_nothing() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.call(0);
    saga.call(1);
    saga.tell(Report::Ordered(Ordered::Cancel(order())));
    saga.tell(Report::UndoBegins(run(1), 1));
    saga.tell(Report::UndoFailed(run(1), Failure::unclear("503")));
    // The first one waits for its next attempt; the other one goes ahead.
    assert_eq!(saga.next(), [Command::Undo { run: run(0), attempt: 1, applied: true }]);
    saga.tell(Report::UndoBegins(run(0), 1));
    saga.tell(Report::Undone(run(0)));
    saga.now = saga.machine.wake_at(saga.now).unwrap();
    assert_eq!(saga.next(), [Command::Undo { run: run(1), attempt: 2, applied: false }]);
    saga.tell(Report::UndoBegins(run(1), 1));
    saga.tell(Report::UndoFailed(run(1), Failure::unclear("503 again")));
    assert_eq!(saga.machine.status(), Status::NeedsOperator);
    assert_eq!(saga.machine.why(), [Why::Stuck(run(1), "503 again".to_owned())]);
    assert_eq!(saga.machine.cause(), Some(&Cause::Cancelled(order())), "and why it went back");
    saga.tell(Report::Ordered(Ordered::MarkUndone(run(1), order())));
    assert_eq!(saga.machine.status(), Status::Compensated);
}

#[test]
fn messages_c24_a_cancelled_saga_compensates() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.call(0);
    saga.tell(Report::Begins(run(1), 1));
    saga.tell(Report::Ordered(Ordered::Cancel(order())));
    // Whoever is at it is told, and still heard; only then is anything undone.
    assert_eq!(saga.next(), [Command::Stop(run(1))]);
    saga.tell(Report::Done(run(1)));
    assert_eq!(saga.next(), [Command::Undo { run: run(1), attempt: 1, applied: true }]);
}

#[test]
fn messages_c29_messages_c30_a_wait_ends_by_its_own_time_and_never_early() {
    let waits = [step("paid", Kind::Wait(MINUTE), &[]), step("rest", Kind::Sleep(MINUTE), &[])];
    let graph = graph(waits.to_vec());
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Opened(StepId(0)));
    saga.tell(Report::Opened(StepId(1)));
    saga.now = at(59_999);
    assert_eq!((saga.next(), saga.machine.wake_at(saga.now)), (Vec::new(), Some(at(60_000))));
    // A signal for the one does not end the other.
    saga.tell(Report::Signalled("paid".to_owned()));
    assert_eq!(saga.next(), [Command::Settle(run(0))]);
    saga.tell(Report::Done(run(0)));
    assert_eq!(saga.next(), []);
    saga.now = at(60_000);
    assert_eq!(saga.next(), [Command::Settle(run(1))]);
}

#[test]
fn messages_c32_a_second_end_of_a_step_is_no_second_entry() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.call(0);
    assert_eq!(saga.try_tell(Report::Done(run(0))), Ok(false));
    // The late failure of an attempt that another one has followed is none of the new one.
    saga.tell(Report::Begins(run(1), 1));
    saga.tell(Report::Lost(run(1), 1));
    saga.tell(Report::Begins(run(1), 2));
    assert_eq!(saga.try_tell(Report::Failed(run(1), 1, Failure::refused("no"))), Ok(false));
    assert_eq!(saga.place(1), Place::Running);
    assert_eq!(Machine::replay(&graph, &saga.log).as_ref(), Ok(&saga.machine));
}

#[test]
fn messages_c34_every_branch_that_began_settles_and_is_undone() {
    let branches = vec![step("left", Kind::Call, &[]), step("right", Kind::Call, &[])];
    let graph = graph(branches);
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Begins(run(0), 1));
    for _ in 0..3 {
        saga.now = saga.now.plus(MINUTE);
        saga.fails(1, Failure::refused("no"));
    }
    assert_eq!(saga.next(), [Command::Stop(run(0))], "the other branch still runs");
    saga.tell(Report::Done(run(0)));
    assert_eq!(saga.next(), [Command::Undo { run: run(0), attempt: 1, applied: true }]);
}

#[test]
fn a_late_success_of_what_was_undone_is_undone_again() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Begins(run(0), 1));
    saga.tell(Report::Lost(run(0), 1));
    saga.tell(Report::Ordered(Ordered::Cancel(order())));
    saga.tell(Report::UndoBegins(run(0), 1));
    saga.tell(Report::Undone(run(0)));
    assert_eq!(saga.machine.status(), Status::Compensated);
    saga.tell(Report::Done(run(0)));
    assert_eq!(saga.machine.status(), Status::Compensating, "it is never ignored");
    assert_eq!(saga.next(), [Command::Undo { run: run(0), attempt: 1, applied: true }]);
}

#[test]
fn who_takes_over_finds_what_nobody_is_at_any_more() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Begins(run(0), 3));
    assert_eq!(saga.machine.lost(3), [], "its own");
    assert_eq!(saga.machine.lost(4), [Report::Lost(run(0), 1)]);
    saga.tell(Report::Lost(run(0), 1));
    assert_eq!(saga.next(), [Command::Begin(run(0), 2)], "the same key again");
}

#[test]
fn a_probe_comes_before_another_attempt_and_its_no_is_no_proof_on_the_way_back() {
    let mut graph = checkout();
    graph.steps[0].probe = true;
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Begins(run(0), 1));
    saga.tell(Report::Lost(run(0), 1));
    assert_eq!(saga.next(), [Command::Probe(run(0))]);
    let mut back =
        Saga { machine: saga.machine.clone(), log: saga.log.clone(), ..Saga::start(&graph) };
    saga.tell(Report::Probed(run(0), false));
    assert_eq!(saga.next(), [Command::Begin(run(0), 2)]);
    back.tell(Report::Ordered(Ordered::Cancel(order())));
    assert_eq!(back.next(), [Command::Probe(run(0))]);
    back.tell(Report::Probed(run(0), false));
    assert_eq!(back.next(), [Command::Undo { run: run(0), attempt: 1, applied: false }]);
}

#[test]
fn past_its_pivot_a_saga_can_only_be_helped_forward() {
    let steps = [step("pay", Kind::Call, &[]), step("paid", Kind::Pivot, &[0])];
    let graph = graph(steps.into_iter().chain([step("ship", Kind::Call, &[1])]).collect());
    let mut saga = Saga::start(&graph);
    saga.call(0);
    assert_eq!(saga.next(), [Command::Settle(run(1))]);
    saga.tell(Report::Done(run(1)));
    let cancel = Report::Ordered(Ordered::Cancel(order()));
    assert_eq!(saga.try_tell(cancel), Err(Illegal::PastPivot));
    for _ in 0..3 {
        saga.now = saga.now.plus(MINUTE);
        saga.fails(2, Failure::refused("no van"));
    }
    assert_eq!((saga.machine.status(), saga.next()), (Status::NeedsOperator, Vec::new()));
    assert_eq!(saga.machine.why(), [Why::Failed(run(2), "no van".to_owned())]);
    saga.tell(Report::Ordered(Ordered::Retry(run(2), order())));
    assert_eq!(saga.next(), [Command::Begin(run(2), 1)]);
    saga.tell(Report::Ordered(Ordered::Skip(run(2), order())));
    assert_eq!(saga.machine.status(), Status::Completed);
}

#[test]
fn a_saga_whose_time_is_over_goes_back() {
    let graph = Graph { deadline: Some(MINUTE), ..checkout() };
    let mut saga = Saga::start(&graph);
    saga.call(0);
    assert_eq!(saga.machine.wake_at(saga.now), Some(at(60_000)));
    saga.now = at(60_000);
    assert_eq!(saga.next(), [Command::Expire]);
    saga.tell(Report::Expired);
    assert_eq!(saga.machine.status(), Status::Compensating);
}

#[test]
fn a_saga_at_rest_begins_nothing_and_still_hears_what_was_begun() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    saga.tell(Report::Begins(run(0), 1));
    saga.tell(Report::Ordered(Ordered::Pause(order())));
    saga.tell(Report::Done(run(0)));
    assert_eq!((saga.next(), saga.machine.wake_at(saga.now)), (Vec::new(), None));
    assert_eq!(saga.machine.why(), [Why::Paused(Some(order()))]);
    assert_eq!(saga.try_tell(Report::Begins(run(1), 1)), Err(Illegal::Paused));
    saga.tell(Report::Ordered(Ordered::Resume(order())));
    assert_eq!(saga.next(), [Command::Begin(run(1), 1)]);
}

#[test]
fn a_step_for_each_of_several_is_done_when_all_are_and_undone_one_by_one() {
    let mut graph = checkout();
    graph.steps[0].each = true;
    let mut saga = Saga::start(&graph);
    assert_eq!(saga.next(), [Command::Count(StepId(0))]);
    let refused = Report::Begins(run(0), 1);
    assert_eq!(saga.try_tell(refused), Err(Illegal::NotCounted(StepId(0))));
    saga.tell(Report::Counted(StepId(0), 2));
    let item = |item| Run { step: StepId(0), item };
    assert_eq!(saga.next(), [Command::Begin(item(0), 1), Command::Begin(item(1), 1)]);
    for index in [1, 0] {
        saga.tell(Report::Begins(item(index), 1));
        saga.tell(Report::Done(item(index)));
    }
    assert_eq!(saga.next(), [Command::Begin(run(1), 1)]);
    saga.tell(Report::Ordered(Ordered::Cancel(order())));
    assert_eq!(saga.next(), [Command::Undo { run: item(0), attempt: 1, applied: true }]);
    // None at all is done at once.
    let mut empty = Saga::start(&graph);
    empty.tell(Report::Counted(StepId(0), 0));
    assert_eq!(empty.next(), [Command::Begin(run(1), 1)]);
}

#[test]
fn an_effect_that_cannot_be_taken_back_stays_and_is_named() {
    let mut graph = checkout();
    graph.steps[0].undo = Undo::Irreversible("a letter is on its way".to_owned());
    let mut saga = Saga::start(&graph);
    saga.call(0);
    saga.tell(Report::Ordered(Ordered::Cancel(order())));
    assert_eq!(saga.machine.status(), Status::Compensated);
    let stays: Vec<_> = saga.machine.stays().collect();
    assert_eq!(stays, [(run(0), "a letter is on its way")]);
}

#[test]
fn whoever_acts_says_who_and_why() {
    let graph = checkout();
    let mut saga = Saga::start(&graph);
    let nobody = Order { actor: " ".to_owned(), reason: "because".to_owned() };
    let cancel = Report::Ordered(Ordered::Cancel(nobody));
    assert_eq!(saga.try_tell(cancel), Err(Illegal::Nameless));
    let refused = saga.try_tell(Report::Begins(run(1), 1));
    assert_eq!(refused, Err(Illegal::NotItsTurn));
    let refused = saga.try_tell(Report::Done(run(0)));
    assert_eq!(refused, Err(Illegal::NeverBegun(run(0))));
    let refused = saga.try_tell(Report::Undone(run(0)));
    assert_eq!(refused, Err(Illegal::GoesForward));
    let refused = saga.try_tell(Report::Signalled("paid".to_owned()));
    assert_eq!(refused, Err(Illegal::NoSuchSignal("paid".to_owned())));
    saga.tell(Report::Begins(run(0), 1));
    let refused = saga.try_tell(Report::Begins(run(0), 1));
    assert_eq!(refused, Err(Illegal::Row(Place::Running, Event::Begun)));
    let gap = Entry { at: at(0), fact: Fact::Begun(run(9), 1, 1) };
    let log = [saga.log.clone(), vec![gap]].concat();
    assert_eq!(Machine::replay(&graph, &log).unwrap_err().0, 3, "the entry's number");
}

fn facts() -> impl Strategy<Value = Fact> {
    let runs = (0_u16..4, 0_u32..2).prop_map(|(step, item)| Run { step: StepId(step), item });
    let failure = || Failure::unclear("no answer");
    let due = at(5);
    (runs, 0_u32..3, 0_u8..22).prop_map(move |(run, number, kind)| match kind {
        0 => Fact::Started { paused: number == 0, due: None },
        1 => Fact::Chosen(run.step, 0),
        2 => Fact::Counted(run.step, number),
        3 => Fact::Passed(run.step),
        4 => Fact::Opened(run.step, due),
        5 | 6 => Fact::Begun(run, number, 1),
        7 | 8 => Fact::Done(run),
        9 => Fact::FailedForNow(run, failure(), due),
        10 => Fact::Failed(run, failure()),
        11 => Fact::Lost(run),
        12 => Fact::Absent(run),
        13 => Fact::UndoBegun(run, number, 1),
        14 => Fact::Undone(run),
        15 => Fact::UndoFailed(run, failure(), due),
        16 => Fact::UndoGivenUp(run, failure()),
        17 => Fact::Signalled("paid".to_owned()),
        18 => Fact::Cancelled(order()),
        19 => Fact::Retried(run, order()),
        20 => Fact::Skipped(run, order()),
        _ => Fact::MarkedUndone(run, order()),
    })
}

proptest! {
    /// A log that nobody could have written is refused entry by entry, without a panic and without a trace.
    #[test]
    fn any_log_is_taken_or_refused_whole(facts in proptest::collection::vec(facts(), 0..60)) {
        let mut steps = checkout().steps;
        steps[1].each = true;
        steps.push(step("paid", Kind::Wait(MINUTE), &[2]));
        let graph = graph(steps);
        let mut machine = Machine::new(&graph);
        let mut taken = Vec::new();
        let started = Fact::Started { paused: false, due: None };
        for fact in std::iter::once(started).chain(facts) {
            let entry = Entry { at: at(1), fact };
            let before = machine.clone();
            match machine.apply(&entry) {
                Ok(()) => taken.push(entry),
                Err(_) => prop_assert_eq!(&machine, &before),
            }
            for now in [at(0), at(100_000)] {
                prop_assert!(!machine.status().is_end() || machine.next(now).is_empty());
                prop_assert!(machine.wake_at(now).is_none_or(|due| due > now));
            }
            prop_assert!(machine.status() != Status::NeedsOperator || !machine.why().is_empty());
        }
        prop_assert_eq!(Machine::replay(&graph, &taken), Ok(machine));
    }
}
