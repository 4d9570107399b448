//! So many calls a period, for any future.

use std::sync::Arc;

use mamparo_core::call::pipeline::Refusal;
use mamparo_core::call::rate_limit::{Answer, RateLimit, RateLimitConfig};

use crate::clock;
use crate::policy::listen::Ears;
use crate::policy::{Ending, Guard, Guarded, Listener, PolicyEvent, Refused, Unjudged};

/// The bucket that all clones share.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::{convert::Infallible, time::Duration};
/// use mamparo_call::policy::RateLimitPolicy;
/// use mamparo_core::call::rate_limit::RateLimitConfig;
///
/// let config = RateLimitConfig::new(300, Duration::from_secs(60)).with_burst(1);
/// let limit = RateLimitPolicy::new(config);
/// assert!(limit.call(async { Ok::<_, Infallible>(()) }).await.is_ok());
/// let refused = limit.call(async { Ok::<_, Infallible>(()) }).await.expect_err("too soon");
/// let after = refused.refused().and_then(|refused| refused.retry_after);
/// assert!(after.is_some_and(|after| after <= Duration::from_millis(200)));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimitPolicy {
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Shared {
    bucket: Arc<RateLimit>,
    ears: Ears,
}

impl RateLimitPolicy {
    /// A full bucket.
    #[must_use]
    pub fn new(config: RateLimitConfig) -> Self {
        let bucket = Arc::new(RateLimit::new(config));
        Self { shared: Arc::new(Shared { bucket, ears: Ears::default() }) }
    }

    /// The same bucket with a listener of this handle and its clones: `Refused`.
    #[must_use]
    pub fn listened_by(self, listener: impl Listener + 'static) -> Self {
        let shared = Shared { ears: Ears::new(listener), ..(*self.shared).clone() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `future` if the period has room for it.
    ///
    /// # Errors
    /// [`GuardError`](crate::policy::GuardError): refused, or the future's own error.
    pub const fn call<F>(&self, future: F) -> Guarded<&Self, Unjudged, F> {
        Guarded::new(self, Unjudged, future)
    }
}

impl Guard for RateLimitPolicy {
    type Pass = ();
    type Judge = Unjudged;

    #[inline]
    fn enter(&self) -> Result<(), Refused> {
        match self.shared.bucket.ask(clock::now()) {
            Answer::Allowed { .. } => Ok(()),
            Answer::NotUntil { retry_after } => {
                let refused = Refused::new(Refusal::RateLimited, Some(retry_after));
                self.shared.ears.tell(|| PolicyEvent::Refused(refused));
                Err(refused)
            }
        }
    }

    #[inline]
    fn leave(&self, (): (), _: Ending) {}
}
