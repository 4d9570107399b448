//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use mamparo_call::clock;
use mamparo_core::rng::Rng as _;
use sqlx::{Postgres, Sqlite};

use crate::engines::{Engines, Pair};
use crate::fight::{self, Rules};
use crate::roles::{self, Role};
use crate::wire::Moment;
use crate::writes::{self, Line, Victim};
use crate::{SoakError, say};

/// Kills real processes at random and at every write, and counts what became of each message.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Random kills, cut wires and crashed servers while messages flow.
    Fight {
        /// Which engines; all pairs when not given.
        #[arg(long, value_enum)]
        pair: Vec<Pair>,
        /// Messages for each pair.
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(64..=10_000_000))]
        messages: u32,
        /// Mean time between two blows, in milliseconds.
        #[arg(long, default_value_t = 700, value_parser = clap::value_parser!(u64).range(50..=60_000))]
        every_ms: u64,
        /// Repeats the blows of an earlier fight. Times differ, so the outcome may.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// A kill at each write to a server, before and after the server has seen it.
    Writes {
        /// Which engines; the three pairs with a server when not given.
        #[arg(long, value_enum)]
        pair: Vec<Pair>,
        /// Only every n-th write.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        step: u32,
    },
    /// A child's part; for this program itself.
    #[command(hide = true)]
    Child {
        /// The store's address.
        #[arg(long)]
        store: String,
        /// The broker's address.
        #[arg(long)]
        broker: String,
        #[command(subcommand)]
        role: Role,
    },
}

/// What to print, and whether every promise was kept.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Lines of JSON, one a report.
    pub words: Vec<String>,
    /// Whether all is well.
    pub holds: bool,
}

/// Runs the command of this process's arguments.
///
/// # Errors
/// What kept the soak from being carried through.
pub fn run() -> Result<Outcome, SoakError> {
    let cli = Cli::parse();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Child { store, broker, role } => child(&store, &broker, role).await,
            Command::Fight { pair, messages, every_ms, seed } => {
                let seed = seed.unwrap_or_else(|| clock::entropy().next_u64());
                let every = Duration::from_millis(every_ms);
                fights(&or_all(pair, &Pair::ALL), Rules { messages, seed, every }).await
            }
            Command::Writes { pair, step } => {
                let mut pairs = or_all(pair, &Pair::ALL);
                pairs.retain(|pair| pair.on_postgres() || pair.on_rabbitmq());
                every_write(&pairs, step).await
            }
        }
    })
}

fn or_all(pairs: Vec<Pair>, all: &[Pair]) -> Vec<Pair> {
    if pairs.is_empty() { all.to_vec() } else { pairs }
}

async fn child(store: &str, broker: &str, role: Role) -> Result<Outcome, SoakError> {
    let filter = tracing_subscriber::EnvFilter::new("info");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if store.starts_with("sqlite:") {
        roles::play::<Sqlite>(role, store, broker).await?;
    } else {
        roles::play::<Postgres>(role, store, broker).await?;
    }
    Ok(Outcome { words: Vec::new(), holds: true })
}

async fn fights(pairs: &[Pair], rules: Rules) -> Result<Outcome, SoakError> {
    say(&format!("seed {}", rules.seed));
    let mut outcome = Outcome { words: Vec::new(), holds: true };
    for &pair in pairs {
        let folder = Folder::new()?;
        let fought = if pair.on_postgres() {
            fight::fight::<Postgres>(pair, rules, folder.path()).await
        } else {
            fight::fight::<Sqlite>(pair, rules, folder.path()).await
        };
        let report = fought.inspect_err(|_| folder.kept())?;
        if !report.holds() {
            folder.kept();
            outcome.holds = false;
        }
        outcome.words.push(json(&report)?);
    }
    Ok(outcome)
}

async fn every_write(pairs: &[Pair], step: u32) -> Result<Outcome, SoakError> {
    let mut outcome = Outcome { words: Vec::new(), holds: true };
    for &pair in pairs {
        let folder = Folder::new()?;
        let engines = Engines::start(pair, folder.path()).await?;
        for victim in [Victim::Writer, Victim::Relay, Victim::Consumer] {
            for line in [Line::Store, Line::Broker] {
                // A writer never speaks to the broker.
                if (victim, line) == (Victim::Writer, Line::Broker) {
                    continue;
                }
                for moment in [Moment::Before, Moment::After] {
                    let what = (victim, line, moment);
                    let report = if pair.on_postgres() {
                        writes::each_write::<Postgres>(&engines, what, step, folder.path()).await
                    } else {
                        writes::each_write::<Sqlite>(&engines, what, step, folder.path()).await
                    };
                    if let Some(report) = report.inspect_err(|_| folder.kept())? {
                        outcome.words.push(json(&report)?);
                    }
                }
            }
        }
    }
    Ok(outcome)
}

fn json(report: &impl serde::Serialize) -> Result<String, SoakError> {
    serde_json::to_string(report).map_err(|error| SoakError::Task(error.to_string()))
}

/// A folder for files and logs, kept when something went wrong.
struct Folder {
    folder: tempfile::TempDir,
    kept: std::cell::Cell<bool>,
}

impl Folder {
    fn new() -> Result<Self, SoakError> {
        Ok(Self { folder: tempfile::tempdir()?, kept: std::cell::Cell::new(false) })
    }

    fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Logs and databases stay for whoever has to find out.
    fn kept(&self) {
        let path: PathBuf = self.folder.path().to_owned();
        self.kept.set(true);
        say(&format!("logs and databases are in {}", path.display()));
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.folder.disable_cleanup(self.kept.get());
    }
}
