//! Faults on purpose around any future: the drive of [`mamparo_core::call::fault`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use mamparo_call::fault::{Fake, FaultInjector};
//! use mamparo_core::call::fault::FaultConfig;
//!
//! // From the policy file of the staging environment: a tenth of the calls fails.
//! let config = FaultConfig { enabled: true, error: 0.1, ..FaultConfig::default() };
//! let faults = FaultInjector::new("orders", "catalog", config)?;
//! let answer = faults
//!     .around(
//!         None,
//!         // What looks real to retry and breaker is made here, of the transport's own type.
//!         |fake| match fake {
//!             Fake::Error => Err("503 Service Unavailable"),
//!             Fake::Outcome => Ok("[]"),
//!         },
//!         || async { Ok("[1, 2, 3]") },
//!     )
//!     .await;
//! assert!(matches!(answer, Ok("[1, 2, 3]") | Err("503 Service Unavailable")));
//! # Ok(()) }
//! ```

use std::future::Future;
use std::time::Duration;

use mamparo_core::call::fault::{FaultConfig, Faults, Injection, Instead};
use mamparo_core::time::Moment;

use crate::{BuildError, Context, clock, observe};

/// How long after the deadline an injected delay ends by itself: one tick of the timer, so that a
/// timeout around it has the first word, as it would with a real delay.
const AFTER_DEADLINE: Duration = Duration::from_millis(1);

/// What has to be made instead of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fake {
    /// An error of the kind that the transport gives.
    Error,
    /// A made-up value.
    Outcome,
}

/// Injects faults into the calls of one dependency. Stands innermost, where the transport would be.
#[derive(Debug)]
pub struct FaultInjector {
    faults: Faults,
    service: Box<str>,
    dependency: Box<str>,
}

impl FaultInjector {
    /// An injector for `service`'s calls of `dependency`. One that is switched on says so in a
    /// warning.
    ///
    /// # Errors
    /// [`BuildError`] lists every value of `config` that can't be meant.
    pub fn new(service: &str, dependency: &str, config: FaultConfig) -> Result<Self, BuildError> {
        let mistakes = config.mistakes();
        if !mistakes.is_empty() {
            return Err(BuildError { dependency: dependency.to_owned(), mistakes });
        }
        if config.enabled {
            observe::faults_are_on(service, dependency, &config);
        }
        let faults = Faults::new(config);
        Ok(Self { faults, service: service.into(), dependency: dependency.into() })
    }

    /// Is the switch on?
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.faults.config().enabled
    }

    /// Makes the call by `operation`, or what befalls it: first the delay, then what `made` makes, or
    /// a panic. `key` is what stays the same for a client.
    ///
    /// Dropping the future ends an injected delay like any other. A delay that reaches past the
    /// deadline of the current [`Context`] ends there with `made(`[`Fake::Error`]`)`, and
    /// `operation` is not begun.
    pub async fn around<T, Fut>(
        &self,
        key: Option<&[u8]>,
        made: impl FnOnce(Fake) -> T,
        operation: impl FnOnce() -> Fut,
    ) -> T
    where
        Fut: Future<Output = T>,
    {
        if self.is_on()
            && let Some(fake) = self.strike(key).await
        {
            return made(fake);
        }
        operation().await
    }

    /// Decides what befalls one call and carries it out, except for what has to be made: waits, and
    /// panics. `None` when the call is to be made now.
    pub async fn strike(&self, key: Option<&[u8]>) -> Option<Fake> {
        let injection = self.ask(key)?;
        self.carry_out(injection).await
    }

    /// Decides what befalls one call, without carrying it out.
    pub(crate) fn ask(&self, key: Option<&[u8]>) -> Option<Injection> {
        let injection = self.faults.ask(key)?;
        observe::fault_injected(&self.service, &self.dependency, &injection);
        Some(injection)
    }

    /// The same, where the key is the client of the current [`Context`].
    pub(crate) fn ask_for_client(&self) -> Option<Injection> {
        self.ask(Context::current().client.as_deref().map(str::as_bytes))
    }

    /// Waits and panics; `None` when the call is to be made now.
    pub(crate) async fn carry_out(&self, injection: Injection) -> Option<Fake> {
        let Injection { delay, instead, .. } = injection;
        if let Some(delay) = delay
            && !held_up(delay, Context::current_deadline()).await
        {
            return Some(Fake::Error);
        }
        match instead? {
            Instead::Error => Some(Fake::Error),
            Instead::Outcome => Some(Fake::Outcome),
            Instead::Panic => panic_on_purpose(),
        }
    }
}

#[expect(clippy::panic, reason = "who switches this on asks for it")]
fn panic_on_purpose() -> ! {
    panic!("injected on purpose")
}

/// Waits for `delay`; false when the deadline ended it.
async fn held_up(delay: Duration, deadline: Option<Moment>) -> bool {
    let end = clock::now().plus(delay);
    match deadline {
        Some(deadline) if end >= deadline => {
            clock::sleep_until(end.min(deadline.plus(AFTER_DEADLINE))).await;
            false
        }
        _ => {
            clock::sleep_until(end).await;
            true
        }
    }
}
