//! The order of the policies, as a machine.
//!
//! Outside in: deadline → rate limit → bulkhead → retry ⟨ breaker → attempt timeout ⟩. The breaker
//! is asked before each attempt and told each outcome. Before anything is taken, a look at the breaker
//! keeps callers of an open circuit out of the bulkhead's queue, and those who are in it when the circuit
//! opens are told at once.
//!
//! The machine says what to do next ([`Step`]); a host does it and tells what came of it
//! ([`Event`]). It works on the [`Policies`] that all calls of a dependency share, which the host
//! lends it for the time of one event, so any lock (or none) will do.

use std::fmt;
use std::time::Duration;

use crate::call::breaker::{self, Admission, Breaker};
use crate::call::bulkhead::{Bulkhead, Entry, Ticket};
use crate::call::deadline::{self, AttemptLimit};
use crate::call::plan::Plan;
use crate::call::rate_limit::{self, RateLimit};
use crate::call::retry::{Decision, Retry};
use crate::limits::{ATTEMPT_MIN_USABLE, BULKHEAD_WAIT_MAX};
use crate::outcome::{Failure, Health, Repeatable};
use crate::rng::Rng;
use crate::table::{Row, Table};
use crate::time::Moment;

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
    /// Every reason there is, for tables and counters.
    pub const ALL: [Self; 5] = [
        Self::DeadlineExceeded,
        Self::RateLimited,
        Self::BulkheadFull,
        Self::CircuitOpen,
        Self::Shed,
    ];

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
    /// The failure is permanent, or says of itself that it must not be repeated.
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

/// What all calls of a dependency share.
#[derive(Debug, Clone)]
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

    /// Does a success have to be told with the time of its end? If not, the time of its start will
    /// do, and the host saves a clock reading.
    #[must_use]
    pub fn success_needs_now(&self) -> bool {
        self.breaker.as_ref().is_some_and(Breaker::success_needs_now)
    }
}

/// What the host tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The call begins.
    Start,
    /// The ticket of [`Step::Queue`] owns a slot.
    SlotGranted,
    /// The time of [`Step::Queue`] is over.
    QueueTimedOut,
    /// The circuit opened while the call was in the queue.
    CircuitOpened,
    /// The attempt gave a value.
    Succeeded,
    /// The attempt failed in this way.
    Failed(Failure),
    /// The attempt was cut off at its limit.
    TimedOut,
    /// The attempt panicked.
    Panicked,
    /// The time of [`Step::Wait`] is over.
    WaitOver,
    /// The caller has gone away.
    Cancelled,
}

/// What the host does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Make an attempt; tell how it ended.
    Attempt {
        /// Number and limit.
        budget: AttemptBudget,
        /// When it is to be cut off; `None` without any limit.
        until: Option<Moment>,
    },
    /// Wait, then tell [`Event::WaitOver`].
    Wait {
        /// The moment of the next attempt.
        until: Moment,
        /// The same as a duration.
        after: Duration,
    },
    /// Wait for a slot; tell [`Event::SlotGranted`] or [`Event::QueueTimedOut`], or, as soon as the
    /// circuit opens, [`Event::CircuitOpened`].
    Queue {
        /// The place in the bulkhead's queue.
        ticket: Ticket,
        /// Longest wait.
        until: Moment,
    },
    /// Hand back a refusal: no attempt was made.
    Reject {
        /// Which guard.
        reason: Refusal,
        /// When to come back, as far as the guard knows.
        retry_after: Option<Duration>,
    },
    /// Hand back the last failure.
    GiveUp {
        /// Why no attempt follows.
        reason: GiveUp,
        /// What is left of the open time, when the circuit is the reason.
        retry_after: Option<Duration>,
    },
    /// Hand back the value.
    Done,
    /// Nobody waits for an answer any more; everything taken has been given back.
    Released,
}

/// The name of a state of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing has happened.
    New,
    /// In the bulkhead's queue.
    Queued,
    /// An attempt is being made.
    Attempting,
    /// Between two attempts.
    Waiting,
    /// Over; nothing is held.
    Finished,
}

