//! Logs on stderr, and the recorder of metrics behind `/metrics`.

use std::sync::Mutex;
use std::time::Duration;

use mamparo_call::clock;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::tasks::lock;
use crate::{Environment, LogFormat, ServiceError};

/// Upper ends of the histograms' buckets, in seconds: from a cache hit to a shutdown.
const BUCKETS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// How often samples of histograms are folded, which bounds their memory between two scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The metrics of every process, with their help texts; `_total` are counters, `_seconds`
/// histograms, the rest gauges.
const METRICS: [(&str, &str); 14] = [
    ("circuit_breaker_state", "0 closed, 1 half-open, 2 open"),
    ("mamparo_attempts_total", "Attempts by outcome"),
    ("mamparo_retries_total", "Attempts after the first"),
    ("mamparo_refusals_total", "Calls refused before anything was sent, by reason"),
    ("mamparo_attempts_after_deadline_total", "Attempts sent after the deadline; must stay 0"),
    ("mamparo_http_client_requests_total", "Requests to dependencies by outcome"),
    ("mamparo_http_client_request_seconds", "Time that requests to dependencies took"),
    ("mamparo_messages_total", "Deliveries by queue and outcome"),
    ("mamparo_queue_depth", "Messages in a queue"),
    ("mamparo_outbox_pending", "Events that are committed and not yet published"),
    ("mamparo_ready", "1 when the service is ready"),
    ("mamparo_shutdown_step_seconds", "Time that each step of the shutdown took"),
    ("mamparo_tasks_lost_total", "Tasks that panicked or ended unasked; each ends the process"),
    ("mamparo_build_info", "1, with the version as label"),
];

/// What answers `/metrics`. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    metrics: PrometheusHandle,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// Starts logs and metrics of this process. Later calls answer the first call's telemetry, so that
/// several services in one process share it.
///
/// # Errors
/// [`ServiceError::LogFilter`] and [`ServiceError::Metrics`].
pub fn install(environment: &Environment) -> Result<Telemetry, ServiceError> {
    static INSTALLED: Mutex<Option<Telemetry>> = Mutex::new(None);
    let mut installed = lock(&INSTALLED);
    if let Some(telemetry) = &*installed {
        return Ok(telemetry.clone());
    }
    start_logs(environment)?;
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(ServiceError::Metrics)?;
    describe();
    let telemetry = Telemetry { metrics };
    *installed = Some(telemetry.clone());
    Ok(telemetry)
}

impl Telemetry {
    /// All metrics in Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.metrics.render()
    }

    /// Folds samples every 5 s until `stop`; a worker task of one service of the process.
    pub async fn keep(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = clock::sleep_until(clock::now().plus(UPKEEP_EVERY)) => {}
            }
            self.metrics.run_upkeep();
        }
    }
}

fn start_logs(environment: &Environment) -> Result<(), ServiceError> {
    let filter = EnvFilter::try_new(&environment.log)
        .map_err(|source| ServiceError::LogFilter { filter: environment.log.clone(), source })?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match environment.log_format {
        LogFormat::Pretty => logs.try_init(),
        LogFormat::Json => logs.json().try_init(),
    };
    if let Err(error) = started {
        // The application has set up its own logs; they are as good as ours.
        tracing::debug!(%error, "logs were set up already");
    }
    Ok(())
}

fn describe() {
    for (name, help) in METRICS {
        if name.ends_with("_total") {
            metrics::describe_counter!(name, help);
        } else if name.ends_with("_seconds") {
            metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
        } else {
            metrics::describe_gauge!(name, help);
        }
    }
    metrics::gauge!("mamparo_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}
