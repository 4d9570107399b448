//! A limit of calls in flight that finds its own number.
//!
//! By Little's law a dependency with capacity for *C* calls at a time serves no more when *2 C* are in
//! flight: each waits twice as long. So a limit is raised while more calls in flight cost no time, and
//! lowered when they queue (latency grows) or are dropped (timed out, 429, 503). Three laws do that
//! ([`Algorithm`]); all of them see the same windows and obey the same rules:
//!
//! - A window closes after at least 10 calls, 100 ms, and twice as long as its calls took, so that half
//!   of them began under the present limit.
//! - A window with drops multiplies the limit by *1 − share of calls dropped ÷ 2*: half, when nothing
//!   gets through, and little, when little is lost (as DCTCP does with marks; Alizadeh et al. 2010).
//!   Drops of calls that began before that do not lower it again.
//! - The limit grows only when at least half of it was used: an idle limit has proved nothing.
//! - The latency without queueing is remembered as the *base*, taken two standard errors higher than it
//!   looks (too low a base starves a healthy dependency), and goes down only. When nothing near it
//!   was seen for 30 s, the limit is a half (Vegas) or ½ ÷ tolerance (Gradient2) of itself for two
//!   windows, to measure it anew without a queue (as BBR does; Cardwell et al. 2016). So a queue that
//!   stands never becomes the normal, and a dependency that is slower for good does.
//! - It stays within `min` and `max`, and at its maximum it stays there until one of the above lowers it.

mod base;
mod law;
mod machine;
mod table;
mod window;

use std::fmt;
use std::sync::TryLockError;
use std::time::Duration;

pub use table::{Event, Phase, TABLE};

use crate::call::mistake::{Mistake, Mistakes};
use crate::limits::BULKHEAD_LIMIT_MAX;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::Moment;
use machine::Machine;

/// What an adaptive limit is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveConfig {
    /// Default [`Algorithm::Gradient2`] with a tolerance of 1.5.
    pub algorithm: Algorithm,
    /// Least limit; 1 to `initial`. Fewer calls than this say too little to come back from. Default 4.
    pub min: u32,
    /// Most; `initial` to 100 000. Default 200.
    pub max: u32,
    /// Where it begins; `min` to `max`. Default 20.
    pub initial: u32,
}

/// The law that moves the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Algorithm {
    /// One more a window, and less only when calls are dropped (additive increase, multiplicative
    /// decrease; Chiu and Jain 1989). For dependencies that refuse quickly when they have enough: it does
    /// not see latency.
    Aimd,
    /// Estimates the calls that queue at the dependency, *limit × (1 − base ÷ latency)*, and keeps them
    /// between 3 and 6 × log₁₀ of the limit (TCP Vegas; Brakmo, O'Malley, Peterson 1994; coefficients
    /// of Netflix's concurrency-limits). Keeps latency lowest.
    Vegas,
    /// Multiplies the limit by *tolerance × long-term latency ÷ latency*, between ½ and 1, and adds room
    /// for a queue of its root, at least 4, smoothed by 0.2 (Netflix's concurrency-limits). The long-term latency stays
    /// within 1.25 × base, so that it can't drift up with a queue.
    Gradient2 {
        /// How much longer than in the long term calls may take before the limit is lowered; 1.0 to
        /// 10.0. Default 1.5.
        tolerance: f64,
    },
}

impl AdaptiveConfig {
    /// All that can't be meant, not just the first.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        mistakes.range("adaptive.max", self.max, 1, BULKHEAD_LIMIT_MAX);
        mistakes.range("adaptive.min", self.min, 1, self.max.max(1));
        mistakes.range("adaptive.initial", self.initial, self.min, self.max.max(self.min));
        if let Algorithm::Gradient2 { tolerance } = self.algorithm {
            mistakes.unless((1.0..=10.0).contains(&tolerance), "adaptive.tolerance", || {
                format!("is {tolerance}, must be from 1.0 to 10.0")
            });
        }
        mistakes.into_vec()
    }
}