/// How an event was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// An attempt begins.
    Admit,
    /// Into the queue.
    Enqueue,
    /// A guard refused.
    Reject,
    /// The attempt succeeded.
    Finish,
    /// Another attempt after a wait.
    Retry,
    /// No further attempt.
    GiveUp,
    /// The caller has gone.
    Cancel,
    /// The attempt panicked.
    Panic,
}

const fn row(from: Phase, on: Move, to: Phase, why: &'static str) -> Row<Phase, Move> {
    Row { from, on, to, why }
}

/// Which state follows which decision.
pub const TABLE: Table<Phase, Move> = Table {
    name: "pipeline",
    rows: &[
        row(Phase::New, Move::Admit, Phase::Attempting, "every guard says yes"),
        row(Phase::New, Move::Enqueue, Phase::Queued, "all slots are taken"),
        row(Phase::New, Move::Reject, Phase::Finished, "a guard says no"),
        row(Phase::New, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Queued, Move::Admit, Phase::Attempting, "a slot came free"),
        row(Phase::Queued, Move::Reject, Phase::Finished, "no slot in time, or a guard says no"),
        row(Phase::Queued, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Attempting, Move::Finish, Phase::Finished, "there is a value"),
        row(Phase::Attempting, Move::Retry, Phase::Waiting, "it may work later"),
        row(Phase::Attempting, Move::GiveUp, Phase::Finished, "no attempt may follow"),
        row(Phase::Attempting, Move::Cancel, Phase::Finished, "the caller has gone"),
        row(Phase::Attempting, Move::Panic, Phase::Finished, "a panic is a failure"),
        row(Phase::Waiting, Move::Admit, Phase::Attempting, "the wait is over"),
        row(Phase::Waiting, Move::GiveUp, Phase::Finished, "the circuit or the deadline says no"),
        row(Phase::Waiting, Move::Cancel, Phase::Finished, "the caller has gone"),
    ],
};

/// An event came that does not fit the state: the host has a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misfit {
    /// The state.
    pub phase: Phase,
    /// The event.
    pub event: Event,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {:?} does not fit a call that is {:?}", self.event, self.phase)
    }
}

impl std::error::Error for Misfit {}

