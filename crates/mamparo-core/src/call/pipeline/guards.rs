//! From the start of a call to its attempts: the guards, in their order.

use std::time::Duration;

use super::{Aside, Event, Flight, GiveUp, Move, Pipeline, Policies, Refusal, State, Step, Told};
use crate::call::breaker::{Admission, Answer, Breaker};
use crate::call::bulkhead::{Bulkhead, Entry, Ticket};
use crate::call::deadline::{self, AttemptLimit};
use crate::call::rate_limit;
use crate::call::shed;
use crate::limits::{ATTEMPT_MIN_USABLE, BULKHEAD_WAIT_MAX};
use crate::rng::Rng;
use crate::time::Moment;

impl Pipeline {
    /// [`Event::Start`]: asks every guard. `Ok` when all say yes, the first attempt begins, and there
    /// is nothing else to do.
    ///
    /// # Errors
    /// Whatever [`Pipeline::tell`] answers otherwise.
    #[inline(always)]
    pub fn start(
        &mut self,
        now: Moment,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Result<AttemptLimit, Aside> {
        if !matches!(self.state, State::New) {
            return Err(Err(self.misfit(Event::Start)));
        }
        if let Some(budget) = policies.budget {
            let own = now.plus(budget);
            self.deadline = Some(self.deadline.map_or(own, |deadline| deadline.min(own)));
        }
        if policies.shed.is_some() || policies.throttle.is_some() {
            return self.start_guarded(now, policies, rng);
        }
        self.enter(now, policies)
    }

    /// With the guards that hold back a part of the calls. Whom the deadline or an open circuit would
    /// refuse anyway is not counted by them.
    #[inline(never)]
    fn start_guarded(
        &mut self,
        now: Moment,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Result<AttemptLimit, Aside> {
        let open = policies.breaker.as_ref().and_then(|breaker| breaker.refuses(now));
        if open.is_some() || deadline::too_near(now, self.deadline) {
            return self.enter(now, policies);
        }
        let (entry, shed) = policies.ask_shed(self.criticality, self.deadline, now, rng);
        let refused = match entry {
            shed::Entry::Overloaded { retry_after } => Some((Refusal::Shed, Some(retry_after))),
            shed::Entry::TooLate => Some((Refusal::DeadlineExceeded, None)),
            shed::Entry::Admitted => policies
                .ask_throttle(now, rng)
                .map(|retry_after| (Refusal::Throttled, Some(retry_after))),
        };
        if let Some((reason, retry_after)) = refused {
            return Err(Ok(Told { shed, ..self.refuse(now, reason, retry_after, policies) }));
        }
        match self.enter(now, policies) {
            Ok(AttemptLimit { until }) if shed.is_some() => {
                let step = Step::Attempt { number: self.attempts, until, hedge_at: None };
                Err(Ok(Told { shed, ..Told::new(step, Move::Admit) }))
            }
            Err(Ok(told)) => Err(Ok(Told { shed, ..told })),
            Ok(limit) => Ok(limit),
            Err(misfit) => Err(misfit),
        }
    }

    #[inline(always)]
    fn enter(&mut self, now: Moment, policies: &Policies) -> Result<AttemptLimit, Aside> {
        let Some(limit) = deadline::attempt_limit(now, policies.attempt_timeout, self.deadline)
        else {
            return Err(Ok(self.refuse(now, Refusal::DeadlineExceeded, None, policies)));
        };
        // A closed circuit admits at once. An admission that a later guard makes useless has taken
        // nothing.
        let closed = policies.breaker.as_ref().and_then(Breaker::ask_closed);
        if closed.is_none()
            && let Some(told) = self.look_at_breaker(now, policies)
        {
            return Err(Ok(told));
        }
        if let Some(rate) = &policies.rate_limit
            && let rate_limit::Answer::NotUntil { retry_after } = rate.ask(now)
        {
            let told = self.refuse(now, Refusal::RateLimited, Some(retry_after), policies);
            return Err(Ok(told));
        }
        if let Some(bulkhead) = &policies.bulkhead {
            // Whoever gets a slot in the last milliseconds can't use it.
            let until = self.deadline.map_or_else(
                || now.plus(BULKHEAD_WAIT_MAX),
                |deadline| deadline.minus(ATTEMPT_MIN_USABLE),
            );
            match bulkhead.ask(now, until) {
                Entry::Granted(slot) => self.slot = Some(slot),
                Entry::Queued { ticket, shed } => {
                    self.state = State::Queued { ticket };
                    let told = Told::new(Step::Queue { ticket, until }, Move::Enqueue);
                    return Err(Ok(Told { wake: shed.into(), ..told }));
                }
                Entry::TooLate { retry_after } => {
                    let told = self.refuse(now, Refusal::BulkheadFull, Some(retry_after), policies);
                    return Err(Ok(told));
                }
                Entry::Full { retry_after } => {
                    return Err(Ok(self.refuse(now, Refusal::BulkheadFull, retry_after, policies)));
                }
            }
        }
        match closed {
            Some(admission) => self.begin(now, limit, Some(admission), policies).map_err(Ok),
            None => self.admit(now, limit, policies).map_err(Ok),
        }
    }

    /// Before anything is taken: an open circuit refuses.
    fn look_at_breaker(&mut self, now: Moment, policies: &Policies) -> Option<Told> {
        let look = policies.breaker.as_ref()?.look(now);
        let told = self.refuse(now, Refusal::CircuitOpen, Some(look.refused?), policies);
        Some(Told { change: look.change, ..told })
    }

    pub(super) fn slot_granted(&mut self, now: Moment, policies: &Policies) -> Aside {
        let State::Queued { ticket } = self.state else {
            return Err(self.misfit(Event::SlotGranted));
        };
        self.slot = policies.bulkhead.as_ref().and_then(|bulkhead| bulkhead.claim(now, ticket));
        if self.slot.is_none() {
            return Err(self.misfit(Event::SlotGranted));
        }
        Ok(self.again(now, policies))
    }

    pub(super) fn left_queue(&mut self, now: Moment, policies: &Policies) -> Told {
        let wake = self.leave(now, policies).into();
        let reason = if deadline::too_near(now, self.deadline) {
            Refusal::DeadlineExceeded
        } else {
            Refusal::BulkheadFull
        };
        Told { wake, ..self.refuse(now, reason, None, policies) }
    }

    pub(super) fn circuit_opened(&mut self, now: Moment, policies: &Policies) -> Told {
        let wake = self.leave(now, policies).into();
        let after = policies.breaker.as_ref().and_then(|breaker| breaker.refuses(now));
        Told { wake, ..self.refuse(now, Refusal::CircuitOpen, after, policies) }
    }

    /// Gives the place in the queue back, if one is held; the answer is the waiter that owns a slot
    /// now.
    pub(super) fn leave(&self, now: Moment, policies: &Policies) -> Option<Ticket> {
        match self.state {
            State::Queued { ticket } => policies.bulkhead.as_ref()?.leave(now, ticket),
            State::New | State::Attempting { .. } | State::Waiting { .. } | State::Finished => None,
        }
    }

    /// The attempt after a wait, for a slot or for a retry.
    pub(super) fn again(&mut self, now: Moment, policies: &Policies) -> Told {
        let Some(limit) = deadline::attempt_limit(now, policies.attempt_timeout, self.deadline)
        else {
            let (refusal, reason) = (Refusal::DeadlineExceeded, GiveUp::DeadlineTooNear);
            return self.no_attempt(now, refusal, reason, None, policies);
        };
        match self.admit(now, limit, policies) {
            Ok(AttemptLimit { until }) => {
                let step = Step::Attempt { number: self.attempts, until, hedge_at: None };
                Told::new(step, Move::Admit)
            }
            Err(told) => told,
        }
    }

    /// The inner guards, before each attempt.
    fn admit(
        &mut self,
        now: Moment,
        limit: AttemptLimit,
        policies: &Policies,
    ) -> Result<AttemptLimit, Told> {
        let Some(Answer { admission, change }) =
            policies.breaker.as_ref().map(|breaker| breaker.ask(now))
        else {
            return self.begin(now, limit, None, policies);
        };
        let begun = match admission {
            Ok(admission) => self.begin(now, limit, Some(admission), policies),
            Err(after) => {
                let (refusal, reason) = (Refusal::CircuitOpen, GiveUp::CircuitOpen);
                Err(self.no_attempt(now, refusal, reason, Some(after), policies))
            }
        };
        match begun {
            Ok(limit) if change.is_none() => Ok(limit),
            Ok(AttemptLimit { until }) => {
                let step = Step::Attempt { number: self.attempts, until, hedge_at: None };
                Err(Told { change, ..Told::new(step, Move::Admit) })
            }
            Err(told) => Err(Told { change, ..told }),
        }
    }

    #[inline(always)]
    fn begin(
        &mut self,
        now: Moment,
        limit: AttemptLimit,
        admission: Option<Admission>,
        policies: &Policies,
    ) -> Result<AttemptLimit, Told> {
        if self.attempts == 0
            && let Some(budget) = &policies.retry_budget
        {
            budget.deposit();
        }
        self.attempts += 1;
        self.rounds += 1;
        let (number, until) = (self.attempts, limit.until);
        // What was paid for a retry is spent here.
        self.state =
            State::Attempting { flight: Flight { number, started: now, until, admission } };
        match &policies.hedge {
            None => Ok(limit),
            Some(hedge) => Err(self.begun_with_hedge(now, limit, hedge, policies)),
        }
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
        policies: &Policies,
    ) -> Told {
        if self.attempts == 0 {
            self.refuse(now, refusal, retry_after, policies)
        } else {
            self.give_up(now, reason, retry_after, policies)
        }
    }

    #[cold]
    fn refuse(
        &mut self,
        now: Moment,
        reason: Refusal,
        retry_after: Option<Duration>,
        policies: &Policies,
    ) -> Told {
        self.state = State::Finished;
        let wake = self.release(now, policies).into();
        Told { wake, ..Told::new(Step::Reject { reason, retry_after }, Move::Reject) }
    }

    /// Gives the slot back, if one is held; the answer is the waiter that owns it now.
    #[inline]
    pub(super) fn release(&mut self, now: Moment, policies: &Policies) -> Option<Ticket> {
        let slot = self.slot.take()?;
        policies.bulkhead.as_ref().and_then(|bulkhead: &Bulkhead| bulkhead.release(now, slot))
    }
}