impl Algorithm {
    /// Does it need to know what calls take without a queue?
    const fn reads_latency(self) -> bool {
        match self {
            Self::Aimd => false,
            Self::Vegas | Self::Gradient2 { .. } => true,
        }
    }

    /// Share of the limit that is left while the base is measured: so much less than the law lets queue
    /// that no queue is left. What is measured with one would let the next limit be higher still.
    fn probed_share(self) -> f64 {
        match self {
            Self::Aimd => 1.0,
            Self::Vegas => 0.5,
            Self::Gradient2 { tolerance } => 0.5 / tolerance.max(1.0),
        }
    }
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self { algorithm: Algorithm::default(), min: 4, max: 200, initial: 20 }
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self::Gradient2 { tolerance: 1.5 }
    }
}

impl fmt::Display for AdaptiveConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from {} to {}, at first {}", self.algorithm, self.min, self.max, self.initial)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aimd => write!(f, "AIMD"),
            Self::Vegas => write!(f, "Vegas"),
            Self::Gradient2 { tolerance } => write!(f, "Gradient2 (tolerance {tolerance})"),
        }
    }
}

/// What one attempt showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// How long it took, without waits before it. One of no length is left out.
    pub took: Duration,
    /// Calls in flight while it ran, itself included: what the bulkhead says as it ends.
    pub in_flight: u32,
    /// Did it time out, or was it refused for overload (429, 503)? Its time does not count then.
    pub dropped: bool,
}

/// The limit went elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The limit before.
    pub from: u32,
    /// The limit now.
    pub to: u32,
    /// What the window showed.
    pub why: Event,
}

/// A limit that all calls of a dependency feed. Pass its changes to
/// [`Bulkhead::set_limit`](crate::call::bulkhead::Bulkhead::set_limit).
///
/// Sampling never waits: a thread that finds another one at it leaves its sample out, whatever
/// it says, so that the share of drops stays what it is.
///
/// ```
/// use std::time::Duration;
///
/// use mamparo_core::call::adaptive::{AdaptiveConfig, AdaptiveLimit, Sample};
/// use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig};
/// use mamparo_core::time::Moment;
///
/// let adaptive = AdaptiveLimit::new(AdaptiveConfig::default());
/// let bulkhead = Bulkhead::new(BulkheadConfig::new(adaptive.limit(), 0));
/// for millis in 0..1_000 {
///     // As an attempt ends:
///     let took = Duration::from_millis(20);
///     let sample = Sample { took, in_flight: bulkhead.limit(), dropped: false };
///     let now = Moment::from_millis(millis);
///     if let Some(change) = adaptive.tell(now, sample) {
///         for ticket in bulkhead.set_limit(now, change.to) {
///             let _ = ticket; // wake its holder
///         }
///     }
/// }
/// assert!(bulkhead.limit() > 20, "all slots were in use, and nothing took longer for it");
/// ```
#[derive(Debug)]
pub struct AdaptiveLimit {
    limit: AtomicU32,
    machine: Mutex<Machine>,
}

impl AdaptiveLimit {
    /// A limit at `config.initial`. Bounds that contradict each other are mended: `min` is at least 1,
    /// `max` at least `min`.
    #[must_use]
    pub fn new(config: AdaptiveConfig) -> Self {
        let machine = Machine::new(config);
        Self { limit: AtomicU32::new(machine.limit()), machine: Mutex::new(machine) }
    }

    /// Takes what a call showed, and answers with the change of the limit that it led to, if any.
    pub fn tell(&self, now: Moment, sample: Sample) -> Option<Change> {
        let mut machine = match self.machine.try_lock() {
            Ok(machine) => machine,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let from = machine.limit();
        let why = machine.tell(now, sample)?;
        let to = machine.limit();
        self.limit.store(to, Ordering::Relaxed);
        (from != to).then_some(Change { from, to, why })
    }

    /// The present limit.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Is it seeking, or probing for the base latency?
    #[must_use]
    pub fn phase(&self) -> Phase {
        lock(&self.machine).phase()
    }
}
