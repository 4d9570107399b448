//! The command line: `techcorp all`, `techcorp SERVICE`, `techcorp demo`.
//!
//! Data goes to stdout and words to stderr. Exit codes: 0 clean, 1 a broken invariant or a lost
//! task, 2 unusable input, 130 a demo that was interrupted.

mod demo;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use mamparo::messaging::address::BrokerAddress;
use mamparo::service::config::{self, UNUSABLE};
use mamparo::service::{
    Environment, Role, Service, Telemetry, exit_code, run_all, run_until_signal, telemetry,
};
use mamparo::store::StoreError;
use mamparo::topology::{PolicyFile, Problems};

use crate::db;
use crate::demo::engines::Engines;
use crate::demo::terminal::say;
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
    /// Runs the whole shop in this process; on SQLite and the embedded broker unless told otherwise.
    All {
        /// Where SQLite databases are kept.
        #[arg(long, value_name = "DIR", default_value = "techcorp-data")]
        data: PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Runs the shop under traffic and a scripted fault, and judges it by its books.
    Demo(Box<demo::DemoArgs>),
    /// Runs one service: gateway, bff, orders, catalog, customers, inventory, payments,
    /// notifications, psp or mail.
    #[command(external_subcommand)]
    Service(Vec<String>),
}

/// Servers for the shop, instead of files.
#[derive(Debug, Clone, Args)]
struct Place {
    /// PostgreSQL database of the shop, postgres://…/techcorp; made when it is missing. Each service
    /// has a schema of its own in it.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// RabbitMQ broker of the shop, amqp://…
    #[arg(long, value_name = "URL")]
    broker: Option<String>,
}

impl Place {
    /// The engines that were asked for, or how it ends when an address is none.
    fn engines(&self) -> Result<Engines, ExitCode> {
        let Self { store, broker } = self.clone();
        let unusable = |error: &(dyn std::error::Error + 'static)| {
            say(&format!("failed to {}", chain(error)));
            ExitCode::from(UNUSABLE)
        };
        if let Some(shop) = &store {
            db::of_service(shop, "orders").map_err(|error| unusable(&error))?;
        }
        if let Some(broker) = &broker {
            let address = BrokerAddress::parse(broker).map_err(|error| unusable(&error))?;
            if !matches!(address, BrokerAddress::Amqp(_)) {
                say("failed to use --broker: it takes amqp://… (RabbitMQ)");
                say("hint: without --broker the shop has the embedded one");
                return Err(ExitCode::from(UNUSABLE));
            }
        }
        Ok(Engines { store, broker, ..Engines::default() })
    }
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
    /// Lets whoever reaches psp or catalog make them slow: for a demo that runs them apart.
    #[arg(long, hide = true)]
    weather: bool,
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
            Command::All { data, place } => all(&data, &place).await,
            Command::Demo(args) => Box::pin(demo::run_demo(&args)).await,
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
    let weather = if args.weather { Weather::open() } else { Weather::default() };
    serve(vec![policy], &weather, &environment).await
}

/// The file that a service comes with, under the environment's overrides.
fn with_environment(service: &str) -> Result<(PolicyFile, Environment), Problems> {
    let text = shop::default_policy(service).unwrap_or_default();
    let mut policy = mamparo::topology::parse(&format!("{service}.toml"), text)?;
    let environment = Environment::read()?;
    environment.apply(&mut policy);
    Ok((policy, environment))
}

async fn all(data: &Path, place: &Place) -> ExitCode {
    let engines = match place.engines() {
        Ok(engines) => engines,
        Err(code) => return code,
    };
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
                if let Err(error) = put(&mut policy, &engines, data) {
                    return fail("find a place for the books", &error);
                }
                policies.push(policy);
            }
            Err(problems) => return unusable(&problems),
        }
    }
    serve(policies, &Weather::default(), &environment).await
}

/// Puts a service on these engines, with its files in `data`.
fn put(policy: &mut PolicyFile, engines: &Engines, data: &Path) -> Result<(), StoreError> {
    let name = policy.service.name.value.clone();
    if let Some(store) = &mut policy.service.store {
        store.value = engines.store_of(&name, data)?;
    }
    if let Some(broker) = &mut policy.service.broker {
        broker.value = engines.broker_in(data);
    }
    Ok(())
}

async fn serve(
    policies: Vec<PolicyFile>,
    weather: &Weather,
    environment: &Environment,
) -> ExitCode {
    let telemetry = match telemetry::install(environment) {
        Ok(telemetry) => telemetry,
        Err(error) => return fail("start logs and metrics", &error),
    };
    let services = match start(policies, weather, &telemetry).await {
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
    weather: &Weather,
    telemetry: &Telemetry,
) -> Result<Vec<Service>, StartError> {
    let mut hosts = Vec::new();
    for policy in policies {
        hosts.push(Host::open(policy, telemetry.clone()).await?);
    }
    let mut services = Vec::new();
    for host in hosts {
        match shop::wire(host, weather).await {
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
