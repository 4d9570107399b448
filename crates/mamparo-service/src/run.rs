//! From start to stop: one service, or several in one process.

use std::future::Future;
use std::process::ExitCode;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::signal::{self, Signals};
use crate::{Readiness, ServiceError, Shutdown, ShutdownReport, Step, Tasks, observe};

/// A service that is being put together: its tasks, its checks, its shutdown.
#[derive(Debug)]
pub struct Service {
    name: String,
    tasks: Tasks,
    readiness: Readiness,
    shutdown: Shutdown,
}

impl Service {
    /// A service without tasks and checks.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            tasks: Tasks::new(&name),
            readiness: Readiness::new(&name),
            shutdown: Shutdown::new(),
            name,
        }
    }

    /// The name in logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its tasks are spawned.
    #[must_use]
    pub const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Where its checks are registered; a clone of it answers `/health/ready`.
    #[must_use]
    pub const fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// The limit of its shutdown, and what each step does.
    #[must_use]
    pub const fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Runs `work` in `step` of the shutdown: [`Shutdown::on`].
    pub fn on_stop<F>(
        &self,
        step: Step,
        name: impl Into<String>,
        work: impl FnOnce() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        self.shutdown.on(step, name, work);
    }

    /// Runs until `stop` completes or a task is lost, then shuts down in order.
    ///
    /// All checks must be registered by now: from here on they count.
    ///
    /// # Errors
    /// The first task that was lost, before or during the shutdown, which runs to its end anyway.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<ShutdownReport, ServiceError> {
        self.readiness.started();
        let lost = tokio::select! {
            () = stop => None,
            error = self.tasks.lost() => Some(error),
        };
        let report = self.shutdown.execute(&self.name, &self.tasks, &self.readiness).await;
        match lost.or_else(|| self.tasks.take_lost()) {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }
}

/// Runs several services in one process until `stop`. When one of them loses a task, all stop: a
/// process that is half alive hides the half that is dead.
///
/// # Errors
/// The first task that was lost, after all services have shut down.
pub async fn run_all(
    services: Vec<Service>,
    stop: impl Future<Output = ()>,
) -> Result<Vec<ShutdownReport>, ServiceError> {
    let stop_all = CancellationToken::new();
    let mut running: FuturesUnordered<_> =
        services.into_iter().map(|service| service.run(stop_all.cancelled())).collect();
    let (mut reports, mut first_error) = (Vec::new(), None);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop, if !stop_all.is_cancelled() => stop_all.cancel(),
            ended = running.next() => match ended {
                Some(Ok(report)) => reports.push(report),
                Some(Err(error)) => {
                    stop_all.cancel();
                    first_error.get_or_insert(error);
                }
                None => break,
            },
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => Ok(reports),
    }
}

/// Runs `services` until SIGTERM or SIGINT. A second signal ends the process at once, with exit
/// code 130.
///
/// # Errors
/// The first task that was lost, or [`ServiceError::Signals`].
pub async fn run_until_signal(services: Vec<Service>) -> Result<Vec<ShutdownReport>, ServiceError> {
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let running = run_all(services, stop.cancelled());
    tokio::pin!(running);
    loop {
        tokio::select! {
            result = &mut running => return result,
            signal = signals.next() => {
                if stop.is_cancelled() {
                    signal::exit_at_once(signal);
                }
                tracing::info!(signal, "stopping");
                stop.cancel();
            }
        }
    }
}

/// The code for `main` to return: 0 after a shutdown that was asked for, else 1, with the error and
/// its causes in the log.
#[must_use]
pub fn exit_code<T>(result: Result<T, ServiceError>) -> ExitCode {
    match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("failed to {}", observe::chain(&error));
            ExitCode::FAILURE
        }
    }
}
