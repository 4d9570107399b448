//! What the life of a process leaves behind: log lines and metrics, from what the machines said.

use mamparo_core::process::lifecycle::{Change, Stage};
use mamparo_core::process::shutdown::Ending;

use crate::{ServiceError, StepReport};

/// The process went from one stage to another.
pub(crate) fn stage(service: &str, change: &Change) {
    let ready = if change.to == Stage::Ready { 1.0 } else { 0.0 };
    metrics::gauge!("mamparo_ready", "service" => service.to_owned()).set(ready);
    let (from, to, why) = (change.from, change.to, change.why);
    match (from, to) {
        // Every start passes through here; it is news when it stays.
        (Stage::Starting, Stage::NotReady) => {
            tracing::info!(service, ?from, ?to, why, "not ready yet");
        }
        (_, Stage::NotReady) => tracing::warn!(service, ?from, ?to, why, "not ready"),
        (_, Stage::Starting | Stage::Ready | Stage::Draining | Stage::Stopped) => {
            tracing::info!(service, ?from, ?to, why, "stage changed");
        }
    }
}

/// A check went down, with its reason, or came back.
pub(crate) fn check(service: &str, check: &str, down: Option<&str>) {
    match down {
        Some(reason) => tracing::warn!(service, check, reason, "check is down"),
        None => tracing::info!(service, check, "check is up"),
    }
}

/// A step of the shutdown is over.
pub(crate) fn step(service: &str, report: &StepReport) {
    let (step, took) = (report.record.step.as_str(), report.record.took);
    metrics::histogram!(
        "mamparo_shutdown_step_seconds", "service" => service.to_owned(), "step" => step
    )
    .record(took.as_secs_f64());
    let took_ms = took.as_millis();
    match report.record.ending {
        Ending::Done => tracing::info!(service, step, took_ms, "shutdown step done"),
        Ending::Cut => {
            let unfinished = report.unfinished.join(", ");
            tracing::error!(service, step, took_ms, unfinished, "shutdown step cut");
        }
    }
}

/// A part of a shutdown step panicked; the other parts go on.
pub(crate) fn hook_panicked(service: &str, hook: &str, message: &str) {
    tracing::error!(service, hook, message, "part of the shutdown panicked");
}

/// A task is lost, and with it the process.
pub(crate) fn lost(service: &str, error: &ServiceError) {
    metrics::counter!("mamparo_tasks_lost_total", "service" => service.to_owned()).increment(1);
    tracing::error!(service, error = chain(error), "task lost: the process ends");
}

/// A task that may end failed, or an essential one failed after it was asked to stop.
pub(crate) fn task_failed(service: &str, task: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::error!(service, task, error = chain(error), "task failed");
}

/// An error with all its causes, each printed once.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
