//! The pipeline: one call step by step, and many calls at once in any order.

#![expect(clippy::panic, clippy::wildcard_enum_match_arm, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{self, BreakerConfig, Trip};
use mamparo_core::call::bulkhead::{BulkheadConfig, Entry, Standing};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::pipeline::{
    Event, GiveUp, Move, Phase, Pipeline, Policies, Refusal, Step, TABLE, Told,
};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry::Retry;
use mamparo_core::outcome::{Failure, Health, Repeatable};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;
use proptest::prelude::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn plan() -> Plan {
    Plan {
        attempt_timeout: Some(millis(700)),
        retry: Retry { attempts: 3, backoff: Backoff::default() },
        breaker: Some(BreakerConfig::default()),
        bulkhead: Some(BulkheadConfig::new(1, 1)),
        ..Plan::new("catalog")
    }
}

/// One call with the policies that it shares, and the rows that it went through.
struct Host {
    policies: Policies,
    rng: SeededRng,
    hits: Vec<(Phase, Move)>,
}

impl Host {
    fn new(plan: &Plan) -> Self {
        Self { policies: Policies::new(plan, 1), rng: SeededRng::new(1), hits: Vec::new() }
    }

    fn tell(&mut self, call: &mut Pipeline, now: Moment, event: Event) -> Told {
        let from = call.phase();
        let told = call.tell(now, event, &self.policies, &mut self.rng);
        let told = told.unwrap_or_else(|misfit| panic!("{misfit}"));
        self.hits.push((from, told.moved));
        let row = TABLE.row(from, told.moved);
        assert_eq!(row.map(|row| row.to), Some(call.phase()), "{from:?} on {:?}", told.moved);
        told
    }

    fn step(&mut self, call: &mut Pipeline, now: Moment, event: Event) -> Step {
        self.tell(call, now, event).step
    }

    fn open(&mut self) {
        for _ in 0..5 {
            let mut call = Pipeline::new(Repeatable::Unsafe, None);
            if let Step::Attempt { .. } = self.step(&mut call, at(0), Event::Start) {
                self.step(&mut call, at(0), failed(1, Failure::TRANSIENT));
            }
        }
    }

    fn cancel_all(&mut self, calls: Vec<Running>, now: Moment) {
        for mut running in calls {
            if running.call.phase() != Phase::Finished {
                self.step(&mut running.call, now, Event::Cancelled);
            }
        }
    }

    fn in_flight(&self) -> u32 {
        self.policies.bulkhead.as_ref().map_or(0, |bulkhead| bulkhead.in_flight())
    }
}

fn call() -> Pipeline {
    Pipeline::new(Repeatable::Idempotent, None)
}

const fn failed(number: u32, failure: Failure) -> Event {
    Event::Failed { number, failure }
}

const SUCCEEDED: Event = Event::Succeeded { number: 1 };
const PANICKED: Event = Event::Panicked { number: 1 };
const TIMED_OUT: Event = Event::TimedOut { number: 1 };

fn until(step: Step) -> Moment {
    match step {
        Step::Wait { until, .. } | Step::Queue { until, .. } => until,
        other => panic!("{other:?} is no wait"),
    }
}

#[test]
fn it_fails_twice_and_then_answers() {
    let plan = plan();
    let mut host = Host::new(&plan);
    let mut call = call();
    let mut step = host.step(&mut call, at(0), Event::Start);
    for number in 1..=2 {
        match step {
            Step::Attempt { number: begun, until, .. } => {
                assert!(begun == number && until.is_some());
            }
            other => panic!("{other:?}"),
        }
        let wait = host.step(&mut call, at(0), failed(number, Failure::TRANSIENT));
        step = host.step(&mut call, until(wait), Event::WaitOver);
    }
    assert_eq!(host.step(&mut call, at(900), Event::Succeeded { number: 3 }), Step::Done);
    assert_eq!((call.attempts(), host.in_flight()), (3, 0));
}

#[test]
fn ten_milliseconds_left_are_refused_before_anything_is_taken() {
    let plan = Plan { rate_limit: Some(RateLimitConfig::new(1, millis(1_000))), ..plan() };
    let mut host = Host::new(&plan);
    let mut late = Pipeline::new(Repeatable::Idempotent, Some(at(10)));
    let step = host.step(&mut late, at(0), Event::Start);
    assert_eq!(step, Step::Reject { reason: Refusal::DeadlineExceeded, retry_after: None });
    let step = host.step(&mut call(), at(0), Event::Start);
    assert!(matches!(step, Step::Attempt { .. }), "slot and rate are untouched: {step:?}");
    let step = host.step(&mut call(), at(0), Event::Start);
    let retry_after = Some(millis(1_000));
    assert_eq!(step, Step::Reject { reason: Refusal::RateLimited, retry_after });
}

