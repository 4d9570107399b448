//! Why a service ended other than by being asked to.

use std::error::Error;

/// What can end, or keep from starting, a service.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A task panicked; whatever it held is in an unknown state.
    #[error("keep task {task:?} running: it panicked: {message}")]
    TaskPanicked {
        /// The task's name.
        task: String,
        /// What the panic said.
        message: String,
    },
    /// An essential task ended by itself, without an error.
    #[error("keep essential task {task:?} running: it ended before it was asked to")]
    TaskEnded {
        /// The task's name.
        task: String,
    },
    /// An essential task failed.
    #[error("keep essential task {task:?} running")]
    TaskFailed {
        /// The task's name.
        task: String,
        /// Its error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The operating system gave no signal handler.
    #[error("listen to signals")]
    Signals(#[source] std::io::Error),
    /// The log filter is no filter.
    #[error("read the log filter {filter:?}")]
    LogFilter {
        /// The filter as it was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The recorder of metrics could not be installed.
    #[error("install the recorder of metrics")]
    Metrics(#[source] metrics_exporter_prometheus::BuildError),
}
