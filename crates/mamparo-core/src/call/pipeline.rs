//! The order of the policies, as a machine.

use std::time::Duration;

/// Which guard refused, before anything was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The caller's deadline has passed, or what is left is too little for an attempt.
    DeadlineExceeded,
    /// Too many calls in the period.
    RateLimited,
    /// All slots are taken and the queue, if any, is full.
    BulkheadFull,
    /// The circuit is open, or all probe places of the half-open circuit are taken.
    CircuitOpen,
    /// Shed to keep more important work alive.
    Shed,
}

impl Refusal {
    /// The stable code in logs, metrics, problem documents and docs.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::RateLimited => "rate-limited",
            Self::BulkheadFull => "bulkhead-full",
            Self::CircuitOpen => "circuit-open",
            Self::Shed => "shed",
        }
    }
}

/// Why no further attempt was made after a failed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GiveUp {
    /// The failure is permanent.
    Permanent,
    /// It may have run, and doing it twice is not safe.
    MayHaveRun,
    /// All attempts are spent.
    AttemptsSpent,
    /// What is left of the deadline is less than the wait.
    DeadlineTooNear,
    /// The circuit opened in between.
    CircuitOpen,
}

/// What an attempt may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptBudget {
    /// The attempt's number, counted from one.
    pub number: u32,
    /// How long it may take; `None` without any limit.
    pub timeout: Option<Duration>,
}
