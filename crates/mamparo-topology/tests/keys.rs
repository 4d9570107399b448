//! Each key of a dependency, one by one: a good value comes through, a bad one and a misspelt name are
//! reported on their line, and a page documents it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use mamparo_core::backoff::Backoff;
use mamparo_core::call::adaptive::AdaptiveConfig;
use mamparo_core::call::breaker::BreakerConfig;
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::call::fault::FaultConfig;
use mamparo_core::call::hedge::HedgeConfig;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_core::call::shed::ShedConfig;
use mamparo_core::call::throttle::ThrottleConfig;
use mamparo_topology::{PolicyFile, Problem, parse};

/// The head of the file: nine lines, so that the dependency's own keys begin on the tenth.
const HEAD: &str = "[service]\nname = \"orders\"\nowner = \"team\"\nrequest_budget = \"1h\"\n\
                    [[routes]]\npath = \"GET /\"\ncalls = [[\"catalog GET /\"]]\n\n[dependencies.catalog]\n";

/// Table, what must stand beside the key, the key, a value that is not the default, one that can't be
/// meant.
#[rustfmt::skip]
const KEYS: [(&str, &str, &str, &str, &str); 65] = [
    ("", "attempt_timeout = \"1s\"", "url", "\"http://other:1\"", "\"catalog\""),
    ("", "url = \"http://catalog:1\"", "attempt_timeout", "\"700ms\"", "\"10ms\""),
    ("", "", "observe_latency", "\"2m\"", "\"0s\""),
    ("", "", "detached", "10", "0"),
    ("", "", "fallback", "\"stale\"", "\"old\""),
    ("retry", "", "attempts", "2", "0"),
    ("retry", "", "base", "\"50ms\"", "\"50\""),
    ("retry", "", "factor", "3", "0.5"),
    ("retry", "", "cap", "\"1s\"", "\"1ms\""),
    ("retry", "", "jitter", "\"none\"", "\"some\""),
    ("retry", "", "budget", "0.1", "-0.1"),
    ("breaker", "", "failures", "3", "0"),
    ("breaker", "", "consecutive", "3", "0"),
    ("breaker", "", "failure_rate", "0.5", "0"),
    ("breaker", "slower_than = \"1s\"", "slow_rate", "0.5", "1.1"),
    ("breaker", "slow_rate = 0.5", "slower_than", "\"1s\"", "\"0s\""),
    ("breaker", "failure_rate = 0.5", "min_calls", "5", "0"),
    ("breaker", "failure_rate = 0.5", "calls", "50", "0"),
    ("breaker", "", "window", "\"20s\"", "\"0s\""),
    ("breaker", "", "open_for", "\"5s\"", "\"0s\""),
    ("breaker", "", "open_growth", "2", "0.5"),
    ("breaker", "open_growth = 2", "open_max", "\"1m\"", "\"1s\""),
    ("breaker", "", "open_jitter", "0.1", "0.6"),
    ("breaker", "", "probes", "3", "0"),
    ("breaker", "", "probe_success", "0.5", "0"),
    ("breaker", "", "half_open_max", "\"5s\"", "\"0s\""),
    ("bulkhead", "", "limit", "5", "0"),
    ("bulkhead", "", "queue", "5", "-1"),
    ("bulkhead", "", "order", "\"adaptive-lifo\"", "\"lifo\""),
    ("adaptive", "", "algorithm", "\"vegas\"", "\"reno\""),
    ("adaptive", "", "min", "2", "0"),
    ("adaptive", "", "max", "50", "0"),
    ("adaptive", "", "initial", "10", "0"),
    ("adaptive", "", "tolerance", "2", "0.9"),
    ("hedge", "", "after", "\"100ms\"", "\"1s\""),
    ("hedge", "", "quantile", "0.99", "0.4"),
    ("hedge", "", "least", "\"20ms\"", "\"0s\""),
    ("hedge", "", "max", "2", "4"),
    ("throttle", "", "k", "1.5", "0.9"),
    ("throttle", "", "window", "\"1m\"", "\"11ms\""),
    ("throttle", "", "min_requests", "5", "-1"),
    ("throttle", "", "refuse_max", "0.5", "1.1"),
    ("shed", "", "best_effort", "0.7", "0"),
    ("shed", "", "sheddable", "0.8", "0"),
    ("shed", "", "sheddable_plus", "0.9", "0"),
    ("shed", "", "critical", "0.98", "0"),
    ("shed", "", "critical_plus", "1.1", "0"),
    ("shed", "", "band", "0.1", "0"),
    ("shed", "", "hysteresis", "0.01", "0.8"),
    ("shed", "", "retry_after", "\"2s\"", "\"0s\""),
    ("rate_limit", "per = \"1s\"", "requests", "5", "0"),
    ("rate_limit", "requests = 5", "per", "\"1s\"", "\"0s\""),
    ("rate_limit", "requests = 5\nper = \"1s\"", "burst", "2", "0"),
    ("faults", "", "enabled", "true", "\"yes\""),
    ("faults", "", "seed", "7", "-7"),
    ("faults", "", "by", "\"key\"", "\"client\""),
    ("faults", "", "latency", "{ share = 0.1, most = \"2s\" }", "{ share = 0.1 }"),
    ("faults", "", "error", "0.1", "1.1"),
    ("faults", "", "outcome", "0.1", "-0.1"),
    ("faults", "", "panic", "0.1", "nan"),
    ("faults.latency", "most = \"2s\"", "share", "0.1", "1.1"),
    ("faults.latency", "share = 0.1\nmost = \"2s\"", "least", "\"1s\"", "\"3s\""),
    ("faults.latency", "share = 0.1", "most", "\"2s\"", "\"61s\""),
    // The same keys, wrong only beside another one.
    ("adaptive", "max = 10", "initial", "5", "11"),
    ("faults", "error = 0.6", "panic", "0.1", "0.5"),
];

