//! From start to stop: one service, or several in one process.

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use mamparo_call::clock;
use mamparo_core::limits::SHUTDOWN_MAX;
use mamparo_core::time::Moment;
use tokio_util::sync::CancellationToken;

use crate::signal::{self, Signals};
use crate::{Readiness, ServiceError, Shutdown, ShutdownReport, Step, Tasks, observe};

/// How long a service waits at most for the one before it to stop.
const TURN_MAX: Duration = Duration::from_secs(1);
/// How long all turns take at most; the rest of the shutdown's time is for the services' own steps.
const TURNS_MAX: Duration = Duration::from_secs(10);

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
/// Give them in the order in which they start, what others call first. They stop the other way
/// round, each when the one after it has ended or has had its turn (at most 1 s), so that a request
/// which was accepted finds everybody whom it needs. All together take at most 30 s.
///
/// # Errors
/// The first task that was lost, after all services have shut down.
pub async fn run_all(
    services: Vec<Service>,
    stop: impl Future<Output = ()>,
) -> Result<Vec<ShutdownReport>, ServiceError> {
    let others = u32::try_from(services.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let turn = TURN_MAX.min(TURNS_MAX / others.max(1));
    let (mut waiting, mut running) = (Vec::new(), FuturesUnordered::new());
    for service in services {
        service.shutdown.shorten(SHUTDOWN_MAX.saturating_sub(turn.saturating_mul(others)));
        let asked = CancellationToken::new();
        waiting.push(asked.clone());
        running.push(service.run(asked.cancelled_owned()));
    }
    let (mut reports, mut first_error, mut stopping) = (Vec::new(), None, false);
    let mut next_turn: Option<Moment> = None;
    tokio::pin!(stop);
    loop {
        let turn_over = async {
            match next_turn {
                Some(at) => clock::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut stop, if !stopping => stopping = true,
            () = turn_over => {}
            ended = running.next() => match ended {
                Some(Ok(report)) => reports.push(report),
                Some(Err(error)) => {
                    first_error.get_or_insert(error);
                    stopping = true;
                }
                None => break,
            },
        }
        if stopping {
            next_turn = waiting.pop().map(|next: CancellationToken| {
                next.cancel();
                clock::now().plus(turn)
            });
        }
    }
    match first_error {
        Some(error) => Err(error),
        None => Ok(reports),
    }
}

/// Runs `services` until SIGTERM or SIGINT, as [`run_all`] does. A second signal ends the process at once, with exit
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