#[test]
fn lesson_h08_an_open_circuit_is_refused_at_once_though_the_bulkhead_is_full() {
    let plan = plan();
    let mut host = Host::new(&plan);
    host.open();
    let held = host.policies.bulkhead.as_ref().map(|bulkhead| bulkhead.ask(at(0), at(0)));
    assert!(matches!(held, Some(Entry::Granted(_))));
    let step = host.step(&mut call(), at(1_000), Event::Start);
    let retry_after = Some(millis(29_000));
    assert_eq!(step, Step::Reject { reason: Refusal::CircuitOpen, retry_after });
    // Nor does anybody stay in the queue of a circuit that opens.
    let mut host = Host::new(&plan);
    let (mut failing, mut queued) = (call(), call());
    host.step(&mut failing, at(0), Event::Start);
    host.step(&mut queued, at(0), Event::Start);
    if let Some(breaker) = &host.policies.breaker {
        for _ in 0..5 {
            let admission = breaker.ask(at(1)).admission.expect("closed");
            breaker.tell(at(1), admission, Health::Bad);
        }
    }
    let step = host.step(&mut queued, at(2), Event::CircuitOpened);
    let retry_after = Some(millis(29_999));
    assert_eq!(step, Step::Reject { reason: Refusal::CircuitOpen, retry_after });
    // And a queue has an end, by deadline.
    let plan = Plan { breaker: None, ..plan };
    let mut host = Host::new(&plan);
    host.step(&mut call(), at(0), Event::Start);
    let mut waiting = Pipeline::new(Repeatable::Idempotent, Some(at(500)));
    let step = host.step(&mut waiting, at(0), Event::Start);
    assert_eq!(until(step), at(490), "a slot in the last milliseconds is of no use");
    let step = host.step(&mut waiting, at(490), Event::QueueTimedOut);
    assert_eq!(step, Step::Reject { reason: Refusal::DeadlineExceeded, retry_after: None });
    assert_eq!((waiting.attempts(), host.in_flight()), (0, 1));
}

#[test]
fn an_open_circuit_ends_the_loop_with_the_last_cause() {
    let trip = Trip::Failures { failures: 1, window: millis(10_000) };
    let breaker = Some(BreakerConfig { trip, ..BreakerConfig::default() });
    let plan = Plan { breaker, ..plan() };
    let mut host = Host::new(&plan);
    let mut first = call();
    host.step(&mut first, at(0), Event::Start);
    let told = host.tell(&mut first, at(0), failed(1, Failure::TRANSIENT));
    let retry_after = Some(millis(30_000));
    assert_eq!(told.step, Step::GiveUp { reason: GiveUp::CircuitOpen, retry_after });
    assert_eq!(told.change.map(|change| change.to), Some(breaker::Phase::Open));

    // Opened by others during the wait: still the last failure, not a refusal that hides it.
    let plan = Plan { bulkhead: None, breaker: Some(BreakerConfig::default()), ..plan };
    let mut host = Host::new(&plan);
    let mut waiting = call();
    host.step(&mut waiting, at(0), Event::Start);
    let wait = host.step(&mut waiting, at(0), failed(1, Failure::TRANSIENT));
    host.open();
    let step = host.step(&mut waiting, until(wait), Event::WaitOver);
    assert!(matches!(step, Step::GiveUp { reason: GiveUp::CircuitOpen, .. }), "{step:?}");
    assert_eq!(waiting.attempts(), 1);
}

#[test]
fn policies_c14_refusals_of_our_own_never_count_against_the_dependency() {
    let plan = plan();
    let mut host = Host::new(&plan);
    let mut holder = call();
    host.step(&mut holder, at(0), Event::Start);
    for _ in 0..100 {
        let mut late = Pipeline::new(Repeatable::Idempotent, Some(at(5)));
        host.step(&mut late, at(0), Event::Start);
        let mut crowded = call();
        if let Step::Queue { .. } = host.step(&mut crowded, at(0), Event::Start) {
            host.step(&mut crowded, at(20_000), Event::QueueTimedOut);
        }
    }
    // What a nested call reports when its own guards refused.
    host.step(&mut holder, at(0), failed(1, Failure::NEUTRAL));
    let counts = host.policies.breaker.as_ref().map(|breaker| breaker.counts(at(0)));
    assert_eq!(counts.map(|counts| counts.failed), Some(0));
}

