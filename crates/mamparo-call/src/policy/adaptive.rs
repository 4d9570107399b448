//! A bulkhead whose limit finds its own number, around any future.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use mamparo_core::call::adaptive::{AdaptiveConfig, AdaptiveLimit, Phase, Sample};
use mamparo_core::call::bulkhead::BulkheadConfig;
use mamparo_core::outcome::{Failure, Kind};
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;

use crate::clock;
use crate::policy::{
    BulkheadPolicy, ByError, Ending, Guard, GuardError, Guarded, Listener, Refused, Slotted,
};

/// A [`BulkheadPolicy`] that is moved by what its calls take and by how many are dropped.
///
/// As a [`Guard`] it only measures; the slots are the bulkhead's. A call that timed out or was turned
/// away (429, 503) counts as dropped; one that is cancelled or panics says nothing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::convert::Infallible;
/// use mamparo_call::policy::AdaptivePolicy;
/// use mamparo_core::call::adaptive::AdaptiveConfig;
///
/// let config = AdaptiveConfig { min: 4, initial: 20, max: 200, ..AdaptiveConfig::default() };
/// let adaptive = AdaptivePolicy::new(config, 10); // 10 may wait in line
/// assert_eq!(adaptive.call(async { Ok::<_, Infallible>(7) }).await, Ok(7));
/// assert_eq!(adaptive.bulkhead().limit(), 20);
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct AdaptivePolicy {
    bulkhead: BulkheadPolicy,
    limit: Arc<AdaptiveLimit>,
}

impl AdaptivePolicy {
    /// A limit at its initial value, with `queue` places in line (0 to 10 000).
    #[must_use]
    pub fn new(config: AdaptiveConfig, queue: u32) -> Self {
        let limit = Arc::new(AdaptiveLimit::new(config));
        let bulkhead = BulkheadPolicy::new(BulkheadConfig::new(limit.limit(), queue));
        Self { bulkhead, limit }
    }

    /// The same with a listener of this handle and its clones, to what the bulkhead says.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        Self { bulkhead: self.bulkhead.listened_by(listener), ..self }
    }

    /// Runs `future` in a slot and measures it.
    ///
    /// # Errors
    /// [`GuardError`]: no slot in time, or the future's own error.
    pub const fn call<F>(
        &self,
        future: F,
    ) -> Flattened<Slotted<&Self, Guarded<&Self, ByError, F>>> {
        self.call_judged(ByError, future)
    }

    /// The same with a [`Judge`](crate::policy::Judge) of values and errors.
    pub const fn call_judged<J, F>(
        &self,
        judge: J,
        future: F,
    ) -> Flattened<Slotted<&Self, Guarded<&Self, J, F>>> {
        Flattened { guarded: Slotted::new(self, Guarded::new(self, judge, future)) }
    }

    /// The slots.
    #[must_use]
    pub const fn bulkhead(&self) -> &BulkheadPolicy {
        &self.bulkhead
    }

    /// Is it seeking, or probing for the base latency?
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.limit.phase()
    }

    fn measure(&self, started: Moment, dropped: bool) {
        let now = clock::now();
        let in_flight = self.bulkhead.in_flight();
        let sample = Sample { took: now.since(started), in_flight, dropped };
        let mut changed = self.limit.tell(now, sample).is_some();
        while changed {
            let limit = self.limit.limit();
            self.bulkhead.set_limit(limit);
            // Of two changes on two threads the later one counts.
            changed = self.limit.limit() != limit;
        }
    }
}

impl Borrow<BulkheadPolicy> for AdaptivePolicy {
    fn borrow(&self) -> &BulkheadPolicy {
        &self.bulkhead
    }
}

impl Borrow<BulkheadPolicy> for &AdaptivePolicy {
    fn borrow(&self) -> &BulkheadPolicy {
        &self.bulkhead
    }
}

impl Guard for AdaptivePolicy {
    /// When the call began.
    type Pass = Moment;
    type Judge = ByError;

    fn enter(&self) -> Result<Moment, Refused> {
        Ok(clock::now())
    }

    fn leave(&self, started: Moment, ending: Ending) {
        match ending {
            Ending::Succeeded => self.measure(started, false),
            Ending::Failed(Failure { kind: Kind::Neutral, .. })
            | Ending::Panicked
            | Ending::Cancelled => {}
            Ending::Failed(Failure { kind: Kind::Permanent, .. }) => self.measure(started, false),
            Ending::Failed(Failure { kind: Kind::Transient | Kind::Unknown, .. }) => {
                self.measure(started, true);
            }
        }
    }
}

pin_project! {
    /// Two guards, one behind the other, as one ([`GuardError::flatten`]).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Flattened<F> {
        #[pin]
        guarded: F,
    }
}

impl<F> Flattened<F> {
    pub(crate) const fn new(guarded: F) -> Self {
        Self { guarded }
    }
}

impl<F, T, E> Future for Flattened<F>
where
    F: Future<Output = Result<T, GuardError<GuardError<E>>>>,
{
    type Output = Result<T, GuardError<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().guarded.poll(cx).map(|result| result.map_err(GuardError::flatten))
    }
}
