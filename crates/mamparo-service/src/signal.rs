//! SIGTERM and SIGINT.

use crate::ServiceError;

/// The exit code after a second signal: 128 + SIGINT, as shells expect.
const INTERRUPTED: i32 = 130;

/// Ends the process without waiting for anything: whoever sends a second signal has waited enough,
/// and a runtime whose threads hang could not even be dropped.
pub(crate) fn exit_at_once(signal: &'static str) -> ! {
    tracing::error!(signal, "a second signal: ending without the rest of the shutdown");
    #[expect(clippy::disallowed_methods, reason = "the operator asked for no further waiting")]
    std::process::exit(INTERRUPTED)
}

/// The signals that ask a process to stop. Make it early: until then they kill the process.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    pub fn listen() -> Result<Self, ServiceError> {
        use tokio::signal::unix::{SignalKind, signal};
        let of = |kind| signal(kind).map_err(ServiceError::Signals);
        Ok(Self {
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
        })
    }

    /// Completes with the name of the next signal.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.terminate.recv() => "SIGTERM",
            Some(()) = self.interrupt.recv() => "SIGINT",
            else => std::future::pending().await,
        }
    }
}

#[cfg(not(unix))]
impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// Never on this system: its handler is made when it is awaited.
    pub fn listen() -> Result<Self, ServiceError> {
        Ok(Self {})
    }

    /// Completes with the name of the next signal.
    pub async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(error) => {
                tracing::error!(%error, "cannot listen to Ctrl-C");
                std::future::pending().await
            }
        }
    }
}
