//! How attempts end, and what follows.

use std::time::Duration;

use super::policies::Seen;
use super::{Aside, Event, Flight, GiveUp, Move, Pipeline, Policies, State, Step, Told};
use crate::call::breaker::{Change, Verdict};
use crate::call::deadline;
use crate::call::retry::{Decision, FailedAttempt};
use crate::call::throttle::Reply;
use crate::outcome::{Failure, Health, Kind, Repeat};
use crate::rng::Rng;
use crate::time::Moment;

/// Attempts that ended without an outcome of their own.
#[derive(Clone, Copy)]
struct CutOff {
    attempts: u32,
    change: Option<Change>,
}

impl Told {
    fn with(self, cut_off: CutOff) -> Self {
        let change = self.change.or(cut_off.change);
        Self { change, cut_off: self.cut_off + cut_off.attempts, ..self }
    }

    fn and_seen(mut self, seen: Seen) -> Self {
        self.wake.extend(seen.wake);
        Self { limit: seen.limit, ..self }
    }
}

impl Pipeline {
    /// [`Event::Succeeded`]: the call ends with the value of attempt `number`. `Ok` when nobody else
    /// has to hear of it.
    ///
    /// # Errors
    /// Whatever [`Pipeline::tell`] answers otherwise.
    #[inline(always)]
    pub fn succeed(&mut self, now: Moment, number: u32, policies: &Policies) -> Result<(), Aside> {
        let State::Attempting { flight } = &self.state else {
            return Err(Err(self.misfit(Event::Succeeded { number })));
        };
        let quiet = flight.number == number
            && self.beside.is_empty()
            && policies.forgets_success(flight.admission.as_ref());
        if !quiet {
            return Err(self.won(now, number, policies));
        }
        self.state = State::Finished;
        match self.release(now, policies) {
            None => Ok(()),
            wake => {
                let wake = wake.into();
                Err(Ok(Told { wake, ..Told::new(Step::Done, Move::Finish) }))
            }
        }
    }

    /// The success of an attempt that is to be counted, or that was one of several: the others are
    /// cut off without a verdict.
    #[inline(never)]
    fn won(&mut self, now: Moment, number: u32, policies: &Policies) -> Aside {
        let event = Event::Succeeded { number };
        let flight = self.take_flight(number).ok_or_else(|| self.misfit(event))?;
        let took = policies.took(flight.started, now);
        let verdict = Verdict { health: Health::Good, took, retry_after: None };
        let change = policies.tell_breaker(now, flight.admission, verdict);
        let seen = policies.observe(now, took, true, Reply::Accepted);
        let cut_off = self.cut_off_all(now, policies);
        let wake = self.release(now, policies).into();
        let told = Told { change, wake, ..Told::new(Step::Done, Move::Finish) };
        Ok(told.with(cut_off).and_seen(seen))
    }

