//! What goes into a cache and what comes out of it.

use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::fallback::{Reason, Windows};
use mamparo_core::outcome::{Failure, Repeat};

use crate::Classify;
use crate::fallback::Answer;

/// An answer that was fetched, and how long it may be remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched<V> {
    /// The answer.
    pub value: V,
    /// How old it was when it came: its `Age`. Default 0.
    pub age: Duration,
    /// Default: by the cache's own windows.
    pub keep: Keep,
    /// Did the dependency say that it had nothing better than a stale value itself? Then it is stale
    /// here too, and never fresh, however short the way was. Default `false`.
    pub stale: bool,
}

/// How long an answer is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// By the cache's own windows.
    #[default]
    AsConfigured,
    /// By windows of its own, from the answer's `Cache-Control`, say.
    For(Windows),
    /// Not at all, and those who wait for the same make calls of their own (`no-store`).
    Never,
}

impl<V> From<V> for Fetched<V> {
    fn from(value: V) -> Self {
        Self { value, age: Duration::ZERO, keep: Keep::AsConfigured, stale: false }
    }
}

/// What a cache answered, and how it came by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached<V> {
    /// The answer.
    pub answer: Answer<V>,
    /// Where it came from.
    pub handling: Handling,
}

/// How a cache handled a request; what `Age` and `Cache-Status` are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// Where the answer came from.
    pub outcome: Outcome,
    /// How old it is.
    pub age: Duration,
    /// Whole seconds for which it stays fresh; negative when it is stale.
    pub ttl_seconds: i64,
}

/// Where an answer came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// From memory, fresh.
    Hit,
    /// From memory, stale.
    Stale(Reason),
    /// From the dependency.
    Fetched {
        /// Was something remembered that was no longer fresh?
        had_stale: bool,
        /// `Some(true)`: it is the answer of a call that somebody else made. `Some(false)`: that was
        /// tried, and the answer was for the other one alone. `None`: nobody else was on it.
        collapsed: Option<bool>,
        /// Is it remembered now?
        stored: bool,
    },
}

impl Outcome {
    /// A short, stable word for metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Stale(Reason::Revalidating) => "revalidating",
            Self::Stale(_) => "stale",
            Self::Fetched { collapsed: Some(true), .. } => "collapsed",
            Self::Fetched { .. } => "fetched",
        }
    }
}

/// Why a cache gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError<E> {
    /// The call failed, and nothing could stand in.
    #[error("fetch for cache {cache}")]
    Failed {
        /// The cache's name.
        cache: Box<str>,
        /// The call's error, which all who waited for it share.
        source: Arc<E>,
        /// Was it somebody else's call?
        collapsed: bool,
    },
    /// The caller's deadline came before an answer, and nothing could stand in.
    #[error("fetch for cache {cache}: no answer before the deadline")]
    Late {
        /// The cache's name.
        cache: Box<str>,
    },
}

/// A failed call is what its own error says, and is not repeated by an outer layer.
impl<E: Classify> Classify for CacheError<E> {
    fn classify(&self) -> Failure {
        match self {
            Self::Failed { source, .. } => Failure { repeat: Repeat::Never, ..source.classify() },
            Self::Late { .. } => Failure { repeat: Repeat::Never, ..Failure::UNKNOWN },
        }
    }

    fn is_refusal(&self) -> bool {
        match self {
            Self::Failed { source, .. } => source.is_refusal(),
            Self::Late { .. } => false,
        }
    }
}
