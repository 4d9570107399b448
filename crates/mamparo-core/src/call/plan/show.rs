//! A plan as people read it: from the outermost policy to the innermost.

use std::fmt;
use std::time::Duration;

use super::Plan;
use crate::backoff::{Backoff, Jitter};
use crate::call::rate_limit::RateLimitConfig;
use crate::call::retry::Retry;
use crate::call::shed::ShedConfig;
use crate::call::throttle::ThrottleConfig;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "dependency {}", self.dependency)?;
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "  {name:<16} {value}");
        let limit = |limit: Option<Duration>| {
            limit.map_or("none (the caller's deadline)".to_owned(), |limit| format!("{limit:?}"))
        };
        let none = &"none" as &dyn fmt::Display;
        let budget = limit(self.budget);
        let rate_limit = self.rate_limit.map(|RateLimitConfig { requests, per, burst }| {
            format!("{requests} per {per:?}, {burst} at once")
        });
        let latency = self.latency_window().map(|window| format!("over {window:?}"));
        row("budget", &budget)?;
        let throttle = self.throttle.as_ref().map(throttle);
        let adaptive = self.adaptive.as_ref();
        row("shed", &self.shed.as_ref().map_or("none".to_owned(), shed))?;
        row("throttle", throttle.as_ref().map_or(none, |throttle| throttle))?;
        row("rate limit", rate_limit.as_ref().map_or(none, |limit| limit))?;
        let bulkhead = self.effective_bulkhead();
        row("bulkhead", bulkhead.as_ref().map_or(none, |bulkhead| bulkhead))?;
        row("adaptive limit", adaptive.map_or(none, |adaptive| adaptive))?;
        row("retry", &retry(&self.retry))?;
        let budget = self.effective_retry_budget();
        row("retry budget", budget.as_ref().map_or(none, |budget| budget))?;
        row("hedge", self.hedge.as_ref().map_or(none, |hedge| hedge))?;
        row("breaker", self.breaker.as_ref().map_or(none, |breaker| breaker))?;
        row("attempt timeout", &limit(self.attempt_timeout))?;
        let detached = self.detached.map(|max| format!("{max} at a time"));
        row("detached", detached.as_ref().map_or(none, |detached| detached))?;
        row("latency", latency.as_ref().map_or(none, |latency| latency))
    }
}

fn retry(Retry { attempts, backoff }: &Retry) -> String {
    if *attempts <= 1 {
        return "none".to_owned();
    }
    let Backoff { base, factor, cap, jitter } = backoff;
    let jitter = match jitter {
        Jitter::None => "no",
        Jitter::Full => "full",
        Jitter::Equal => "equal",
        Jitter::Decorrelated => "decorrelated",
    };
    format!(
        "{attempts} attempts, waits up to {base:?} × {factor} capped at {cap:?}, {jitter} jitter"
    )
}

fn throttle(ThrottleConfig { k, window, min_requests, refuse_max }: &ThrottleConfig) -> String {
    let most = refuse_max * 100.0;
    format!(
        "{k} requests for each accepted in {window:?}, from {min_requests} on, {most} % at most"
    )
}

fn shed(config: &ShedConfig) -> String {
    let percent = |share: f64| (share * 10_000.0).round() / 100.0;
    let begin = config.begin.map(|begin| percent(begin).to_string()).join(", ");
    format!("from {begin} % of the slots on, the least important first")
}