    pub(super) fn timed_out(
        &mut self,
        now: Moment,
        number: u32,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Told {
        let granted = self
            .flight(number)
            .and_then(|flight| flight.until.map(|until| flight.started.until(until)));
        let verdict = deadline::is_verdict(granted, policies.attempt_timeout);
        if verdict && let Some(latency) = &policies.latency {
            latency.record_cut_off(now);
        }
        let health = if verdict { Health::Bad } else { Health::Silent };
        self.failed(now, number, &Failure { health, ..Failure::UNKNOWN }, policies, rng)
    }

    /// An attempt gave no value. While others are under way they decide, unless the answer is final.
    pub(super) fn failed(
        &mut self,
        now: Moment,
        number: u32,
        failure: &Failure,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Told {
        let (change, seen) = self.land(now, number, failure, policies);
        let round = self.round.map_or(*failure, |other| failure.beside(other));
        let failure = failure.with_retry_after(round.retry_after);
        self.failure = Some(self.failure.map_or(failure, |earlier| failure.after(earlier)));
        let final_answer = failure.kind == Kind::Permanent && failure.repeat == Repeat::Never;
        let told = if !matches!(self.state, State::Attempting { .. }) {
            self.repeat_or_give_up(now, &round, policies, rng)
        } else if final_answer {
            let cut_off = self.cut_off_all(now, policies);
            self.repeat_or_give_up(now, &round, policies, rng).with(cut_off)
        } else {
            self.round = Some(round);
            Told::new(Step::KeepOn, Move::KeepOn)
        };
        Told { change: change.or(told.change), ..told }.and_seen(seen)
    }

    /// Takes a failed attempt out of those under way and tells everybody how it ended.
    fn land(
        &mut self,
        now: Moment,
        number: u32,
        failure: &Failure,
        policies: &Policies,
    ) -> (Option<Change>, Seen) {
        let Some(flight) = self.take_flight(number) else { return (None, Seen::default()) };
        let took = Some(now.since(flight.started));
        let verdict = Verdict { health: failure.health, took, retry_after: failure.retry_after };
        let change = policies.tell_breaker(now, flight.admission, verdict);
        let answered = failure.kind != Kind::Unknown;
        (change, policies.observe(now, took, answered, Reply::of(failure)))
    }

    fn repeat_or_give_up(
        &mut self,
        now: Moment,
        failure: &Failure,
        policies: &Policies,
        rng: &mut impl Rng,
    ) -> Told {
        self.round = None;
        // No waiting in front of an open circuit, and nothing is paid for it.
        let open = policies.breaker.as_ref().and_then(|breaker| breaker.refuses(now));
        let failed = FailedAttempt {
            number: self.rounds,
            waited: self.waited,
            failure: *failure,
            repeatable: self.repeatable,
            left: self.deadline.map(|deadline| now.until(deadline)),
        };
        match policies.retry.ask(&failed, policies.retry_budget.as_ref(), rng) {
            Decision::GiveUp(reason) => self.give_up(now, reason, open, policies),
            Decision::Again { paid, .. } if open.is_some() => {
                policies.give_back(paid);
                self.give_up(now, GiveUp::CircuitOpen, open, policies)
            }
            Decision::Again { after, paid } => {
                self.waited = after;
                self.state = State::Waiting { paid };
                Told::new(Step::Wait { until: now.plus(after), after }, Move::Retry)
            }
        }
    }

    pub(super) fn panicked(&mut self, now: Moment, number: u32, policies: &Policies) -> Told {
        let bug = Failure { health: Health::Bad, ..Failure::PERMANENT };
        let (change, seen) = self.land(now, number, &bug, policies);
        let cut_off = self.cut_off_all(now, policies);
        let wake = self.release(now, policies).into();
        let told = Told { change, wake, ..Told::new(Step::Released, Move::Panic) };
        told.with(cut_off).and_seen(seen)
    }

    pub(super) fn cancelled(&mut self, now: Moment, policies: &Policies) -> Told {
        let left = self.leave(now, policies);
        let cut_off = self.cut_off_all(now, policies);
        let wake = self.release(now, policies).or(left).into();
        Told { wake, ..Told::new(Step::Released, Move::Cancel) }.with(cut_off)
    }

    pub(super) fn give_up(
        &mut self,
        now: Moment,
        reason: GiveUp,
        retry_after: Option<Duration>,
        policies: &Policies,
    ) -> Told {
        self.finish(policies);
        let wake = self.release(now, policies).into();
        Told { wake, ..Told::new(Step::GiveUp { reason, retry_after }, Move::GiveUp) }
    }

    /// Ends whatever is under way without a verdict.
    fn cut_off_all(&mut self, now: Moment, policies: &Policies) -> CutOff {
        let first = self.finish(policies);
        let mut cut_off = CutOff { attempts: 0, change: None };
        for flight in first.into_iter().chain(std::mem::take(&mut self.beside)) {
            policies.record_cut_off(now, flight.started);
            let change = policies.tell_breaker(now, flight.admission, Health::Silent.into());
            cut_off.attempts += 1;
            cut_off.change = cut_off.change.or(change);
        }
        cut_off
    }

    /// Ends the call; what was paid for an attempt that is not made goes back.
    fn finish(&mut self, policies: &Policies) -> Option<Flight> {
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Attempting { flight } => Some(flight),
            State::Waiting { paid } => {
                policies.give_back(paid);
                None
            }
            State::New | State::Queued { .. } | State::Finished => None,
        }
    }

    pub(super) fn flight(&self, number: u32) -> Option<&Flight> {
        match &self.state {
            State::Attempting { flight } if flight.number == number => Some(flight),
            State::New
            | State::Queued { .. }
            | State::Attempting { .. }
            | State::Waiting { .. }
            | State::Finished => self.beside.iter().find(|flight| flight.number == number),
        }
    }
}
