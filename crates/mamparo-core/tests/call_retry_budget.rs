//! The budget's law: retries and hedges sent ≤ reserve + ratio × first attempts.

use std::collections::VecDeque;
use std::time::Duration;

use mamparo_core::call::arithmetic::amplification;
use mamparo_core::call::breaker::{BreakerConfig, Trip};
use mamparo_core::call::hedge::{Hedge, HedgeConfig, HedgeDecision, NoHedge, SlowAttempt};
use mamparo_core::call::pipeline::{Event, GiveUp, Pipeline, Policies, Step};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::{Decision, FailedAttempt, Retry};
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig, Withdrawal};
use mamparo_core::outcome::{Failure, Repeatable};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::Moment;
use proptest::prelude::*;

fn budget(ratio: f64, reserve: u32) -> RetryBudget {
    RetryBudget::new(RetryBudgetConfig { ratio, reserve })
}

/// Withdraws until the budget says no.
fn drain(budget: &RetryBudget) -> Vec<Withdrawal> {
    std::iter::from_fn(|| budget.withdraw()).collect()
}

fn failed(number: u32) -> FailedAttempt {
    let (failure, repeatable) = (Failure::TRANSIENT, Repeatable::Idempotent);
    FailedAttempt { number, waited: Duration::ZERO, failure, repeatable, left: None }
}

fn ask(budget: &RetryBudget, number: u32) -> Decision {
    Retry::default().ask(&failed(number), Some(budget), &mut SeededRng::new(1))
}

#[test]
fn a_fifth_of_the_traffic_and_twenty_saved_up_are_the_default() {
    let budget = RetryBudget::new(RetryBudgetConfig::default());
    assert_eq!((budget.left(), budget.capacity()), (20, 20));
    assert_eq!(drain(&budget).len(), 20);
    (0..100).for_each(|_| budget.deposit());
    assert_eq!(drain(&budget).len(), 20);
    let text = RetryBudgetConfig::default().to_string();
    assert_eq!(text, "20 % of first attempts, 20 saved up");
}

#[test]
fn a_ratio_that_can_not_be_meant_is_a_mistake() {
    let mistakes = |ratio| {
        let retry_budget = Some(RetryBudgetConfig { ratio, reserve: 0 });
        Plan { retry_budget, ..Plan::new("catalog") }.validate().len()
    };
    assert_eq!([0.0, 0.2, 1.0].map(mistakes), [0; 3]);
    assert_eq!([-0.1, 1.1, 20.0, f64::NAN].map(mistakes), [1; 4]);
}

/// A ratio kept as "one token each ⌊1/r⌋ calls" makes 33 % of 30 % and 100 % of 60 %.
#[test]
fn policies_c33_every_whole_percentage_is_granted_exactly() {
    for percent in 1..=100_u32 {
        let budget = budget(f64::from(percent) / 100.0, 0);
        let granted = (0..10_000).filter(|_| {
            budget.deposit();
            budget.withdraw().is_some()
        });
        assert_eq!(granted.count(), percent as usize * 100, "{percent} %");
    }
}

#[test]
fn a_ratio_that_is_none_is_a_limit_and_no_panic() {
    for (ratio, expected) in [(f64::NAN, 0), (-1.0, 0), (0.0, 0), (7.0, 5), (f64::INFINITY, 5)] {
        let budget = budget(ratio, 5);
        drop(drain(&budget));
        (0..5).for_each(|_| budget.deposit());
        assert_eq!(drain(&budget).len(), expected, "{ratio}");
    }
    let most = budget(1.0, u32::MAX);
    (0..3).for_each(|_| most.deposit());
    assert_eq!(most.left(), u64::from(u32::MAX));
}

#[test]
fn a_budget_without_a_reserve_starts_empty_and_saves_one_up() {
    let budget = budget(0.5, 0);
    assert_eq!(budget.withdraw(), None);
    (0..100).for_each(|_| budget.deposit());
    assert_eq!(drain(&budget).len(), 1);
}

#[test]
fn policies_c30_the_budget_is_full_again_after_enough_traffic_and_stays_so() {
    let budget = budget(0.1, 20);
    drop(drain(&budget));
    assert_eq!(budget.left(), 0);
    (0..199).for_each(|_| budget.deposit());
    assert_eq!(budget.left(), 19);
    (0..1_000).for_each(|_| budget.deposit());
    assert_eq!(budget.left(), 20);
}

