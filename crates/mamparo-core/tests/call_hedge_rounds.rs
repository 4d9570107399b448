//! Several attempts of one call at once: what the answer to one of them means for the others.

#![expect(clippy::panic, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig, NoHedge};
use mamparo_core::call::pipeline::{Event, GiveUp, Pipeline, Policies, Step, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_core::outcome::{Failure, Kind, Repeat, Repeatable, Sent, failure_of_status};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::Moment;

const FORBIDDEN: Failure = Failure { repeat: Repeat::Never, ..Failure::TRANSIENT };

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Two hedges, one every 50 ms, and three rounds of them.
struct Host {
    policies: Policies,
    call: Pipeline,
}

impl Host {
    fn new(deadline: Option<Moment>, budget: Option<RetryBudgetConfig>) -> Self {
        let after = HedgeAfter::Fixed(millis(50));
        let plan = Plan {
            retry: Retry { attempts: 3, backoff: Backoff::default() },
            retry_budget: budget,
            hedge: Some(HedgeConfig { after, extra: 2 }),
            ..Plan::new("search")
        };
        let call = Pipeline::new(Repeatable::Idempotent, deadline);
        Self { policies: Policies::new(&plan, 1), call }
    }

    /// With two attempts under way, and a third that is due 100 ms after the start.
    fn two_under_way() -> Self {
        let mut host = Self::new(None, None);
        host.step(0, Event::Start);
        let Step::Attempt { number: 2, hedge_at, .. } = host.step(50, Event::HedgeDue) else {
            panic!("no hedge was sent")
        };
        assert_eq!(hedge_at, Some(at(100)));
        host
    }

    fn tell(&mut self, now: u64, event: Event) -> Told {
        self.call
            .tell(at(now), event, &self.policies, &mut SeededRng::new(1))
            .unwrap_or_else(|misfit| panic!("{misfit}"))
    }

    fn step(&mut self, now: u64, event: Event) -> Step {
        self.tell(now, event).step
    }

    fn fails(&mut self, now: u64, number: u32, failure: Failure) -> Step {
        self.step(now, Event::Failed { number, failure })
    }
}

const fn gave_up(reason: GiveUp) -> Step {
    Step::GiveUp { reason, retry_after: None }
}

#[test]
fn a_server_that_says_no_to_one_copy_is_sent_no_other() {
    for (first, second) in [(1, 2), (2, 1)] {
        let mut host = Host::two_under_way();
        assert_eq!(host.fails(60, first, FORBIDDEN), Step::KeepOn, "the other may still answer");
        let due = host.tell(100, Event::HedgeDue);
        assert_eq!((due.step, due.no_hedge), (Step::KeepOn, Some(NoHedge::ToldNotTo)));
        assert_eq!(host.fails(120, second, Failure::TRANSIENT), gave_up(GiveUp::ToldNotTo));
    }
}

#[test]
fn a_no_to_one_copy_is_no_verdict_on_what_the_other_says() {
    let mut host = Host::two_under_way();
    host.fails(60, 1, FORBIDDEN);
    assert_eq!(host.step(70, Event::Succeeded { number: 2 }), Step::Done);

    let mut host = Host::two_under_way();
    host.fails(60, 1, FORBIDDEN);
    assert_eq!(host.fails(70, 2, Failure::PERMANENT), gave_up(GiveUp::Permanent));

    // A 500 may pass, whatever was said to the other copy: nobody should take the call for hopeless.
    let mut host = Host::two_under_way();
    host.fails(60, 1, FORBIDDEN);
    assert_eq!(host.fails(70, 2, failure_of_status(500, None)), gave_up(GiveUp::ToldNotTo));
    let whole = host.call.failure().unwrap_or(Failure::NEUTRAL);
    assert_eq!((whole.kind, whole.repeat), (Kind::Permanent, Repeat::Once));
}

#[test]
fn of_the_waits_that_were_asked_for_in_a_round_the_longest_counts() {
    let named = |seconds| failure_of_status(503, Some(Duration::from_secs(seconds)));
    for (first, second) in
        [(named(5), Failure::TRANSIENT), (Failure::TRANSIENT, named(5)), (named(5), named(1))]
    {
        let mut host = Host::two_under_way();
        host.fails(60, 1, first);
        let Step::Wait { after, .. } = host.fails(70, 2, second) else {
            panic!("it may be repeated")
        };
        assert_eq!(after, millis(5_000));
        let whole = host.call.failure().and_then(|failure| failure.retry_after);
        assert_eq!(whole, Some(millis(5_000)), "whoever hands the failure on says it, too");
    }
}

#[test]
fn a_server_that_asks_for_time_gets_no_copy_in_it() {
    let mut host = Host::two_under_way();
    host.fails(60, 1, failure_of_status(429, Some(millis(1_000))));
    let due = host.tell(100, Event::HedgeDue);
    assert_eq!((due.step, due.no_hedge), (Step::KeepOn, Some(NoHedge::ToldNotTo)));
}

#[test]
fn what_was_said_in_one_round_is_forgotten_in_the_next() {
    let mut host = Host::two_under_way();
    host.fails(60, 1, failure_of_status(503, Some(millis(1_000))));
    host.fails(70, 2, Failure::TRANSIENT);
    assert!(matches!(host.step(1_070, Event::WaitOver), Step::Attempt { number: 3, .. }));
    let due = host.step(1_120, Event::HedgeDue);
    assert!(matches!(due, Step::Attempt { number: 4, .. }), "{due:?}");
    host.fails(1_130, 3, Failure::TRANSIENT);
    let Step::Wait { after, .. } = host.fails(1_140, 4, Failure::TRANSIENT) else {
        panic!("a third round is allowed")
    };
    assert!(after <= millis(200), "the backoff's own wait: {after:?}");
}

/// That the copy which ended last was never sent proves nothing about the other.
#[test]
fn what_one_copy_left_open_stays_open() {
    let mut host = Host::two_under_way();
    host.fails(60, 1, Failure::UNKNOWN);
    host.fails(70, 2, Failure::NOT_SENT);
    let whole = host.call.failure().unwrap_or(Failure::NEUTRAL);
    assert_eq!((whole.kind, whole.sent), (Kind::Unknown, Sent::Maybe));
}

#[test]
fn a_hedge_that_is_denied_says_why() {
    let none = RetryBudgetConfig { ratio: 0.0, reserve: 0 };
    let mut host = Host::new(None, Some(none));
    host.step(0, Event::Start);
    let due = host.tell(50, Event::HedgeDue);
    assert_eq!((due.step, due.no_hedge), (Step::KeepOn, Some(NoHedge::BudgetSpent)));

    let mut host = Host::new(Some(at(55)), None);
    host.step(0, Event::Start);
    let due = host.tell(50, Event::HedgeDue);
    assert_eq!((due.step, due.no_hedge), (Step::KeepOn, Some(NoHedge::DeadlineTooNear)));

    let mut host = Host::new(None, None);
    host.step(0, Event::Start);
    assert_eq!(host.tell(50, Event::HedgeDue).no_hedge, None, "it was sent");
}

/// What the latencies know at the end: attempts that were answered, and such that were cut off.
fn seen(host: &Host) -> (u64, u64) {
    let latency = host.policies.latency.as_ref().map(|latency| latency.observed(at(900), 0.5));
    latency.map_or((0, 0), |observed| (observed.answered, observed.cut_off))
}

#[test]
fn whoever_is_cut_off_counts_as_slow_if_it_ran_longer_than_the_delay() {
    for (now, event, expected) in [
        (70, Event::Succeeded { number: 2 }, (1, 1)),
        (70, Event::Succeeded { number: 1 }, (1, 0)),
        (101, Event::Succeeded { number: 1 }, (1, 1)),
        (70, Event::Cancelled, (0, 1)),
        (101, Event::Cancelled, (0, 2)),
    ] {
        let mut host = Host::two_under_way();
        host.step(now, event);
        assert_eq!(seen(&host), expected, "{event:?} after {now} ms");
    }
    let mut host = Host::new(None, None);
    host.step(0, Event::Start);
    host.step(50, Event::Cancelled);
    assert_eq!(seen(&host), (0, 0), "gone before anybody could call it slow");
}

#[test]
fn an_answer_counts_with_its_time_and_a_connection_that_broke_does_not() {
    for (failure, expected) in [
        (Failure::TRANSIENT, (1, 0)),
        (Failure::PERMANENT, (1, 0)),
        (Failure::UNKNOWN, (0, 0)),
        (Failure::NEUTRAL, (0, 0)),
    ] {
        let mut host = Host::new(None, None);
        host.step(0, Event::Start);
        host.fails(5, 1, failure);
        assert_eq!(seen(&host), expected, "{failure:?}");
    }
}

#[test]
fn a_timeout_counts_as_slow_unless_the_caller_was_in_a_hurry() {
    for (deadline, ends, expected) in
        [(None, 700, (0, 1)), (Some(350), 350, (0, 1)), (Some(349), 349, (0, 0))]
    {
        let plan = Plan {
            attempt_timeout: Some(millis(700)),
            latency: Some(Duration::from_secs(60)),
            ..Plan::new("search")
        };
        let call = Pipeline::new(Repeatable::Idempotent, deadline.map(at));
        let mut host = Host { policies: Policies::new(&plan, 1), call };
        host.step(0, Event::Start);
        host.step(ends, Event::TimedOut { number: 1 });
        assert_eq!(seen(&host), expected, "with a deadline of {deadline:?} ms");
    }
}
