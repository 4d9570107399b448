//! The policies of a dependency: which keys each has, their ranges and defaults.

use std::time::Duration;

use mamparo_core::backoff::Jitter;
use mamparo_core::call::adaptive::{AdaptiveConfig, Algorithm};
use mamparo_core::call::breaker::BreakerConfig;
use mamparo_core::call::bulkhead::Order;
use mamparo_core::call::fault::{Draw, FaultConfig, Latency};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::shed::{Criticality, ShedConfig};
use mamparo_core::call::throttle::ThrottleConfig;
use mamparo_core::limits::{
    ATTEMPTS_MAX, BULKHEAD_LIMIT_MAX, BULKHEAD_QUEUE_MAX, FAULT_LATENCY_MAX, HEDGE_QUANTILE_MIN,
    HEDGES_MAX, PROBES_MAX, WINDOW_CALLS_MAX,
};

use super::{LONGEST, SHORTEST};
use crate::reader::{Section, nearest_hint};
use crate::{BreakerRule, BreakerSection, BulkheadSection, Located, RetrySection, SlowRule};

/// The jitters in the file.
const JITTERS: [(&str, Jitter); 4] = [
    ("full", Jitter::Full),
    ("equal", Jitter::Equal),
    ("decorrelated", Jitter::Decorrelated),
    ("none", Jitter::None),
];

/// The orders of a queue in the file.
const ORDERS: [(&str, Order); 2] = [("fifo", Order::Fifo), ("adaptive-lifo", Order::AdaptiveLifo)];

/// The laws of an adaptive limit in the file, `gradient2` with its default tolerance.
const ALGORITHMS: [(&str, Algorithm); 3] = [
    ("gradient2", Algorithm::Gradient2 { tolerance: 1.5 }),
    ("vegas", Algorithm::Vegas),
    ("aimd", Algorithm::Aimd),
];

/// What faults are drawn by in the file.
const DRAWS: [(&str, Draw); 2] = [("call", Draw::Call), ("key", Draw::Key)];

/// One of a few words; `None` when it isn't set, or is none of them and reported.
pub(super) fn word<T: Copy>(
    section: &mut Section<'_, '_>,
    key: &'static str,
    known: &[(&str, T)],
) -> Option<Located<T>> {
    let word = section.get::<String>(key)?;
    if let Some((_, meant)) = known.iter().find(|(name, _)| *name == word.value) {
        return Some(Located::at(word.line, *meant));
    }
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    section.complain(key, &format!("{:?} is no {key}", word.value), nearest_hint(&word, &names));
    None
}

pub(super) fn retry(mut section: Section<'_, '_>) -> RetrySection {
    let attempts = section.within_or("attempts", 1..=ATTEMPTS_MAX, 3);
    let base = section.within_or("base", Duration::ZERO..=LONGEST, Duration::from_millis(100));
    let factor = section.within_or("factor", 1.0..=100.0, 2.0);
    let cap = section.within_or("cap", Duration::ZERO..=LONGEST, Duration::from_secs(2));
    let jitter = word(&mut section, "jitter", &JITTERS).unwrap_or(Located::nowhere(Jitter::Full));
    let budget = section.within_or("budget", 0.0..=1.0, 0.2);
    if *cap < *base {
        let key = if section.has("cap") { "cap" } else { "base" };
        section.complain(key, "the cap is below the base, so no wait ever grows", None);
    }
    section.finish();
    RetrySection { attempts, base, factor, cap, jitter, budget }
}

pub(super) fn breaker(mut section: Section<'_, '_>) -> Option<BreakerSection> {
    let usual = BreakerConfig::default();
    let open_for = section.within_or("open_for", SHORTEST..=LONGEST, usual.open_for);
    let section_of = BreakerSection {
        rule: BreakerRule::Failures(Located::nowhere(5)),
        window: section.within_or("window", SHORTEST..=LONGEST, Duration::from_secs(10)),
        open_for,
        open_growth: section.within_or("open_growth", 1.0..=100.0, usual.open_growth),
        open_max: section.within_or("open_max", SHORTEST..=LONGEST, usual.open_max.max(*open_for)),
        open_jitter: section.within_or("open_jitter", 0.0..=0.5, usual.open_jitter),
        probes: section.within_or("probes", 1..=PROBES_MAX, usual.probes),
        probe_success: section.within_or(
            "probe_success",
            f64::MIN_POSITIVE..=1.0,
            usual.probe_success,
        ),
        half_open_max: section.within_or("half_open_max", SHORTEST..=LONGEST, usual.half_open_max),
    };
    let rule = rule(&mut section);
    section.finish();
    Some(BreakerSection { rule: rule?, ..section_of })
}

