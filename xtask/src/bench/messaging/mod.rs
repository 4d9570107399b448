//! `cargo xtask bench messaging`: messages on RabbitMQ and PostgreSQL, ours beside loops written by
//! hand, on servers of this run's own.

mod goals;
mod measured;
mod report;

use std::path::Path;

use mamparo_testkit::servers::{Durability, Postgres, RabbitMq, install_on_ci};

use super::{Bench, in_ci};
use goals::Outcome;
use measured::Measured;

/// Rounds of a run, and of a quick one.
const ROUNDS: u32 = 5;
const ROUNDS_QUICK: u32 = 3;

/// Measures the groups in `only` (all, when it is empty) and prints rows and goals. True when every
/// goal is met whose group was measured.
///
/// # Errors
/// When something could not be built, started, run or written.
pub fn messaging(
    root: &Path,
    quick: bool,
    json: Option<&Path>,
    only: &[String],
) -> Result<bool, String> {
    let bench = Bench::build(root, "messaging", "")?;
    install_on_ci(in_ci());
    // Never servers that somebody else brought: what they do besides would be in every figure.
    let postgres = Postgres::start(Durability::Synced)?;
    let rabbitmq = RabbitMq::start()?;
    let pgbench = Postgres::program("pgbench")?.display().to_string();
    let (rounds, scale) = if quick { (ROUNDS_QUICK, "quick") } else { (ROUNDS, "full") };
    eprintln!("measuring {rounds} rounds; figures of a busy machine are worth little");
    let (broker, database, rounds) = (rabbitmq.url(), postgres.url(), rounds.to_string());
    let mut arguments = vec![broker.as_str(), &database, &pgbench, scale, &rounds];
    arguments.extend(only.iter().map(String::as_str));
    let measured = Measured::read(&bench.ask("messaging", &arguments)?)?;
    let mut outcomes = goals::judge(&goals::all(), &measured);
    outcomes.retain(|outcome| only.is_empty() || only.contains(&outcome.goal.group));
    println!("{}", report::Rows(&measured));
    println!("{}", report::Goals(&outcomes));
    if let Some(file) = json {
        let text = format!("{:#}\n", report::json(&measured, &outcomes));
        std::fs::write(file, text).map_err(|error| format!("write {}: {error}", file.display()))?;
    }
    Ok(outcomes.iter().all(Outcome::is_well))
}