/// Three wait and a fourth is told no, before any of them has been sent.
#[test]
fn policies_c32_a_retry_that_waits_occupies_the_budget() {
    let budget = budget(0.1, 3);
    let mut waiting = VecDeque::new();
    for _ in 0..3 {
        match ask(&budget, 1) {
            Decision::Again { paid: Some(paid), .. } => waiting.push_back(paid),
            refused @ (Decision::Again { .. } | Decision::GiveUp(_)) => panic!("{refused:?}"),
        }
    }
    let no = Decision::GiveUp(GiveUp::BudgetSpent);
    assert_eq!(ask(&budget, 1), no);
    // One is sent: that is what it has paid for.
    let _sent = waiting.pop_front();
    assert_eq!(ask(&budget, 1), no);
    // One is cancelled before that: another may go in its place.
    waiting.into_iter().take(1).for_each(|paid| budget.give_back(paid));
    assert!(matches!(ask(&budget, 1), Decision::Again { .. }));
    assert_eq!(ask(&budget, 1), no);
}

#[test]
fn what_comes_back_to_a_full_budget_is_not_saved_beyond_its_reserve() {
    let budget = budget(1.0, 2);
    let paid = budget.withdraw();
    budget.deposit();
    paid.into_iter().for_each(|paid| budget.give_back(paid));
    assert_eq!(drain(&budget).len(), 2);
}

/// What is refused for another reason has cost nothing.
#[test]
fn only_a_retry_that_all_else_allows_takes_from_the_budget() {
    let budget = budget(0.2, 1);
    let too_near = FailedAttempt { left: Some(Duration::from_millis(5)), ..failed(1) };
    let lost = FailedAttempt { failure: Failure::UNKNOWN, ..failed(1) };
    let unsafe_one = FailedAttempt { repeatable: Repeatable::Unsafe, ..lost };
    for denied in [too_near, unsafe_one, failed(3)] {
        let decision = Retry::default().ask(&denied, Some(&budget), &mut SeededRng::new(1));
        assert!(matches!(decision, Decision::GiveUp(reason) if reason != GiveUp::BudgetSpent));
    }
    assert_eq!(budget.left(), 1);
}

/// A retry that the circuit forbids was never on its way.
#[test]
fn a_retry_in_front_of_an_open_circuit_costs_no_token() {
    let trip = Trip::Failures { failures: 1, window: Duration::from_secs(10) };
    let plan = Plan {
        retry: Retry::default(),
        retry_budget: Some(RetryBudgetConfig { ratio: 0.0, reserve: 1 }),
        breaker: Some(BreakerConfig { trip, ..BreakerConfig::default() }),
        ..Plan::new("catalog")
    };
    let (policies, mut rng) = (Policies::new(&plan, 1), SeededRng::new(1));
    let left = || policies.retry_budget.as_ref().map(RetryBudget::left);
    let mut call = Pipeline::new(Repeatable::Idempotent, None);
    let failed = Event::Failed { number: 1, failure: Failure::TRANSIENT };
    let steps: Vec<_> = [Event::Start, failed]
        .into_iter()
        .filter_map(|event| call.tell(Moment::from_millis(5), event, &policies, &mut rng).ok())
        .map(|told| told.step)
        .collect();
    let reason = GiveUp::CircuitOpen;
    assert!(
        matches!(steps[..], [Step::Attempt { .. }, Step::GiveUp { reason: said, .. }] if said == reason)
    );
    assert_eq!(left(), Some(1));
}

#[test]
fn policies_c28_hedges_and_retries_share_one_budget() {
    let budget = budget(0.1, 1);
    let hedge = Hedge::new(HedgeConfig::default());
    let (repeatable, circuit_closed) = (Repeatable::Idempotent, true);
    let slow = SlowAttempt { sent: 0, repeatable, circuit_closed, told_not_to: false, left: None };
    let sent = hedge.ask(&slow, Some(&budget));
    assert!(matches!(sent, HedgeDecision::Send { paid: Some(_) }), "{sent:?}");
    assert_eq!(hedge.ask(&slow, Some(&budget)), HedgeDecision::No(NoHedge::BudgetSpent));
    assert_eq!(ask(&budget, 1), Decision::GiveUp(GiveUp::BudgetSpent));
}

/// Three services in a row that all retry, in front of a fourth that is down.
struct Layer {
    retry: Retry,
    budget: Option<RetryBudget>,
}

