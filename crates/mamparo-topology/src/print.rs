//! The table of dependencies: the first page that the on-call opens.

use std::fmt::Write as _;

use mamparo_core::call::fault::FaultConfig;

use crate::{BreakerRule, BreakerSection, DependencySection, PolicyFile, show_duration};

/// The service's dependencies as a Markdown table: timeout, retries, breaker, bulkhead, fallback,
/// and the longest that a call can take.
#[must_use]
pub fn dependency_table(policy: &PolicyFile) -> String {
    let service = &policy.service;
    let mut text = format!("# Dependencies of {}\n\n", cell(&service.name));
    // Writing to a string can't fail.
    let _ = write!(text, "Owner: {}.", cell(&service.owner));
    if let Some(budget) = service.request_budget {
        let _ = write!(text, " A caller waits at most {}.", show_duration(*budget));
    }
    text.push_str("\n\n");
    if policy.dependencies.is_empty() {
        text.push_str("It calls nobody.\n");
        return text;
    }
    text.push_str(
        "| dependency | timeout | retries | breaker | bulkhead | fallback | worst case |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for dependency in &policy.dependencies {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell(&dependency.name),
            show_duration(*dependency.attempt_timeout),
            retries(dependency),
            dependency.breaker.as_ref().map_or_else(|| "none".to_owned(), breaker),
            bulkhead(dependency),
            dependency.fallback.as_str(),
            show_duration(dependency.worst_case()),
        );
    }
    for dependency in &policy.dependencies {
        if let Some(faults) = dependency.faults.filter(|faults| faults.enabled) {
            let _ = write!(text, "\nFaults are injected on purpose into calls of ");
            let _ = writeln!(text, "{}: {}.", cell(&dependency.name), shares(&faults));
        }
    }
    text
}

/// Which share of the calls is hit by what.
fn shares(faults: &FaultConfig) -> String {
    let latency = faults.latency.map(|latency| ("latency", latency.share));
    let ends = [("error", faults.error), ("outcome", faults.outcome), ("panic", faults.panic)];
    let hits = latency.into_iter().chain(ends).filter(|(_, share)| *share > 0.0);
    let hits: Vec<String> =
        hits.map(|(kind, share)| format!("{kind} {}", percent(share))).collect();
    if hits.is_empty() { "none yet".to_owned() } else { hits.join(", ") }
}

fn retries(dependency: &DependencySection) -> String {
    match &dependency.retry {
        Some(retry) if *retry.attempts > 1 => format!(
            "{} (base {}, × {}, cap {})",
            *retry.attempts - 1,
            show_duration(*retry.base),
            *retry.factor,
            show_duration(*retry.cap)
        ),
        Some(_) | None => "none".to_owned(),
    }
}

fn breaker(breaker: &BreakerSection) -> String {
    let window = show_duration(*breaker.window);
    let opens = match &breaker.rule {
        BreakerRule::Failures(failures) => format!("{} failures in {window}", **failures),
        BreakerRule::Consecutive(failures) => format!("{} failures in a row", **failures),
        BreakerRule::Rate { failure_rate, slow, min_calls, calls } => {
            let failed = failure_rate.map(|rate| percent(*rate));
            let slow = slow.as_ref().map(|slow| {
                let limit = show_duration(*slow.slower_than);
                format!("{} slower than {limit}", percent(*slow.rate))
            });
            let shares: Vec<String> = failed.into_iter().chain(slow).collect();
            let of = calls.map_or(window, |calls| format!("the last {}", *calls));
            format!("{} of at least {} calls in {of}", shares.join(" failed or "), **min_calls)
        }
    };
    let probes = *breaker.probes;
    let noun = if probes == 1 { "probe" } else { "probes" };
    format!("{opens}, open {}, {probes} {noun}", show_duration(*breaker.open_for))
}

fn bulkhead(dependency: &DependencySection) -> String {
    if let Some(adaptive) = dependency.adaptive {
        return format!("{} to {}, adaptive", adaptive.min, adaptive.max);
    }
    match &dependency.bulkhead {
        Some(bulkhead) if *bulkhead.queue == 0 => format!("{}, no queue", *bulkhead.limit),
        Some(bulkhead) => format!("{}, queue {}", *bulkhead.limit, *bulkhead.queue),
        None => "none".to_owned(),
    }
}

/// A share in hundredths, to two places: 0.07 × 100 is not quite 7.
fn percent(share: f64) -> String {
    format!("{} %", (share * 10_000.0).round() / 100.0)
}

/// Text that neither ends a cell nor breaks its row.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}
