//! Servers that suites need, brought up before the tests and stopped after them.
//!
//! One given in the environment is used as it is; else a Docker engine, where one runs, provides
//! it; else the system's packages. A missing server fails the run and says how to get it.

use std::any::Any;
use std::fmt;

use mamparo_testkit::servers::{AMQP_URL, Docker, Durability, POSTGRES_URL, Postgres, RabbitMq};

use crate::steps::Step;

/// A server and how a test finds it.
#[derive(Debug)]
pub struct Server {
    /// The environment variable that carries its address to the tests.
    pub variable: &'static str,
    /// The address.
    pub address: String,
    origin: &'static str,
    /// What ends it when dropped; nothing for one that somebody else brought.
    _running: Option<Box<dyn Any + Send>>,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} ({})", self.variable, self.address, self.origin)
    }
}

impl Server {
    /// PostgreSQL.
    ///
    /// # Errors
    /// When it is nowhere to be had, or does not come up.
    pub fn postgres(durability: Durability) -> Result<Self, String> {
        Self::had(POSTGRES_URL, Docker::postgres, || {
            let server = Postgres::start(durability)?;
            Ok((server.url(), Box::new(server)))
        })
    }

    /// RabbitMQ.
    ///
    /// # Errors
    /// As [`postgres`](Self::postgres).
    pub fn rabbitmq() -> Result<Self, String> {
        Self::had(AMQP_URL, Docker::rabbitmq, || {
            let node = RabbitMq::start()?;
            Ok((node.url(), Box::new(node)))
        })
    }

    fn had(
        variable: &'static str,
        container: fn() -> Result<Docker, String>,
        packaged: impl FnOnce() -> Result<(String, Box<dyn Any + Send>), String>,
    ) -> Result<Self, String> {
        if let Some(address) = given(variable) {
            return Ok(Self { variable, address, origin: "given", _running: None });
        }
        let (origin, (address, running)) = if Docker::is_running() {
            let container = container()?;
            ("in a container", (container.url(), Box::new(container) as Box<dyn Any + Send>))
        } else {
            ("from the system's packages", packaged()?)
        };
        Ok(Self { variable, address, origin, _running: Some(running) })
    }
}

/// Brings up everything that the tests need.
///
/// # Errors
/// What the first server that did not start said; those before it are stopped.
pub fn bring_up() -> Result<Vec<Server>, String> {
    mamparo_testkit::servers::install_on_ci(is_ci());
    // The broker takes seconds to boot, so the database does so meanwhile.
    std::thread::scope(|scope| {
        let rabbitmq = scope.spawn(Server::rabbitmq);
        let postgres = Server::postgres(Durability::Fast)?;
        let rabbitmq = rabbitmq.join().map_err(|_| "start RabbitMQ: it panicked".to_owned())??;
        Ok(vec![postgres, rabbitmq])
    })
}

/// `step` with the servers' addresses in its environment.
#[must_use]
pub fn beside(mut step: Step, servers: &[Server]) -> Step {
    for server in servers {
        step = step.with_env(server.variable, server.address.clone());
    }
    step
}

#[expect(clippy::disallowed_methods, reason = "a build tool is configured by its environment")]
fn given(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|address| !address.is_empty())
}

fn is_ci() -> bool {
    given("CI").is_some()
}
