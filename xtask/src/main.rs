//! `cargo xtask`: run the tests, the whole gate, or only the checks of the house.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{gates, tidy};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Automation of this workspace")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run every test of the workspace, doc tests and tidy included.
    Test {
        /// Passed on to `cargo test`, `-p mamparo-core` or a test's name say.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the policies that threads share through every interleaving within the bounds (loom).
    Model {
        /// Passed on to the test programs, a test's name say.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run everything that must be green before a merge.
    Ci,
    /// Check the rules of the house; prints what, where, why and the way out.
    Tidy,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: failed to {error}");
            ExitCode::from(2)
        }
    }
}

/// `true` when all is well, `false` when something was found.
fn run(task: Task) -> Result<bool, String> {
    let root = tidy::workspace_root()?;
    match task {
        Task::Test { arguments } => gates::test(&root, &arguments),
        Task::Model { arguments } => gates::model(&root, &arguments),
        Task::Ci => gates::ci(&root),
        Task::Tidy => {
            let report = tidy::check(&root)?;
            print!("{report}");
            Ok(report.findings.is_empty())
        }
    }
}
