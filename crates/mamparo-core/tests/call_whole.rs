//! What the pipeline says of a whole call, beyond its last attempt and its first caller.

#![expect(clippy::panic, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Change, Phase, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::pipeline::{Event, Pipeline, Policies, Refusal, Step};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::Retry;
use mamparo_core::outcome::{Failure, Kind, Repeatable, Sent};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::Moment;

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

const fn failed(number: u32, failure: Failure) -> Event {
    Event::Failed { number, failure }
}

/// What to do next, and the circuit's change.
fn tell(
    policies: &Policies,
    call: &mut Pipeline,
    now: Moment,
    event: Event,
) -> (Step, Option<Change>) {
    match call.tell(now, event, policies, &mut SeededRng::new(1)) {
        Ok(told) => (told.step, told.change),
        Err(misfit) => panic!("{misfit}"),
    }
}

/// A probe without any limit, whose host never comes back.
#[test]
fn policies_c09_callers_that_are_refused_end_a_trial_that_hangs() {
    let trip = Trip::Failures { failures: 1, window: Duration::from_secs(10) };
    let config = BreakerConfig { trip, ..BreakerConfig::default() };
    let plan = Plan { breaker: Some(config), ..Plan::new("catalog") };
    let policies = Policies::new(&plan, 1);
    let call = || Pipeline::new(Repeatable::Idempotent, None);
    let mut first = call();
    tell(&policies, &mut first, at(0), Event::Start);
    tell(&policies, &mut first, at(0), failed(1, Failure::TRANSIENT));
    let mut hanging = call();
    let (step, _) = tell(&policies, &mut hanging, at(30_000), Event::Start);
    assert!(matches!(step, Step::Attempt { .. }), "{step:?}");

    let (step, change) = tell(&policies, &mut call(), at(60_000), Event::Start);
    let retry_after = Some(Duration::from_secs(30));
    assert_eq!(step, Step::Reject { reason: Refusal::CircuitOpen, retry_after });
    let change = change.map(|change| (change.from, change.to));
    assert_eq!(change, Some((Phase::HalfOpen, Phase::Open)));
    let (step, _) = tell(&policies, &mut call(), at(75_000), Event::Start);
    let retry_after = Some(Duration::from_secs(15));
    assert_eq!(step, Step::Reject { reason: Refusal::CircuitOpen, retry_after });
    let (step, _) = tell(&policies, &mut call(), at(90_000), Event::Start);
    assert!(matches!(step, Step::Attempt { .. }), "the next trial: {step:?}");
}

#[test]
fn a_budget_and_the_callers_deadline_end_a_call_whichever_is_nearer() {
    let plan = Plan { budget: Some(Duration::from_millis(300)), ..Plan::new("catalog") };
    for (caller, expected) in [(None, 300), (Some(900), 300), (Some(200), 200)] {
        let policies = Policies::new(&plan, 1);
        let mut call = Pipeline::new(Repeatable::Idempotent, caller.map(at));
        let (step, _) = tell(&policies, &mut call, at(0), Event::Start);
        assert!(matches!(step, Step::Attempt { until: Some(until), .. } if until == at(expected)));
        assert_eq!(call.deadline(), Some(at(expected)), "{caller:?}");
    }
}

/// The slot was on its way when the circuit opened: it must not get lost between the two.
#[test]
fn a_granted_waiter_of_a_circuit_that_opens_hands_its_slot_on() {
    let trip = Trip::Failures { failures: 1, window: Duration::from_secs(10) };
    let plan = Plan {
        breaker: Some(BreakerConfig { trip, ..BreakerConfig::default() }),
        bulkhead: Some(BulkheadConfig::new(1, 2)),
        ..Plan::new("catalog")
    };
    let policies = Policies::new(&plan, 1);
    let call = || Pipeline::new(Repeatable::Idempotent, None);
    let (mut failing, mut granted, mut next) = (call(), call(), call());
    tell(&policies, &mut failing, at(0), Event::Start);
    tell(&policies, &mut granted, at(0), Event::Start);
    let (step, _) = tell(&policies, &mut next, at(0), Event::Start);
    let Step::Queue { ticket, .. } = step else { panic!("{step:?}") };
    tell(&policies, &mut failing, at(0), failed(1, Failure::TRANSIENT));
    let told = granted.tell(at(1), Event::CircuitOpened, &policies, &mut SeededRng::new(1));
    assert_eq!(told.map(|told| told.wake), Ok(Some(ticket).into()));
    tell(&policies, &mut next, at(1), Event::CircuitOpened);
    assert_eq!(policies.bulkhead.map(|bulkhead| bulkhead.in_flight()), Some(0));
}

/// How an attempt ends, whichever it is.
type End = fn(u32) -> Event;

/// Makes a keyed call whose attempts end like this, and says what the whole call is known to be.
fn whole(attempts: &[End]) -> Failure {
    let backoff = Backoff::default();
    let retry = Retry { attempts: u32::try_from(attempts.len()).unwrap_or(1), backoff };
    let plan = Plan { retry, ..Plan::new("psp") };
    let policies = Policies::new(&plan, 1);
    let mut call = Pipeline::new(Repeatable::Keyed, None);
    let (mut step, _) = tell(&policies, &mut call, at(0), Event::Start);
    for (number, end) in (1..).zip(attempts) {
        (step, _) = tell(&policies, &mut call, at(0), end(number));
        if let Step::Wait { until, .. } = step {
            (step, _) = tell(&policies, &mut call, until, Event::WaitOver);
        }
    }
    assert!(matches!(step, Step::GiveUp { .. }), "{step:?}");
    call.failure().unwrap_or_else(|| panic!("it failed"))
}

#[test]
fn what_one_attempt_left_open_no_later_one_proves() {
    let refused: End = |number| failed(number, Failure::NOT_SENT);
    let unavailable: End = |number| failed(number, Failure::TRANSIENT);
    let lost: End = |number| failed(number, Failure::UNKNOWN);
    let no: End = |number| failed(number, Failure::PERMANENT);
    let neutral: End = |number| failed(number, Failure::NEUTRAL);
    let late: End = |number| Event::TimedOut { number };
    for (attempts, kind, sent) in [
        (&[refused, refused][..], Kind::Transient, Sent::Nothing),
        (&[unavailable, refused], Kind::Transient, Sent::Maybe),
        (&[late, refused], Kind::Unknown, Sent::Maybe),
        (&[lost, refused, unavailable], Kind::Unknown, Sent::Maybe),
        (&[refused, late], Kind::Unknown, Sent::Maybe),
        (&[lost, neutral], Kind::Unknown, Sent::Maybe),
        // A final answer is one, however often it was asked for.
        (&[lost, no], Kind::Permanent, Sent::Maybe),
    ] {
        let failure = whole(attempts);
        assert_eq!((failure.kind, failure.sent), (kind, sent), "{} attempts", attempts.len());
    }
}
