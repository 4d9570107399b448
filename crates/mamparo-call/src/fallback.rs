//! A lesser answer where the dependency gave none, and a type that says so.
//!
//! [`mamparo_core::call::fallback`] decides whether a failure may be stood in for; a [`Fallback`]
//! asks it, counts, and hands out an [`Answer`].
//!
//! ```
//! # #[derive(Debug)] struct Down;
//! # impl mamparo_call::Classify for Down {
//! #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::NOT_SENT }
//! # }
//! use mamparo_call::fallback::{Answer, Fallback, Lesser};
//!
//! let fallback = Fallback::new("bff", "catalog");
//! let names: Result<Vec<&str>, Down> = Err(Down);
//! // A page without product names is worth more than no page, if it says that they are missing.
//! let answer = fallback.read(names, |_reason| Some(Lesser::Partial(Vec::new())))?;
//! let (names, partial) = match answer {
//!     Answer::Fresh(names) => (names.into_inner(), false),
//!     Answer::Degraded(names) => (names.accept_degraded(), true),
//! };
//! assert!(names.is_empty() && partial);
//! # Ok::<(), Down>(())
//! ```

mod answer;

use std::time::Duration;

use mamparo_core::call::fallback::{Effect, Ended, Reason, ask};

pub use answer::{Answer, Degraded, Fresh, Source};

use crate::{Classify, Dependency, observe};

/// What the caller has instead of the dependency's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lesser<T> {
    /// A value that was right this long ago.
    Stale(T, Duration),
    /// A value that lacks a part.
    Partial(T),
    /// A value that the caller makes up, knowing that it is true enough.
    Default(T),
}

impl<T> Lesser<T> {
    fn into_degraded(self, reason: Reason) -> Degraded<T> {
        match self {
            Self::Stale(value, age) => Degraded::new(value, Source::Stale { age }, reason),
            Self::Partial(value) => Degraded::new(value, Source::Partial, reason),
            Self::Default(value) => Degraded::new(value, Source::Default, reason),
        }
    }
}

/// Lets lesser answers stand in for one dependency, and counts them.
#[derive(Debug, Clone)]
pub struct Fallback {
    service: Box<str>,
    dependency: Box<str>,
}

impl Fallback {
    /// For `service`'s calls of `dependency`, as in metrics.
    #[must_use]
    pub fn new(service: &str, dependency: &str) -> Self {
        Self { service: service.into(), dependency: dependency.into() }
    }

    /// For calls of `dependency`, under its names.
    #[must_use]
    pub fn of(dependency: &Dependency) -> Self {
        let plan = dependency.plan();
        Self::new(&plan.service, &plan.dependency)
    }

    /// The answer of a call that only asks, or what `lesser` has instead. It is asked only where
    /// something may stand in, and may have nothing.
    ///
    /// # Errors
    /// The call's own: nothing may stand in for it, or there was nothing.
    pub fn read<T, E: Classify>(
        &self,
        called: Result<T, E>,
        lesser: impl FnOnce(Reason) -> Option<Lesser<T>>,
    ) -> Result<Answer<T>, E> {
        self.decide(Effect::Read, called, lesser)
    }

    /// The answer of a call that changes something, or what `instead` does where it is proven that
    /// nothing was sent: put it into a queue for later, say. Where the change may have been made,
    /// nothing stands in.
    ///
    /// # Errors
    /// The call's own: nothing may stand in for it, or there was nothing.
    pub fn write<T, E: Classify>(
        &self,
        called: Result<T, E>,
        instead: impl FnOnce(Reason) -> Option<T>,
    ) -> Result<Answer<T>, E> {
        self.decide(Effect::Write, called, |reason| instead(reason).map(Lesser::Default))
    }

    fn decide<T, E: Classify>(
        &self,
        effect: Effect,
        called: Result<T, E>,
        lesser: impl FnOnce(Reason) -> Option<Lesser<T>>,
    ) -> Result<Answer<T>, E> {
        let error = match called {
            Ok(value) => return Ok(Answer::Fresh(Fresh::new(value))),
            Err(error) => error,
        };
        let degraded = ask(effect, ended(&error)).ok().and_then(|reason| {
            let degraded = lesser(reason)?.into_degraded(reason);
            observe::fell_back(&self.service, &self.dependency, degraded.source(), reason);
            Some(degraded)
        });
        degraded.map(Answer::Degraded).ok_or(error)
    }
}

/// How a call ended, as its error says.
pub(crate) fn ended(error: &impl Classify) -> Ended {
    if error.is_refusal() { Ended::Refused } else { Ended::Failed(error.classify()) }
}
