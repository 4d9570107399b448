//! The order of the policies, as a machine.
//!
//! Outside in: deadline → rate limit → bulkhead → retry ⟨ breaker → attempt timeout ⟩. The breaker
//! is asked before each attempt and told each outcome. Before anything is taken, a look at the breaker
//! keeps callers of an open circuit out of the bulkhead's queue, and those who are in it when the
//! circuit opens are told at once.
//!
//! The machine says what to do next ([`Step`]); a host does it and tells what came of it
//! ([`Event`]). It works on the [`Policies`] that all calls of a dependency share, which the host
//! lends it for the time of one event, so any lock (or none) will do.

mod steps;
mod table;

use std::time::Duration;

pub use crate::call::retry::GiveUp;
pub use steps::{AttemptBudget, Event, Misfit, Refusal, Step, Told};
pub use table::{Move, Phase, TABLE};

use crate::call::breaker::{self, Admission, Breaker};
use crate::call::bulkhead::{Bulkhead, Entry, Slot, Ticket};
use crate::call::deadline::{self, AttemptLimit};
use crate::call::plan::Plan;
use crate::call::rate_limit::{self, RateLimit};
use crate::call::retry::{Decision, Retry};
use crate::limits::{ATTEMPT_MIN_USABLE, BULKHEAD_WAIT_MAX};
use crate::outcome::{Failure, Health, Repeatable};
use crate::rng::Rng;
use crate::time::Moment;

/// What all calls of a dependency share.
#[derive(Debug)]
pub struct Policies {
    /// Asked before each attempt.
    pub breaker: Option<Breaker>,
    /// A slot is held for the whole call, waits included.
    pub bulkhead: Option<Bulkhead>,
    /// Asked once a call.
    pub rate_limit: Option<RateLimit>,
}

impl Policies {
    /// Fresh policies for `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            breaker: plan.breaker.map(Breaker::new),
            bulkhead: plan.bulkhead.map(Bulkhead::new),
            rate_limit: plan.rate_limit.map(RateLimit::new),
        }
    }

    /// Does a success have to be told with the time of its end? If not, and it is no probe
    /// ([`Pipeline::is_probe`]), the time of its start will do, and the host saves a clock reading.
    #[must_use]
    pub fn success_needs_now(&self) -> bool {
        self.breaker.as_ref().is_some_and(Breaker::success_needs_now)
    }
}

#[derive(Debug)]
enum State {
    New,
    Queued { ticket: Ticket },
    Attempting { admission: Option<Admission>, limit: AttemptLimit },
    Waiting,
    Finished,
}

/// One call on its way through the policies.
#[derive(Debug)]
pub struct Pipeline {
    retry: Retry,
    attempt_timeout: Option<Duration>,
    budget: Option<Duration>,
    repeatable: Repeatable,
    deadline: Option<Moment>,
    attempts: u32,
    failure: Option<Failure>,
    slot: Option<Slot>,
    state: State,
}

impl Pipeline {
    /// A call that has not begun. `deadline` is when the caller stops waiting.
    #[must_use]
    pub const fn new(plan: &Plan, repeatable: Repeatable, deadline: Option<Moment>) -> Self {
        Self {
            retry: plan.retry,
            attempt_timeout: plan.attempt_timeout,
            budget: plan.budget,
            repeatable,
            deadline,
            attempts: 0,
            failure: None,
            slot: None,
            state: State::New,
        }
    }

    /// Attempts that have begun.
    #[must_use]
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
    pub const fn is_probe(&self) -> bool {
        match &self.state {
            State::Attempting { admission: Some(admission), .. } => admission.is_probe(),
            State::New
            | State::Queued { .. }
            | State::Attempting { admission: None, .. }
            | State::Waiting
            | State::Finished => false,
        }
    }

