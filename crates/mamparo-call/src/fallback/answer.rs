//! Answers of which the type says whether they are what the dependency says now.

use std::ops::Deref;
use std::time::Duration;

use mamparo_core::call::fallback::Reason;

use crate::cache::Fetched;

/// A fresh answer, or a lesser one that the caller has to accept by name.
///
/// Whatever changes something takes [`Fresh`], and then no lesser value reaches it, by mistake or
/// through a forgotten branch: it does not compile.
///
/// ```compile_fail,E0308
/// use mamparo_call::fallback::{Answer, Fresh};
///
/// fn charge(_price: &Fresh<u64>) {}
///
/// fn buy(price: Answer<u64>) {
///     match price {
///         Answer::Fresh(price) => charge(&price),
///         Answer::Degraded(price) => charge(&price), // a price of yesterday
///     }
/// }
/// ```
///
/// Accepting a stale value does not make it fresh either:
///
/// ```compile_fail,E0308
/// # use std::time::Duration;
/// # use mamparo_call::fallback::{Degraded, Fresh};
/// # fn charge(_price: &Fresh<u64>) {}
/// fn buy(price: Degraded<u64>) {
///     if let Ok(price) = price.accept_stale(Duration::from_secs(60)) {
///         charge(&price);
///     }
/// }
/// ```
///
/// and nobody outside of this crate can say that a value is fresh:
///
/// ```compile_fail,E0423
/// # use mamparo_call::fallback::Fresh;
/// # fn charge(_price: &Fresh<u64>) {}
/// charge(&Fresh(1_999));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "whether the answer is fresh decides what it may be used for"]
pub enum Answer<T> {
    /// What the dependency says, as far as its own rules call that fresh.
    Fresh(Fresh<T>),
    /// Something else that may do.
    Degraded(Degraded<T>),
}

/// A value that came from the dependency, or from a cache within the time for which the dependency's
/// answer is fresh. Only this crate makes one, of the result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fresh<T>(T);

/// A lesser value than the dependency would have given. It is reached by naming what it is.
///
/// It turns into nothing by itself:
///
/// ```compile_fail,E0614
/// # fn read(price: mamparo_call::fallback::Degraded<u64>) -> u64 {
/// *price
/// # }
/// ```
/// ```compile_fail,E0277
/// # fn read(price: mamparo_call::fallback::Degraded<u64>) -> u64 {
/// price.into()
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degraded<T> {
    value: T,
    source: Source,
    reason: Reason,
}

/// What kind of lesser value it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It was right a while ago.
    Stale {
        /// How long ago the dependency said it.
        age: Duration,
    },
    /// It lacks a part, and has to say so to whoever gets it.
    Partial,
    /// The caller made it up, knowing that it is true enough.
    Default,
}

impl<T> Answer<T> {
    /// The fresh value, or the lesser one.
    ///
    /// # Errors
    /// The lesser answer.
    pub fn fresh(self) -> Result<Fresh<T>, Degraded<T>> {
        match self {
            Self::Fresh(fresh) => Ok(fresh),
            Self::Degraded(degraded) => Err(degraded),
        }
    }

    /// Is it fresh?
    #[must_use]
    pub const fn is_fresh(&self) -> bool {
        matches!(self, Self::Fresh(_))
    }

    /// The same kind of answer with another value made of it.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Answer<U> {
        match self {
            Self::Fresh(Fresh(value)) => Answer::Fresh(Fresh(f(value))),
            Self::Degraded(Degraded { value, source, reason }) => {
                Answer::Degraded(Degraded { value: f(value), source, reason })
            }
        }
    }
}

/// What was fetched, without a cache: fresh, unless the dependency said that it had nothing better
/// than a stale value itself.
impl<T> From<Fetched<T>> for Answer<T> {
    fn from(fetched: Fetched<T>) -> Self {
        let Fetched { value, age, stale, keep: _ } = fetched;
        if stale {
            Self::Degraded(Degraded::new(value, Source::Stale { age }, Reason::Upstream))
        } else {
            Self::Fresh(Fresh(value))
        }
    }
}

impl<T> Fresh<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, without the proof that it was fresh.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }

    /// A part or another form of the value; as fresh as the whole was.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Fresh<U> {
        Fresh(f(self.0))
    }

    /// The same where that can fail.
    ///
    /// # Errors
    /// What `f` says.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<Fresh<U>, E> {
        f(self.0).map(Fresh)
    }
}

impl<T> Deref for Fresh<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Degraded<T> {
    pub(crate) const fn new(value: T, source: Source, reason: Reason) -> Self {
        Self { value, source, reason }
    }

    /// Why there is nothing better.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// What kind of lesser value it is.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// How old a stale value is; `None` for a partial or made-up one, which has no age.
    #[must_use]
    pub const fn age(&self) -> Option<Duration> {
        match self.source {
            Source::Stale { age } => Some(age),
            Source::Partial | Source::Default => None,
        }
    }

    /// The value, if it is a stale one of at most this age.
    ///
    /// # Errors
    /// Itself, when it is older or of another kind.
    pub fn accept_stale(self, oldest: Duration) -> Result<T, Self> {
        match self.source {
            Source::Stale { age } if age <= oldest => Ok(self.value),
            Source::Stale { .. } | Source::Partial | Source::Default => Err(self),
        }
    }

    /// The value, if it is one that lacks a part. Whoever passes it on says so.
    ///
    /// # Errors
    /// Itself, when it is of another kind.
    pub fn accept_partial(self) -> Result<T, Self> {
        match self.source {
            Source::Partial => Ok(self.value),
            Source::Stale { .. } | Source::Default => Err(self),
        }
    }

    /// The value, if the caller made it up.
    ///
    /// # Errors
    /// Itself, when it is of another kind.
    pub fn accept_default(self) -> Result<T, Self> {
        match self.source {
            Source::Default => Ok(self.value),
            Source::Stale { .. } | Source::Partial => Err(self),
        }
    }

    /// The value, whatever kind it is of.
    #[must_use]
    pub fn accept_degraded(self) -> T {
        self.value
    }
}

impl Source {
    /// A short, stable word for metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Stale { .. } => "stale",
            Self::Partial => "partial",
            Self::Default => "default",
        }
    }
}
