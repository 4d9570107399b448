//! `cargo xtask bench` and `cargo xtask peers`: what the call policies cost and do, beside the peers,
//! and what messages cost beside loops written by hand.
//!
//! The measuring programs live in the workspace `bench/`, which alone knows the peers; here they are
//! built, run and judged. `docs/benchmarks.md` explains the method.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "benchmarks report to the terminal")]

mod baseline;
mod callgrind;
mod figures;
mod goals;
mod messaging;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::steps::Step;
use figures::Figures;
use goals::{GOALS, judge};
pub use messaging::messaging;

/// Rounds of a run, and of a quick one.
const ROUNDS: u32 = 31;
const ROUNDS_QUICK: u32 = 7;

/// Measures every row, peers included, and prints rows and goals. True when all goals are met.
///
/// # Errors
/// When something could not be built, run or written.
pub fn policies(root: &Path, quick: bool, json: Option<&Path>) -> Result<bool, String> {
    callgrind::ensure(in_ci())?;
    let bench = Bench::build(root, "policies", " --features peers")?;
    let mut figures = Figures::default();
    bench.count(&mut figures)?;
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    eprintln!("measuring {rounds} rounds; figures of a busy machine are worth little");
    figures.add_times(&bench.ask("policies", &["time", &rounds.to_string()])?)?;
    let outcomes = judge(GOALS, &figures);
    println!("{}", report::Table(&figures));
    println!("{}", report::Goals(&outcomes));
    if let Some(file) = json {
        let text = format!("{:#}\n", report::json(&figures, &outcomes));
        std::fs::write(file, text).map_err(|error| format!("write {}: {error}", file.display()))?;
    }
    Ok(outcomes.iter().all(goals::Outcome::met))
}

/// Counts instructions and allocations of our own rows and holds them against the committed file and
/// the goals. With `bless`, writes the counts into the file first.
///
/// # Errors
/// When something could not be built, run, read or written; when valgrind is missing.
pub fn gate(root: &Path, bless: bool) -> Result<bool, String> {
    callgrind::ensure(in_ci())?;
    let bench = Bench::build(root, "policies", "")?;
    let mut figures = Figures::default();
    bench.count(&mut figures)?;
    let file = root.join(baseline::FILE);
    let text = std::fs::read_to_string(&file)
        .map_err(|error| format!("read {}: {error}", baseline::FILE))?;
    let mut baseline = baseline::parse(&text)?;
    if bless {
        baseline = baseline.renewed(&figures);
        let write = std::fs::write(&file, baseline.text());
        write.map_err(|error| format!("write {}: {error}", baseline::FILE))?;
    }
    for line in baseline::slack(&baseline, &figures) {
        println!("note: cheaper by now, `cargo xtask bench gate --bless` keeps it so: {line}");
    }
    let findings = baseline::findings(&baseline, &figures);
    for line in &findings {
        println!("dearer: {line}");
    }
    let (rows, found) = (figures.instructions.len(), findings.len());
    println!("bench gate: {rows} rows counted, {found} findings");
    Ok(findings.is_empty())
}

/// Puts the same cases to ours and to the peers. True when ours passes all and the peers do what the
/// committed file says of them. With `bless`, writes that file.
///
/// # Errors
/// When the program could not be built or run.
pub fn peers(root: &Path, bless: bool) -> Result<bool, String> {
    let bless = if bless { " -- --bless" } else { "" };
    let run = format!(
        "run --quiet --release --locked --manifest-path bench/Cargo.toml -p conformance{bless}"
    );
    in_target(root, Step::cargo("peers", &run)).run(root)
}

/// The programs of the workspace `bench/`, built.
struct Bench {
    target: PathBuf,
}

impl Bench {
    /// Builds the programs of one package, with the features that `features` asks cargo for.
    fn build(root: &Path, package: &str, features: &str) -> Result<Self, String> {
        let build = "build --quiet --release --locked --manifest-path bench/Cargo.toml";
        let build = format!("{build} -p {package}{features}");
        let step = in_target(root, Step::cargo("build the benchmarks", &build));
        if !step.run(root)? {
            return Err("build the benchmarks: see above\n\
                hint: when only bench/Cargo.lock is behind, \
                `cargo metadata --manifest-path bench/Cargo.toml` brings it up to date"
                .to_owned());
        }
        Ok(Self { target: root.join("target") })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.target.join("release").join(name)
    }

    /// What a program prints; its words on stderr go to the terminal as they come.
    fn ask(&self, program: &str, arguments: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(self.program(program));
        command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = command.output().map_err(|error| format!("run {program}: {error}"))?;
        if !output.status.success() {
            return Err(format!("run {program}: see above"));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("read what {program} said: {error}"))
    }

    /// Allocations and instructions of every row.
    fn count(&self, figures: &mut Figures) -> Result<(), String> {
        figures.add_allocations(&self.ask("allocations", &[])?)?;
        let scratch = self.target.join("callgrind");
        for (name, per_call) in callgrind::count(&self.program("policies"), &scratch)? {
            figures.add_instructions(&name, per_call);
        }
        Ok(())
    }
}

fn in_ci() -> bool {
    #[expect(clippy::disallowed_methods, reason = "CI says so by this variable alone")]
    let ci = std::env::var_os("CI");
    ci.is_some_and(|value| value == "true")
}

/// `step` with the one target folder of the repository, whichever workspace it builds.
fn in_target(root: &Path, step: Step) -> Step {
    step.with_env("CARGO_TARGET_DIR", root.join("target").to_string_lossy())
}