/// What opens the circuit: a number of failures, failures in a row, or a share of the calls.
fn rule(section: &mut Section<'_, '_>) -> Option<BreakerRule> {
    let failures = section.within("failures", 1..=WINDOW_CALLS_MAX);
    let consecutive = section.within("consecutive", 1..=WINDOW_CALLS_MAX);
    let failure_rate = section.within("failure_rate", f64::MIN_POSITIVE..=1.0);
    let slow = slow_rule(section);
    let min_calls = section.within("min_calls", 1..=WINDOW_CALLS_MAX);
    let calls = section.within("calls", 1..=WINDOW_CALLS_MAX);
    let rated = section.has("failure_rate") || section.has("slow_rate");
    let share = if section.has("failure_rate") { "failure_rate" } else { "slow_rate" };
    let mut rules = vec![share];
    rules.retain(|_| rated);
    rules.extend(["consecutive", "failures"].into_iter().filter(|key| section.has(key)));
    if let [first, second, ..] = rules[..] {
        let hint = "keep one: a number of failures, or a share of the calls".to_owned();
        section.complain(first, &format!("{second} and {first} exclude each other"), Some(hint));
    }
    for key in ["min_calls", "calls"] {
        if !rated && section.has(key) {
            let hint = format!("set failure_rate, or leave {key} out");
            section.complain(key, "only counts with failure_rate or slow_rate", Some(hint));
        }
    }
    if section.has("window") && (section.has("calls") || section.has("consecutive")) {
        let hint = "leave it out: the last calls are looked at, however long ago".to_owned();
        section.complain("window", "is without effect here", Some(hint));
    }
    if rated {
        let least = calls.map_or(20, |calls| calls.value.min(20));
        let min_calls = min_calls.unwrap_or(Located::nowhere(least));
        let complete = failure_rate.is_some() || slow.is_some();
        return complete.then_some(BreakerRule::Rate { failure_rate, slow, min_calls, calls });
    }
    if section.has("consecutive") {
        return consecutive.map(BreakerRule::Consecutive);
    }
    Some(BreakerRule::Failures(failures.unwrap_or(Located::nowhere(5))))
}

fn slow_rule(section: &mut Section<'_, '_>) -> Option<SlowRule> {
    let rate = section.within("slow_rate", f64::MIN_POSITIVE..=1.0);
    let slower_than = section.within("slower_than", SHORTEST..=LONGEST);
    match (section.has("slow_rate"), section.has("slower_than")) {
        (true, false) => section.missing("slower_than"),
        (false, true) => {
            let hint = "set slow_rate, or leave slower_than out".to_owned();
            section.complain("slower_than", "only counts with slow_rate", Some(hint));
        }
        (true, true) | (false, false) => {}
    }
    Some(SlowRule { rate: rate?, slower_than: slower_than? })
}

pub(super) fn bulkhead(mut section: Section<'_, '_>) -> BulkheadSection {
    let limit = section.within_or("limit", 1..=BULKHEAD_LIMIT_MAX, 20);
    let queue = section.within_or("queue", 0..=BULKHEAD_QUEUE_MAX, 0);
    let order = word(&mut section, "order", &ORDERS).unwrap_or(Located::nowhere(Order::Fifo));
    section.finish();
    BulkheadSection { limit, queue, order }
}

pub(super) fn adaptive(mut section: Section<'_, '_>) -> AdaptiveConfig {
    let usual = AdaptiveConfig::default();
    let algorithm = word(&mut section, "algorithm", &ALGORITHMS)
        .map_or(usual.algorithm, |algorithm| algorithm.value);
    let max = *section.within_or("max", 1..=BULKHEAD_LIMIT_MAX, usual.max);
    let min = *section.within_or("min", 1..=BULKHEAD_LIMIT_MAX, usual.min.min(max));
    let initial = usual.initial.clamp(min.min(max), max);
    let initial = *section.within_or("initial", 1..=BULKHEAD_LIMIT_MAX, initial);
    let tolerance = section.within("tolerance", 1.0..=10.0);
    let algorithm = match (algorithm, tolerance) {
        (Algorithm::Gradient2 { .. }, Some(tolerance)) => {
            Algorithm::Gradient2 { tolerance: tolerance.value }
        }
        (algorithm @ (Algorithm::Aimd | Algorithm::Vegas), Some(_)) => {
            section.complain("tolerance", "only counts with algorithm = \"gradient2\"", None);
            algorithm
        }
        (algorithm, None) => algorithm,
    };
    section.finish();
    AdaptiveConfig { algorithm, min, max, initial }
}

