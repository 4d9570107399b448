//! The same servers from a Docker engine, where one runs.

use super::{output, pause, run};
use std::process::Command;
use std::time::Duration;

const POSTGRES: &str = "postgres:15-alpine";
const RABBITMQ: &str = "rabbitmq:3.13-alpine";

/// How often a container is asked whether its server is up, half a second apart.
const TRIES: u32 = 240;

/// A container, removed when dropped.
#[derive(Debug)]
pub struct Docker {
    id: String,
    url: String,
}

impl Docker {
    /// Does an engine answer? The client alone can't run anything.
    #[must_use]
    pub fn is_running() -> bool {
        output("docker", &["info", "--format", "{{.ServerVersion}}"])
            .is_ok_and(|version| !version.trim().is_empty())
    }

    /// PostgreSQL.
    ///
    /// # Errors
    /// What the engine said.
    pub fn postgres() -> Result<Self, String> {
        let trust = ["--env", "POSTGRES_HOST_AUTH_METHOD=trust"];
        let ready = ["pg_isready", "--quiet", "--host", "127.0.0.1"];
        let (id, port) = start(POSTGRES, &trust, 5432, &ready)?;
        Ok(Self { id, url: format!("postgres://postgres@127.0.0.1:{port}/postgres") })
    }

    /// RabbitMQ.
    ///
    /// # Errors
    /// What the engine said.
    pub fn rabbitmq() -> Result<Self, String> {
        let ready = ["rabbitmq-diagnostics", "--quiet", "check_port_connectivity"];
        let (id, port) = start(RABBITMQ, &[], 5672, &ready)?;
        Ok(Self { id, url: format!("amqp://guest:guest@127.0.0.1:{port}/%2f") })
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        output("docker", &["rm", "--force", "--volumes", &self.id]).ok();
    }
}

/// Starts a container on a free port of the loopback and waits until it is ready; id and port.
fn start(
    image: &str,
    options: &[&str],
    port: u16,
    ready: &[&str],
) -> Result<(String, String), String> {
    let publish = format!("127.0.0.1::{port}");
    let mut command = Command::new("docker");
    command.args(["run", "--detach", "--publish", &publish]).args(options).arg(image);
    let id = run(&mut command)?.trim().to_owned();
    let container = Docker { id, url: String::new() };
    let mapped = output("docker", &["port", &container.id, &port.to_string()])?;
    let mapped = mapped.lines().next().and_then(|line| line.rsplit(':').next()).unwrap_or("");
    for _ in 0..TRIES {
        let mut command = Command::new("docker");
        if run(command.args(["exec", &container.id]).args(ready)).is_ok() {
            let id = container.id.clone();
            std::mem::forget(container);
            return Ok((id, mapped.trim().to_owned()));
        }
        pause(Duration::from_millis(500));
    }
    let log = output("docker", &["logs", "--tail", "15", &container.id]).unwrap_or_default();
    Err(format!("start {image}: not ready in time\n{log}"))
}