/// The answer to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Told {
    /// What to do next.
    pub step: Step,
    /// How it was decided.
    pub moved: Move,
    /// The breaker's change, for hooks and gauges.
    pub change: Option<breaker::Change>,
    /// The waiter that owns a slot now: wake it.
    pub wake: Option<Ticket>,
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
    holds_slot: bool,
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
            holds_slot: false,
            state: State::New,
        }
    }

    /// Attempts that have begun.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When the whole call must be over; known once it has begun.
    #[must_use]
    pub const fn deadline(&self) -> Option<Moment> {
        self.deadline
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
            (State::Queued { ticket }, Event::SlotGranted) if claim(ticket, policies) => {
                self.holds_slot = true;
                self.admit(now, policies)
            }
            (State::Queued { ticket }, Event::QueueTimedOut) => {
                let wake = leave(ticket, policies);
                let reason = if deadline::too_near(now, self.deadline) {
                    Refusal::DeadlineExceeded
                } else {
                    Refusal::BulkheadFull
                };
                Told { wake, ..self.refuse(reason, None, policies) }
            }
            (State::Queued { ticket }, Event::CircuitOpened) => {
                let wake = leave(ticket, policies);
                let after = policies.breaker.as_ref().and_then(|b| b.refuses(now));
                Told { wake, ..self.refuse(Refusal::CircuitOpen, after, policies) }
            }
            (State::Attempting { admission, .. }, Event::Succeeded) => {
                let change = tell_breaker(now, admission, Health::Good, policies);
                let wake = self.release(policies);
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
                let wake = self.release(policies);
                Told { step: Step::Released, moved: Move::Panic, change, wake }
            }
            (State::Waiting, Event::WaitOver) => self.admit(now, policies),
            (State::New | State::Waiting, Event::Cancelled) => self.cancelled(None, policies),
            (State::Queued { ticket }, Event::Cancelled) => {
                let wake = leave(ticket, policies);
                Told { wake, ..self.cancelled(None, policies) }
            }
            (State::Attempting { admission, .. }, Event::Cancelled) => {
                let change = tell_breaker(now, admission, Health::Silent, policies);
                self.cancelled(change, policies)
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
            return self.refuse(Refusal::DeadlineExceeded, None, policies);
        }
        if let Some(after) = policies.breaker.as_ref().and_then(|b| b.refuses(now)) {
            return self.refuse(Refusal::CircuitOpen, Some(after), policies);
        }
        if let Some(limit) = &mut policies.rate_limit
            && let rate_limit::Answer::NotUntil { retry_after } = limit.ask(now)
        {
            return self.refuse(Refusal::RateLimited, Some(retry_after), policies);
        }
        match policies.bulkhead.as_mut().map(Bulkhead::ask) {
            None => self.admit(now, policies),
            Some(Entry::Granted) => {
                self.holds_slot = true;
                self.admit(now, policies)
            }
            Some(Entry::Queued(ticket)) => {
                // Whoever gets a slot in the last milliseconds can't use it.
                let until = self.deadline.map_or_else(
                    || now.plus(BULKHEAD_WAIT_MAX),
                    |deadline| deadline.minus(ATTEMPT_MIN_USABLE),
                );
                self.state = State::Queued { ticket };
                let step = Step::Queue { ticket, until };
                Told { step, moved: Move::Enqueue, change: None, wake: None }
            }
            Some(Entry::Full) => self.refuse(Refusal::BulkheadFull, None, policies),
        }
    }

    /// The inner guards, before each attempt.
    fn admit(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let Some(limit) = deadline::attempt_limit(now, self.attempt_timeout, self.deadline) else {
            let (refusal, reason) = (Refusal::DeadlineExceeded, GiveUp::DeadlineTooNear);
            return self.no_attempt(refusal, reason, None, policies);
        };
        let (admission, change) = match policies.breaker.as_mut().map(|b| b.ask(now)) {
            None => (None, None),
            Some(breaker::Answer { admission: Ok(admission), change }) => (Some(admission), change),
            Some(breaker::Answer { admission: Err(after), change }) => {
                let (refusal, reason) = (Refusal::CircuitOpen, GiveUp::CircuitOpen);
                let told = self.no_attempt(refusal, reason, Some(after), policies);
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
        let left = self.deadline.map(|deadline| now.until(deadline));
        let open = policies.breaker.as_ref().and_then(|b| b.refuses(now));
        let told = match self.retry.ask(self.attempts, failure, self.repeatable, left, rng) {
            Decision::GiveUp(reason) => self.give_up(reason, open, policies),
            // No waiting in front of an open circuit.
            Decision::Again { .. } if open.is_some() => {
                self.give_up(GiveUp::CircuitOpen, open, policies)
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
        refusal: Refusal,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        if self.attempts == 0 {
            self.refuse(refusal, retry_after, policies)
        } else {
            self.give_up(reason, retry_after, policies)
        }
    }

    fn refuse(
        &mut self,
        reason: Refusal,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        let wake = self.release(policies);
        let step = Step::Reject { reason, retry_after };
        Told { step, moved: Move::Reject, change: None, wake }
    }

    fn give_up(
        &mut self,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        let wake = self.release(policies);
        let step = Step::GiveUp { reason, retry_after };
        Told { step, moved: Move::GiveUp, change: None, wake }
    }

    fn cancelled(&mut self, change: Option<breaker::Change>, policies: &mut Policies) -> Told {
        let wake = self.release(policies);
        Told { step: Step::Released, moved: Move::Cancel, change, wake }
    }

    /// Gives the slot back, if one is held; the answer is the waiter that owns it now.
    fn release(&mut self, policies: &mut Policies) -> Option<Ticket> {
        if !std::mem::take(&mut self.holds_slot) {
            return None;
        }
        policies.bulkhead.as_mut().and_then(Bulkhead::release)
    }
}

fn claim(ticket: Ticket, policies: &mut Policies) -> bool {
    policies.bulkhead.as_mut().is_some_and(|bulkhead| bulkhead.claim(ticket))
}

fn leave(ticket: Ticket, policies: &mut Policies) -> Option<Ticket> {
    policies.bulkhead.as_mut().and_then(|bulkhead| bulkhead.leave(ticket))
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
