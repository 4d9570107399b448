//! The command line: `techcorp all`, `techcorp SERVICE`, `techcorp demo`.
//!
//! Data goes to stdout and words to stderr. Exit codes: 0 clean, 1 a broken invariant or a lost
//! task, 2 unusable input, 130 a demo that was interrupted.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use mamparo::call::clock;
use mamparo::core::rng::Rng;
use mamparo::service::config::{self, UNUSABLE};
use mamparo::service::signal::Signals;
use mamparo::service::{
    Environment, Role, Service, Telemetry, exit_code, run_all, run_until_signal, telemetry,
};
use mamparo::topology::{Located, PolicyFile, Problems};

use crate::demo::run::{Options, run};
use crate::demo::scenario::{SCENARIOS, Scenario};
use crate::demo::terminal::{Terminal, say};
use crate::demo::{DemoError, report::Report};
use crate::host::{Host, StartError};
use crate::services::answers::chain;
use crate::shop::{self, SERVICES};
use crate::weather::Weather;

const ONE_SERVICE: &str = "\
techcorp SERVICE [--config FILE] runs one service: gateway, bff, orders, catalog, customers, inventory,
payments, notifications, or one of the outside worlds psp and mail.";

/// TechCorp, a shop of eight services that is designed for failure.
#[derive(Debug, Parser)]
#[command(name = "techcorp", version, after_help = ONE_SERVICE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the whole shop in this process, on SQLite and the embedded broker.
    All {
        /// Where databases are kept.
        #[arg(long, value_name = "DIR", default_value = "techcorp-data")]
        data: PathBuf,
    },
    /// Runs the shop under traffic and a scripted fault, and judges it by its books.
    Demo(DemoArgs),
    /// Runs one service: gateway, bff, orders, catalog, customers, inventory, payments,
    /// notifications, psp or mail.
    #[command(external_subcommand)]
    Service(Vec<String>),
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// What goes wrong: calm, catalog-down, catalog-slow, payments-503, psp-slow, poison, crash,
    /// payments-gone.
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
}

/// Runs one service of the shop.
#[derive(Debug, Parser)]
#[command(override_usage = "techcorp SERVICE [--config FILE]")]
struct ServiceArgs {
    /// gateway, bff, orders, catalog, customers, inventory, payments, notifications, psp or mail.
    #[arg(value_name = "SERVICE")]
    service: String,
    /// Its policy file; the one it comes with when not given.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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

/// Runs the command of this process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail("start the runtime", &error),
    };
    runtime.block_on(async {
        match cli.command {
            Command::All { data } => all(&data).await,
            Command::Demo(args) => demo(&args).await,
            Command::Service(words) => one(words).await,
        }
    })
}

fn fail(what: &str, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    say(&format!("failed to {what}: {}", chain(error)));
    ExitCode::FAILURE
}

fn unusable(problems: &Problems) -> ExitCode {
    let _ = std::io::stderr().write_all(config::fatal(problems).as_bytes());
    ExitCode::from(UNUSABLE)
}

async fn one(words: Vec<String>) -> ExitCode {
    let words = std::iter::once("techcorp".to_owned()).chain(words);
    let args = match ServiceArgs::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    let name = args.service.as_str();
    if !SERVICES.contains(&name) {
        say(&format!("failed to start {name:?}: the shop has no such service"));
        say(&format!("hint: services are {}; all of them: techcorp all", SERVICES.join(", ")));
        return ExitCode::from(UNUSABLE);
    }
    let loaded = match &args.config {
        Some(path) => config::load(path),
        None => with_environment(name),
    };
    let (policy, environment) = match loaded {
        Ok(loaded) => loaded,
        Err(problems) => return unusable(&problems),
    };
    if policy.service.name.value != name {
        let other = &policy.service.name;
        say(&format!(
            "failed to start {name}: {}:{} is the file of {:?}",
            policy.file, other.line, other.value
        ));
        return ExitCode::from(UNUSABLE);
    }
    serve(vec![policy], &environment).await
}

/// The file that a service comes with, under the environment's overrides.
fn with_environment(service: &str) -> Result<(PolicyFile, Environment), Problems> {
    let text = shop::default_policy(service).unwrap_or_default();
    let mut policy = mamparo::topology::parse(&format!("{service}.toml"), text)?;
    let environment = Environment::read()?;
    environment.apply(&mut policy);
    Ok((policy, environment))
}

async fn all(data: &Path) -> ExitCode {
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(problems) => return unusable(&problems),
    };
    if let Err(error) = std::fs::create_dir_all(data) {
        return fail(&format!("make {}", data.display()), &error);
    }
    let mut policies = Vec::new();
    for service in SERVICES {
        let text = shop::default_policy(service).unwrap_or_default();
        match mamparo::topology::parse(&format!("{service}.toml"), text) {
            Ok(mut policy) => {
                place(&mut policy.service.store, data);
                place(&mut policy.service.broker, data);
                policies.push(policy);
            }
            Err(problems) => return unusable(&problems),
        }
    }
    serve(policies, &environment).await
}

/// Puts a relative SQLite file into `data`.
fn place(address: &mut Option<Located<String>>, data: &Path) {
    if let Some(address) = address
        && let Some(file) = address.value.strip_prefix("sqlite:")
    {
        address.value = format!("sqlite:{}", data.join(file).display());
    }
}

async fn serve(policies: Vec<PolicyFile>, environment: &Environment) -> ExitCode {
    let telemetry = match telemetry::install(environment) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail("start logs and metrics", &error),
    };
    let services = match start(policies, &telemetry).await {
        Ok(services) => services,
        Err(error @ (StartError::Missing { .. } | StartError::Policies(_))) => {
            say(&format!("fatal: {}", chain(&error)));
            return ExitCode::from(UNUSABLE);
        }
        Err(error) => {
            let code = fail("start", &error);
            if matches!(error, StartError::Listen { .. }) {
                say("hint: is it running already? nothing was started");
            }
            return code;
        }
    };
    if let Some(service) = services.first() {
        let keeper = |stop| telemetry.keep(stop);
        service.tasks().spawn_essential(Role::Worker, "metrics upkeep", keeper);
    }
    exit_code(run_until_signal(services).await)
}

/// Starts all of them or none: every port is taken before the first database is opened, and what
/// runs already when a later one fails is stopped in order.
async fn start(
    policies: Vec<PolicyFile>,
    telemetry: &Telemetry,
) -> Result<Vec<Service>, StartError> {
    let mut hosts = Vec::new();
    for policy in policies {
        hosts.push(Host::open(policy, telemetry.clone()).await?);
    }
    let mut services = Vec::new();
    for host in hosts {
        match shop::wire(host, &Weather::default()).await {
            Ok(service) => services.push(service),
            Err(error) => {
                if let Err(lost) = run_all(services, std::future::ready(())).await {
                    tracing::error!(error = chain(&lost), "failed to stop what had started");
                }
                return Err(error);
            }
        }
    }
    Ok(services)
}

async fn demo(args: &DemoArgs) -> ExitCode {
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(problems) => return unusable(&problems),
    };
    let telemetry = match telemetry::install(&environment_of_demo(environment)) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail("start logs and metrics", &error),
    };
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
    let code = fail("run the demo", error);
    say("hint: MAMPARO_LOG=info shows what the services say");
    code
}

/// The exit code of a demo that a signal has ended, as shells expect it.
const INTERRUPTED: u8 = 130;
