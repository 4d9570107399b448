//! `cargo xtask`: run the tests, the whole gate, or only the checks of the house.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::{bench, demo, gates, servers, tidy};

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
    /// Start the servers that tests need and keep them until standard input ends (Ctrl-D).
    Servers,
    /// Run the policies that threads share through every interleaving within the bounds (loom).
    Model {
        /// Passed on to the test programs, a test's name say.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Kill real processes at random and at every write on all engines, and count what became of
    /// 100,000 messages each; takes a quarter of an hour.
    Soak {
        /// Passed on to the program `soak`; `fight --help` and `writes --help` tell what there is.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run everything that must be green before a merge.
    Ci,
    /// Play TechCorp's demo on a PostgreSQL and a RabbitMQ of its own.
    Demo {
        /// Scenarios, `broker-down` say; those of the gate when none is named.
        scenarios: Vec<String>,
        /// Length of each one's traffic.
        #[arg(long = "for", default_value = "40s")]
        length: String,
    },
    /// Check the rules of the house; prints what, where, why and the way out.
    Tidy,
    /// Measure what policies and messages cost; see docs/benchmarks.md.
    #[command(subcommand)]
    Bench(Benchmark),
    /// Put the same cases to our policies and to the peers', and print who passes.
    Peers {
        /// Write what the peers do to the file that later runs are held against.
        #[arg(long)]
        bless: bool,
    },
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Time, instructions and allocations of every policy beside the peers, and the goals.
    Policies {
        /// Fewer rounds: for a look, not for a figure.
        #[arg(long)]
        quick: bool,
        /// Write everything to this file too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Consumers, relay, inbox and claims on RabbitMQ and PostgreSQL of this run's own, beside loops
    /// written by hand, and the goals.
    Messaging {
        /// Fewer and shorter rounds: for a look, not for a figure.
        #[arg(long)]
        quick: bool,
        /// Write everything to this file too.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Only this group of rows; may be given several times.
        #[arg(long, value_name = "NAME")]
        only: Vec<String>,
    },
    /// Instructions and allocations of our own policies against the committed baseline.
    Gate {
        /// Write the baseline instead of comparing with it.
        #[arg(long)]
        bless: bool,
    },
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
        Task::Servers => keep_servers(),
        Task::Model { arguments } => gates::model(&root, &arguments),
        Task::Soak { arguments } => gates::soak(&root, &arguments),
        Task::Ci => gates::ci(&root),
        Task::Demo { scenarios, length } if !scenarios.is_empty() => {
            let named: Vec<_> = scenarios.iter().map(|name| (&**name, &*length)).collect();
            demo::on_servers(&root, &named)
        }
        Task::Demo { .. } => demo::on_servers(&root, demo::ON_SERVERS),
        Task::Tidy => {
            let report = tidy::check(&root)?;
            print!("{report}");
            Ok(report.findings.is_empty())
        }
        Task::Bench(Benchmark::Policies { quick, json }) => {
            bench::policies(&root, quick, json.as_deref())
        }
        Task::Bench(Benchmark::Messaging { quick, json, only }) => {
            bench::messaging(&root, quick, json.as_deref(), &only)
        }
        Task::Bench(Benchmark::Gate { bless }) => bench::gate(&root, bless),
        Task::Peers { bless } => bench::peers(&root, bless),
    }
}

/// For those who call `cargo test` or a program by hand.
fn keep_servers() -> Result<bool, String> {
    let servers = servers::bring_up()?;
    for server in &servers {
        println!("export {}='{}'", server.variable, server.address);
    }
    println!("# running until Ctrl-D");
    let ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    ended.map(|_| true).map_err(|error| format!("read standard input: {error}"))
}
