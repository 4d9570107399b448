//! Holding calls back that the dependency would turn away, for any future.

use std::sync::Arc;

use mamparo_core::call::pipeline::Refusal;
use mamparo_core::call::throttle::{Leave, Reply, Throttle, ThrottleConfig};

use crate::clock::{self, SharedRng};
use crate::policy::listen::Ears;
use crate::policy::{ByError, Ending, Guard, Guarded, Listener, PolicyEvent, Refused};

/// The tally of requests and accepts that all clones share.
///
/// A dependency that turns calls away is asked less: with *K* = 2, about twice what it accepts (Google,
/// "Site Reliability Engineering", chapter 21). A panic counts as turned away, a drop not at all.
///
/// ```
/// # #[derive(Debug)] struct Full;
/// # impl mamparo_call::Classify for Full {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use mamparo_call::policy::ThrottlePolicy;
/// use mamparo_core::call::throttle::ThrottleConfig;
///
/// let throttle = ThrottlePolicy::new(ThrottleConfig::default());
/// let mut reached = 0;
/// for _ in 0..1_000 {
///     let answer = throttle.call(async { Err::<(), _>(Full) }).await;
///     reached += u32::from(answer.is_err_and(|error| error.refused().is_none()));
/// }
/// assert!(reached < 300, "a tenth goes through to see whether that has changed: {reached}");
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ThrottlePolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    throttle: Arc<Throttle>,
    rng: Arc<SharedRng>,
    ears: Ears,
}

impl ThrottlePolicy {
    /// An empty tally.
    #[must_use]
    pub fn new(config: ThrottleConfig) -> Self {
        let (throttle, rng) = (Arc::new(Throttle::new(config)), Arc::new(SharedRng::new()));
        Self { shared: Arc::new(Shared { throttle, rng, ears: Ears::default() }) }
    }

    /// The same tally with a listener of this handle and its clones: how calls end, and `Refused`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `future` unless it is held back, and takes its end.
    ///
    /// # Errors
    /// [`GuardError`](crate::policy::GuardError): refused, or the future's own error.
    pub const fn call<F>(&self, future: F) -> Guarded<&Self, ByError, F> {
        Guarded::new(self, ByError, future)
    }

    /// The same with a [`Judge`](crate::policy::Judge) of values and errors.
    pub const fn call_judged<J, F>(&self, judge: J, future: F) -> Guarded<&Self, J, F> {
        Guarded::new(self, judge, future)
    }

    /// The share of calls that is held back now.
    #[must_use]
    pub fn share_refused(&self) -> f64 {
        self.shared.throttle.refused(clock::now())
    }
}

impl Guard for ThrottlePolicy {
    type Pass = ();
    type Judge = ByError;

    #[inline]
    fn enter(&self) -> Result<(), Refused> {
        match self.shared.throttle.ask(clock::now(), &mut &*self.shared.rng) {
            Leave::Granted => Ok(()),
            Leave::Throttled { retry_after } => {
                let refused = Refused::new(Refusal::Throttled, Some(retry_after));
                self.shared.ears.tell(|| PolicyEvent::Refused(refused));
                Err(refused)
            }
        }
    }

    #[inline]
    fn leave(&self, (): (), ending: Ending) {
        let reply = match ending {
            Ending::Succeeded => Reply::Accepted,
            Ending::Failed(failure) => Reply::of(&failure),
            Ending::Panicked => Reply::Rejected,
            Ending::Cancelled => Reply::Silent,
        };
        self.shared.throttle.tell(clock::now(), reply);
        self.shared.ears.tell(|| ending.event());
    }
}
