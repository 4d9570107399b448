//! What is known of the copies of one call, and what the latencies learn of it.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use mamparo_core::call::hedge::{HedgeDecision, SlowAttempt};
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;

use super::{HedgePolicy, Shared};
use crate::Context as Request;
use crate::clock;
use crate::policy::PolicyEvent;

/// What is known of the copies of one call.
#[derive(Debug)]
pub(crate) struct Race<P: Borrow<HedgePolicy>> {
    policy: P,
    repeatable: Repeatable,
    /// Hedges that were sent.
    sent: u32,
    /// When the first copy had to wait for the first time.
    started: Moment,
    pace: Pace,
}

/// What comes next in a race.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// Nothing has begun.
    New,
    /// The first copy has not had to wait yet.
    Alone,
    /// Another copy at `at`, and then each `every`.
    Hedge {
        at: Moment,
        every: Duration,
    },
    /// No other copy.
    NoMore,
    Over,
}

impl<P: Borrow<HedgePolicy>> Race<P> {
    pub(crate) const fn new(policy: P, repeatable: Repeatable) -> Self {
        Self { policy, repeatable, sent: 0, started: Moment::ORIGIN, pace: Pace::New }
    }

    fn shared(&self) -> &Shared {
        &self.policy.borrow().shared
    }

    /// The first copy is sent.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.pace = Pace::Alone;
        if let Shared { budget: Some(budget), pays_in: true, .. } = self.shared() {
            budget.deposit();
        }
    }

    pub(crate) const fn pace(&self) -> Pace {
        self.pace
    }

    /// The first copy has to wait: when is the next one due?
    #[cold]
    pub(crate) fn waits(&mut self) {
        let now = clock::now();
        self.started = now;
        self.pace = match self.delay(now) {
            Some(every) => self.next(now, every),
            None => Pace::NoMore,
        };
    }

    /// How long a copy runs alone; `None` where no other may follow it, so that no timer is set.
    fn delay(&self, now: Moment) -> Option<Duration> {
        match self.repeatable {
            Repeatable::Idempotent | Repeatable::Keyed => {
                self.shared().hedge.delay(now, &self.shared().latency)
            }
            Repeatable::Unsafe | Repeatable::OneShot => None,
        }
    }

    fn next(&self, now: Moment, every: Duration) -> Pace {
        if self.sent < self.shared().hedge.config().extra {
            Pace::Hedge { at: now.plus(every), every }
        } else {
            Pace::NoMore
        }
    }

    /// The next copy is due. Says when it is sent, or that it may not be.
    #[cold]
    pub(crate) fn due(&mut self, every: Duration) -> Option<Moment> {
        let (now, shared) = (clock::now(), self.shared());
        let slow = SlowAttempt {
            sent: self.sent,
            repeatable: self.repeatable,
            circuit_closed: true,
            // What an error says is not asked here: it belongs to who makes the copies.
            told_not_to: false,
            left: Request::current_deadline().map(|deadline| now.until(deadline)),
        };
        match shared.hedge.ask(&slow, shared.budget.as_deref()) {
            // Sent is spent: the token goes.
            HedgeDecision::Send { paid: _ } => {
                let number = self.sent.saturating_add(2);
                shared.ears.tell(|| PolicyEvent::Hedged { number });
                self.sent = self.sent.saturating_add(1);
                self.pace = self.next(now, every);
                Some(now)
            }
            HedgeDecision::No(reason) => {
                shared.ears.tell(|| PolicyEvent::NotHedged(reason));
                self.pace = Pace::NoMore;
                None
            }
        }
    }

    /// The number of the copy that was sent last.
    pub(crate) const fn copy(&self) -> u32 {
        self.sent.saturating_add(1)
    }

    /// A copy won that was sent at `sent`, or the first one. One that never had to wait took no time
    /// worth noting, and says nothing of the others.
    pub(crate) fn won(&mut self, sent: Option<Moment>, losers: impl Iterator<Item = Moment>) {
        let waited = !matches!(self.pace, Pace::Alone);
        self.pace = Pace::Over;
        if waited {
            self.note(sent.unwrap_or(self.started), losers);
        }
    }

    /// Who only notes the winners sees a dependency that gets faster with each hedge.
    #[cold]
    fn note(&self, winner: Moment, losers: impl Iterator<Item = Moment>) {
        let (now, shared) = (clock::now(), self.shared());
        let took = now.since(winner);
        shared.latency.record(now, took);
        losers.filter(|loser| now.since(*loser) > took).for_each(|_| {
            shared.latency.record_cut_off(now);
        });
    }

    /// A copy failed that was sent at `sent`, or the first one: an error is an end, too, and one that
    /// took long says that the dependency is slow.
    pub(crate) fn failed(&mut self, sent: Option<Moment>, last: bool) {
        let waited = !matches!(self.pace, Pace::Alone);
        if last {
            self.pace = Pace::Over;
        }
        if waited {
            self.note(sent.unwrap_or(self.started), std::iter::empty());
        }
    }

    /// The caller went away before the end: the call took longer than anybody knows. It counts once,
    /// however many copies of it there were.
    #[cold]
    fn abandoned(&self) {
        let (now, shared) = (clock::now(), self.shared());
        let delay = shared.hedge.delay(now, &shared.latency);
        if delay.is_some_and(|delay| now.since(self.started) > delay) {
            shared.latency.record_cut_off(now);
        }
    }

    pub(crate) const fn started(&self) -> Moment {
        self.started
    }
}

impl<P: Borrow<HedgePolicy>> Drop for Race<P> {
    #[inline]
    fn drop(&mut self) {
        if matches!(self.pace, Pace::Hedge { .. } | Pace::NoMore) {
            self.abandoned();
        }
    }
}

/// Polls every copy that is under way; ready with the first value, or with the last error.
#[inline]
pub(crate) fn poll_copies<P, First, Hedge, T, E>(
    mut first: Pin<&mut Option<First>>,
    hedges: &mut Vec<(Moment, Pin<Box<Hedge>>)>,
    race: &mut Race<P>,
    cx: &mut Context<'_>,
) -> Poll<Result<T, E>>
where
    P: Borrow<HedgePolicy>,
    First: Future<Output = Result<T, E>>,
    Hedge: Future<Output = Result<T, E>>,
{
    if let Some(copy) = first.as_mut().as_pin_mut()
        && let Poll::Ready(result) = copy.poll(cx)
    {
        first.set(None);
        if result.is_ok() {
            race.won(None, hedges.drain(..).map(|(sent, _)| sent));
            return Poll::Ready(result);
        }
        race.failed(None, hedges.is_empty());
        if hedges.is_empty() {
            return Poll::Ready(result);
        }
    }
    let mut place = 0;
    while let Some((sent, copy)) = hedges.get_mut(place) {
        let Poll::Ready(result) = copy.as_mut().poll(cx) else {
            place += 1;
            continue;
        };
        let sent = *sent;
        drop(hedges.swap_remove(place));
        if result.is_ok() {
            let loser = first.is_some().then(|| race.started());
            race.won(Some(sent), loser.into_iter().chain(hedges.drain(..).map(|(sent, _)| sent)));
            first.set(None);
            return Poll::Ready(result);
        }
        let last = hedges.is_empty() && first.is_none();
        race.failed(Some(sent), last);
        if last {
            return Poll::Ready(result);
        }
    }
    Poll::Pending
}
