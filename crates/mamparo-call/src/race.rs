//! Several attempts of one call at once; the first value counts.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mamparo_core::call::pipeline::{Event, Step, Told};
use mamparo_core::time::Moment;
use tokio::time::Sleep;

use crate::deadline::{Deadline, Elapsed};
use crate::driver::{Last, Run};
use crate::gate::Gate;
use crate::running::within;
use crate::{Attempt, CallError, Classify, clock};

/// How a race ended.
pub(crate) enum Raced<T, E> {
    /// With a value.
    Won(T),
    /// With the failure of the last attempt that was under way, and what follows.
    Lost(Last<E>, Told),
}

/// What happened in a race.
enum News<T, E> {
    Ended(Attempt, Result<Result<T, E>, Elapsed>),
    HedgeDue,
}

/// The attempts under way. Boxed, because their number is only known when they run.
struct Flights<Fut> {
    flights: Vec<(Attempt, Pin<Box<Deadline<Fut>>>)>,
    hedge: Option<Pin<Box<Sleep>>>,
}

/// Makes an attempt, and others beside it as the machine wants them.
pub(crate) async fn race<T, E, F, Fut>(
    run: &mut Run<&Gate>,
    first: Attempt,
    hedge_at: Moment,
    operation: &mut F,
) -> Result<Raced<T, E>, CallError<E>>
where
    E: Classify,
    F: FnMut(Attempt) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut flights = Flights { flights: Vec::with_capacity(2), hedge: None };
    flights.begin(first, Some(hedge_at), run, operation);
    loop {
        let news = poll_fn(|cx| flights.poll(run, cx)).await;
        let now = clock::now();
        let (told, last) = match news {
            News::HedgeDue => (run.tell(now, Event::HedgeDue)?, None),
            News::Ended(attempt, Ok(Ok(value))) => {
                run.succeeded_at(now, attempt.number, run.gate.observer.stripe())?;
                return Ok(Raced::Won(value));
            }
            News::Ended(attempt, Ok(Err(error))) => {
                let (event, last) = run.judge(attempt, error);
                (run.tell(now, event)?, Some(last))
            }
            News::Ended(attempt, Err(Elapsed)) => {
                let event = Event::TimedOut { number: attempt.number };
                (run.tell(now, event)?, Some(Last::timed_out(attempt)))
            }
        };
        match (told.step, last) {
            (Step::Attempt { number, until, hedge_at }, _) => {
                flights.begin(Attempt::new(number, now, until), hedge_at, run, operation);
            }
            (Step::KeepOn, _) => {}
            (_, Some(last)) => return Ok(Raced::Lost(last, told)),
            (step, None) => return Err(run.ended(None, step)),
        }
    }
}

impl<T, E, Fut> Flights<Fut>
where
    Fut: Future<Output = Result<T, E>>,
{
    fn begin<F: FnMut(Attempt) -> Fut>(
        &mut self,
        attempt: Attempt,
        hedge_at: Option<Moment>,
        run: &mut Run<&Gate>,
        operation: &mut F,
    ) {
        let future = within(&mut run.running, &attempt, || operation(attempt));
        self.flights.push((attempt, Box::pin(Deadline::new(future, attempt.deadline))));
        let sleep = |at| Box::pin(tokio::time::sleep_until(clock::instant_of(at)));
        self.hedge = hedge_at.map(sleep);
    }

    /// The first news of any. An attempt that ended is polled no more.
    fn poll(&mut self, run: &mut Run<&Gate>, cx: &mut Context<'_>) -> Poll<News<T, E>> {
        for place in 0..self.flights.len() {
            let (attempt, future) = &mut self.flights[place];
            let attempt = *attempt;
            let poll = within(&mut run.running, &attempt, || future.as_mut().poll(cx));
            if let Poll::Ready(ended) = poll {
                drop(self.flights.remove(place));
                return Poll::Ready(News::Ended(attempt, ended));
            }
        }
        let Some(due) = &mut self.hedge else { return Poll::Pending };
        ready!(due.as_mut().poll(cx));
        self.hedge = None;
        Poll::Ready(News::HedgeDue)
    }
}
