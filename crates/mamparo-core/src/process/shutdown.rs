//! In which order a process stops, and how long each step may take.
//!
//! The order is data: first nothing new comes in, then what is in hand is finished, then what the
//! work stood on is closed. Each step has a share of the whole that no other step can take: a step
//! that overruns is cut, a step that ends early leaves its rest to the later ones.

use std::fmt;
use std::time::Duration;

use crate::time::Moment;

/// A step of the shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Listeners close; connections that exist stay.
    StopAccepting,
    /// `/health/ready` turns 503, so that nobody sends more.
    ReadyOff,
    /// Requests in flight get their answers.
    FinishRequests,
    /// Consumers take no more messages.
    CancelConsumers,
    /// Received messages are finished, or given back.
    SettleMessages,
    /// Relay, watchdog and jobs end.
    StopWorkers,
    /// Database pools close.
    ClosePools,
    /// Logs, traces and metrics leave.
    FlushTelemetry,
}

impl Step {
    /// The step in words, for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StopAccepting => "stop accepting",
            Self::ReadyOff => "ready off",
            Self::FinishRequests => "finish requests",
            Self::CancelConsumers => "cancel consumers",
            Self::SettleMessages => "settle messages",
            Self::StopWorkers => "stop workers",
            Self::ClosePools => "close pools",
            Self::FlushTelemetry => "flush telemetry",
        }
    }
}

/// A step and what is kept for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The step.
    pub step: Step,
    /// Its parts of the whole; all parts together are 30, so of 30 s each is a second.
    pub parts: u32,
    /// Why it takes this long.
    pub why: &'static str,
}

const fn share(step: Step, parts: u32, why: &'static str) -> Share {
    Share { step, parts, why }
}

/// All parts together.
const PARTS: u32 = 30;

/// The steps, first to last.
pub static ORDER: [Share; 8] = [
    share(Step::StopAccepting, 1, "closing a listener takes no time"),
    share(Step::ReadyOff, 1, "a flag turns"),
    share(Step::FinishRequests, 10, "a request may take its whole budget, twice over"),
    share(Step::CancelConsumers, 2, "one round trip to the broker"),
    share(Step::SettleMessages, 8, "a handler ends, or its message goes back"),
    share(Step::StopWorkers, 3, "one cycle of at most a batch, in one transaction"),
    share(Step::ClosePools, 3, "connections end their statements"),
    share(Step::FlushTelemetry, 2, "one export"),
];

/// What the present step may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allotment {
    /// The step to carry out.
    pub step: Step,
    /// How long it may take before it is cut.
    pub may_use: Duration,
}

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The step.
    pub step: Step,
    /// How long it took.
    pub took: Duration,
    /// Whether it ended by itself, or was cut.
    pub ending: Ending,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything in it was done.
    Done,
    /// Its time was over before everything was done.
    Cut,
}

/// A step was reported that isn't the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The step that was reported.
    pub told: Step,
    /// The present step; `None` when all are over.
    pub present: Option<Step>,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = self.present.map_or("over", Step::as_str);
        write!(f, "step {:?} was reported while the shutdown is at {present:?}", self.told.as_str())
    }
}

impl std::error::Error for OutOfOrder {}

/// A shutdown that goes on.
#[derive(Debug, Clone)]
pub struct Shutdown {
    state: State,
    total: Duration,
    end: Moment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The step with this number in [`ORDER`] runs.
    At { index: usize, began: Moment },
    /// All steps are over.
    Over,
}

impl Shutdown {
    /// A shutdown that begins at `now` and may take `total` (default
    /// [`SHUTDOWN_MAX`](crate::limits::SHUTDOWN_MAX), 30 s).
    #[must_use]
    pub fn new(now: Moment, total: Duration) -> Self {
        Self { state: State::At { index: 0, began: now }, total, end: now.plus(total) }
    }

    /// Which step is to be carried out, and how long may it take from `now`? `None` at the end.
    ///
    /// It may use all that is left but what is kept for the steps after it. When time got lost (a
    /// step could not be cut when it should have been), the steps share the rest in proportion.
    #[must_use]
    pub fn ask(&self, now: Moment) -> Option<Allotment> {
        let State::At { index, began } = self.state else { return None };
        let share = ORDER.get(index)?;
        let later: u32 = ORDER[index + 1..].iter().map(|share| share.parts).sum();
        let left = began.until(self.end);
        let kept = self.total.saturating_mul(later) / PARTS;
        let fair = left.saturating_mul(share.parts) / (share.parts + later).max(1);
        let whole_step = left.saturating_sub(kept).max(fair);
        Some(Allotment { step: share.step, may_use: whole_step.saturating_sub(now.since(began)) })
    }

    /// Step `step` ended at `now`; answers with its record for the log.
    ///
    /// # Errors
    /// [`OutOfOrder`] when `step` isn't the present one; nothing changes then.
    pub fn tell(&mut self, now: Moment, step: Step, ending: Ending) -> Result<Record, OutOfOrder> {
        let (index, began) = match self.state {
            State::At { index, began } if ORDER[index].step == step => (index, began),
            State::At { index, .. } => {
                return Err(OutOfOrder { told: step, present: Some(ORDER[index].step) });
            }
            State::Over => return Err(OutOfOrder { told: step, present: None }),
        };
        self.state = if index + 1 < ORDER.len() {
            State::At { index: index + 1, began: now }
        } else {
            State::Over
        };
        Ok(Record { step, took: now.since(began), ending })
    }
}
