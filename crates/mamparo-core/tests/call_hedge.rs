//! When a second request goes out, and when it does not.

use std::collections::BTreeSet;
use std::time::Duration;

use mamparo_core::call::hedge::{
    Hedge, HedgeAfter, HedgeConfig, HedgeDecision, NoHedge, SlowAttempt,
};
use mamparo_core::call::latency::Latency;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry_budget::{RetryBudget, RetryBudgetConfig};
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1_000)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn slow() -> SlowAttempt {
    let repeatable = Repeatable::Idempotent;
    SlowAttempt {
        sent: 0,
        repeatable,
        circuit_closed: true,
        told_not_to: false,
        left: Some(millis(500)),
    }
}

fn seen(count: u64, took: Duration) -> Latency {
    let latency = Latency::new(Duration::from_secs(60));
    (0..count).for_each(|_| latency.record(at(0), took));
    latency
}

#[test]
fn a_hedge_goes_out_only_where_every_condition_holds() {
    let hedge = Hedge::new(HedgeConfig::default());
    let ask = |slow: &SlowAttempt| hedge.ask(slow, None);
    for yes in [
        slow(),
        SlowAttempt { left: None, ..slow() },
        SlowAttempt { repeatable: Repeatable::Keyed, ..slow() },
        SlowAttempt { left: Some(millis(11)), ..slow() },
    ] {
        assert_eq!(ask(&yes), HedgeDecision::Send { paid: None }, "{yes:?}");
    }
    for (no, reason) in [
        (SlowAttempt { repeatable: Repeatable::Unsafe, ..slow() }, NoHedge::NotRepeatable),
        (SlowAttempt { repeatable: Repeatable::OneShot, ..slow() }, NoHedge::NotRepeatable),
        (SlowAttempt { circuit_closed: false, ..slow() }, NoHedge::CircuitNotClosed),
        (SlowAttempt { sent: 1, ..slow() }, NoHedge::ExtraSpent),
        (SlowAttempt { told_not_to: true, ..slow() }, NoHedge::ToldNotTo),
        (SlowAttempt { left: Some(millis(10)), ..slow() }, NoHedge::DeadlineTooNear),
        (SlowAttempt { left: Some(Duration::ZERO), ..slow() }, NoHedge::DeadlineTooNear),
    ] {
        assert_eq!(ask(&no), HedgeDecision::No(reason), "{no:?}");
        assert!(!reason.slug().is_empty());
    }
}

#[test]
fn each_reason_has_a_code_of_its_own() {
    let slugs: BTreeSet<&str> = NoHedge::ALL.iter().map(|reason| reason.slug()).collect();
    assert_eq!(slugs.len(), NoHedge::ALL.len());
    let places: Vec<usize> = NoHedge::ALL.iter().map(|reason| reason.index()).collect();
    assert_eq!(places, [0, 1, 2, 3, 4, 5]);
}

/// A mistyped number must not multiply the load, nor fill the memory with copies.
#[test]
fn no_configuration_sends_more_than_three_beside_the_first() {
    let hedge = Hedge::new(HedgeConfig { extra: u32::MAX, ..HedgeConfig::default() });
    let sent = |sent| hedge.ask(&SlowAttempt { sent, ..slow() }, None);
    assert_eq!(sent(2), HedgeDecision::Send { paid: None });
    assert_eq!(sent(3), HedgeDecision::No(NoHedge::ExtraSpent));
    assert_eq!(hedge.config().extra, 3);
}

