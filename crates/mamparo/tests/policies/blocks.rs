//! What the code makes for the pages: diagrams from transition tables, tables from defaults.

use std::fmt::{Debug, Display};

use mamparo::core::backoff::Backoff;
use mamparo::core::call::adaptive::{self, AdaptiveConfig};
use mamparo::core::call::breaker::{self, BreakerConfig};
use mamparo::core::call::bulkhead::{self, BulkheadConfig};
use mamparo::core::call::fallback::Windows;
use mamparo::core::call::fault::FaultConfig;
use mamparo::core::call::hedge::{HedgeConfig, NoHedge};
use mamparo::core::call::latency::Adviser;
use mamparo::core::call::pipeline::{self, GiveUp, Refusal};
use mamparo::core::call::plan::Plan;
use mamparo::core::call::rate_limit::RateLimitConfig;
use mamparo::core::call::retry::Retry;
use mamparo::core::call::retry_budget::RetryBudgetConfig;
use mamparo::core::call::shed::{Criticality, ShedConfig};
use mamparo::core::call::throttle::ThrottleConfig;
use mamparo::core::limits;
use mamparo::core::table::Table;
use mamparo::service::telemetry::METRICS;

use crate::layers;

/// Every block by name.
pub(crate) fn all() -> Vec<(&'static str, String)> {
    vec![
        ("pipeline diagram", diagram(&pipeline::TABLE)),
        ("breaker diagram", diagram(&breaker::TABLE)),
        ("bulkhead diagram", diagram(&bulkhead::TABLE)),
        ("adaptive diagram", diagram(&adaptive::TABLE)),
        ("breaker defaults", breaker()),
        ("bulkhead defaults", bulkhead()),
        ("adaptive defaults", adaptive()),
        ("rate limit defaults", rate_limit()),
        ("shed defaults", shed()),
        ("throttle defaults", throttle()),
        ("hedge defaults", hedge()),
        ("retry defaults", retry()),
        ("deadline defaults", deadline()),
        ("fallback defaults", fallback()),
        ("fault defaults", fault()),
        ("amplification", layers::table()),
        ("reason codes", reasons()),
        ("metrics", metrics()),
    ]
}

/// A state diagram and the reason of each arrow.
fn diagram<S, E>(table: &Table<S, E>) -> String
where
    S: Copy + PartialEq + Debug,
    E: Copy + PartialEq + Debug,
{
    let mut text = format!("```mermaid\n{}```\n\n", table.to_mermaid());
    text.push_str("| in | on | goes to | because |\n|---|---|---|---|\n");
    for row in table.rows {
        text.push_str(&format!("| {:?} | {:?} | {:?} | {} |\n", row.from, row.on, row.to, row.why));
    }
    text
}

/// A table of settings.
struct Defaults(String);

impl Defaults {
    fn new() -> Self {
        Self("| setting | default | range |\n|---|---|---|\n".to_owned())
    }

    fn row(mut self, setting: &str, default: impl Debug, range: &str) -> Self {
        self.0.push_str(&format!("| `{setting}` | {default:?} | {range} |\n"));
        self
    }

    /// A default that is words.
    fn say(mut self, setting: &str, default: impl Display, range: &str) -> Self {
        self.0.push_str(&format!("| `{setting}` | {default} | {range} |\n"));
        self
    }
}

fn breaker() -> String {
    let config = BreakerConfig::default();
    let table = Defaults::new()
        .say("trip", config.trip, "see above")
        .row("open_for", config.open_for, "more than 0")
        .row(
            "open_growth",
            config.open_growth,
            "1 or more; multiplies the open time after each trial that failed",
        )
        .row("open_max", config.open_max, "`open_for` or more")
        .row(
            "open_jitter",
            config.open_jitter,
            "0 to 0.5; share of the open time that chance leaves out",
        )
        .row("probes", config.probes, &format!("1 to {}", limits::PROBES_MAX))
        .row("probe_success", config.probe_success, "more than 0, 1 at most")
        .row("half_open_max", config.half_open_max, "more than 0");
    table.0
}

fn bulkhead() -> String {
    let config = BulkheadConfig::default();
    let (limit, queue) = (limits::BULKHEAD_LIMIT_MAX, limits::BULKHEAD_QUEUE_MAX);
    let table = Defaults::new()
        .row("limit", config.limit, &format!("1 to {limit}"))
        .row("queue", config.queue, &format!("0 to {queue}"))
        .row("order", config.order, "`Fifo`, `AdaptiveLifo`");
    table.0
}

fn adaptive() -> String {
    let config = AdaptiveConfig::default();
    let table = Defaults::new()
        .row(
            "algorithm",
            config.algorithm,
            "`Aimd`, `Vegas`, `Gradient2` with a tolerance of 1 to 10",
        )
        .row("min", config.min, "1 to `initial`")
        .row("initial", config.initial, "`min` to `max`")
        .row("max", config.max, &format!("`initial` to {}", limits::BULKHEAD_LIMIT_MAX));
    table.0
}

