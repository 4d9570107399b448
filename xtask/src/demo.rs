//! TechCorp's demo on a PostgreSQL and a RabbitMQ of its own, which it may break.
#![expect(clippy::print_stdout, reason = "reports to the terminal")]

use std::path::Path;

use mamparo_testkit::servers::{Durability, Postgres, RabbitMq};

use crate::steps::Step;

/// What the gate runs on servers, and for how long: one scenario of each kind. The rest runs on the
/// embedded engines, where nothing of it differs.
pub const ON_SERVERS: &[(&str, &str)] = &[
    ("catalog-down", "10s"),
    ("crash", "10s"),
    ("broker-down", "40s"),
    ("database-restart", "15s"),
];

/// Runs `scenarios` (name and length), each in a database and a virtual host of its own.
///
/// # Errors
/// When a server is not installed or does not come up.
pub fn on_servers(root: &Path, scenarios: &[(&str, &str)]) -> Result<bool, String> {
    let (postgres, rabbitmq) = std::thread::scope(|scope| {
        let rabbitmq = scope.spawn(RabbitMq::start);
        let postgres = Postgres::start(Durability::Fast)?;
        let rabbitmq = rabbitmq.join().map_err(|_| "start RabbitMQ: it panicked".to_owned())??;
        Ok::<_, String>((postgres, rabbitmq))
    })?;
    let crash = postgres.crash_line().ok_or("break PostgreSQL: it does not run")?;
    for (number, (scenario, length)) in scenarios.iter().enumerate() {
        println!("demo {scenario} on PostgreSQL and RabbitMQ");
        let place = format!("techcorp_{number}");
        let run = format!(
            "run --quiet --locked --package techcorp -- demo --scenario {scenario} --for {length}"
        );
        let step = Step::cargo(format!("demo {scenario}"), &run).with_arguments(&[
            "--store".to_owned(),
            postgres.url_of(&place),
            "--broker".to_owned(),
            rabbitmq.url_of(&place)?,
            "--broker-stop".to_owned(),
            rabbitmq.ctl_line(&["stop_app"]),
            "--broker-start".to_owned(),
            rabbitmq.ctl_line(&["start_app"]),
            "--store-restart".to_owned(),
            crash.clone(),
        ]);
        if !step.run(root)? {
            return Ok(false);
        }
    }
    Ok(true)
}
