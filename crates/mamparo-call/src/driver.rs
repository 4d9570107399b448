//! The loop that carries out the pipeline's steps.
//!
//! On the way to a success it reads the clock once, takes no lock, and allocates nothing.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::bulkhead::Ticket;
use mamparo_core::call::deadline::AttemptLimit;
use mamparo_core::call::pipeline::{Event, GiveUp, Misfit, Phase, Pipeline, Step, Told};
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;

use crate::clock::LazyRng;
use crate::counters::{Count, Stripe};
use crate::deadline::{Deadline, Elapsed};
use crate::gate::Gate;
use crate::race::{Raced, race};
use crate::running::Running;
use crate::{Attempt, CallError, Classify, Context, clock, observe};

/// How the last attempt ended, kept for the error.
pub(crate) enum Last<E> {
    Failed(E),
    TimedOut(Duration),
}

impl<E> Last<E> {
    pub(crate) fn timed_out(attempt: Attempt) -> Self {
        let granted = attempt.deadline.map(|until| attempt.started.until(until));
        Self::TimedOut(granted.unwrap_or_default())
    }
}

/// Makes one call: straight to the first attempt's value where everybody says yes.
pub(crate) async fn call<T, E, F, Fut>(
    gate: &Gate,
    repeatable: Repeatable,
    mut operation: F,
) -> Result<T, CallError<E>>
where
    E: Classify,
    F: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let now = clock::now();
    let stripe = gate.observer.stripe();
    let mut run = Run::new(gate, repeatable, stripe);
    let (told, last) = match gate.start(&mut run.pipeline, now, &mut run.rng) {
        Ok(AttemptLimit { until }) => {
            let attempt = Attempt::new(1, now, until);
            let running = Running::new(&mut run.running, &attempt, &mut operation);
            let (event, last) = match Deadline::new(running, until).await {
                Ok(Ok(value)) => {
                    run.succeeded(&attempt, stripe)?;
                    return Ok(value);
                }
                Ok(Err(error)) => run.judge(attempt, error),
                Err(Elapsed) => (Event::TimedOut { number: 1 }, Last::timed_out(attempt)),
            };
            (run.tell(clock::now(), event)?, Some(last))
        }
        Err(aside) => (aside.map_err(|misfit| run.misfit(misfit))?, None),
    };
    match told.step {
        Step::Reject { .. } | Step::GiveUp { .. } => Err(run.ended(last, told.step)),
        Step::Attempt { .. }
        | Step::KeepOn
        | Step::Wait { .. }
        | Step::Queue { .. }
        | Step::Done
        | Step::Released => go_on(run, told, last, operation).await,
    }
}

/// Carries out steps until the call ends.
async fn go_on<T, E, F, Fut>(
    mut run: Run<&Gate>,
    mut told: Told,
    mut last: Option<Last<E>>,
    mut operation: F,
) -> Result<T, CallError<E>>
where
    E: Classify,
    F: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    loop {
        let event = match told.step {
            Step::Attempt { number, until, hedge_at: None } => {
                let attempt = Attempt::new(number, clock::now(), until);
                let (event, how) = match Deadline::new(
                    Running::new(&mut run.running, &attempt, &mut operation),
                    until,
                )
                .await
                {
                    Ok(Ok(value)) => {
                        run.succeeded(&attempt, run.gate.observer.stripe())?;
                        return Ok(value);
                    }
                    Ok(Err(error)) => run.judge(attempt, error),
                    Err(Elapsed) => (Event::TimedOut { number }, Last::timed_out(attempt)),
                };
                last = Some(how);
                event
            }
            Step::Attempt { number, until, hedge_at: Some(at) } => {
                let attempt = Attempt::new(number, clock::now(), until);
                match race(&mut run, attempt, at, &mut operation).await? {
                    Raced::Won(value) => return Ok(value),
                    Raced::Lost(how, then) => (last, told) = (Some(how), then),
                }
                continue;
            }
            Step::Wait { until, .. } => {
                clock::sleep_until(until).await;
                Event::WaitOver
            }
            Step::Queue { ticket, until } => run.queue(ticket, until).await,
            Step::KeepOn
            | Step::Reject { .. }
            | Step::GiveUp { .. }
            | Step::Done
            | Step::Released => return Err(run.ended(last, told.step)),
        };
        told = run.tell(clock::now(), event)?;
    }
}

/// A call under way. When it is dropped before its end, the machine is told, so that slot, ticket and
/// probe place go back whatever happened.
pub(crate) struct Run<G: Deref<Target = Gate>> {
    pub(crate) gate: G,
    pub(crate) pipeline: Pipeline,
    pub(crate) rng: LazyRng,
    /// The attempt whose code runs at the moment, 0 when none does: a drop in that time is a panic
    /// of the operation, any other drop is the caller's.
    pub(crate) running: u32,
}

impl<G: Deref<Target = Gate>> Run<G> {
    #[inline]
    pub(crate) fn new(gate: G, repeatable: Repeatable, stripe: &Stripe) -> Self {
        stripe.add(Count::Calls);
        let mut pipeline = Pipeline::new(repeatable, Context::current_deadline());
        if gate.policies.shed.is_some() {
            pipeline = pipeline.with_criticality(Context::current_criticality());
        }
        Self { gate, pipeline, rng: LazyRng::default(), running: 0 }
    }

