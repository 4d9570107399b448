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
    /// A probe failed, and the rest may still reach the share that closes the circuit.
    ProbeMissed,
    /// The share of successes that closes the circuit can't be missed any more.
    ProbesPassed,
    /// A probe failed, and the share that closes the circuit can't be reached any more.
    ProbeFailed,
    /// A call ended without a verdict, or nothing is counted; a probe's place is free again.
    Returned,
    /// The half-open time is over and enough of the probes that ended have succeeded.
    AgedPassing,
    /// The half-open time is over and too many of the probes that ended have failed.
    AgedFailing,
    /// The half-open time is over, no probe has ended and some still hang.
    AgedHanging,
    /// A result of an older generation: noted, and nothing else.
    Stale,
    /// Somebody ordered: refuse every call.
    ForcedOpen,
    /// Somebody ordered: let every call pass, and count.
    ForcedClosed,
    /// Somebody ordered: let every call pass, and count nothing.
    Disabled,
    /// Somebody took the order back.
    Automatic,
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
        row(Phase::Closed, Event::ForcedOpen, Phase::Open, "somebody knows better"),
        row(Phase::Closed, Event::ForcedClosed, Phase::Closed, "it stays as it is"),
        row(Phase::Closed, Event::Disabled, Phase::Closed, "it stays as it is"),
        row(Phase::Closed, Event::Automatic, Phase::Closed, "with an empty window"),
        row(Phase::Open, Event::OpenTimeOver, Phase::HalfOpen, "time to try"),
        row(Phase::Open, Event::Stale, Phase::Open, "it was admitted by an older state"),
        row(Phase::Open, Event::ForcedOpen, Phase::Open, "it stays as it is"),
        row(Phase::Open, Event::ForcedClosed, Phase::Closed, "somebody knows better"),
        row(Phase::Open, Event::Disabled, Phase::Closed, "somebody knows better"),
        row(Phase::Open, Event::Automatic, Phase::HalfOpen, "it is tried before all return"),
        row(Phase::HalfOpen, Event::ProbePassed, Phase::HalfOpen, "more successes are needed"),
        row(Phase::HalfOpen, Event::ProbeMissed, Phase::HalfOpen, "enough may still succeed"),
        row(Phase::HalfOpen, Event::ProbesPassed, Phase::Closed, "the dependency is well"),
        row(Phase::HalfOpen, Event::ProbeFailed, Phase::Open, "the dependency is still sick"),
        row(Phase::HalfOpen, Event::Returned, Phase::HalfOpen, "the place is free again"),
        row(Phase::HalfOpen, Event::AgedPassing, Phase::Closed, "too little traffic for more"),
        row(Phase::HalfOpen, Event::AgedFailing, Phase::Open, "too little traffic for more"),
        row(Phase::HalfOpen, Event::AgedHanging, Phase::Open, "no answer is an answer"),
        row(Phase::HalfOpen, Event::Stale, Phase::HalfOpen, "it was admitted by an older state"),
        row(Phase::HalfOpen, Event::ForcedOpen, Phase::Open, "somebody knows better"),
        row(Phase::HalfOpen, Event::ForcedClosed, Phase::Closed, "somebody knows better"),
        row(Phase::HalfOpen, Event::Disabled, Phase::Closed, "somebody knows better"),
    ],
};
