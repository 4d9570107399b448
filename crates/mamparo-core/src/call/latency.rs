//! How long a dependency takes: streaming quantiles in constant time and memory.
//!
//! A histogram whose buckets grow with their values (as in HdrHistogram, Tene 2012, and DDSketch,
//! Masson, Rim and Lee 2019): sixteen to each doubling, so that a quantile is off by no more than
//! 1/32 (3.1 %) of its value, wherever that lies between 1 µs and 137 s. Shorter times count as
//! 1 µs, longer ones as 137 s.
//!
//! It forgets by halves: the window consists of the half that is being filled and the one before,
//! so an answer counts for at least half a window and at most a whole one.
//!
//! An attempt that was cut off (a timeout, or the slower of two hedges) took longer than anybody
//! knows. It is counted beyond all answers, so a quantile that lies among such attempts has no value
//! instead of a wrong one.
//!
//! ```
//! use std::time::Duration;
//! use mamparo_core::call::latency::{Adviser, Latency};
//! use mamparo_core::call::retry::Retry;
//! use mamparo_core::time::Moment;
//!
//! let (latency, now) = (Latency::new(Duration::from_secs(60)), Moment::from_millis(1));
//! (1..=1_000).for_each(|n| latency.record(now, Duration::from_micros(n * 600)));
//! let advice = Adviser::default().propose(now, &latency, &Retry::NONE, None);
//! assert_eq!(
//!     advice.map_err(|none| none.to_string()).map(|advice| advice.to_string()),
//!     Ok("646ms: 99 % of 1000 attempts were answered within 588ms, plus 10 %".to_owned())
//! );
//! ```

mod advice;

pub use advice::{Advice, Adviser, NoAdvice};

use std::time::Duration;

use crate::limits::QUANTILE_TAIL_MIN;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, lock};
use crate::time::Moment;

/// Bits of a value below its highest one that tell buckets apart: 2⁴ buckets to a doubling.
const SUB_BITS: u32 = 4;
/// Highest bit of the shortest time that is told apart: 2¹⁰ ns.
const LOWEST_BIT: u32 = 10;
/// Highest bit of the longest: below 2³⁷ ns.
const HIGHEST_BIT: u32 = 36;
const BUCKETS: usize = ((HIGHEST_BIT - LOWEST_BIT + 1) << SUB_BITS) as usize;

/// A bucket that has counted this far stays there. Far enough below the end that no crowd of
/// threads which all saw less can carry it over.
const COUNT_MAX: u32 = u32::MAX - 65_536;

/// The latencies of one dependency, shared by its calls: 3.5 KiB.
#[derive(Debug)]
pub struct Latency {
    /// Length of half a window, in nanoseconds; at least 1.
    half: u64,
    /// Of two halves that follow each other, one has an even number and one an odd one.
    halves: [Half; 2],
    /// Held by the thread that empties a half.
    turning: Mutex<()>,
}

/// Half a window.
#[derive(Debug)]
struct Half {
    /// Which half of all time this is, counted from one; 0 before its first use.
    number: AtomicU64,
    cut_off: AtomicU32,
    counts: Box<[AtomicU32]>,
}

/// What is known of a quantile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observed {
    /// Which quantile, between 0 and 1.
    pub quantile: f64,
    /// Attempts in the window that were answered.
    pub answered: u64,
    /// Attempts in the window that were cut off before an answer came.
    pub cut_off: u64,
    /// The time within which that share of the attempts is answered, within 3.1 %; `None` when
    /// there were none, or when it lies among those that were cut off.
    pub value: Option<Duration>,
}

impl Observed {
    /// Attempts in the window, answered or cut off.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.answered.saturating_add(self.cut_off)
    }

    /// The value, if it rests on enough attempts ([`samples_needed`]).
    #[must_use]
    pub fn sound(&self) -> Option<Duration> {
        self.value.filter(|_| self.samples() >= samples_needed(self.quantile))
    }
}

/// Attempts of which a quantile can be read without being an accident: as many as it takes to have
/// [`QUANTILE_TAIL_MIN`] (10) beyond it. That is 200 for the 95th percentile, 1000 for the 99th.
#[must_use]
pub fn samples_needed(quantile: f64) -> u64 {
    // From 1 on (and for NaN) nothing lies beyond: the cast of ∞ asks for more than there will be.
    (QUANTILE_TAIL_MIN / (1.0 - quantile).max(0.0)).round() as u64
}

