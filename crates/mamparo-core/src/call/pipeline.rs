//! The order of the policies, as a machine.
//!
//! Outside in: deadline → shed → throttle → rate limit → bulkhead (fixed or adaptive) → retry (with
//! its budget) ⟨ breaker → attempt timeout ⟩, each of several attempts where there are hedges. The breaker
//! is asked before each attempt and told each outcome. Before anything is taken, a look at the breaker
//! keeps callers of an open circuit out of the bulkhead's queue, and those who are in it when the
//! circuit opens are told at once. Retries and hedges draw on one budget.
//!
//! The machine says what to do next ([`Step`]); a host does it and tells what came of it
//! ([`Event`]). It works on the [`Policies`] that all calls of a dependency share, by reference: no
//! host needs a lock for them (ADR 0006).
//!
//! On the way that nearly every call takes (granted, admitted, succeeded) each policy is asked once.
//! [`Pipeline::start`] and [`Pipeline::succeed`] are that way, small enough to be inlined into a
//! host's loop; whatever else can happen is not.

mod ends;
mod guards;
mod hedges;
mod policies;
mod steps;
mod table;

use std::time::Duration;

pub use crate::call::retry::GiveUp;
pub use policies::Policies;
pub use steps::{Event, Misfit, Refusal, Step, Told};
pub use table::{Move, Phase, TABLE};

use crate::call::breaker::Admission;
use crate::call::bulkhead::{Slot, Ticket};
use crate::call::deadline::AttemptLimit;
use crate::call::retry_budget::Withdrawal;
use crate::call::shed::Criticality;
use crate::outcome::{Failure, Repeatable};
use crate::rng::Rng;
use crate::time::Moment;

/// What became of an event off the straight way.
pub type Aside = Result<Told, Misfit>;

#[derive(Debug)]
enum State {
    New,
    Queued { ticket: Ticket },
    Attempting { flight: Flight },
    Waiting { paid: Option<Withdrawal> },
    Finished,
}

/// An attempt under way.
#[derive(Debug)]
struct Flight {
    number: u32,
    started: Moment,
    until: Option<Moment>,
    admission: Option<Admission>,
}

/// One call on its way through the policies.
#[derive(Debug)]
pub struct Pipeline {
    repeatable: Repeatable,
    criticality: Criticality,
    deadline: Option<Moment>,
    /// Attempts begun, hedges included.
    attempts: u32,
    /// Attempts that hedges were sent beside, or could have been: what the retry counts.
    rounds: u32,
    /// Hedges sent beside the present attempt.
    hedges: u32,
    /// The wait before the present attempt.
    waited: Duration,
    failure: Option<Failure>,
    /// What decides about a repetition after the attempts that have failed beside those under way.
    round: Option<Failure>,
    slot: Option<Slot>,
    state: State,
    /// Attempts under way beside the one of [`State::Attempting`].
    beside: Vec<Flight>,
}

impl Pipeline {
    /// A call that has not begun. `deadline` is when the caller stops waiting.
    #[must_use]
    #[inline]
    pub const fn new(repeatable: Repeatable, deadline: Option<Moment>) -> Self {
        Self {
            repeatable,
            criticality: Criticality::Critical,
            deadline,
            attempts: 0,
            rounds: 0,
            hedges: 0,
            waited: Duration::ZERO,
            failure: None,
            round: None,
            slot: None,
            state: State::New,
            beside: Vec::new(),
        }
    }

    /// The same call, with how much it matters where load is shed.
    #[must_use]
    pub const fn with_criticality(mut self, criticality: Criticality) -> Self {
        self.criticality = criticality;
        self
    }

    /// The request can't be made again: no attempt follows those that have begun.
    pub const fn cannot_replay(&mut self) {
        self.repeatable = Repeatable::OneShot;
    }

    /// Attempts that have begun, hedges included.
    #[must_use]
    #[inline]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// What is known of the whole call after the attempts that have failed: the last one's failure,
    /// with what an earlier one left open ([`Failure::after`]). `None` before the first.
    #[must_use]
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// When the whole call must be over; known once it has begun.
    #[must_use]
    pub const fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Is the present attempt a trial call? Its success may change the state, at the time of its end.
    #[must_use]
    #[inline]
    pub const fn is_probe(&self) -> bool {
        match &self.state {
            State::Attempting { flight: Flight { admission: Some(admission), .. } } => {
                admission.is_probe()
            }
            State::New
            | State::Queued { .. }
            | State::Attempting { flight: Flight { admission: None, .. } }
            | State::Waiting { .. }
            | State::Finished => false,
        }
    }

    /// The state's name.
    #[must_use]
    #[inline]
    pub const fn phase(&self) -> Phase {
        match self.state {
            State::New => Phase::New,
            State::Queued { .. } => Phase::Queued,
            State::Attempting { .. } => Phase::Attempting,
            State::Waiting { .. } => Phase::Waiting,
            State::Finished => Phase::Finished,
        }
    }

    /// Takes what happened and says what to do next.
    ///
    /// # Errors
    /// [`Misfit`] when the event does not fit the state; nothing has changed then.
    pub fn tell(
        &mut self,
        now: Moment,
        event: Event,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Aside {
        let told = match (self.phase(), event) {
            (_, Event::Start) => match self.start(now, policies, rng) {
                Ok(AttemptLimit { until }) => {
                    let step = Step::Attempt { number: self.attempts, until, hedge_at: None };
                    Told::new(step, Move::Admit)
                }
                Err(aside) => return aside,
            },
            (_, Event::Succeeded { number }) => match self.succeed(now, number, policies) {
                Ok(()) => Told::new(Step::Done, Move::Finish),
                Err(aside) => return aside,
            },
            (Phase::Queued, Event::SlotGranted) => return self.slot_granted(now, policies),
            (Phase::Queued, Event::QueueTimedOut) => self.left_queue(now, policies),
            (Phase::Queued, Event::CircuitOpened) => self.circuit_opened(now, policies),
            (Phase::Attempting, Event::HedgeDue) => self.hedge_due(now, policies),
            (Phase::Attempting, Event::Failed { number, failure }) if self.has_begun(number) => {
                self.failed(now, number, &failure, policies, rng)
            }
            (Phase::Attempting, Event::TimedOut { number }) if self.has_begun(number) => {
                self.timed_out(now, number, policies, rng)
            }
            (Phase::Attempting, Event::Panicked { number }) if self.has_begun(number) => {
                self.panicked(now, number, policies)
            }
            (Phase::Waiting, Event::WaitOver) => self.again(now, policies),
            (Phase::New | Phase::Queued | Phase::Attempting | Phase::Waiting, Event::Cancelled) => {
                self.cancelled(now, policies)
            }
            // Whatever is not listed above is a bug of the host.
            (_, event) => return Err(self.misfit(event)),
        };
        Ok(told)
    }

    const fn misfit(&self, event: Event) -> Misfit {
        Misfit { phase: self.phase(), event }
    }

    /// Is attempt `number` under way?
    fn has_begun(&self, number: u32) -> bool {
        self.flight(number).is_some()
    }
}
