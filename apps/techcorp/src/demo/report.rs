//! What the demo ends with: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::live::millis;
use super::scenario::{SHORTENED, Scenario};
use super::traffic::{Did, Sample, Seen, percentile};
use super::verdict::Verdict;

/// Latencies of one part of the run, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// Requests in it.
    pub requests: usize,
    /// Half took less.
    pub p50_ms: f64,
    /// Nearly all took less.
    pub p99_ms: f64,
}

/// What the shoppers saw.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Answers to `POST /v1/orders` by status; `none` for no answer.
    pub orders_by_status: BTreeMap<String, u64>,
    /// Answers to `GET /v1/orders` by status.
    pub lists_by_status: BTreeMap<String, u64>,
    /// Lists without product names that said so.
    pub partial_lists: u64,
    /// The slowest 503, in milliseconds.
    pub slowest_refusal_ms: f64,
    /// Before the fault.
    pub before: Latency,
    /// While it lasted.
    pub during: Latency,
    /// Afterwards.
    pub after: Latency,
}

/// The whole report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The scenario's name.
    pub scenario: &'static str,
    /// The seed that replays the traffic.
    pub seed: u64,
    /// Seconds of traffic.
    pub seconds: f64,
    /// Does every check hold?
    pub holds: bool,
    /// Facts and checks, from the books.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What the shoppers saw.
    pub traffic: Traffic,
    /// How often each circuit opened, by `service→dependency`.
    pub breaker_openings: BTreeMap<String, u64>,
    /// Charges that payments had begun and not booked when they were killed.
    pub killed_mid_charge: u64,
    /// Seconds from the last request until everything was at rest.
    pub drain_seconds: f64,
    /// Seconds that the slowest service took to stop.
    pub slowest_stop_seconds: f64,
    /// Clocks that differ from the services' own files.
    pub shortened: Vec<String>,
}

/// Sums up what was seen; the fault lasted from `begins` to `ends`.
#[must_use]
pub fn traffic(
    seen: &Seen,
    begins: mamparo::core::time::Moment,
    ends: mamparo::core::time::Moment,
) -> Traffic {
    let of = |did: Did| {
        let mut counts = BTreeMap::new();
        for sample in seen.samples.iter().filter(|sample| sample.did == did) {
            let status = sample.status.map_or("none".to_owned(), |status| status.to_string());
            *counts.entry(status).or_default() += 1;
        }
        counts
    };
    let latency = |within: &dyn Fn(&Sample) -> bool| {
        let took: Vec<Duration> =
            seen.samples.iter().filter(|sample| within(sample)).map(|s| s.took).collect();
        Latency {
            requests: took.len(),
            p50_ms: ms(percentile(took.clone(), 0.5)),
            p99_ms: ms(percentile(took, 0.99)),
        }
    };
    let refusals = seen.samples.iter().filter(|sample| sample.status == Some(503));
    Traffic {
        orders_by_status: of(Did::Order),
        lists_by_status: of(Did::List),
        partial_lists: seen.samples.iter().filter(|sample| sample.partial).count() as u64,
        slowest_refusal_ms: ms(refusals.map(|sample| sample.took).max().unwrap_or_default()),
        before: latency(&|sample| sample.at < begins),
        during: latency(&|sample| (begins..ends).contains(&sample.at)),
        after: latency(&|sample| sample.at >= ends),
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The clocks that were shortened for `scenario`, as `service: key = value`.
#[must_use]
pub fn shortened(scenario: &Scenario) -> Vec<String> {
    let all = SHORTENED.iter().chain(scenario.limits);
    all.map(|(service, path, value)| format!("{service}: {} = {value}", path.replace('/', ".")))
        .collect()
}

impl Report {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let (facts, traffic) = (&self.verdict.facts, &self.traffic);
        let mut text = String::new();
        let mut say = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        say(format!(
            "scenario {} · {:.0} s of traffic · drained in {:.1} s · seed {}",
            self.scenario, self.seconds, self.drain_seconds, self.seed
        ));
        say(String::new());
        say(format!(
            "orders     {} accepted = {} confirmed + {} cancelled + {} stuck",
            facts.accepted, facts.confirmed, facts.cancelled, facts.stuck
        ));
        say(format!(
            "money      {} charges, {} refunds, {} double charges",
            facts.charges, facts.refunds, facts.double_charges
        ));
        say(format!("stock      {} units leaked", facts.stock_leaks));
        say(format!(
            "events     {} sent, {} lost, {} applied twice, {} redelivered, {} dead",
            facts.events,
            facts.events_lost,
            facts.events_applied_twice,
            facts.redeliveries,
            facts.dead_letters
        ));
        say(format!("mails      {} handed over", facts.mails));
        say(format!(
            "answers    orders {} · lists {} ({} partial)",
            counts(&traffic.orders_by_status),
            counts(&traffic.lists_by_status),
            traffic.partial_lists
        ));
        for (name, part) in
            [("before", traffic.before), ("fault", traffic.during), ("after", traffic.after)]
        {
            let of = |ms: f64| millis(Duration::from_secs_f64(ms / 1_000.0));
            let (p50, p99) = (of(part.p50_ms), of(part.p99_ms));
            say(format!("{name:<10} {} requests, p50 {p50}, p99 {p99}", part.requests));
        }
        let opened: Vec<String> =
            self.breaker_openings.iter().map(|(who, times)| format!("{who} {times} ×")).collect();
        let opened = if opened.is_empty() { "none opened".to_owned() } else { opened.join(", ") };
        say(format!("circuits   {opened}"));
        say(String::new());
        for check in &self.verdict.checks {
            let mark = if check.ok { "✓" } else { "✗" };
            let bad =
                if check.ok { String::new() } else { format!(": {} times", check.violations) };
            say(format!("  {mark} {}{bad}", check.name));
        }
        say(String::new());
        say(if self.holds { "all of it holds" } else { "BROKEN" }.to_owned());
        text
    }
}

fn counts(by: &BTreeMap<String, u64>) -> String {
    by.iter().map(|(status, times)| format!("{status} × {times}")).collect::<Vec<_>>().join(", ")
}
