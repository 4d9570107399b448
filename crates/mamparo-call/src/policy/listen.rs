//! What policies tell whoever listens.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::breaker::Change;
use mamparo_core::call::hedge::NoHedge;
use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::outcome::{Failure, Kind};

use crate::policy::{Refused, observe};

/// What happened in a policy. Small and copied, so that telling it allocates nothing; nothing is
/// built when nobody listens.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum PolicyEvent {
    /// A call, or an attempt of a retry, gave a value.
    Succeeded,
    /// A call or an attempt failed in this way.
    Failed(Failure),
    /// A call was cut off after this time.
    TimedOut(Duration),
    /// The guarded future panicked.
    Panicked,
    /// The caller went away before the end.
    Cancelled,
    /// The guard refused.
    Refused(Refused),
    /// The call waits in line for a slot.
    Queued,
    /// Another attempt will follow failed attempt `attempt` (counted from one).
    Retrying {
        /// The attempt that failed.
        attempt: u32,
        /// The wait before the next.
        after: Duration,
    },
    /// Copy `number` (the first is 1) of a slow call was sent.
    Hedged {
        /// The copy.
        number: u32,
    },
    /// No other copy of a slow call was sent, for this reason; those under way go on.
    NotHedged(NoHedge),
    /// No other attempt follows the last one, which failed.
    GaveUp {
        /// Attempts made.
        attempts: u32,
        /// Why none follows.
        reason: GiveUp,
    },
    /// A breaker changed its state.
    Changed(Change),
}

impl PolicyEvent {
    /// The stable code in logs and metrics; the same words as a [`Dependency`](crate::Dependency)'s.
    #[must_use]
    pub const fn slug(&self) -> &'static str {
        match self {
            Self::Succeeded => "success",
            Self::Failed(failure) => match failure.kind {
                Kind::Transient => "transient",
                Kind::Permanent => "permanent",
                Kind::Unknown => "unknown",
                Kind::Neutral => "neutral",
            },
            Self::TimedOut(_) => "timeout",
            Self::Panicked => "panic",
            Self::Cancelled => "cancelled",
            Self::Refused(refused) => refused.reason.slug(),
            Self::Queued => "queued",
            Self::Retrying { .. } => "retrying",
            Self::Hedged { .. } => "hedged",
            Self::NotHedged(reason) => reason.slug(),
            Self::GaveUp { reason, .. } => reason.slug(),
            Self::Changed(_) => "breaker-changed",
        }
    }
}

/// Listens to the events of a policy, on the task that caused them and outside of any lock.
///
/// It is on the path of the call, so it has to be quick. A panic of a listener is logged and goes no
/// further. Closures listen too: `policy.listened_by(|event: &PolicyEvent| …)`.
/// [`MetricsListener`](crate::policy::MetricsListener) counts.
pub trait Listener: Send + Sync {
    /// Takes an event.
    fn hear(&self, event: &PolicyEvent);
}

impl<F: Fn(&PolicyEvent) + Send + Sync> Listener for F {
    fn hear(&self, event: &PolicyEvent) {
        self(event);
    }
}

/// A policy's listener, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Ears(Option<Arc<dyn Listener>>);

impl Ears {
    pub(crate) fn new(listener: impl Listener + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// Tells what `event` builds, if anybody listens.
    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce() -> PolicyEvent) {
        if let Some(listener) = &self.0 {
            hear(listener.as_ref(), event());
        }
    }
}

/// A listener looks on: its panic must neither end the call nor, while a panicking call unwinds, the
/// process.
#[cold]
fn hear(listener: &dyn Listener, event: PolicyEvent) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| listener.hear(&event))).is_err() {
        observe::listener_panicked(&event);
    }
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "listened to" } else { "nobody listens" })
    }
}
