//! The mamparo command line: data on stdout, words on stderr, `hint:` for the next step.
//!
//! Exit codes: 0 clean, 1 findings or something left undone, 2 unusable input.

mod actor;
mod dlq;
mod migrate;
mod outbox;
mod output;
mod parked;
mod topology;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use output::{Exit, say};

/// Design for failure: look after dead letters and queues.
#[derive(Debug, Parser)]
#[command(name = "mamparo", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Look at dead letters, put them back, or throw them away.
    #[command(subcommand)]
    Dlq(Box<dlq::Verb>),
    /// Bring the tables of a service's store up to date, and say from which version to which.
    Migrate(migrate::Migrate),
    /// Look at events that have not left yet, and make refused ones leave now.
    #[command(subcommand)]
    Outbox(outbox::Verb),
    /// Look at messages that wait in a service's store; let them go now, or give one up.
    #[command(subcommand)]
    Parked(parked::Verb),
    /// Compare a broker's queues with the policy files, and make what is missing.
    #[command(subcommand)]
    Topology(topology::Verb),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout and are no error; clap knows which is which.
            let code = if error.use_stderr() { Exit::Unusable } else { Exit::Clean };
            return if error.print().is_ok() { code.into() } else { Exit::Unusable.into() };
        }
    };
    // A second thread, so that a connection stays alive while somebody thinks about a question.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = match runtime.worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("error: failed to start a runtime: {error}"));
            return Exit::Unusable.into();
        }
    };
    match cli.command {
        Command::Dlq(verb) => runtime.block_on(dlq::run(*verb)).into(),
        Command::Migrate(verb) => runtime.block_on(migrate::run(verb)).into(),
        Command::Outbox(verb) => runtime.block_on(outbox::run(verb)).into(),
        Command::Parked(verb) => runtime.block_on(parked::run(verb)).into(),
        Command::Topology(verb) => runtime.block_on(topology::run(verb)).into(),
    }
}