    /// The state's name.
    #[must_use]
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
    pub fn tell(
        &mut self,
        now: Moment,
        event: Event,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Result<Told, Misfit> {
        let phase = self.phase();
        let told = match (std::mem::replace(&mut self.state, State::Finished), event) {
            (State::New, Event::Start) => self.start(now, policies),
            (State::Queued { ticket }, Event::SlotGranted) => {
                self.slot = policies.bulkhead.as_ref().and_then(|b| b.claim(now, ticket));
                if self.slot.is_none() {
                    self.state = State::Queued { ticket };
                    return Err(Misfit { phase, event });
                }
                self.admit(now, policies)
            }
            (State::Queued { ticket }, Event::QueueTimedOut) => {
                let wake = leave(now, ticket, policies);
                let reason = if deadline::too_near(now, self.deadline) {
                    Refusal::DeadlineExceeded
                } else {
                    Refusal::BulkheadFull
                };
                Told { wake, ..self.refuse(now, reason, None, policies) }
            }
            (State::Queued { ticket }, Event::CircuitOpened) => {
                let wake = leave(now, ticket, policies);
                let after = policies.breaker.as_ref().and_then(|b| b.refuses(now));
                Told { wake, ..self.refuse(now, Refusal::CircuitOpen, after, policies) }
            }
            (State::Attempting { admission, .. }, Event::Succeeded) => {
                let change = tell_breaker(now, admission, Health::Good, policies);
                let wake = self.release(now, policies);
                Told { step: Step::Done, moved: Move::Finish, change, wake }
            }
            (State::Attempting { admission, .. }, Event::Failed(failure)) => {
                self.failed(now, admission, &failure, policies, rng)
            }
            (State::Attempting { admission, limit }, Event::TimedOut) => {
                let verdict = deadline::is_verdict(limit.timeout, self.attempt_timeout);
                let health = if verdict { Health::Bad } else { Health::Silent };
                let failure = Failure { health, ..Failure::UNKNOWN };
                self.failed(now, admission, &failure, policies, rng)
            }
            (State::Attempting { admission, .. }, Event::Panicked) => {
                let change = tell_breaker(now, admission, Health::Bad, policies);
                let wake = self.release(now, policies);
                Told { step: Step::Released, moved: Move::Panic, change, wake }
            }
            (State::Waiting, Event::WaitOver) => self.admit(now, policies),
            (State::New | State::Waiting, Event::Cancelled) => self.cancelled(now, None, policies),
            (State::Queued { ticket }, Event::Cancelled) => {
                let wake = leave(now, ticket, policies);
                Told { wake, ..self.cancelled(now, None, policies) }
            }
            (State::Attempting { admission, .. }, Event::Cancelled) => {
                let change = tell_breaker(now, admission, Health::Silent, policies);
                self.cancelled(now, change, policies)
            }
            // Whatever is not listed above is a bug of the host, a slot that was never granted included.
            (state, event) => {
                self.state = state;
                return Err(Misfit { phase, event });
            }
        };
        Ok(told)
    }

    fn start(&mut self, now: Moment, policies: &mut Policies) -> Told {
        if let Some(budget) = self.budget {
            let own = now.plus(budget);
            self.deadline = Some(self.deadline.map_or(own, |deadline| deadline.min(own)));
        }
        if deadline::too_near(now, self.deadline) {
            return self.refuse(now, Refusal::DeadlineExceeded, None, policies);
        }
        if let Some(breaker::Look { refused: Some(after), change }) =
            policies.breaker.as_mut().map(|breaker| breaker.look(now))
        {
            return Told {
                change,
                ..self.refuse(now, Refusal::CircuitOpen, Some(after), policies)
            };
        }
        if let Some(limit) = &policies.rate_limit
            && let rate_limit::Answer::NotUntil { retry_after } = limit.ask(now)
        {
            return self.refuse(now, Refusal::RateLimited, Some(retry_after), policies);
        }
        // Whoever gets a slot in the last milliseconds can't use it.
        let until = self.deadline.map_or_else(
            || now.plus(BULKHEAD_WAIT_MAX),
            |deadline| deadline.minus(ATTEMPT_MIN_USABLE),
        );
        match policies.bulkhead.as_ref().map(|bulkhead| bulkhead.ask(now, until)) {
            None => self.admit(now, policies),
            Some(Entry::Granted(slot)) => {
                self.slot = Some(slot);
                self.admit(now, policies)
            }
            Some(Entry::Queued { ticket, shed }) => {
                self.state = State::Queued { ticket };
                let step = Step::Queue { ticket, until };
                Told { step, moved: Move::Enqueue, change: None, wake: shed }
            }
            Some(Entry::Full { retry_after }) => {
                self.refuse(now, Refusal::BulkheadFull, retry_after, policies)
            }
            Some(Entry::TooLate { retry_after }) => {
                self.refuse(now, Refusal::BulkheadFull, Some(retry_after), policies)
            }
        }
    }

    /// The inner guards, before each attempt.
    fn admit(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let Some(limit) = deadline::attempt_limit(now, self.attempt_timeout, self.deadline) else {
            let (refusal, reason) = (Refusal::DeadlineExceeded, GiveUp::DeadlineTooNear);
            return self.no_attempt(now, refusal, reason, None, policies);
        };
        let (admission, change) = match policies.breaker.as_mut().map(|b| b.ask(now)) {
            None => (None, None),
            Some(breaker::Answer { admission: Ok(admission), change }) => (Some(admission), change),
            Some(breaker::Answer { admission: Err(after), change }) => {
                let (refusal, reason) = (Refusal::CircuitOpen, GiveUp::CircuitOpen);
                let told = self.no_attempt(now, refusal, reason, Some(after), policies);
                return Told { change, ..told };
            }
        };
        self.attempts += 1;
        self.state = State::Attempting { admission, limit };
        let budget = AttemptBudget { number: self.attempts, timeout: limit.timeout };
        let step = Step::Attempt { budget, until: limit.until };
        Told { step, moved: Move::Admit, change, wake: None }
    }

    fn failed(
        &mut self,
        now: Moment,
        admission: Option<Admission>,
        failure: &Failure,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Told {
        let change = tell_breaker(now, admission, failure.health, policies);
        self.failure = Some(self.failure.map_or(*failure, |earlier| failure.after(earlier)));
        let left = self.deadline.map(|deadline| now.until(deadline));
        let open = policies.breaker.as_ref().and_then(|b| b.refuses(now));
        let told = match self.retry.ask(self.attempts, failure, self.repeatable, left, rng) {
            Decision::GiveUp(reason) => self.give_up(now, reason, open, policies),
            // No waiting in front of an open circuit.
            Decision::Again { .. } if open.is_some() => {
                self.give_up(now, GiveUp::CircuitOpen, open, policies)
            }
            Decision::Again { after } => {
                self.state = State::Waiting;
                let step = Step::Wait { until: now.plus(after), after };
                Told { step, moved: Move::Retry, change: None, wake: None }
            }
        };
        Told { change, ..told }
    }

    /// An inner guard said no. Before the first attempt that is a refusal; after it, the last failure
    /// is the news, and the guard only the reason why no attempt follows.
    fn no_attempt(
        &mut self,
        now: Moment,
        refusal: Refusal,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        if self.attempts == 0 {
            self.refuse(now, refusal, retry_after, policies)
        } else {
            self.give_up(now, reason, retry_after, policies)
        }
    }

    fn refuse(
        &mut self,
        now: Moment,
        reason: Refusal,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        let wake = self.release(now, policies);
        let step = Step::Reject { reason, retry_after };
        Told { step, moved: Move::Reject, change: None, wake }
    }

    fn give_up(
        &mut self,
        now: Moment,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        let wake = self.release(now, policies);
        let step = Step::GiveUp { reason, retry_after };
        Told { step, moved: Move::GiveUp, change: None, wake }
    }

    fn cancelled(
        &mut self,
        now: Moment,
        change: Option<breaker::Change>,
        policies: &mut Policies,
    ) -> Told {
        let wake = self.release(now, policies);
        Told { step: Step::Released, moved: Move::Cancel, change, wake }
    }

    /// Gives the slot back, if one is held; the answer is the waiter that owns it now.
    fn release(&mut self, now: Moment, policies: &Policies) -> Option<Ticket> {
        let (bulkhead, slot) = policies.bulkhead.as_ref().zip(self.slot.take())?;
        bulkhead.release(now, slot)
    }
}

fn leave(now: Moment, ticket: Ticket, policies: &Policies) -> Option<Ticket> {
    policies.bulkhead.as_ref().and_then(|bulkhead| bulkhead.leave(now, ticket))
}

fn tell_breaker(
    now: Moment,
    admission: Option<Admission>,
    health: Health,
    policies: &mut Policies,
) -> Option<breaker::Change> {
    let (breaker, admission) = policies.breaker.as_mut().zip(admission)?;
    breaker.tell(now, admission, health).change
}