fn rate_limit() -> String {
    let second = std::time::Duration::from_secs(1);
    let (plain, strict) = (RateLimitConfig::new(100, second), RateLimitConfig::strict(100, second));
    let mut text = String::from(
        "| 100 per second | at once | then one every | most in any second |\n|---|---|---|---|\n",
    );
    for (name, config) in [("new", plain), ("strict", strict)] {
        let interval = second / config.requests;
        let most = config.burst + config.requests;
        let most = if name == "strict" { most.min(100) } else { most - 1 };
        text.push_str(&format!("| `{name}` | {} | {interval:?} | {most} |\n", config.burst));
    }
    text
}

fn shed() -> String {
    let config = ShedConfig::default();
    let mut table = Defaults::new();
    for level in Criticality::ALL.into_iter().rev() {
        let begin = config.begin[level.index()];
        table = table.row(&format!("begin, {}", level.slug()), begin, "more than 0, rising");
    }
    let table = table
        .row("band", config.band, "more than 0; from the first refusal of a level to all of it")
        .row("hysteresis", config.hysteresis, "0 or more")
        .row("retry_after", config.retry_after, "and up to as much again, by lot");
    table.0
}

fn throttle() -> String {
    let config = ThrottleConfig::default();
    let table = Defaults::new()
        .row("k", config.k, "1 or more")
        .row("window", config.window, "12 ms or more")
        .row("min_requests", config.min_requests, "any")
        .row("refuse_max", config.refuse_max, "0 to 1");
    table.0
}

fn hedge() -> String {
    let config = HedgeConfig::default();
    let table = Defaults::new().row("after", config.after, "`Fixed`, `Quantile`").row(
        "extra",
        config.extra,
        &format!("1 to {}; the delay lies between two of them", limits::HEDGES_MAX),
    );
    table.0
}

fn retry() -> String {
    let (retry, backoff, budget) =
        (Retry::default(), Backoff::default(), RetryBudgetConfig::default());
    let table = Defaults::new()
        .row(
            "attempts",
            retry.attempts,
            &format!("1 to {}, the first included", limits::ATTEMPTS_MAX),
        )
        .row("base", backoff.base, "0 to `cap`")
        .row("factor", backoff.factor, "1 or more")
        .row("cap", backoff.cap, "`base` or more")
        .row("jitter", backoff.jitter, "`Full`, `Equal`, `Decorrelated`, `None`")
        .row("budget.ratio", budget.ratio, "0 to 1, in whole per mille")
        .row("budget.reserve", budget.reserve, "any");
    table.0
}

fn deadline() -> String {
    let (plan, adviser) = (Plan::new("any"), Adviser::default());
    let least = format!("more than {:?}", limits::ATTEMPT_MIN_USABLE);
    let table = Defaults::new()
        .say("attempt_timeout", said(plan.attempt_timeout), &least)
        .say("budget", said(plan.budget), &least)
        .row("adviser: quantile", adviser.quantile, "0 to 1")
        .row("adviser: margin", adviser.margin, "0 or more");
    table.0
}

fn said<T: Debug>(value: Option<T>) -> String {
    value.map_or("the caller's deadline alone".to_owned(), |value| format!("{value:?}"))
}

fn fallback() -> String {
    let windows = Windows::default();
    let most = format!("{:?} at most", limits::STALE_MAX);
    let table = Defaults::new()
        .row("fresh_for", windows.fresh_for, "any")
        .row("while_revalidate", windows.while_revalidate, &most)
        .row("if_error", windows.if_error, &most)
        .row("must_revalidate", windows.must_revalidate, "`true` forbids both kinds of staleness");
    table.0
}

fn fault() -> String {
    let config = FaultConfig::default();
    let table = Defaults::new()
        .row("enabled", config.enabled, "the switch; shares without it do nothing")
        .row("seed", config.seed, "any")
        .row("draw", config.draw, "`Call`, `Key`")
        .row(
            "latency",
            config.latency,
            &format!("a share, and up to {:?}", limits::FAULT_LATENCY_MAX),
        )
        .row("panic, error, outcome", config.error, "0 to 1, 1 together at most");
    table.0
}

fn reasons() -> String {
    let codes = |codes: Vec<&str>| {
        codes.iter().map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", ")
    };
    let refusals = codes(Refusal::ALL.into_iter().map(Refusal::slug).collect());
    let gave_up = codes(GiveUp::ALL.into_iter().map(GiveUp::slug).collect());
    let no_hedge = codes(NoHedge::ALL.into_iter().map(NoHedge::slug).collect());
    format!(
        "| | reason codes |\n|---|---|\n| refused | {refusals} |\n| gave up | {gave_up} |\n\
         | not hedged | {no_hedge} |\n"
    )
}

/// The metrics of calls; those of messages, stores and edges have other pages.
fn metrics() -> String {
    let mut text = String::from("| metric | kind | what |\n|---|---|---|\n");
    let elsewhere =
        ["http", "idempotency", "messages", "queue", "consumer", "relay", "outbox", "dlq"];
    let elsewhere = |name: &str| {
        let rest = name.trim_start_matches("mamparo_");
        elsewhere.iter().any(|part| rest.starts_with(part))
            || ["ready", "shutdown_step_seconds", "tasks_lost_total"].contains(&rest)
    };
    for metric in METRICS.iter().filter(|metric| !elsewhere(metric.name)) {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        text.push_str(&format!("| `{}` | {kind} | {} |\n", metric.name, metric.help));
    }
    text
}
