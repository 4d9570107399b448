//! The loop that carries out the pipeline's steps.
//!
//! On the way to a success it reads the clock once, takes the lock twice, and allocates nothing.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::bulkhead::Ticket;
use mamparo_core::call::pipeline::{Event, GiveUp, Misfit, Phase, Pipeline, Step, Told};
use mamparo_core::outcome::{Failure, Repeatable};
use mamparo_core::time::Moment;

use crate::clock::LazyRng;
use crate::gate::Gate;
use crate::{Attempt, CallError, Classify, Context, clock, observe};

/// How the last attempt ended, kept for the error.
enum Last<E> {
    Failed(E),
    TimedOut(Duration),
}

/// Makes one call.
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
    let mut run = Run {
        gate,
        pipeline: Pipeline::new(&gate.plan, repeatable, Context::current_deadline()),
        rng: LazyRng::default(),
        in_operation: false,
    };
    let mut now = clock::now();
    let mut told = run.tell(now, Event::Start)?;
    let mut last = None;
    loop {
        let event = match told.step {
            Step::Attempt { budget, until } => {
                let attempt = Attempt::new(budget.number, now, until);
                match run.attempt(attempt, &mut operation).await {
                    Some(Ok(value)) => {
                        run.succeeded(now)?;
                        return Ok(value);
                    }
                    Some(Err(error)) => {
                        let failure = run.classify(&error);
                        last = Some(Last::Failed(error));
                        Event::Failed(failure)
                    }
                    None => {
                        last = Some(Last::TimedOut(budget.timeout.unwrap_or_default()));
                        Event::TimedOut
                    }
                }
            }
            Step::Wait { until, .. } => {
                clock::sleep_until(until).await;
                Event::WaitOver
            }
            Step::Queue { ticket, until } => run.queue(ticket, until).await,
            Step::Reject { reason, retry_after } => {
                let (dependency, attempts) = (run.dependency(), run.pipeline.attempts());
                return Err(CallError::Refused { dependency, reason, retry_after, attempts });
            }
            Step::GiveUp { reason, retry_after } => {
                return Err(run.gave_up(last, reason, retry_after));
            }
            // Answers to a success and to a cancellation; the loop told neither.
            Step::Done | Step::Released => {
                return Err(run.misfit(Misfit { phase: Phase::Finished, event: Event::Start }));
            }
        };
        now = clock::now();
        told = run.tell(now, event)?;
    }
}

/// A call under way. When it is dropped before its end, the machine is told, so that slot, ticket and
/// probe place go back whatever happened.
struct Run<'a> {
    gate: &'a Gate,
    pipeline: Pipeline,
    rng: LazyRng,
    /// True while the operation's code runs: a drop in that time is a panic of the operation, any
    /// other drop is the caller's.
    in_operation: bool,
}

impl Run<'_> {
    fn tell<E>(&mut self, now: Moment, event: Event) -> Result<Told, CallError<E>> {
        let told = self.gate.tell(&mut self.pipeline, now, event, &mut self.rng);
        told.map_err(|misfit| self.misfit(misfit))
    }

    fn succeeded<E>(&mut self, started: Moment) -> Result<(), CallError<E>> {
        let needs_now = self.gate.success_needs_now() || self.pipeline.is_probe();
        let now = if needs_now { clock::now() } else { started };
        self.tell(now, Event::Succeeded).map(|_| ())
    }

    /// Makes one attempt; `None` when it was cut off at its deadline.
    async fn attempt<T, E, F, Fut>(
        &mut self,
        attempt: Attempt,
        operation: &mut F,
    ) -> Option<Result<T, E>>
    where
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let mut context = Context::current();
        if let Some(deadline) = attempt.deadline {
            context = context.with_deadline(deadline);
        }
        // The closure itself runs inside the context too: it may read headers from there.
        let mut future = pin!(context.scope(async move { operation(attempt).await }));
        let in_operation = &mut self.in_operation;
        let watched = poll_fn(|cx| {
            *in_operation = true;
            let poll = future.as_mut().poll(cx);
            *in_operation = false;
            poll
        });
        match attempt.deadline {
            Some(deadline) => {
                tokio::time::timeout_at(clock::instant_of(deadline), watched).await.ok()
            }
            None => Some(watched.await),
        }
    }

    fn classify<E: Classify>(&mut self, error: &E) -> Failure {
        self.in_operation = true;
        let failure = error.classify();
        self.in_operation = false;
        failure
    }

    async fn queue(&self, ticket: Ticket, until: Moment) -> Event {
        let granted = self.gate.granted(ticket);
        match tokio::time::timeout_at(clock::instant_of(until), granted).await {
            Ok(event) => event,
            Err(_elapsed) => Event::QueueTimedOut,
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

    fn misfit<E>(&self, source: Misfit) -> CallError<E> {
        let (dependency, attempts) = (self.dependency(), self.pipeline.attempts());
        CallError::Misfit { dependency, source, attempts }
    }

    fn dependency(&self) -> Arc<str> {
        Arc::from(self.gate.plan.dependency.as_str())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if matches!(self.pipeline.phase(), Phase::New | Phase::Finished) {
            return;
        }
        let event = if self.in_operation { Event::Panicked } else { Event::Cancelled };
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
    use crate::Dependency;
    use crate::clock::tests::READINGS;

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
        let trip = Trip::Rate { failure_rate: 0.5, min_calls: 10, over };
        let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
        assert_eq!(readings_of_a_success(breaker).await, 2);
    }
}