/// One call of the first of `layers`; answers with the calls that reach the dead end.
fn call(layers: &[Layer], rng: &mut SeededRng) -> u64 {
    let Some((layer, below)) = layers.split_first() else { return 1 };
    layer.budget.iter().for_each(RetryBudget::deposit);
    let mut reached = 0;
    for number in 1.. {
        reached += call(below, rng);
        // A service whose dependency is down answers 503, which the one above may repeat.
        match layer.retry.ask(&failed(number), layer.budget.as_ref(), rng) {
            Decision::Again { .. } => {}
            Decision::GiveUp(_) => break,
        }
    }
    reached
}

fn layers(budget: Option<RetryBudgetConfig>) -> [Layer; 3] {
    std::array::from_fn(|_| Layer { retry: Retry::default(), budget: budget.map(RetryBudget::new) })
}

#[test]
fn layers_without_a_budget_multiply_and_with_one_they_do_not() {
    let mut rng = SeededRng::new(1);
    let unbounded = layers(None);
    assert_eq!(call(&unbounded, &mut rng), 27);
    assert_eq!(amplification(&[3, 3, 3]), 27);

    let bounded = layers(Some(RetryBudgetConfig { ratio: 0.1, reserve: 20 }));
    let calls = 10_000_u64;
    let first: u64 = (0..calls).map(|_| call(&bounded, &mut rng)).sum();
    let then: u64 = (0..calls).map(|_| call(&bounded, &mut rng)).sum();
    // The reserves are spent once: 20 of the first layer, each repeated below, and so on.
    assert!(first * 1_000 <= calls * 1_331 + 20 * (1_210 + 1_100 + 1_000));
    // From then on a chain of three gets 1.1³. What a bucket carries over is less than one token.
    assert!(then * 1_000 <= calls * 1_331 + 4_000, "{then} for {calls}");
    assert!(then * 1_000 >= calls * 1_330, "the budget is granted, too: {then}");
}

#[test]
fn a_dead_dependency_gets_a_fifth_more_and_the_reserve_once() {
    let mut rng = SeededRng::new(1);
    let [layer, ..] = layers(Some(RetryBudgetConfig::default()));
    let one = [layer];
    for calls in [1, 10, 100, 1_000, 10_000] {
        let reached: u64 = (0..calls).map(|_| call(&one, &mut rng)).sum();
        assert!(reached <= calls + calls / 5 + 20, "{reached} for {calls}");
    }
    let reached: u64 = (0..1_000).map(|_| call(&one, &mut rng)).sum();
    assert_eq!(reached, 1_200);
}

#[test]
fn a_call_an_hour_may_still_be_repeated() {
    let mut rng = SeededRng::new(1);
    let [layer, ..] = layers(Some(RetryBudgetConfig::default()));
    let one = [layer];
    assert_eq!(call(&one, &mut rng), 3);
    // Years later nothing has been lost, and nothing earned by the time.
    assert_eq!(one[0].budget.as_ref().map(RetryBudget::left), Some(18));
}

proptest! {
    #[test]
    fn no_order_of_steps_breaks_the_law(
        per_mille in 0_u32..=1_000, reserve in 0_u32..30,
        steps in prop::collection::vec(0_u8..4, 1..500),
    ) {
        let budget = budget(f64::from(per_mille) / 1_000.0, reserve);
        let (mut deposits, mut spent) = (0_u64, 0_u64);
        let mut waiting = Vec::new();
        for step in steps {
            match step {
                0 => { budget.deposit(); deposits += 1; }
                1 => waiting.extend(budget.withdraw()),
                2 => spent += u64::from(waiting.pop().is_some()),
                _ => waiting.pop().into_iter().for_each(|paid| budget.give_back(paid)),
            }
            let taken = (spent + waiting.len() as u64) * 1_000;
            prop_assert!(taken <= u64::from(reserve) * 1_000 + u64::from(per_mille) * deposits);
            prop_assert!(budget.left() <= budget.capacity());
        }
    }
}

#[test]
fn eight_threads_are_granted_no_more_than_there_is() {
    let budget = budget(0.1, 50);
    let granted: usize = std::thread::scope(|scope| {
        let one = || {
            (0..10_000)
                .filter(|_| {
                    budget.deposit();
                    budget.withdraw().is_some()
                })
                .count()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    // Not a token more; and none less, since in this order the bucket is never full after the start.
    assert!(granted <= 8_050, "{granted}");
    assert!(granted >= 8_000, "{granted}");
}
