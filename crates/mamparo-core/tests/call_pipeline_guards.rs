//! The guards that hold back a part of the calls, and what retries and hedges pay, in their places.

#![expect(clippy::panic, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::{AdaptiveConfig, Algorithm};
use mamparo_core::call::breaker::{BreakerConfig, Trip};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::pipeline::{Event, GiveUp, Pipeline, Policies, Refusal, Step, Told};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_core::call::shed::{Criticality, ShedConfig};
use mamparo_core::call::throttle::ThrottleConfig;
use mamparo_core::outcome::{Failure, Repeatable};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::Moment;

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

struct Host {
    policies: Policies,
    rng: SeededRng,
}

impl Host {
    fn new(plan: &Plan) -> Self {
        assert_eq!(plan.validate(), []);
        Self { policies: Policies::new(plan, 1), rng: SeededRng::new(7) }
    }

    fn tell(&mut self, call: &mut Pipeline, now: Moment, event: Event) -> Told {
        let told = call.tell(now, event, &self.policies, &mut self.rng);
        told.unwrap_or_else(|misfit| panic!("{misfit}"))
    }

    fn start(&mut self, now: Moment) -> (Pipeline, Step) {
        self.start_as(Criticality::Critical, now)
    }

    fn start_as(&mut self, criticality: Criticality, now: Moment) -> (Pipeline, Step) {
        let mut call = Pipeline::new(Repeatable::Idempotent, None).with_criticality(criticality);
        let step = self.tell(&mut call, now, Event::Start).step;
        (call, step)
    }

    fn tokens(&self) -> u64 {
        self.policies.retry_budget.as_ref().map_or(0, |budget| budget.left())
    }
}

fn reason(step: Step) -> Option<Refusal> {
    if let Step::Reject { reason, .. } = step { Some(reason) } else { None }
}

fn failed(number: u32) -> Event {
    Event::Failed { number, failure: Failure::TRANSIENT }
}

#[test]
fn the_least_important_calls_are_shed_as_the_bulkhead_fills() {
    let plan = Plan {
        bulkhead: Some(BulkheadConfig::new(100, 0)),
        shed: Some(ShedConfig::default()),
        ..Plan::new("catalog")
    };
    let mut host = Host::new(&plan);
    let mut held = Vec::new();
    let (mut change, mut first_shed) = (None, None);
    for n in 0..100 {
        let (call, _) = host.start_as(Criticality::CriticalPlus, at(0));
        held.push(call);
        let mut probe =
            Pipeline::new(Repeatable::Idempotent, None).with_criticality(Criticality::BestEffort);
        let told = host.tell(&mut probe, at(0), Event::Start);
        change = change.or(told.shed);
        if reason(told.step) == Some(Refusal::Shed) {
            first_shed = first_shed.or(Some(n));
        } else if probe.phase() != mamparo_core::call::pipeline::Phase::Finished {
            let _ = host.tell(&mut probe, at(0), Event::Cancelled);
        }
    }
    assert!(first_shed.is_some_and(|n| (74..81).contains(&n)), "{first_shed:?}");
    assert!(change.is_some_and(|change| change.to.is_some()), "told once, to whoever saw it");
    let (_, step) = host.start_as(Criticality::CriticalPlus, at(0));
    assert_eq!(reason(step), Some(Refusal::BulkheadFull), "it is the last to be refused");
}

#[test]
fn policies_c14_what_is_held_back_is_no_failure_and_an_open_circuit_no_request() {
    let trip = Trip::Failures { failures: 1_000, window: Duration::from_secs(10) };
    let plan = Plan {
        throttle: Some(ThrottleConfig::default()),
        breaker: Some(BreakerConfig { trip, ..BreakerConfig::default() }),
        ..Plan::new("catalog")
    };
    let mut host = Host::new(&plan);
    let (mut sent, mut held_back) = (0, 0);
    for n in 0..500 {
        let (mut call, step) = host.start(at(n));
        match reason(step) {
            None => {
                sent += 1;
                let _ = host.tell(&mut call, at(n), failed(1));
            }
            Some(reason) => {
                held_back += 1;
                assert_eq!(reason, Refusal::Throttled);
            }
        }
    }
    assert!(held_back > 300, "{held_back} of 500");
    let failed = host.policies.breaker.as_ref().map(|breaker| breaker.counts(at(500)).failed);
    assert_eq!(failed, Some(sent), "only what was sent");
    let wanted = |host: &Host| host.policies.throttle.as_ref().map(|t| t.counts(at(600)).requests);
    let before = wanted(&host);
    if let Some(breaker) = &host.policies.breaker {
        breaker.force_open(at(500));
    }
    for _ in 0..100 {
        let (_, step) = host.start(at(600));
        assert_eq!(reason(step), Some(Refusal::CircuitOpen));
    }
    assert_eq!(wanted(&host), before);
}

