//! How attempts end, and what follows.

use std::time::Duration;

use super::{Flight, GiveUp, Move, Pipeline, Policies, State, Step, Told};
use crate::call::breaker::{Change, Verdict};
use crate::call::deadline;
use crate::call::retry::{Decision, FailedAttempt};
use crate::outcome::{Failure, Health};
use crate::rng::Rng;
use crate::time::Moment;

impl Pipeline {
    #[inline]
    pub(super) fn succeeded(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let change = self.land(now, Health::Good, None, policies);
        let wake = self.release(now, policies);
        Told { change, wake, ..Told::new(Step::Done, Move::Finish) }
    }

    pub(super) fn timed_out(
        &mut self,
        now: Moment,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Told {
        let granted = match &self.state {
            State::Attempting { flight: Flight { started, until, .. } } => {
                until.map(|until| started.until(until))
            }
            State::New | State::Queued { .. } | State::Waiting | State::Finished => None,
        };
        let verdict = deadline::is_verdict(granted, policies.attempt_timeout);
        let health = if verdict { Health::Bad } else { Health::Silent };
        self.failed(now, &Failure { health, ..Failure::UNKNOWN }, policies, rng)
    }

    pub(super) fn failed(
        &mut self,
        now: Moment,
        failure: &Failure,
        policies: &mut Policies,
        rng: &mut impl Rng,
    ) -> Told {
        let change = self.land(now, failure.health, failure.retry_after, policies);
        self.failure = Some(self.failure.map_or(*failure, |earlier| failure.after(earlier)));
        let left = self.deadline.map(|deadline| now.until(deadline));
        let open = policies.breaker.as_ref().and_then(|breaker| breaker.refuses(now));
        let attempt = FailedAttempt {
            number: self.attempts,
            waited: self.waited,
            failure: *failure,
            repeatable: self.repeatable,
            left,
        };
        let told = match policies.retry.ask(&attempt, None, rng) {
            Decision::GiveUp(reason) => self.give_up(now, reason, open, policies),
            // No waiting in front of an open circuit.
            Decision::Again { .. } if open.is_some() => {
                self.give_up(now, GiveUp::CircuitOpen, open, policies)
            }
            Decision::Again { after, paid: _ } => {
                self.waited = after;
                self.state = State::Waiting;
                Told::new(Step::Wait { until: now.plus(after), after }, Move::Retry)
            }
        };
        Told { change, ..told }
    }

    pub(super) fn panicked(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let change = self.land(now, Health::Bad, None, policies);
        let wake = self.release(now, policies);
        Told { change, wake, ..Told::new(Step::Released, Move::Panic) }
    }

    pub(super) fn cancelled(&mut self, now: Moment, policies: &mut Policies) -> Told {
        let left = match self.state {
            State::Queued { ticket } => policies.leave(now, ticket),
            State::New | State::Attempting { .. } | State::Waiting | State::Finished => None,
        };
        let change = self.land(now, Health::Silent, None, policies);
        let wake = self.release(now, policies).or(left);
        Told { change, wake, ..Told::new(Step::Released, Move::Cancel) }
    }

    pub(super) fn give_up(
        &mut self,
        now: Moment,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &mut Policies,
    ) -> Told {
        self.state = State::Finished;
        let wake = self.release(now, policies);
        Told { wake, ..Told::new(Step::GiveUp { reason, retry_after }, Move::GiveUp) }
    }

    /// Ends the attempt under way, if there is one, and tells the breaker how.
    #[inline]
    fn land(
        &mut self,
        now: Moment,
        health: Health,
        retry_after: Option<Duration>,
        policies: &Policies,
    ) -> Option<Change> {
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Attempting { flight: Flight { admission, started, .. } } => {
                let (breaker, admission) = policies.breaker.as_ref().zip(admission)?;
                let took = Some(now.since(started));
                breaker.tell(now, admission, Verdict { health, took, retry_after }).change
            }
            State::New | State::Queued { .. } | State::Waiting | State::Finished => None,
        }
    }
}
