//! Several attempts of one call at once; the first value counts.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use mamparo_core::call::pipeline::{Event, Step, Told};
use mamparo_core::time::Moment;
use tokio::task::coop::unconstrained;
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

/// What follows from the news.
enum Next<T, E> {
    /// Another attempt beside those under way.
    Beside(Attempt, Option<Moment>),
    /// Nothing: those under way go on.
    KeepOn,
    Over(Raced<T, E>),
}

/// The attempts under way. Boxed, because their number is only known when they run.
pub(crate) struct Flights<Fut> {
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
    let mut make = |run: &mut Run<&Gate>, attempt: Attempt| {
        within(&mut run.running, &attempt, || operation(attempt))
    };
    let future = make(run, first);
    let mut flights = Flights::of(first, future, Some(hedge_at));
    poll_fn(|cx| flights.poll_over(run, &mut make, cx)).await
}

/// Tells the machine the news.
fn hear<T, E: Classify, G: Deref<Target = Gate>>(
    run: &mut Run<G>,
    news: News<T, E>,
) -> Result<Next<T, E>, CallError<E>> {
    let now = clock::now();
    let (told, last) = match news {
        News::HedgeDue => (run.tell(now, Event::HedgeDue)?, None),
        News::Ended(Attempt { number, .. }, Ok(Ok(value))) => {
            let _done = run.tell(now, Event::Succeeded { number })?;
            return Ok(Next::Over(Raced::Won(value)));
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
            Ok(Next::Beside(Attempt::new(number, now, until), hedge_at))
        }
        (Step::KeepOn, _) => Ok(Next::KeepOn),
        (_, Some(last)) => Ok(Next::Over(Raced::Lost(last, told))),
        (step, None) => Err(run.ended(None, step)),
    }
}

impl<T, E, Fut> Flights<Fut>
where
    Fut: Future<Output = Result<T, E>>,
{
    /// A first attempt. The next one is due at `hedge_at`.
    pub(crate) fn of(first: Attempt, future: Fut, hedge_at: Option<Moment>) -> Self {
        let mut flights = Self { flights: Vec::with_capacity(2), hedge: None };
        flights.begin(first, future, hedge_at);
        flights
    }

    fn begin(&mut self, attempt: Attempt, future: Fut, hedge_at: Option<Moment>) {
        self.flights.push((attempt, Box::pin(Deadline::new(future, attempt.deadline))));
        let sleep = |at| Box::pin(tokio::time::sleep_until(clock::instant_of(at)));
        self.hedge = hedge_at.map(sleep);
    }

    /// Ready when the race is over; `make` makes the attempts beside the first.
    pub(crate) fn poll_over<G: Deref<Target = Gate>>(
        &mut self,
        run: &mut Run<G>,
        mut make: impl FnMut(&mut Run<G>, Attempt) -> Fut,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Raced<T, E>, CallError<E>>>
    where
        E: Classify,
    {
        loop {
            let news = ready!(self.poll(run, cx));
            match hear(run, news)? {
                Next::Beside(attempt, hedge_at) => {
                    let future = make(run, attempt);
                    self.begin(attempt, future, hedge_at);
                }
                Next::KeepOn => {}
                Next::Over(raced) => return Poll::Ready(Ok(raced)),
            }
        }
    }

    /// The first news of any. An attempt that ended is polled no more.
    fn poll<G: Deref<Target = Gate>>(
        &mut self,
        run: &mut Run<G>,
        cx: &mut Context<'_>,
    ) -> Poll<News<T, E>> {
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
        // An attempt that uses up the task's cooperative budget is not kept from being hedged.
        ready!(Pin::new(&mut unconstrained(due.as_mut())).poll(cx));
        self.hedge = None;
        Poll::Ready(News::HedgeDue)
    }
}
