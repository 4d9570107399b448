//! A second request before the first has failed, for any future that a closure can make again.

mod race;

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mamparo_core::call::hedge::{Hedge, HedgeConfig};
use mamparo_core::call::latency::Latency;
use mamparo_core::call::retry_budget::RetryBudget;
use mamparo_core::limits::LATENCY_WINDOW;
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;
pub(crate) use race::{Pace, Race, poll_copies};
use tokio::time::Sleep;

use crate::deadline::wait;
use crate::policy::listen::Ears;
use crate::policy::{Listener, RetryPolicy};

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

    /// The same with a listener of this handle and its clones: `Hedged` and `NotHedged`.
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
