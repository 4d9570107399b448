//! Attempts beside one that takes long.

use super::{Flight, Move, Pipeline, Policies, State, Step, Told};
use crate::call::breaker::{self, Answer};
use crate::call::deadline::{self, AttemptLimit};
use crate::call::hedge::{Hedge, HedgeDecision, NoHedge, SlowAttempt};
use crate::outcome::{Failure, Repeatable};
use crate::time::Moment;

impl Pipeline {
    /// The first attempt of a round, and when it counts as slow.
    #[cold]
    pub(super) fn begun_with_hedge(
        &mut self,
        now: Moment,
        limit: AttemptLimit,
        hedge: &Hedge,
        policies: &Policies,
    ) -> Told {
        self.hedges = 0;
        let hedge_at = self.hedge_at(now, hedge, policies);
        let step = Step::Attempt { number: self.attempts, until: limit.until, hedge_at };
        Told::new(step, Move::Admit)
    }

    /// The attempts under way have taken long. Sends another beside them if everybody agrees; a no
    /// ends nothing: those under way go on.
    pub(super) fn hedge_due(&mut self, now: Moment, policies: &Policies) -> Told {
        let keep_on = Told::new(Step::KeepOn, Move::KeepOn);
        let Some(hedge) = &policies.hedge else { return keep_on };
        let Some(AttemptLimit { until }) =
            deadline::attempt_limit(now, policies.attempt_timeout, self.deadline)
        else {
            return Told { no_hedge: Some(NoHedge::DeadlineTooNear), ..keep_on };
        };
        let slow = self.slow_attempt(now, policies);
        let paid = match hedge.ask(&slow, policies.retry_budget.as_ref()) {
            HedgeDecision::Send { paid } => paid,
            HedgeDecision::No(reason) => return Told { no_hedge: Some(reason), ..keep_on },
        };
        let (admission, change) = match policies.breaker.as_ref().map(|breaker| breaker.ask(now)) {
            None => (None, None),
            Some(Answer { admission: Ok(admission), change }) => (Some(admission), change),
            // It opened since the look.
            Some(Answer { admission: Err(_), change }) => {
                policies.give_back(paid);
                let no_hedge = Some(NoHedge::CircuitNotClosed);
                return Told { change, no_hedge, ..keep_on };
            }
        };
        self.hedges += 1;
        self.attempts += 1;
        let number = self.attempts;
        self.beside.push(Flight { number, started: now, until, admission });
        let step = Step::Attempt { number, until, hedge_at: self.hedge_at(now, hedge, policies) };
        Told { change, ..Told::new(step, Move::Hedge) }
    }

    fn slow_attempt(&self, now: Moment, policies: &Policies) -> SlowAttempt {
        let phase = policies.breaker.as_ref().map(|breaker| breaker.phase(now));
        let told_not_to = |round: Failure| round.is_forbidden() || round.retry_after.is_some();
        SlowAttempt {
            sent: self.hedges,
            repeatable: self.repeatable,
            circuit_closed: phase.is_none_or(|phase| phase == breaker::Phase::Closed),
            told_not_to: self.round.is_some_and(told_not_to),
            left: self.deadline.map(|deadline| now.until(deadline)),
        }
    }

    /// When the attempt that begins now has taken long; `None` where no hedge can follow it.
    fn hedge_at(&self, now: Moment, hedge: &Hedge, policies: &Policies) -> Option<Moment> {
        let may_run_twice = match self.repeatable {
            Repeatable::Idempotent | Repeatable::Keyed => true,
            Repeatable::Unsafe | Repeatable::OneShot => false,
        };
        if !may_run_twice || self.hedges >= hedge.config().extra {
            return None;
        }
        hedge.delay(now, policies.latency.as_ref()?).map(|delay| now.plus(delay))
    }

    /// Takes attempt `number` out of those under way.
    pub(super) fn take_flight(&mut self, number: u32) -> Option<Flight> {
        if let Some(place) = self.beside.iter().position(|flight| flight.number == number) {
            return Some(self.beside.swap_remove(place));
        }
        let State::Attempting { flight } = &mut self.state else { return None };
        if flight.number != number {
            return None;
        }
        match self.beside.pop() {
            Some(next) => Some(std::mem::replace(flight, next)),
            None => match std::mem::replace(&mut self.state, State::Finished) {
                State::Attempting { flight } => Some(flight),
                State::New | State::Queued { .. } | State::Waiting { .. } | State::Finished => None,
            },
        }
    }
}
