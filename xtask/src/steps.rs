//! Runs programs as named, timed steps.
#![expect(clippy::print_stdout, reason = "steps report to the terminal")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What `cargo run` told us about ourselves. Build scripts watch some of these (ring's does), so a
/// cargo that inherited them would build anew what a `cargo build` by hand has just built, and that
/// one again.
const OF_CARGO_RUN: &[&str] = &[
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
];

/// One program to run.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// What the step is called in the output.
    pub name: String,
    /// The program.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Environment variables that are set for it.
    pub env: Vec<(&'static str, String)>,
}

impl Step {
    /// The step `name`, which runs `cargo` with the words of `arguments`.
    #[must_use]
    pub fn cargo(name: impl Into<String>, arguments: &str) -> Self {
        let name = name.into();
        let arguments = arguments.split_whitespace().map(String::from).collect();
        Self { name, program: "cargo", arguments, env: Vec::new() }
    }

    /// This step with one more environment variable.
    #[must_use]
    pub fn with_env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// This step with more arguments.
    #[must_use]
    pub fn with_arguments(mut self, more: &[String]) -> Self {
        self.arguments.extend_from_slice(more);
        self
    }

    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(self.program);
        command.args(&self.arguments).current_dir(root).stdin(Stdio::null());
        for name in OF_CARGO_RUN {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs the step in `root` with its output on the terminal.
    ///
    /// # Errors
    /// When the program could not be started.
    pub fn run(&self, root: &Path) -> Result<bool, String> {
        let status = self.command(root).status().map_err(|error| self.not_started(&error))?;
        Ok(status.success())
    }

    /// Runs the step, hands each line of its standard output to `line` and shows it.
    ///
    /// # Errors
    /// When the program could not be started or its output could not be read.
    pub fn run_lines(&self, root: &Path, mut line: impl FnMut(&str)) -> Result<bool, String> {
        let mut child = self
            .command(root)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| self.not_started(&error))?;
        if let Some(output) = child.stdout.take() {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            // Bytes, because a test may print what is no UTF-8.
            while reader.read_until(b'\n', &mut bytes).map_err(|e| self.not_started(&e))? > 0 {
                let text = String::from_utf8_lossy(&bytes);
                print!("{text}");
                line(text.trim_end());
                bytes.clear();
            }
        }
        let status = child.wait().map_err(|error| self.not_started(&error))?;
        Ok(status.success())
    }

    fn not_started(&self, error: &std::io::Error) -> String {
        format!("run {} for the step {}: {error}", self.program, self.name)
    }
}

/// The output of `program arguments…` in `root`.
///
/// # Errors
/// When it could not be started or did not succeed; with what it said.
pub fn output(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let command = format!("run {program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Runs `work` and answers with how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    #[expect(clippy::disallowed_methods, reason = "a build tool times real work")]
    let start = std::time::Instant::now();
    let value = work();
    (value, start.elapsed())
}

/// What all `test result:` lines of a run add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Test binaries and doc test runs.
    pub suites: u32,
    /// Tests that passed.
    pub passed: u32,
    /// Tests that failed.
    pub failed: u32,
    /// Tests that were not run.
    pub ignored: u32,
}

impl Tally {
    /// Adds what `line` says, if it is the result line of a suite.
    pub fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.suites += 1;
        let rest = rest.trim_start_matches("ok. ").trim_start_matches("FAILED. ");
        for part in rest.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(word)) = (words.next(), words.next()) else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            match word {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_other_lines_do_not_count() {
        let mut tally = Tally::default();
        tally.add("running 3 tests");
        tally.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out");
        tally.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured");
        tally.add("test tests::test result: ok. 9 passed ... ok");
        assert_eq!(tally, Tally { suites: 2, passed: 4, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_failing_program_is_false_and_a_missing_one_is_an_error() {
        let here = Path::new(".");
        let mut lines = Vec::new();
        let fails = Step::cargo("nonsense", "no-such-subcommand-anywhere");
        assert_eq!(fails.run_lines(here, |line| lines.push(line.to_owned())), Ok(false));
        let missing = Step { program: "no-such-program-anywhere", ..fails };
        assert!(missing.run(here).is_err_and(|error| error.contains("no-such-program-anywhere")));
        assert!(output(here, "cargo", &["no-such-subcommand-anywhere"]).is_err());
    }
}
