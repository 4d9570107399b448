//! A dependency at a glance, for live views and the console.

use std::time::Duration;

use mamparo_core::call::breaker::Phase;
use mamparo_core::call::pipeline::Refusal;

/// What goes on, and what was counted since the start of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The dependency's name.
    pub dependency: String,
    /// The calling service's name.
    pub service: String,
    /// The breaker's state; `None` without a breaker.
    pub breaker: Option<Phase>,
    /// What is left of the open time, when the circuit is open.
    pub reopens_in: Option<Duration>,
    /// Failures that the breaker's window holds.
    pub window_failures: u32,
    /// Calls that are past the queue and not over.
    pub in_flight: u64,
    /// Calls that wait for a slot of the bulkhead.
    pub queued: u64,
    /// Attempts that go on in the background, without a caller.
    pub detached: u64,
    /// Calls begun.
    pub calls: u64,
    /// Calls that gave a value.
    pub succeeded: u64,
    /// Calls that gave up after at least one attempt.
    pub gave_up: u64,
    /// Calls that were dropped or panicked on the way.
    pub abandoned: u64,
    /// Attempts begun: what really reached for the dependency.
    pub attempts: u64,
    /// Attempts after the first, hedges left out.
    pub retries: u64,
    /// Attempts sent beside one that took long.
    pub hedges: u64,
    /// Calls that gave up because the retry budget was spent; they are among `gave_up`.
    pub budget_spent: u64,
    /// Calls refused, by reason, reasons in the order of [`Refusal::ALL`].
    pub refused: [(Refusal, u64); Refusal::ALL.len()],
    /// Times that the circuit opened.
    pub openings: u64,
}

impl Snapshot {
    /// Calls refused for `reason`.
    #[must_use]
    pub fn refused_by(&self, reason: Refusal) -> u64 {
        self.refused.iter().find(|(each, _)| *each == reason).map_or(0, |(_, count)| *count)
    }

    /// Calls refused, whatever the reason.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().map(|(_, count)| count).sum()
    }
}