#[test]
fn a_caller_in_a_hurry_does_not_open_the_circuit_for_others() {
    let plan = Plan { bulkhead: None, ..plan() };
    let mut host = Host::new(&plan);
    for left in [20, 20, 20, 20, 20, 20, 700, 700, 700, 700] {
        let mut call = Pipeline::new(Repeatable::Unsafe, Some(at(left)));
        host.step(&mut call, at(0), Event::Start);
        let step = host.step(&mut call, at(left), TIMED_OUT);
        assert!(matches!(step, Step::GiveUp { reason: GiveUp::MayHaveRun, .. }), "{step:?}");
    }
    let counts = host.policies.breaker.as_ref().map(|breaker| breaker.counts(at(700)));
    assert_eq!(counts.map(|counts| counts.failed), Some(4), "only those with their full time");
}

#[test]
fn policies_c20_a_panic_is_a_failure_and_gives_the_slot_back() {
    let plan = plan();
    let mut host = Host::new(&plan);
    for _ in 0..5 {
        let mut call = call();
        host.step(&mut call, at(0), Event::Start);
        assert_eq!(host.step(&mut call, at(0), PANICKED), Step::Released);
        assert_eq!(host.in_flight(), 0);
    }
    let phase = host.policies.breaker.as_ref().map(|breaker| breaker.phase(at(0)));
    assert_eq!(phase, Some(breaker::Phase::Open));
}

#[test]
fn an_event_that_does_not_fit_names_state_and_event_and_changes_nothing() {
    let plan = plan();
    let mut host = Host::new(&plan);
    let mut first = call();
    let mut tell = |call: &mut Pipeline, event| {
        call.tell(at(0), event, &host.policies, &mut host.rng).map(|told| told.step)
    };
    let misfit = tell(&mut first, SUCCEEDED).expect_err("nothing has begun");
    assert_eq!(misfit.to_string(), "event Succeeded { number: 1 } does not fit a call that is New");
    assert!(tell(&mut first, Event::Start).is_ok());
    assert!(tell(&mut first, Event::WaitOver).is_err());
    let mut second = call();
    assert!(matches!(tell(&mut second, Event::Start), Ok(Step::Queue { .. })));
    assert!(tell(&mut second, Event::SlotGranted).is_err(), "it is not granted");
    assert_eq!(tell(&mut first, SUCCEEDED), Ok(Step::Done));
    assert!(tell(&mut first, Event::Cancelled).is_err(), "it is over");
    assert!(matches!(tell(&mut second, Event::SlotGranted), Ok(Step::Attempt { .. })));
}

/// The rows of a call that sends one hedge and is denied another.
fn hedged(plan: &Plan) -> Vec<(Phase, Move)> {
    let after = HedgeAfter::Fixed(millis(50));
    let plan = Plan { hedge: Some(HedgeConfig { after, extra: 1 }), ..plan.clone() };
    let mut host = Host::new(&plan);
    let mut call = call();
    let hedge_at = |step| match step {
        Step::Attempt { hedge_at, .. } => hedge_at,
        other => panic!("{other:?}"),
    };
    let step = host.step(&mut call, at(0), Event::Start);
    assert_eq!(hedge_at(step), Some(at(50)));
    let step = host.step(&mut call, at(50), Event::HedgeDue);
    assert_eq!(hedge_at(step), None, "one is all");
    assert_eq!(host.step(&mut call, at(100), Event::HedgeDue), Step::KeepOn);
    assert_eq!(host.step(&mut call, at(110), Event::Succeeded { number: 2 }), Step::Done);
    host.hits
}

#[test]
fn every_row_of_the_table_is_driven() {
    let plan = plan();
    let mut host = Host::new(&plan);
    // New → cancelled; admitted → success hands its slot to the queued one, which fails for good.
    host.step(&mut call(), at(0), Event::Cancelled);
    let (mut first, mut second) = (call(), call());
    host.step(&mut first, at(0), Event::Start);
    host.step(&mut second, at(0), Event::Start);
    host.step(&mut call(), at(0), Event::Start);
    assert!(!host.tell(&mut first, at(1), SUCCEEDED).wake.is_empty());
    host.step(&mut second, at(1), Event::SlotGranted);
    // Two more queue behind it, one gives up waiting, one goes away.
    let mut third = call();
    host.step(&mut third, at(1), Event::Start);
    host.step(&mut third, at(30_001), Event::QueueTimedOut);
    let mut fourth = call();
    host.step(&mut fourth, at(1), Event::Start);
    host.step(&mut fourth, at(2), Event::Cancelled);
    host.step(&mut second, at(2), failed(1, Failure::PERMANENT));
    for end in [Event::Cancelled, PANICKED] {
        let mut call = call();
        host.step(&mut call, at(3), Event::Start);
        host.step(&mut call, at(3), end);
    }
    let mut waiting = call();
    host.step(&mut waiting, at(4), Event::Start);
    let wait = host.step(&mut waiting, at(4), failed(1, Failure::TRANSIENT));
    host.step(&mut waiting, until(wait), Event::WaitOver);
    host.step(&mut waiting, at(300), failed(2, Failure::TRANSIENT));
    host.step(&mut waiting, at(301), Event::Cancelled);
    let mut overslept = Pipeline::new(Repeatable::Idempotent, Some(at(2_000)));
    host.step(&mut overslept, at(400), Event::Start);
    host.step(&mut overslept, at(400), failed(1, Failure::TRANSIENT));
    let step = host.step(&mut overslept, at(5_000), Event::WaitOver);
    assert_eq!(step, Step::GiveUp { reason: GiveUp::DeadlineTooNear, retry_after: None });
    assert_eq!(host.in_flight(), 0);
    host.hits.extend(hedged(&plan));
    assert_eq!(TABLE.untested(&host.hits), Vec::<String>::new());
}

