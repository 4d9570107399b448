//! The two gates: what a newcomer runs, and what must be green before a merge.
#![expect(clippy::print_stdout, reason = "the gates report to the terminal")]

use std::path::Path;
use std::time::Duration;

use crate::steps::{Step, Tally, output, timed};
use crate::{demo, servers};

/// Features of the facade that are checked one at a time, each without the others.
pub const FEATURES: &[&str] = &["http", "messaging", "service", "store"];

/// The demo's scenarios; each must end with every invariant intact.
pub const SCENARIOS: &[&str] = &[
    "calm",
    "catalog-down",
    "catalog-slow",
    "payments-503",
    "psp-slow",
    "poison",
    "crash",
    "payments-gone",
    "broker-down",
];

/// The step that plays scenarios on servers.
const ON_SERVERS: &str = "demo on PostgreSQL and RabbitMQ";

/// Runs every test of the workspace: units, integration, docs, tidy. `more` goes to `cargo test`;
/// with `-p` in it the rest of the workspace is left out.
///
/// # Errors
/// When a server or cargo could not be started.
pub fn test(root: &Path, more: &[String]) -> Result<bool, String> {
    let servers = servers::bring_up()?;
    let narrowed = more.iter().any(|word| word.starts_with("-p") || word.starts_with("--package"));
    let scope = if narrowed { "" } else { "--workspace" };
    let mut step =
        Step::cargo("test", &format!("test --no-fail-fast {scope}")).with_arguments(more);
    for server in &servers {
        println!("server: {server}");
    }
    step = servers::beside(step, &servers);
    let mut tally = Tally::default();
    let (passed, took) = timed(|| step.run_lines(root, |line| tally.add(line)));
    let Tally { suites, passed: good, failed, ignored } = tally;
    println!(
        "tests: {good} passed, {failed} failed, {ignored} ignored, {suites} suites in {}",
        seconds(took)
    );
    passed
}

/// Runs the model checks of core: each test file `model_*.rs`, with loom's atomics and locks in place
/// of std's. `more` goes to the test programs, a test's name say.
///
/// # Errors
/// When the files could not be listed or cargo could not be started.
pub fn model(root: &Path, more: &[String]) -> Result<bool, String> {
    let tests = root.join(MODELS);
    let names = std::fs::read_dir(&tests).map_err(|e| format!("list {}: {e}", tests.display()))?;
    let names = names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut arguments = Vec::new();
    for name in names {
        if let Some(model) = name.strip_suffix(".rs").filter(|name| name.starts_with("model_")) {
            arguments.extend(["--test".to_owned(), model.to_owned()]);
        }
    }
    arguments.push("--".to_owned());
    arguments.extend_from_slice(more);
    Step::cargo("model", "test --quiet --locked --no-fail-fast --package mamparo-core")
        .with_arguments(&arguments)
        .with_env("RUSTFLAGS", "--cfg loom")
        .run(root)
}

/// Soaks in release mode: `arguments`, or random kills and then a kill at every write.
///
/// # Errors
/// When cargo could not be started.
pub fn soak(root: &Path, arguments: &[String]) -> Result<bool, String> {
    let run = |arguments: &[String]| {
        Step::cargo("soak", "run --quiet --release --locked --package soak --")
            .with_arguments(arguments)
            .run(root)
    };
    if !arguments.is_empty() {
        return run(arguments);
    }
    Ok(run(&["fight".to_owned()])? && run(&["writes".to_owned()])?)
}

/// Where the model checks are.
const MODELS: &str = "crates/mamparo-core/tests";

/// Runs all steps, cheapest first, and stops at the first that fails.
///
/// # Errors
/// When a program could not be started.
pub fn ci(root: &Path) -> Result<bool, String> {
    let deny = has_cargo_deny(root);
    let mut took_all = Duration::ZERO;
    for step in steps(deny) {
        println!("==> {}: {} {}", step.name, step.program, step.arguments.join(" "));
        let run = || match step.name.as_str() {
            "test" => test(root, &[]),
            "model" => model(root, &[]),
            ON_SERVERS => demo::on_servers(root, demo::ON_SERVERS),
            _ => step.run(root),
        };
        let (result, took) = timed(run);
        took_all += took;
        if !result? {
            println!("==> {} failed after {}", step.name, seconds(took));
            return Ok(false);
        }
        println!("==> {} passed in {}", step.name, seconds(took));
    }
    if !deny {
        println!("note: cargo-deny is not installed, so advisories were not looked up");
        println!("      (licences and sources are checked by tidy against deny.toml)");
    }
    println!("==> all steps passed in {}", seconds(took_all));
    Ok(true)
}

/// The steps of [`ci`] in their order. Tidy runs inside `test`.
#[must_use]
pub fn steps(deny: bool) -> Vec<Step> {
    let mut steps = vec![
        Step::cargo("fmt", "fmt --all -- --check"),
        Step::cargo("clippy", "clippy --workspace --all-targets --locked -- -D warnings"),
        // Only libraries: the command line and the facade are both called `mamparo`.
        Step::cargo("docs", "doc --workspace --lib --no-deps --locked")
            .with_env("RUSTDOCFLAGS", "-D warnings"),
        Step::cargo("test", "xtask test"),
        Step::cargo("model", "xtask model"),
    ];
    for scenario in SCENARIOS {
        let run = format!("run --quiet --locked --package techcorp -- demo --scenario {scenario}");
        steps.push(Step::cargo(format!("demo {scenario}"), &format!("{run} --for 10s --json")));
    }
    let soak = "run --quiet --locked --package soak --";
    steps.push(Step::cargo("soak", &format!("{soak} fight --messages 1024 --every-ms 400")));
    steps.push(Step::cargo("soak at every write", &format!("{soak} writes --step 40")));
    steps.push(Step::cargo(ON_SERVERS, "xtask demo"));
    steps.push(Step::cargo("bench gate", "xtask bench gate"));
    let bare = "check --quiet --package mamparo --locked --no-default-features";
    steps.push(Step::cargo("facade without features", bare));
    for feature in FEATURES {
        let name = format!("facade with {feature} alone");
        steps.push(Step::cargo(name, &format!("{bare} --features {feature}")));
    }
    if deny {
        steps.push(Step::cargo("deny", "deny check"));
    }
    steps
}

/// Building cargo-deny takes minutes on two cores, so it is used where it is installed and its
/// most important checks are repeated by tidy.
fn has_cargo_deny(root: &Path) -> bool {
    output(root, "cargo", &["deny", "--version"]).is_ok()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ci_runs_cheap_steps_first_and_names_each() {
        let names: Vec<_> = steps(true).into_iter().map(|step| step.name).collect();
        assert_eq!(names[..4], ["fmt", "clippy", "docs", "test"]);
        assert_eq!(names.last().map(String::as_str), Some("deny"));
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(unique, names);
        assert!(!steps(false).iter().any(|step| step.name == "deny"));
    }
}
