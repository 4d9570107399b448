//! `techcorp demo`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mamparo::call::clock;
use mamparo::core::rng::Rng;
use mamparo::service::config::UNUSABLE;
use mamparo::service::signal::Signals;
use mamparo::service::{Environment, telemetry};

use super::{Place, fail, unusable};
use crate::demo::engines::{Commands, Engines};
use crate::demo::run::{Options, run};
use crate::demo::scenario::{SCENARIOS, Scenario};
use crate::demo::terminal::{Terminal, say};
use crate::demo::{DemoError, report::Report, script};

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// What goes wrong: calm, catalog-down, catalog-slow, payments-503, psp-slow, poison, crash,
    /// payments-gone, broker-down, database-restart.
    #[arg(long, default_value = "catalog-down", value_parser = scenario)]
    scenario: &'static Scenario,
    /// Length of the traffic: 10s to 1h.
    #[arg(long = "for", default_value = "30s", value_parser = length)]
    length: Duration,
    /// Orders a second, 1 to 200.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    rate: u32,
    /// Replays the traffic of an earlier run.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// Keeps policy files and databases in this directory, which must be empty or new.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// Stops the broker; run by `sh` when the scenario broker-down begins.
    #[arg(long, value_name = "COMMAND", requires_all = ["broker", "broker_start"])]
    broker_stop: Option<String>,
    /// Starts the broker again, and returns when it does.
    #[arg(long, value_name = "COMMAND", requires = "broker_stop")]
    broker_start: Option<String>,
    /// Restarts PostgreSQL, or makes it crash; run by `sh` when the scenario database-restart begins.
    #[arg(long, value_name = "COMMAND", requires = "store")]
    store_restart: Option<String>,
}

impl DemoArgs {
    fn commands(&self) -> Commands {
        Commands {
            broker_stop: self.broker_stop.clone(),
            broker_start: self.broker_start.clone(),
            store_restart: self.store_restart.clone(),
        }
    }
}

fn scenario(text: &str) -> Result<&'static Scenario, String> {
    Scenario::named(text).ok_or_else(|| {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        format!("there are: {}", names.join(", "))
    })
}

fn length(text: &str) -> Result<Duration, String> {
    let length = mamparo::topology::parse_duration(text)?;
    if (Duration::from_secs(10)..=Duration::from_secs(3_600)).contains(&length) {
        Ok(length)
    } else {
        Err("10s to 1h".to_owned())
    }
}

pub(super) async fn run_demo(args: &DemoArgs) -> ExitCode {
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(problems) => return unusable(&problems),
    };
    let telemetry = match telemetry::install(&environment_of_demo(environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail("start logs and metrics", &error),
    };
    let engines = match args.place.engines() {
        Ok(engines) => Engines { commands: args.commands(), ..engines },
        Err(code) => return code,
    };
    if let Err(error) = script::playable(args.scenario, &engines) {
        say(&format!("failed to {error}"));
        return ExitCode::from(UNUSABLE);
    }
    // Lives until the end of the run; a kept directory is no temporary one.
    let (dir, _temporary) = match directory(args.keep.as_deref()) {
        Ok(places) => places,
        Err(error) => {
            say(&format!("failed to use the directory: {error}"));
            return ExitCode::from(UNUSABLE);
        }
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return fail("find this program", &error),
    };
    let options = Options {
        scenario: args.scenario,
        length: args.length,
        rate: f64::from(args.rate),
        seed: args.seed.unwrap_or_else(|| clock::entropy().next_u64() >> 32),
        dir,
        engines,
        keep: args.keep.is_some(),
        program,
    };
    let mut screen = Terminal::new(&options);
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return fail("listen to signals", &error),
    };
    // Dropping the run kills the services that run apart, and returning removes the directory.
    let ran = tokio::select! {
        ran = run(&options, telemetry, &mut screen) => ran,
        signal = signals.next() => {
            say(&format!("stopped by {signal}, before the verdict"));
            return ExitCode::from(INTERRUPTED);
        }
    };
    screen.finish();
    match ran {
        Ok(report) => tell(&report, args, &options.dir),
        Err(error) => demo_failed(&error),
    }
}

/// The demo shows what happens itself; logs are there for those who ask.
fn environment_of_demo(environment: Environment) -> Environment {
    if environment.log == Environment::default().log {
        return Environment { log: "off".to_owned(), ..environment };
    }
    environment
}

fn directory(keep: Option<&Path>) -> std::io::Result<(PathBuf, Option<tempfile::TempDir>)> {
    let Some(dir) = keep else {
        let temporary = tempfile::Builder::new().prefix("techcorp-").tempdir()?;
        return Ok((temporary.path().to_owned(), Some(temporary)));
    };
    std::fs::create_dir_all(dir)?;
    if std::fs::read_dir(dir)?.next().is_some() {
        return Err(std::io::Error::other(format!("{} is not empty", dir.display())));
    }
    Ok((std::path::absolute(dir)?, None))
}

fn tell(report: &Report, args: &DemoArgs, dir: &Path) -> ExitCode {
    let text = if args.json {
        match serde_json::to_string_pretty(report) {
            Ok(text) => text,
            Err(error) => return fail("write the report as JSON", &error),
        }
    } else {
        report.text()
    };
    if let Err(error) = writeln!(std::io::stdout(), "{}", text.trim_end()) {
        return fail("write the report", &error);
    }
    if args.keep.is_some() {
        say(&format!("hint: policy files and databases are in {}", dir.display()));
    }
    if report.holds {
        return ExitCode::SUCCESS;
    }
    if args.keep.is_none() {
        say("hint: --keep DIR keeps the databases for a look; MAMPARO_LOG=warn shows the logs");
    }
    ExitCode::FAILURE
}

fn demo_failed(error: &DemoError) -> ExitCode {
    if let DemoError::Occupied { .. } = error {
        say(&format!("failed to {error}"));
        return ExitCode::from(UNUSABLE);
    }
    let code = fail("run the demo", error);
    say("hint: MAMPARO_LOG=info shows what the services say");
    code
}

/// The exit code of a demo that a signal has ended, as shells expect it.
const INTERRUPTED: u8 = 130;
