//! So many requests a period, by the generic cell rate algorithm (GCRA, ITU-T I.371).
//!
//! One number of state a bucket: the theoretical arrival time, when it will be full again. In any
//! stretch of length *w* at most `burst + w / interval` requests pass, where
//! `interval = per / requests`. Threads share a bucket by reference; an answer costs one read and one
//! compare-and-swap.

mod all;
mod keyed;

use std::time::Duration;

pub use all::{AllAnswer, ask_all};
pub use keyed::KeyedRateLimit;

use crate::call::mistake::Mistakes;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// Longest time between two requests, 292 years: half of what a [`Moment`] can tell, so that the first
/// request of the slowest limit still has an arrival time.
const INTERVAL_MAX: u64 = u64::MAX / 2;

/// How many requests pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// Requests a period, at least 1, and no more than one a nanosecond.
    pub requests: u32,
    /// The period, more than zero.
    pub per: Duration,
    /// Requests that may come at once after a pause, at least 1.
    pub burst: u32,
}

impl RateLimitConfig {
    /// `requests` a period, all of which may come at once.
    ///
    /// The period that follows a pause can therefore hold almost twice as many: the whole burst, and
    /// what is refilled meanwhile. [`RateLimitConfig::strict`] keeps every period at `requests`, and
    /// [`RateLimitConfig::most_in_a_period`] tells what a limit comes to.
    #[must_use]
    pub const fn new(requests: u32, per: Duration) -> Self {
        Self { requests, per, burst: requests }
    }

    /// The same limit with at most `burst` requests at once.
    #[must_use]
    pub const fn with_burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Never more than `ceiling` (at least 1) requests in any period, wherever it begins.
    ///
    /// What may come at once and what is refilled during a period share the ceiling: half of it
    /// (rounded up) is the burst, the rest is the rate. 100 a second becomes 50 at once and 51 a second.
    /// For another share, take a burst of *b* and a rate of `ceiling - b + 1`.
    #[must_use]
    pub const fn strict(ceiling: u32, per: Duration) -> Self {
        let burst = ceiling.div_ceil(2);
        Self { requests: ceiling.saturating_sub(burst).saturating_add(1), per, burst }
    }

    /// The most requests that any period holds, its beginning included and its end not.
    ///
    /// *n* requests take at least *n* − `burst` intervals, of which less than `requests` end within a
    /// period.
    #[must_use]
    pub const fn most_in_a_period(&self) -> u64 {
        (self.burst as u64 + self.requests as u64).saturating_sub(1)
    }

    /// What can't be meant.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        mistakes.range("rate_limit.requests", self.requests, 1, u32::MAX);
        mistakes.range("rate_limit.burst", self.burst, 1, u32::MAX);
        mistakes.positive("rate_limit.per", self.per);
        let finest = self.per.is_zero() || u128::from(self.requests) <= self.per.as_nanos();
        mistakes.unless(finest, "rate_limit.per", || {
            let Self { requests, per, .. } = self;
            format!("is {per:?} for {requests} requests, more than one a nanosecond")
        });
    }
}

/// May the request pass?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Yes.
    Allowed {
        /// Requests that could follow at once.
        remaining: u32,
        /// When the bucket will be full again if none follows.
        full_after: Duration,
    },
    /// No; the next one passes after this time.
    NotUntil {
        /// More than zero.
        retry_after: Duration,
    },
}

/// More requests at once than the bucket ever holds: no wait would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoreThanBurst {
    /// The most that can be asked for at once.
    pub burst: u32,
}

/// The numbers of a limit that every answer needs.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Nanoseconds that one request takes.
    interval: u64,
    /// Nanoseconds that a full bucket holds.
    depth: u64,
}

impl Rate {
    fn new(config: &RateLimitConfig) -> Self {
        let per = u64::try_from(config.per.as_nanos()).unwrap_or(u64::MAX);
        // Rounded up: never more than the limit.
        let interval = per.div_ceil(u64::from(config.requests.max(1))).clamp(1, INTERVAL_MAX);
        Self { interval, depth: interval.saturating_mul(u64::from(config.burst.max(1))) }
    }