/// A file with these `lines` in a table of the dependency, and the line on which they begin.
fn file(table: &str, lines: &str) -> (String, u32) {
    let basics = "url = \"http://catalog:1\"\nattempt_timeout = \"1s\"\n";
    let named = |line: &&str| {
        let key = &line[..=line.find(' ').unwrap()];
        lines.lines().any(|line| line.starts_with(key))
    };
    // Of the dependency's own keys none stands twice.
    let basics = basics.lines().filter(|line| !(table.is_empty() && named(line)));
    let basics: String = basics.map(|line| format!("{line}\n")).collect();
    let room = if table == "shed" { "bulkhead = {}\n" } else { "" };
    let head = match table {
        "" => format!("{HEAD}{basics}{room}"),
        table => format!("{HEAD}{basics}{room}[dependencies.catalog.{table}]\n"),
    };
    let line = u32::try_from(head.lines().count()).unwrap() + 1;
    (format!("{head}{lines}\n"), line)
}

fn read(text: &str) -> PolicyFile {
    parse("orders.toml", text).unwrap_or_else(|problems| panic!("{text}\n{problems}"))
}

fn problems(text: &str) -> Vec<Problem> {
    let Err(problems) = parse("orders.toml", text) else { panic!("no mistake in\n{text}") };
    problems.into_iter().collect()
}

/// All that a dependency comes to.
fn meaning(text: &str) -> String {
    let policy = read(text);
    let section = policy.dependency("catalog").unwrap();
    let (faults, fallback) = (section.faults.unwrap_or_default(), section.fallback.value);
    format!("{:?} {faults:?} {fallback:?} {}", policy.plan("catalog"), section.url.value)
}

fn path_of(table: &str, key: &str) -> String {
    let parts = ["dependencies", "catalog", table, key];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
}

#[test]
fn every_value_that_is_set_changes_what_the_dependency_does() {
    for (table, beside, key, good, _) in KEYS {
        // What stands beside it may need it; then the table is compared with none.
        let (alone, _) = file(table, beside);
        let sound = parse("orders.toml", &alone).is_ok();
        let without = if sound { alone } else { file("", "").0 };
        let (with, _) = file(table, &format!("{beside}\n{key} = {good}"));
        assert_ne!(meaning(&with), meaning(&without), "{table} {key} = {good}");
    }
}

#[test]
fn every_bad_value_is_reported_on_its_line() {
    for (table, beside, key, _, bad) in KEYS {
        let (text, first) = file(table, &format!("{key} = {bad}\n{beside}"));
        let found = problems(&text);
        let here = found.iter().filter(|problem| problem.line == Some(first));
        let keys: Vec<&str> = here.map(|problem| problem.key.as_str()).collect();
        // A mistake of two values that don't fit each other may bear the name of the other one, or of both.
        let path = path_of(table, key);
        let named = keys.iter().any(|found| path.starts_with(found) || found.starts_with(&path));
        let other = found.iter().any(|problem| problem.key.starts_with(&path_of(table, "")));
        assert!(named || (keys.is_empty() && other), "{text}\n{found:#?}");
    }
}

#[test]
fn every_misspelt_key_is_reported_on_its_line_with_the_right_one() {
    for (table, beside, key, good, _) in KEYS {
        let misspelt = format!("{key}x");
        let (text, first) = file(table, &format!("{misspelt} = {good}\n{beside}"));
        let found = problems(&text);
        let unknown = found.iter().find(|problem| problem.message == "unknown key");
        let unknown = unknown.unwrap_or_else(|| panic!("{text}\n{found:#?}"));
        assert_eq!((unknown.line, &*unknown.key), (Some(first), &*path_of(table, &misspelt)));
        assert_eq!(unknown.hint.as_deref(), Some(&*format!("did you mean {key}?")), "{text}");
    }
}

