//! The states of a breaker and what moves it from one to the next.

use crate::table::{Row, Table};

/// The name of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Calls pass.
    Closed,
    /// A few trial calls pass.
    HalfOpen,
    /// No call passes.
    Open,
}

impl Phase {
    /// The value of the gauge `circuit_breaker_state`: 0 closed, 1 half-open, 2 open.
    #[must_use]
    pub const fn gauge(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::HalfOpen => 1,
            Self::Open => 2,
        }
    }

    /// The name in logs: `closed`, `half-open`, `open`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// What happened to the breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A verdict came in and the threshold is not reached.
    Counted,
    /// A verdict came in and reached the threshold.
    Tripped,
    /// The open time is over and somebody asked.
    OpenTimeOver,
    /// A probe succeeded, and more are needed.
    ProbePassed,
    /// The last probe that was needed succeeded.
    ProbesPassed,
    /// A probe failed.
    ProbeFailed,
    /// A call ended without a verdict; a probe's place is free again.
    Returned,
    /// The half-open time is over with at least one success.
    AgedPassing,
    /// The half-open time is over, no probe has succeeded and some still hang.
    AgedHanging,
    /// A result of an older generation: noted, and nothing else.
    Stale,
}

const fn row(from: Phase, on: Event, to: Phase, why: &'static str) -> Row<Phase, Event> {
    Row { from, on, to, why }
}

/// Which state follows which event.
pub const TABLE: Table<Phase, Event> = Table {
    name: "breaker",
    rows: &[
        row(Phase::Closed, Event::Counted, Phase::Closed, "the threshold is not reached"),
        row(Phase::Closed, Event::Tripped, Phase::Open, "the dependency is sick"),
        row(Phase::Closed, Event::Returned, Phase::Closed, "no verdict, no count"),
        row(Phase::Closed, Event::Stale, Phase::Closed, "it was admitted by an older state"),
        row(Phase::Open, Event::OpenTimeOver, Phase::HalfOpen, "time to try"),
        row(Phase::Open, Event::Stale, Phase::Open, "it was admitted by an older state"),
        row(Phase::HalfOpen, Event::ProbePassed, Phase::HalfOpen, "more successes are needed"),
        row(Phase::HalfOpen, Event::ProbesPassed, Phase::Closed, "the dependency is well"),
        row(Phase::HalfOpen, Event::ProbeFailed, Phase::Open, "the dependency is still sick"),
        row(Phase::HalfOpen, Event::Returned, Phase::HalfOpen, "the place is free again"),
        row(Phase::HalfOpen, Event::AgedPassing, Phase::Closed, "too little traffic for more"),
        row(Phase::HalfOpen, Event::AgedHanging, Phase::Open, "no answer is an answer"),
        row(Phase::HalfOpen, Event::Stale, Phase::HalfOpen, "it was admitted by an older state"),
    ],
};
