//! The order of the policies, as a machine.
//!
//! Outside in: deadline → rate limit → bulkhead → retry ⟨ breaker → attempt timeout ⟩. The breaker
//! is asked before each attempt and told each outcome. Before anything is taken, a look at the breaker
//! keeps callers of an open circuit out of the bulkhead's queue, and those who are in it when the
//! circuit opens are told at once.
//!
//! The machine says what to do next ([`Step`]); a host does it and tells what came of it
//! ([`Event`]). It works on the [`Policies`] that all calls of a dependency share, by reference: no
//! host needs a lock for them (ADR 0006).
//!
//! On the way that nearly every call takes (granted, admitted, succeeded) each policy is asked once.
//! That way is written to be inlined into the host's loop; whatever else can happen is not.

mod ends;
mod guards;
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
use crate::outcome::{Failure, Repeatable};
use crate::rng::Rng;
use crate::time::Moment;

#[derive(Debug)]
enum State {
    New,
    Queued { ticket: Ticket },
    Attempting { flight: Flight },
    Waiting,
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
    deadline: Option<Moment>,
    attempts: u32,
    failure: Option<Failure>,
    /// The wait before the present attempt.
    waited: Duration,
    slot: Option<Slot>,
    state: State,
}

impl Pipeline {
    /// A call that has not begun. `deadline` is when the caller stops waiting.
    #[must_use]
    #[inline]
    pub const fn new(repeatable: Repeatable, deadline: Option<Moment>) -> Self {
        Self {
            repeatable,
            deadline,
            attempts: 0,
            failure: None,
            waited: Duration::ZERO,
            slot: None,
            state: State::New,
        }
    }

    /// Attempts that have begun.
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
            | State::Waiting
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
            State::Waiting => Phase::Waiting,
            State::Finished => Phase::Finished,
        }
    }

    /// Takes what happened and says what to do next.
    ///
    /// # Errors
    /// [`Misfit`] when the event does not fit the state; nothing has changed then.
    #[inline]
    pub fn tell(
        &mut self,
        now: Moment,
        event: Event,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Result<Told, Misfit> {
        match (&self.state, event) {
            (State::New, Event::Start) => Ok(self.start(now, policies)),
            (State::Attempting { flight }, Event::Succeeded { number })
                if flight.number == number =>
            {
                Ok(self.succeeded(now, policies))
            }
            (_, event) => self.tell_on(now, event, policies, rng),
        }
    }

    /// The events off the straight way.
    #[inline(never)]
    fn tell_on(
        &mut self,
        now: Moment,
        event: Event,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Result<Told, Misfit> {
        let told = match (&self.state, event) {
            (State::Queued { ticket }, Event::SlotGranted) => {
                match policies.bulkhead.as_ref().and_then(|b| b.claim(now, *ticket)) {
                    Some(slot) => self.slot = Some(slot),
                    // A slot that was never granted.
                    None => return Err(Misfit { phase: self.phase(), event }),
                }
                self.admit(now, policies)
            }
            (State::Queued { ticket }, Event::QueueTimedOut) => {
                self.left_queue(now, *ticket, policies)
            }
            (State::Queued { ticket }, Event::CircuitOpened) => {
                self.circuit_opened(now, *ticket, policies)
            }
            (State::Attempting { flight }, Event::Failed { number, failure })
                if flight.number == number =>
            {
                self.failed(now, &failure, policies, rng)
            }
            (State::Attempting { flight }, Event::TimedOut { number })
                if flight.number == number =>
            {
                self.timed_out(now, policies, rng)
            }
            (State::Attempting { flight }, Event::Panicked { number })
                if flight.number == number =>
            {
                self.panicked(now, policies)
            }
            (State::Waiting, Event::WaitOver) => self.admit(now, policies),
            (
                State::New | State::Queued { .. } | State::Attempting { .. } | State::Waiting,
                Event::Cancelled,
            ) => self.cancelled(now, policies),
            // Whatever is not listed above is a bug of the host.
            (_, event) => return Err(Misfit { phase: self.phase(), event }),
        };
        Ok(told)
    }
}