/// The keys that the reader asks for, which is what it hints at for a key that is like none of them.
fn known(table: &str) -> BTreeSet<String> {
    let (text, _) = file(table, "zzzzzzzzzzzzzzzzzzzzzzzzz = 1");
    let hints: Vec<String> =
        problems(&text).into_iter().filter_map(|problem| problem.hint).collect();
    let hint = hints.iter().find_map(|hint| hint.strip_prefix("known here: "));
    hint.unwrap_or_else(|| panic!("{table}: {hints:?}")).split(", ").map(str::to_owned).collect()
}

fn pages() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies");
    let pages = std::fs::read_dir(folder).unwrap();
    pages.map(|page| std::fs::read_to_string(page.unwrap().path()).unwrap()).collect()
}

#[test]
fn no_key_is_missing_from_these_tests_or_from_the_pages() {
    let tables: BTreeSet<&str> = KEYS.iter().map(|(table, ..)| *table).collect();
    let pages = pages();
    let (mut untested, mut unwritten) = (Vec::new(), Vec::new());
    for table in tables.iter().copied() {
        for key in known(table) {
            let has_row = |row: &(&str, &str, &str, &str, &str)| row.0 == table && row.2 == key;
            // What is a table itself has its own rows.
            if !KEYS.iter().any(has_row) && !tables.contains(&*key) {
                untested.push(path_of(table, &key));
            }
            let written = [format!("`{key}`"), format!("{key} ="), format!(".{key}]")];
            if !written.iter().any(|form| pages.contains(form)) {
                unwritten.push(path_of(table, &key));
            }
        }
    }
    let none: [&str; 0] = [];
    assert_eq!(untested, none);
    assert_eq!(unwritten, none, "no page in docs/policies names them");
}

#[test]
fn a_table_without_keys_is_what_core_has_by_default() {
    let plan = |table: &str| -> Plan { read(&file(table, "").0).plan("catalog").unwrap() };
    let retry = plan("retry").retry;
    assert_eq!((retry.attempts, retry.backoff), (3, Backoff::default()));
    assert_eq!(plan("retry").retry_budget, Some(RetryBudgetConfig::default()));
    assert_eq!(plan("breaker").breaker, Some(BreakerConfig::default()));
    assert_eq!(plan("bulkhead").bulkhead, Some(BulkheadConfig::default()));
    assert_eq!(plan("adaptive").adaptive, Some(AdaptiveConfig::default()));
    assert_eq!(plan("hedge").hedge, Some(HedgeConfig::default()));
    assert_eq!(plan("throttle").throttle, Some(ThrottleConfig::default()));
    assert_eq!(plan("shed").shed, Some(ShedConfig::default()));
    let faults = read(&file("faults", "").0).dependency("catalog").unwrap().faults;
    assert_eq!(faults, Some(FaultConfig::default()));
}

#[test]
fn every_example_in_the_pages_is_read() {
    let mut examples = 0;
    for example in pages().split("\n```toml\n").skip(1) {
        let (example, _) = example.split_once("\n```").unwrap();
        // An example shows what it is about, and not what every file has besides.
        let basics = [("url", "\"http://catalog:1\""), ("attempt_timeout", "\"1s\"")];
        let basics = basics.into_iter().filter(|(key, _)| !example.contains(&format!("{key} =")));
        let basics: String = basics.map(|(key, value)| format!("{key} = {value}\n")).collect();
        let mut whole = format!("{example}\n");
        for (table, basics) in [
            ("[dependencies.catalog]\n", &*basics),
            ("[service]\n", "name = \"orders\"\nowner = \"team\"\n"),
        ] {
            let with = format!("{table}{basics}");
            whole = if whole.contains(table) { whole.replace(table, &with) } else { with + &whole };
        }
        read(&whole);
        examples += 1;
    }
    assert!(examples >= 11, "{examples}");
}

#[test]
fn a_mistake_about_what_is_not_set_is_reported_on_the_line_of_its_table() {
    for (table, lines, key) in [
        ("shed", "best_effort = 0.9", "shed.begin"),
        ("hedge", "least = \"1s\"", "hedge.after"),
        ("faults", "error = 0.6\npanic = 0.6", "faults"),
    ] {
        let (text, first) = file(table, lines);
        let found = problems(&text);
        let found: Vec<_> = found.iter().map(|found| (&*found.key, found.line)).collect();
        assert_eq!(found, [(&*path_of("", key), Some(first - 1))], "{text}");
    }
}
