//! From the start of a call to its attempts: the guards, in their order.

use std::time::Duration;

use super::{Flight, GiveUp, Move, Pipeline, Policies, Refusal, State, Step, Told};
use crate::call::breaker::{Answer, Change};
use crate::call::bulkhead::{Entry, Ticket};
use crate::call::deadline;
use crate::call::rate_limit;
use crate::limits::{ATTEMPT_MIN_USABLE, BULKHEAD_WAIT_MAX};
use crate::time::Moment;

impl Pipeline {
    /// The outer guards, once a call.
    #[inline]
    pub(super) fn start(&mut self, now: Moment, policies: &mut Policies) -> Told {
        if let Some(budget) = policies.budget {
            let own = now.plus(budget);
            self.deadline = Some(self.deadline.map_or(own, |deadline| deadline.min(own)));
        }
        if deadline::too_near(now, self.deadline) {
            return self.refuse(now, Refusal::DeadlineExceeded, None, policies);
        }
        if let Some(breaker) = &mut policies.breaker {
            let look = breaker.look(now);
            if let Some(after) = look.refused {
                let told = self.refuse(now, Refusal::CircuitOpen, Some(after), policies);
                return Told { change: look.change, ..told };
            }
        }
        if let Some(limit) = &policies.rate_limit
            && let rate_limit::Answer::NotUntil { retry_after } = limit.ask(now)
        {
            return self.refuse(now, Refusal::RateLimited, Some(retry_after), policies);
        }
        let Some(bulkhead) = &policies.bulkhead else { return self.admit(now, policies) };
        // Whoever gets a slot in the last milliseconds can't use it.
        let until = self.deadline.map_or_else(
            || now.plus(BULKHEAD_WAIT_MAX),
            |deadline| deadline.minus(ATTEMPT_MIN_USABLE),
        );
        match bulkhead.ask(now, until) {
            Entry::Granted(slot) => {
                self.slot = Some(slot);
                self.admit(now, policies)
            }
            Entry::Queued { ticket, shed } => {
                self.state = State::Queued { ticket };
                Told { wake: shed, ..Told::new(Step::Queue { ticket, until }, Move::Enqueue) }
            }
            Entry::Full { retry_after } => {
                self.refuse(now, Refusal::BulkheadFull, retry_after, policies)
            }
            Entry::TooLate { retry_after } => {
                self.refuse(now, Refusal::BulkheadFull, Some(retry_after), policies)
            }
        }
    }

    pub(super) fn left_queue(
        &mut self,
        now: Moment,
        ticket: Ticket,
        policies: &mut Policies,
    ) -> Told {
        let wake = policies.leave(now, ticket);
        let reason = if deadline::too_near(now, self.deadline) {
            Refusal::DeadlineExceeded
        } else {
            Refusal::BulkheadFull
        };
        Told { wake, ..self.refuse(now, reason, None, policies) }
    }

    pub(super) fn circuit_opened(
        &mut self,
        now: Moment,
        ticket: Ticket,
        policies: &mut Policies,
    ) -> Told {
        let wake = policies.leave(now, ticket);
        let after = policies.breaker.as_ref().and_then(|breaker| breaker.refuses(now));
        Told { wake, ..self.refuse(now, Refusal::CircuitOpen, after, policies) }
    }

    /// The inner guards, before each attempt.
    #[inline]
    pub(super) fn admit(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let Some(limit) = deadline::attempt_limit(now, policies.attempt_timeout, self.deadline)
        else {
            let (refusal, reason) = (Refusal::DeadlineExceeded, GiveUp::DeadlineTooNear);
            return self.no_attempt(now, refusal, reason, None, None, policies);
        };
        let (admission, change) = match policies.breaker.as_ref().map(|breaker| breaker.ask(now)) {
            None => (None, None),
            Some(Answer { admission: Ok(admission), change }) => (Some(admission), change),
            Some(Answer { admission: Err(after), change }) => {
                let (refusal, reason) = (Refusal::CircuitOpen, GiveUp::CircuitOpen);
                return self.no_attempt(now, refusal, reason, Some(after), change, policies);
            }
        };
        self.attempts += 1;
        let (number, until) = (self.attempts, limit.until);
        self.state =
            State::Attempting { flight: Flight { number, started: now, until, admission } };
        Told { change, ..Told::new(Step::Attempt { number, until }, Move::Admit) }
    }

    /// An inner guard said no. Before the first attempt that is a refusal; after it, the last failure
    /// is the news, and the guard only the reason why no attempt follows.
    #[cold]
    fn no_attempt(
        &mut self,
        now: Moment,
        refusal: Refusal,
        reason: GiveUp,
        retry_after: Option<Duration>,
        change: Option<Change>,
        policies: &mut Policies,
    ) -> Told {
        let told = if self.attempts == 0 {
            self.refuse(now, refusal, retry_after, policies)
        } else {
            self.give_up(now, reason, retry_after, policies)
        };
        Told { change, ..told }
    }

    pub(super) fn refuse(
        &mut self,
        now: Moment,
        reason: Refusal,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        self.state = State::Finished;
        let wake = self.release(now, policies);
        Told { wake, ..Told::new(Step::Reject { reason, retry_after }, Move::Reject) }
    }

    /// Gives the slot back, if one is held; the answer is the waiter that owns it now.
    #[inline]
    pub(super) fn release(&mut self, now: Moment, policies: &mut Policies) -> Option<Ticket> {
        let slot = self.slot.take()?;
        policies.bulkhead.as_ref().and_then(|bulkhead| bulkhead.release(now, slot))
    }
}