    /// The arrival time after a request of `cost` nanoseconds, or how long it has to wait. What would
    /// arrive after the end of time is refused, not forgotten by an addition that saturates.
    #[inline]
    fn next(&self, now: u64, arrival: u64, cost: u64) -> Result<u64, u64> {
        let start = arrival.max(now);
        match start.checked_add(cost) {
            Some(next) if next - now <= self.depth => Ok(next),
            Some(_) | None => {
                Err((start - now).saturating_add(cost).saturating_sub(self.depth).max(1))
            }
        }
    }

    #[inline]
    fn answer(&self, now: u64, next: Result<u64, u64>) -> Answer {
        match next {
            Ok(next) => {
                let used = next.saturating_sub(now);
                let remaining = self.depth.saturating_sub(used) / self.interval;
                Answer::Allowed {
                    remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
                    full_after: Duration::from_nanos(used),
                }
            }
            Err(wait) => Answer::NotUntil { retry_after: Duration::from_nanos(wait) },
        }
    }
}

/// One bucket, shared by reference.
///
/// Threads may come with moments that are a little out of order: who brings an older one finds less, so
/// the bound holds all the same.
#[derive(Debug)]
pub struct RateLimit {
    arrival: AtomicU64,
    rate: Rate,
    config: RateLimitConfig,
}

/// A request that was taken: what the bucket held before, and after.
#[derive(Debug, Clone, Copy)]
struct Taken {
    before: u64,
    after: u64,
}

impl RateLimit {
    /// A full bucket.
    #[must_use]
    pub fn new(config: RateLimitConfig) -> Self {
        Self { arrival: AtomicU64::new(0), rate: Rate::new(&config), config }
    }

    /// Asks for one request, and takes it when it is allowed.
    #[inline]
    pub fn ask(&self, now: Moment) -> Answer {
        let next = self.take(now.nanos(), self.rate.interval).map(|taken| taken.after);
        self.rate.answer(now.nanos(), next)
    }

    /// Asks for `n` requests at once, and takes all or none. None at all (0) is always allowed, unless
    /// the clock went back.
    ///
    /// # Errors
    /// [`MoreThanBurst`] when a full bucket does not hold as many.
    pub fn ask_n(&self, now: Moment, n: u32) -> Result<Answer, MoreThanBurst> {
        let burst = self.config.burst.max(1);
        if n > burst {
            return Err(MoreThanBurst { burst });
        }
        let cost = self.rate.interval.saturating_mul(u64::from(n));
        let next = self.take(now.nanos(), cost).map(|taken| taken.after);
        Ok(self.rate.answer(now.nanos(), next))
    }

    /// What [`RateLimit::ask`] would answer. Takes nothing.
    #[must_use]
    pub fn peek(&self, now: Moment) -> Answer {
        let arrival = self.arrival.load(Ordering::Relaxed);
        self.rate.answer(now.nanos(), self.rate.next(now.nanos(), arrival, self.rate.interval))
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> RateLimitConfig {
        self.config
    }

    /// Takes what costs `cost` nanoseconds, or says how many there are to wait.
    #[inline]
    fn take(&self, now: u64, cost: u64) -> Result<Taken, u64> {
        // One number is all there is to order, so relaxed will do. Each turn of the loop is somebody
        // else's success.
        let mut before = self.arrival.load(Ordering::Relaxed);
        loop {
            let after = self.rate.next(now, before, cost)?;
            let swap = self.arrival.compare_exchange_weak(
                before,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swap {
                Ok(_) => return Ok(Taken { before, after }),
                Err(seen) => before = seen,
            }
        }
    }

    /// Undoes a [`RateLimit::take`], unless somebody has taken since.
    ///
    /// Then it stays taken: the other may have come when the bucket had filled up again, and what is put
    /// back would be theirs.
    fn put_back(&self, taken: Taken) {
        // The result says whether it was possible, and nobody could do anything about it.
        let _ = self.arrival.compare_exchange(
            taken.after,
            taken.before,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
}
