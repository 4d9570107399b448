//! Logs on stderr, and the recorder of metrics behind `/metrics`.

use std::io::IsTerminal as _;
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

/// A metric, as `/metrics` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind it is.
    pub kind: MetricKind,
    /// What it counts or shows.
    pub help: &'static str,
}

/// What kind a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Times in seconds, in buckets.
    Histogram,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help }
}

const fn histogram(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Histogram, help }
}

/// Every metric that mamparo's crates write; a test compares this list with their `observe.rs`.
pub static METRICS: &[Metric] = &[
    gauge("circuit_breaker_state", "0 closed, 1 half-open, 2 open"),
    counter("mamparo_breaker_openings_total", "Times that a circuit opened"),
    counter("mamparo_attempts_total", "Attempts by outcome"),
    counter("mamparo_retries_total", "Attempts after the first"),
    counter("mamparo_hedges_total", "Attempts sent beside one that took long"),
    counter(
        "mamparo_hedges_denied_total",
        "Attempts beside a slow one that were not sent, by reason",
    ),
    counter("mamparo_retry_budget_spent_total", "Retries that the budget did not allow"),
    gauge("mamparo_detached_running", "Attempts that go on without a caller"),
    counter("mamparo_detached_total", "Attempts that went on without a caller, by outcome"),
    gauge("mamparo_concurrency_limit", "Most calls in flight, where the limit is adaptive"),
    counter("mamparo_refusals_total", "Calls refused before anything was sent, by reason"),
    counter("mamparo_transaction_retries_total", "Database transactions repeated in process"),
    counter("mamparo_cache_requests_total", "Requests for remembered answers, by outcome"),
    counter("mamparo_cache_refreshes_total", "Renewals of remembered answers, by outcome"),
    counter("mamparo_fallbacks_total", "Lesser answers that stood in for a call, by reason"),
    counter(
        "mamparo_faults_injected_total",
        "Faults injected on purpose, by kind; 0 in production",
    ),
    counter("mamparo_attempts_after_deadline_total", "Sent after the deadline; must stay 0"),
    counter("mamparo_http_client_requests_total", "Requests to dependencies by outcome"),
    histogram("mamparo_http_client_request_duration_seconds", "Time of requests to dependencies"),
    counter("mamparo_http_server_requests_total", "Requests answered"),
    histogram("mamparo_http_server_request_duration_seconds", "Time of requests answered"),
    counter("mamparo_http_server_refusals_total", "Requests refused at the edge, by reason"),
    counter("mamparo_http_server_shed_total", "Requests refused under load, by criticality"),
    gauge("mamparo_http_server_levels_refused", "Levels of criticality refused under load, 0 to 5"),
    counter("mamparo_http_server_panics_total", "Handlers that panicked"),
    counter("mamparo_idempotency_total", "Requests with an idempotency key, by outcome"),
    counter("mamparo_messages_total", "Deliveries by queue and outcome"),
    gauge("mamparo_queue_depth", "Messages in a queue"),
    counter(
        "mamparo_retries_returned_total",
        "Messages that came back from the broker's waiting room",
    ),
    gauge("mamparo_retry_late_seconds", "How late the last of them came; 0 in time"),
    gauge("mamparo_consumer_phase", "0 flowing, 1 probing, 2 paused"),
    gauge("mamparo_consumer_subscribed", "1 when the consumer is subscribed"),
    counter("mamparo_consumer_reconnects_total", "Times that a consumer lost broker or store"),
    gauge("mamparo_consumer_last_delivery_seconds", "Since a consumer last took a message"),
    gauge("mamparo_consumer_last_settlement_seconds", "Since a message last came to an end"),
    gauge("mamparo_consumer_room", "1 for the waiting room that a consumer uses"),
    gauge("mamparo_parked_messages", "Messages that wait, by rows of the service's database"),
    gauge("mamparo_parked_oldest_seconds", "Age of the oldest of them"),
    gauge("mamparo_publisher_connected", "1 while the publisher has its channel to the broker"),
    gauge("mamparo_publisher_blocked", "1 while the broker takes no publishes"),
    counter("mamparo_publisher_losses_total", "Times that the publisher lost the broker"),
    counter("mamparo_relay_messages_total", "Events published, by outcome"),
    counter("mamparo_relay_failures_total", "Times that the relay's store failed"),
    gauge("mamparo_outbox_pending", "Events that are committed and not yet published"),
    gauge("mamparo_outbox_parked", "Events that wait after a failed publish, or behind one"),
    gauge("mamparo_outbox_parked_keys", "Events that wait after a failed publish"),
    gauge("mamparo_outbox_oldest_seconds", "Age of the oldest event that is not yet published"),
    gauge("mamparo_outbox_lag_seconds", "The same in each shard"),
    gauge("mamparo_outbox_oldest_snapshot_seconds", "Age of the oldest database transaction"),
    gauge("mamparo_relay_shards", "Shards of 16 that this relay holds"),
    gauge("mamparo_relay_listening", "1 while commits of other processes are heard"),
    counter(
        "mamparo_dlq_operations_total",
        "Failed messages that people replayed, edited, discarded or brought back",
    ),
    gauge("mamparo_failed_messages", "Failed messages that wait for a person"),
    gauge("mamparo_failed_oldest_seconds", "Age of the oldest failed message"),
    gauge("mamparo_failed_groups", "Different failures among the failed messages, up to 100"),
    counter("mamparo_swept_total", "Dead letters that came from the broker to the store"),
    gauge("mamparo_sweeper_left", "Dead letters that the broker still holds"),
    counter("mamparo_forgotten_total", "Rows that had served, deleted by housekeeping"),
    counter("mamparo_housekeeping_failures_total", "Batches of housekeeping that failed"),
    gauge("mamparo_ready", "1 when the service is ready"),
    histogram("mamparo_shutdown_step_seconds", "Time of each step of the shutdown"),
    counter("mamparo_tasks_lost_total", "Tasks that panicked or ended unasked"),
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
    // Colours are for eyes: in a file or a pipe they are noise.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
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
    for &Metric { name, kind, help } in METRICS {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, help),
            MetricKind::Gauge => metrics::describe_gauge!(name, help),
            MetricKind::Histogram => {
                metrics::describe_histogram!(name, metrics::Unit::Seconds, help);
            }
        }
    }
    metrics::describe_gauge!("mamparo_build_info", "1, with the version as label");
    metrics::gauge!("mamparo_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}