pub(super) fn hedge(mut section: Section<'_, '_>) -> HedgeConfig {
    let usual = HedgeConfig::default();
    let extra = *section.within_or("max", 1..=HEDGES_MAX, usual.extra);
    let after = section.within("after", SHORTEST..=LONGEST);
    let quantile = section.within_or("quantile", HEDGE_QUANTILE_MIN..=0.9999, 0.95);
    let least = section.within_or("least", SHORTEST..=LONGEST, usual.after.least());
    for key in ["quantile", "least"] {
        if section.has("after") && section.has(key) {
            let hint = "keep one: a fixed time, or one that follows the latency".to_owned();
            section.complain(key, &format!("after and {key} exclude each other"), Some(hint));
        }
    }
    section.finish();
    let after = match after {
        Some(after) => HedgeAfter::Fixed(*after),
        None => HedgeAfter::Quantile { quantile: *quantile, least: *least },
    };
    HedgeConfig { after, extra }
}

pub(super) fn throttle(mut section: Section<'_, '_>) -> ThrottleConfig {
    let usual = ThrottleConfig::default();
    let shortest = Duration::from_millis(12);
    let config = ThrottleConfig {
        k: *section.within_or("k", 1.0..=100.0, usual.k),
        window: *section.within_or("window", shortest..=LONGEST, usual.window),
        min_requests: *section.within_or("min_requests", 0..=u32::MAX, usual.min_requests),
        refuse_max: *section.within_or("refuse_max", 0.0..=1.0, usual.refuse_max),
    };
    section.finish();
    config
}

pub(super) fn shed(mut section: Section<'_, '_>) -> ShedConfig {
    let usual = ShedConfig::default();
    // In the order of `Criticality::ALL`.
    let keys = ["best_effort", "sheddable", "sheddable_plus", "critical", "critical_plus"];
    let mut begin = usual.begin;
    for level in Criticality::ALL {
        let place = level.index();
        begin[place] = *section.within_or(keys[place], 0.01..=100.0, usual.begin[place]);
    }
    let config = ShedConfig {
        begin,
        band: *section.within_or("band", 0.001..=100.0, usual.band),
        hysteresis: *section.within_or("hysteresis", 0.0..=1.0, usual.hysteresis),
        retry_after: *section.within_or("retry_after", SHORTEST..=LONGEST, usual.retry_after),
    };
    section.finish();
    config
}

pub(super) fn faults(mut section: Section<'_, '_>) -> FaultConfig {
    let usual = FaultConfig::default();
    let config = FaultConfig {
        enabled: section.get("enabled").map_or(usual.enabled, |enabled| enabled.value),
        seed: section.get("seed").map_or(usual.seed, |seed| seed.value),
        draw: word(&mut section, "by", &DRAWS).map_or(usual.draw, |by| by.value),
        latency: section.table("latency").and_then(latency),
        panic: *section.within_or("panic", 0.0..=1.0, usual.panic),
        error: *section.within_or("error", 0.0..=1.0, usual.error),
        outcome: *section.within_or("outcome", 0.0..=1.0, usual.outcome),
    };
    section.finish();
    config
}

/// `latency = { share, least, most }`; without a `least` every delay is the longest.
fn latency(mut section: Section<'_, '_>) -> Option<Latency> {
    let share = section.require::<f64>("share");
    let most = section.require::<Duration>("most");
    let share = share.and_then(|_| section.within("share", 0.0..=1.0));
    let most = most.and_then(|_| section.within("most", Duration::ZERO..=FAULT_LATENCY_MAX));
    let least = section.within("least", Duration::ZERO..=FAULT_LATENCY_MAX);
    section.finish();
    let most = *most?;
    Some(Latency { share: *share?, least: least.map_or(most, |least| *least), most })
}