#[test]
fn a_hedge_that_can_not_be_meant_is_a_mistake() {
    let keys = |config: HedgeConfig| {
        let plan = Plan { hedge: Some(config), ..Plan::new("catalog") };
        plan.validate().into_iter().map(|mistake| mistake.key).collect::<Vec<_>>()
    };
    let quantile = |quantile| {
        let after = HedgeAfter::Quantile { quantile, least: Duration::ZERO };
        HedgeConfig { after, extra: 1 }
    };
    assert_eq!(keys(HedgeConfig::default()), [""; 0]);
    assert_eq!(keys(quantile(0.5)), [""; 0]);
    for no in [0.0, 0.49, 1.0, 95.0, f64::NAN] {
        assert_eq!(keys(quantile(no)), ["hedge.quantile"], "{no}");
    }
    let always = HedgeConfig { after: HedgeAfter::Fixed(Duration::ZERO), extra: 5 };
    assert_eq!(keys(always), ["hedge.max", "hedge.after"]);
    let text = HedgeConfig::default().to_string();
    assert_eq!(text, "1 more, one when it takes longer than 95 % do, 10ms at least");
    let fixed = HedgeConfig { after: HedgeAfter::Fixed(millis(30)), extra: 2 };
    assert_eq!(fixed.to_string(), "2 more, one every 30ms");
}

#[test]
fn policies_c21_a_hedge_that_is_not_sent_holds_nothing() {
    let budget = RetryBudget::new(RetryBudgetConfig { ratio: 0.1, reserve: 1 });
    let hedge = Hedge::new(HedgeConfig::default());
    // The delay was asked for and ran; neither that nor a refusal takes a token.
    let _ = hedge.delay(at(0), &seen(1_000, millis(40)));
    let half_open = SlowAttempt { circuit_closed: false, ..slow() };
    assert_eq!(hedge.ask(&half_open, Some(&budget)), HedgeDecision::No(NoHedge::CircuitNotClosed));
    assert_eq!(budget.left(), 1);
    // One whose connection could not be had gives its token back.
    match hedge.ask(&slow(), Some(&budget)) {
        HedgeDecision::Send { paid: Some(paid) } => budget.give_back(paid),
        refused @ (HedgeDecision::Send { .. } | HedgeDecision::No(_)) => panic!("{refused:?}"),
    }
    assert_eq!(budget.left(), 1);
}

#[test]
fn a_fixed_delay_needs_no_history_and_no_hedges_need_no_delay() {
    let none = Latency::new(Duration::from_secs(60));
    let fixed = HedgeConfig { after: HedgeAfter::Fixed(millis(30)), extra: 2 };
    assert_eq!(Hedge::new(fixed).delay(at(0), &none), Some(millis(30)));
    let off = HedgeConfig { extra: 0, ..fixed };
    assert_eq!(Hedge::new(off).delay(at(0), &none), None);
    assert_eq!(Hedge::new(off).ask(&slow(), None), HedgeDecision::No(NoHedge::ExtraSpent));
}

#[test]
fn a_quantile_waits_for_enough_answers_and_keeps_to_the_least() {
    let delay = |latency: &Latency| Hedge::new(HedgeConfig::default()).delay(at(1), latency);
    assert_eq!(delay(&seen(199, millis(40))), None);
    let delayed = delay(&seen(200, millis(40)));
    assert!(delayed.is_some_and(|d| d.abs_diff(millis(40)) <= millis(2)), "{delayed:?}");
    assert_eq!(delay(&seen(200, Duration::from_micros(200))), Some(millis(10)));
}

/// One in ten is cut off: the dependency is slow as a whole, and more load is no cure.
#[test]
fn a_dependency_that_is_slow_as_a_whole_is_not_hedged() {
    let latency = seen(900, millis(40));
    (0..100).for_each(|_| latency.record_cut_off(at(0)));
    assert_eq!(Hedge::new(HedgeConfig::default()).delay(at(1), &latency), None);
}

#[test]
fn the_delay_follows_the_latency_once_a_second() {
    let latency = seen(1_000, millis(40));
    let hedge = Hedge::new(HedgeConfig::default());
    let first = hedge.delay(at(1), &latency);
    (0..9_000).for_each(|_| latency.record(at(1), millis(400)));
    assert_eq!(hedge.delay(Moment::from_millis(1_999), &latency), first);
    let second = hedge.delay(at(2), &latency);
    assert!(second > first, "{first:?}, {second:?}");
    // A clock that steps back looks nothing up and forgets nothing.
    assert_eq!(hedge.delay(Moment::ORIGIN, &latency), second);
    // After years of idleness nothing is known any more.
    assert_eq!(hedge.delay(Moment::FAR_FUTURE, &latency), None);
}