/// A call among many, with what it waits for.
struct Running {
    call: Pipeline,
    step: Step,
    deadline: Option<Moment>,
}

fn outcome(rng: &mut SeededRng, number: u32, until: Option<Moment>, now: Moment) -> Event {
    if until.is_some_and(|until| now >= until) {
        return Event::TimedOut { number };
    }
    match rng.up_to(6) {
        0 | 1 => Event::Succeeded { number },
        2 => failed(number, Failure::TRANSIENT),
        3 => failed(number, Failure::UNKNOWN.with_retry_after(Some(millis(rng.up_to(3_000))))),
        4 => failed(number, Failure::PERMANENT),
        5 => Event::Panicked { number },
        _ => Event::Cancelled,
    }
}

proptest! {
    #[test]
    fn policies_c24_no_attempt_starts_and_no_wait_ends_after_the_deadline(
        seed: u64, limit in 1_u32..4, queue in 0_u32..4, probes in 1_u32..3,
        breaker: bool, timeout in prop::option::of(11_u64..900),
    ) {
        let trip = Trip::Failures { failures: 3, window: millis(5_000) };
        let config = BreakerConfig { trip, probes, open_for: millis(300), ..BreakerConfig::default() };
        let plan = Plan {
            attempt_timeout: timeout.map(millis),
            breaker: breaker.then_some(config),
            bulkhead: Some(BulkheadConfig::new(limit, queue)),
            ..plan()
        };
        let mut rng = SeededRng::new(seed);
        let mut host = Host::new(&plan);
        let mut calls: Vec<Running> = Vec::new();
        let mut now = at(0);
        for _ in 0..300 {
            now = now.plus(millis(rng.up_to(60)));
            if calls.len() < 8 {
                let deadline = rng.chance(0.8).then(|| now.plus(millis(rng.up_to(2_000))));
                let mut call = Pipeline::new(Repeatable::Keyed, deadline);
                let step = host.step(&mut call, now, Event::Start);
                calls.push(Running { call, step, deadline });
            }
            let pick = rng.up_to(calls.len() as u64 - 1) as usize;
            let running = &mut calls[pick];
            let event = match running.step {
                Step::Attempt { number, until, .. } => outcome(&mut rng, number, until, now),
                Step::Wait { until, .. } => {
                    prop_assert!(running.deadline.is_none_or(|deadline| until < deadline));
                    // A host may oversleep.
                    now = now.max(until).plus(millis(rng.up_to(20)));
                    if rng.chance(0.1) { Event::Cancelled } else { Event::WaitOver }
                }
                Step::Queue { ticket, until } => {
                    prop_assert!(running.deadline.is_none_or(|deadline| until < deadline));
                    let bulkhead = host.policies.bulkhead.as_ref();
                    let granted = bulkhead.map(|b| b.standing(ticket)) == Some(Standing::Granted);
                    if granted && rng.chance(0.7) {
                        Event::SlotGranted
                    } else if now >= until { Event::QueueTimedOut } else { Event::Cancelled }
                }
                Step::KeepOn
                | Step::Reject { .. }
                | Step::GiveUp { .. }
                | Step::Done
                | Step::Released => {
                    prop_assert_eq!(running.call.phase(), Phase::Finished);
                    calls.swap_remove(pick);
                    continue;
                }
            };
            running.step = host.step(&mut running.call, now, event);
            if let Step::Attempt { until, number, .. } = running.step {
                prop_assert!(running.deadline.is_none_or(|deadline| now < deadline));
                prop_assert!(running.deadline.is_none_or(|d| until.is_some_and(|until| until <= d)));
                prop_assert!(number <= plan.retry.attempts);
            }
            prop_assert!(host.in_flight() <= limit);
        }
        host.cancel_all(calls, now);
        prop_assert_eq!(host.in_flight(), 0);
        if let Some(breaker) = &host.policies.breaker {
            // Nobody is in flight, so once the open time and the longest time that the dependency
            // asked for are over, nothing keeps the next probe out.
            prop_assert_eq!(breaker.refuses(now.plus(millis(3_000))), None);
        }
    }
}