    pub(crate) fn tell<E>(&mut self, now: Moment, event: Event) -> Result<Told, CallError<E>> {
        let told = self.gate.tell(&mut self.pipeline, now, event, &mut self.rng);
        told.map_err(|misfit| self.misfit(misfit))
    }

    #[inline(always)]
    pub(crate) fn succeeded<E>(
        &mut self,
        attempt: &Attempt,
        stripe: &Stripe,
    ) -> Result<(), CallError<E>> {
        let needs_now = self.gate.policies.success_needs_now() || self.pipeline.is_probe();
        let now = if needs_now { clock::now() } else { attempt.started };
        self.succeeded_at(now, attempt.number, stripe)
    }

    #[inline(always)]
    pub(crate) fn succeeded_at<E>(
        &mut self,
        now: Moment,
        number: u32,
        stripe: &Stripe,
    ) -> Result<(), CallError<E>> {
        let told = self.gate.succeed(&mut self.pipeline, now, number, stripe);
        told.map_err(|misfit| self.misfit(misfit))
    }

    /// What to tell of a failed attempt, and to keep.
    pub(crate) fn judge<E: Classify>(&mut self, attempt: Attempt, error: E) -> (Event, Last<E>) {
        let number = attempt.number;
        self.running = number;
        let failure = error.classify();
        self.running = 0;
        (Event::Failed { number, failure }, Last::Failed(error))
    }

    async fn queue(&self, ticket: Ticket, until: Moment) -> Event {
        let granted = Deadline::new(self.gate.granted(ticket), Some(until)).await;
        granted.unwrap_or(Event::QueueTimedOut)
    }

    /// The error of a call that ended without a value.
    #[cold]
    pub(crate) fn ended<E>(&self, last: Option<Last<E>>, step: Step) -> CallError<E> {
        let (dependency, attempts) = (self.dependency(), self.pipeline.attempts());
        match step {
            Step::Reject { reason, retry_after } => {
                CallError::Refused { dependency, reason, retry_after, attempts }
            }
            Step::GiveUp { reason, retry_after } => self.gave_up(last, reason, retry_after),
            // No ends, or answers to what the loop never tells.
            Step::Attempt { .. }
            | Step::KeepOn
            | Step::Wait { .. }
            | Step::Queue { .. }
            | Step::Done
            | Step::Released => {
                self.misfit(Misfit { phase: self.pipeline.phase(), event: Event::Start })
            }
        }
    }

    fn gave_up<E>(
        &self,
        last: Option<Last<E>>,
        gave_up: GiveUp,
        retry_after: Option<Duration>,
    ) -> CallError<E> {
        let (dependency, attempts) = (self.dependency(), self.pipeline.attempts());
        match (last, self.pipeline.failure()) {
            (Some(Last::Failed(source)), Some(failure)) => {
                let failure = failure.with_retry_after(failure.retry_after.max(retry_after));
                CallError::Failed { dependency, source, failure, attempts, gave_up }
            }
            (Some(Last::TimedOut(after)), _) => {
                CallError::TimedOut { dependency, after, attempts, gave_up, retry_after }
            }
            (Some(Last::Failed(_)) | None, _) => {
                self.misfit(Misfit { phase: self.pipeline.phase(), event: Event::Start })
            }
        }
    }

    #[cold]
    pub(crate) fn misfit<E>(&self, source: Misfit) -> CallError<E> {
        let (dependency, attempts) = (self.dependency(), self.pipeline.attempts());
        CallError::Misfit { dependency, source, attempts }
    }

    fn dependency(&self) -> Arc<str> {
        Arc::clone(&self.gate.name)
    }
}

impl<G: Deref<Target = Gate>> Drop for Run<G> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.pipeline.phase(), Phase::New | Phase::Finished) {
            self.abandoned();
        }
    }
}

impl<G: Deref<Target = Gate>> Run<G> {
    #[cold]
    fn abandoned(&mut self) {
        let event = match self.running {
            0 => Event::Cancelled,
            number => Event::Panicked { number },
        };
        let told = self.gate.tell(&mut self.pipeline, clock::now(), event, &mut self.rng);
        if let Err(misfit) = told {
            observe::misfit(&self.gate.plan, &misfit);
        }
    }
}

#[cfg(test)]
mod tests {
    use mamparo_core::call::breaker::{BreakerConfig, Over, Trip};

    use super::*;
    use crate::clock::tests::READINGS;
    use crate::{Dependency, Failure};

    #[derive(Debug)]
    struct Never;

    impl Classify for Never {
        fn classify(&self) -> Failure {
            Failure::PERMANENT
        }
    }

    async fn readings_of_a_success(breaker: BreakerConfig) -> u32 {
        let built = Dependency::builder("catalog")
            .attempt_timeout(Duration::from_millis(700))
            .breaker(breaker)
            .bulkhead(20, 0)
            .build()
            .expect("sound");
        let before = READINGS.get();
        let answer = built.call(Repeatable::Idempotent, |_| async { Ok::<_, Never>(()) }).await;
        answer.expect("it works");
        READINGS.get() - before
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_reads_the_clock_once_and_twice_where_a_rate_needs_its_end() {
        assert_eq!(readings_of_a_success(BreakerConfig::default()).await, 1);
        let over = Over::Time(Duration::from_secs(10));
        let trip = Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 10, over };
        let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
        assert_eq!(readings_of_a_success(breaker).await, 2);
    }
}
