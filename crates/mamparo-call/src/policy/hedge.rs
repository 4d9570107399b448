//! A second request before the first has failed, for any future that a closure can make again.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use mamparo_core::call::hedge::{Hedge, HedgeConfig, HedgeDecision, SlowAttempt};
use mamparo_core::call::latency::Latency;
use mamparo_core::call::retry_budget::RetryBudget;
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::Context as Request;
use crate::clock;
use crate::deadline::wait;
use crate::policy::listen::Ears;
use crate::policy::{Listener, PolicyEvent, RetryPolicy};

/// How long an answer counts for the quantile after which a hedge is sent.
const LATENCY_WINDOW: Duration = Duration::from_secs(60);

/// The latencies that all clones share, and what is hedged by them.
///
/// When a future takes longer than nearly all others did, another copy is sent, and the first value
/// counts; the copies that are still under way are dropped. A failure waits for the others, and the
/// last one's error is the call's. Where no hedge may be sent (not repeatable, budget spent, deadline
/// near), what runs goes on. A hedge that is not sent holds nothing.
///
/// Put it outside of breaker and bulkhead, so that each copy is asked and told like any attempt.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::{convert::Infallible, time::Duration};
/// use mamparo_call::{Repeatable, policy::HedgePolicy};
/// use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
///
/// let after = HedgeAfter::Fixed(Duration::from_millis(50));
/// let hedge = HedgePolicy::new(HedgeConfig { after, extra: 1 });
/// let answer = hedge
///     .call(Repeatable::Idempotent, |copy| async move {
///         if copy == 1 {
///             std::future::pending::<()>().await; // a replica that hangs
///         }
///         Ok::<_, Infallible>(copy)
///     })
///     .await;
/// assert_eq!(answer, Ok(2));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct HedgePolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    hedge: Arc<Hedge>,
    latency: Arc<Latency>,
    budget: Option<Arc<RetryBudget>>,
    /// Do first copies pay in, or does a retry around them?
    pays_in: bool,
    ears: Ears,
}

impl HedgePolicy {
    /// Has seen nothing yet.
    #[must_use]
    pub fn new(config: HedgeConfig) -> Self {
        let shared = Shared {
            hedge: Arc::new(Hedge::new(config)),
            latency: Arc::new(Latency::new(LATENCY_WINDOW)),
            budget: None,
            pays_in: false,
            ears: Ears::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The same within a budget of its own, into which each call pays.
    #[must_use]
    pub fn with_budget(self, budget: Arc<RetryBudget>) -> Self {
        let shared = Shared { budget: Some(budget), pays_in: true, ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// The same within the budget of the retry around it, which pays in for both.
    #[must_use]
    pub fn with_budget_of(self, retry: &RetryPolicy) -> Self {
        let budget = retry.budget().map(Arc::clone);
        let shared = Shared { budget, pays_in: false, ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// The same with a listener of this handle and its clones: `Hedged`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs what `operation` makes, and makes it again when that takes long; it gets the copy's
    /// number, counted from one. The first copy lies within the future, each hedge that is really sent
    /// in a box of its own.
    ///
    /// # Errors
    /// The error of the copy that ended last.
    pub const fn call<Op, Fut>(
        &self,
        repeatable: Repeatable,
        operation: Op,
    ) -> Hedged<&Self, Op, Fut>
    where
        Op: FnMut(u32) -> Fut,
    {
        Hedged {
            first: None,
            hedges: Vec::new(),
            timer: None,
            operation,
            race: Race::new(self, repeatable),
        }
    }
}

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
        let (now, shared) = (clock::now(), self.shared());
        let delay = shared.hedge.delay(now, &shared.latency);
        self.started = now;
        self.pace = match delay {
            Some(every) => Pace::Hedge { at: now.plus(every), every },
            None => Pace::NoMore,
        };
    }

    /// The next copy is due. Says when it is sent, or that it may not be.
    #[cold]
    pub(crate) fn due(&mut self, every: Duration) -> Option<Moment> {
        let (now, shared) = (clock::now(), self.shared());
        let slow = SlowAttempt {
            sent: self.sent,
            repeatable: self.repeatable,
            circuit_closed: true,
            left: Request::current_deadline().map(|deadline| now.until(deadline)),
        };
        match shared.hedge.ask(&slow, shared.budget.as_deref()) {
            // Sent is spent: the token goes.
            HedgeDecision::Send { paid: _ } => {
                let number = self.sent.saturating_add(2);
                shared.ears.tell(|| PolicyEvent::Hedged { number });
                self.sent = self.sent.saturating_add(1);
                self.pace = Pace::Hedge { at: now.plus(every), every };
                Some(now)
            }
            HedgeDecision::No(_) => {
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

    pub(crate) const fn lost(&mut self) {
        self.pace = Pace::Over;
    }

    pub(crate) const fn started(&self) -> Moment {
        self.started
    }
}

pin_project! {
    /// The future of [`HedgePolicy::call`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Hedged<P, Op, Fut>
    where
        P: Borrow<HedgePolicy>,
    {
        #[pin]
        first: Option<Fut>,
        // With the moment at which each was sent.
        hedges: Vec<(Moment, Pin<Box<Fut>>)>,
        #[pin]
        timer: Option<Sleep>,
        operation: Op,
        race: Race<P>,
    }
}

impl<P, Op, Fut, T, E> Future for Hedged<P, Op, Fut>
where
    P: Borrow<HedgePolicy>,
    Op: FnMut(u32) -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    type Output = Result<T, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        match this.race.pace() {
            Pace::Over => return Poll::Pending,
            Pace::New => {
                this.race.begin();
                this.first.set(Some((this.operation)(1)));
            }
            Pace::Alone | Pace::Hedge { .. } | Pace::NoMore => {}
        }
        loop {
            let news = poll_copies(this.first.as_mut(), this.hedges, this.race, cx);
            if news.is_ready() {
                return news;
            }
            if let Pace::Alone = this.race.pace() {
                this.race.waits();
            }
            let Pace::Hedge { at, every } = this.race.pace() else { return Poll::Pending };
            ready!(wait(this.timer.as_mut(), at, cx));
            this.timer.set(None);
            let Some(now) = this.race.due(every) else { return Poll::Pending };
            let copy = (this.operation)(this.race.copy());
            this.hedges.push((now, Box::pin(copy)));
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
        if hedges.is_empty() {
            race.lost();
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
        if hedges.is_empty() && first.is_none() {
            race.lost();
            return Poll::Ready(result);
        }
    }
    Poll::Pending
}