#[test]
fn policies_c32_a_waiting_retry_occupies_the_budget_and_one_that_is_not_made_gives_it_back() {
    let plan = Plan {
        retry: Retry { attempts: 2, backoff: Backoff::default() },
        retry_budget: Some(RetryBudgetConfig { ratio: 0.0, reserve: 2 }),
        ..Plan::new("catalog")
    };
    let mut host = Host::new(&plan);
    let mut waiting = Vec::new();
    for left in [1, 0] {
        let (mut call, _) = host.start(at(0));
        let step = host.tell(&mut call, at(0), failed(1)).step;
        assert!(matches!(step, Step::Wait { .. }), "{step:?}");
        assert_eq!(host.tokens(), left, "paid when it is scheduled, not when it is sent");
        waiting.push(call);
    }
    let (mut crowd, _) = host.start(at(0));
    let step = host.tell(&mut crowd, at(0), failed(1)).step;
    let reason = GiveUp::BudgetSpent;
    assert_eq!(step, Step::GiveUp { reason, retry_after: None });

    let _ = host.tell(&mut waiting[0], at(1), Event::Cancelled);
    assert_eq!(host.tokens(), 1, "its caller left");
    let _ = host.tell(&mut waiting[1], at(500), Event::WaitOver);
    let _ = host.tell(&mut waiting[1], at(500), Event::Cancelled);
    assert_eq!(host.tokens(), 1, "this one was sent");
}

#[test]
fn a_retry_that_the_circuit_or_the_deadline_forbids_costs_nothing() {
    let trip = Trip::Failures { failures: 2, window: Duration::from_secs(10) };
    let plan = Plan {
        retry: Retry { attempts: 3, backoff: Backoff::default() },
        breaker: Some(BreakerConfig { trip, ..BreakerConfig::default() }),
        ..Plan::new("catalog")
    };
    let mut host = Host::new(&plan);
    let full = host.tokens();
    let (mut first, _) = host.start(at(0));
    let mut late = Pipeline::new(Repeatable::Idempotent, Some(at(300)));
    let _ = host.tell(&mut late, at(0), Event::Start);
    let _ = host.tell(&mut first, at(0), failed(1));
    // Opens the circuit as it fails: the wait would be in vain.
    let step = host.tell(&mut late, at(0), failed(1)).step;
    assert!(matches!(step, Step::GiveUp { reason: GiveUp::CircuitOpen, .. }), "{step:?}");
    assert_eq!(host.tokens(), full - 1, "the first one's");
    let step = host.tell(&mut first, at(200), Event::WaitOver).step;
    assert!(matches!(step, Step::GiveUp { reason: GiveUp::CircuitOpen, .. }), "{step:?}");
    assert_eq!(host.tokens(), full);
}

#[test]
fn retries_and_hedges_draw_on_one_budget_and_rounds_are_what_the_retry_counts() {
    let after = HedgeAfter::Fixed(millis(50));
    let plan = Plan {
        retry: Retry { attempts: 2, backoff: Backoff::default() },
        retry_budget: Some(RetryBudgetConfig { ratio: 0.0, reserve: 2 }),
        hedge: Some(HedgeConfig { after, extra: 1 }),
        ..Plan::new("search")
    };
    let mut host = Host::new(&plan);
    let (mut call, _) = host.start(at(0));
    let step = host.tell(&mut call, at(50), Event::HedgeDue).step;
    assert!(matches!(step, Step::Attempt { number: 2, hedge_at: None, .. }), "{step:?}");
    assert_eq!(host.tell(&mut call, at(60), failed(1)).step, Step::KeepOn);
    assert!(matches!(host.tell(&mut call, at(70), failed(2)).step, Step::Wait { .. }));
    assert_eq!(host.tokens(), 0);
    let step = host.tell(&mut call, at(300), Event::WaitOver).step;
    assert!(matches!(step, Step::Attempt { number: 3, hedge_at: Some(_), .. }), "{step:?}");
    let step = host.tell(&mut call, at(350), Event::HedgeDue).step;
    assert_eq!(step, Step::KeepOn, "no token, no hedge; the attempt goes on");
    let step = host.tell(&mut call, at(400), failed(3)).step;
    assert!(matches!(step, Step::GiveUp { reason: GiveUp::AttemptsSpent, .. }), "{step:?}");
    assert_eq!(call.attempts(), 3);
}

#[test]
fn an_attempt_that_is_not_under_way_cannot_end() {
    let mut host = Host::new(&Plan::new("search"));
    let (mut call, _) = host.start(at(0));
    for number in [0, 2] {
        for event in [
            Event::Succeeded { number },
            Event::TimedOut { number },
            Event::Panicked { number },
            failed(number),
        ] {
            let told = call.tell(at(1), event, &host.policies, &mut host.rng);
            assert!(told.is_err(), "{event:?}");
        }
    }
    assert_eq!(host.tell(&mut call, at(1), Event::Succeeded { number: 1 }).step, Step::Done);
}

#[test]
fn an_adaptive_limit_follows_what_attempts_show() {
    let adaptive = AdaptiveConfig { algorithm: Algorithm::Aimd, min: 1, max: 50, initial: 10 };
    let plan = Plan { adaptive: Some(adaptive), ..Plan::new("catalog") };
    let mut host = Host::new(&plan);
    assert!(host.policies.success_needs_now());
    let limit = |host: &Host| host.policies.bulkhead.as_ref().map_or(0, |b| b.limit());
    assert_eq!(limit(&host), 10);
    let mut told_change = false;
    for round in 0..40 {
        let now = at(round * 100);
        let mut calls: Vec<Pipeline> = (0..limit(&host)).map(|_| host.start(now).0).collect();
        for call in &mut calls {
            let event = Event::TimedOut { number: 1 };
            let told = host.tell(call, now.plus(millis(50)), event);
            told_change |= told.limit.is_some();
        }
    }
    assert!(told_change);
    assert!(limit(&host) < 10, "nothing gets through: {}", limit(&host));
}