/// The number of the period of `nanos` nanoseconds in which `now` lies, counted from one.
pub(super) fn period_of(now: Moment, nanos: u64) -> u64 {
    (now.nanos() / nanos.max(1)).saturating_add(1)
}

impl Latency {
    /// Nothing seen yet. `window` is how long an answer counts at most; 60 s suits most.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        let half = u64::try_from(window.as_nanos() / 2).unwrap_or(u64::MAX).max(1);
        Self { half, halves: [Half::new(), Half::new()], turning: Mutex::new(()) }
    }

    /// An attempt was answered after `took`.
    pub fn record(&self, now: Moment, took: Duration) {
        if let Some(count) = self.current(now).counts.get(bucket_of(took)) {
            add(count);
        }
    }

    /// An attempt was cut off before an answer came.
    pub fn record_cut_off(&self, now: Moment) {
        add(&self.current(now).cut_off);
    }

    /// What is known at `now` of the quantile: 0.99 asks for the time within which 99 of 100
    /// attempts are answered. Looks at every bucket once.
    #[must_use]
    pub fn observed(&self, now: Moment, quantile: f64) -> Observed {
        let number = self.number_at(now);
        let fresh = |half: &&Half| half.number.load(Ordering::Acquire).saturating_add(1) >= number;
        let halves = || self.halves.iter().filter(fresh);
        let count = |bucket: usize| -> u64 { halves().map(|half| half.count(bucket)).sum() };
        let cut_off = halves().map(|half| u64::from(half.cut_off.load(Ordering::Relaxed))).sum();
        let answered: u64 = (0..BUCKETS).map(count).sum();
        let samples = answered.saturating_add(cut_off);
        let rank = ((samples as f64 * quantile).ceil() as u64).clamp(1, samples.max(1));
        let mut passed = 0;
        let reached = (0..BUCKETS).find(|bucket| {
            passed += count(*bucket);
            passed >= rank
        });
        Observed { quantile, answered, cut_off, value: reached.map(middle_of) }
    }

    /// The half that is being filled at `now`, emptied if it was another one's before.
    fn current(&self, now: Moment) -> &Half {
        let number = self.number_at(now);
        let half = &self.halves[usize::from(number % 2 == 1)];
        if half.number.load(Ordering::Acquire) != number {
            let _turning = lock(&self.turning);
            // Whoever waited for the lock finds it done.
            if half.number.load(Ordering::Relaxed) < number {
                half.empty();
                half.number.store(number, Ordering::Release);
            }
        }
        half
    }

    /// The number of the half at `now`; on a clock that stepped back, the one that was reached.
    fn number_at(&self, now: Moment) -> u64 {
        let reached = self.halves.iter().map(|half| half.number.load(Ordering::Acquire));
        reached.fold(period_of(now, self.half), u64::max)
    }
}

impl Half {
    fn new() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU32::new(0)).collect();
        Self { number: AtomicU64::new(0), cut_off: AtomicU32::new(0), counts }
    }

    /// A thread that slept for a whole window between finding its half and counting in it adds an
    /// old answer to the new ones: one in many, and no worse than that.
    fn empty(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.cut_off.store(0, Ordering::Relaxed);
    }

    fn count(&self, bucket: usize) -> u64 {
        self.counts.get(bucket).map_or(0, |count| u64::from(count.load(Ordering::Relaxed)))
    }
}

fn add(count: &AtomicU32) {
    if count.load(Ordering::Relaxed) < COUNT_MAX {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The bucket of a time: which doubling, and which sixteenth of it.
fn bucket_of(took: Duration) -> usize {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let nanos = nanos.clamp(1 << LOWEST_BIT, (1 << (HIGHEST_BIT + 1)) - 1);
    let highest = nanos.ilog2();
    let sixteenth = (nanos >> (highest - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((highest - LOWEST_BIT) << SUB_BITS) as usize) + sixteenth as usize
}

/// The middle of a bucket, which is nearest to all that it holds.
fn middle_of(bucket: usize) -> Duration {
    let doubling = LOWEST_BIT + (bucket >> SUB_BITS) as u32;
    let sixteenth = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    let width = 1_u64 << (doubling - SUB_BITS);
    Duration::from_nanos((1 << doubling) + sixteenth * width + width / 2)
}
