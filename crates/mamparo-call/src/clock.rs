//! The only place that reads a clock or asks the system for entropy.
//!
//! Time comes from tokio, so a test that pauses tokio's clock moves every policy, lease and TTL with
//! it, wall time included: virtual time that covers one half of a program lies about the other.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::{Moment, WallTime};

/// Moments start a day in, so that a paused runtime that began a little before the first reading
/// still gets distinct moments; less where the system's clock itself has not run for a day.
const HEAD_STARTS: [Duration; 3] =
    [Duration::from_secs(86_400), Duration::from_secs(3_600), Duration::from_secs(60)];

/// What tokio itself takes for "never".
const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The instant of [`Moment::ORIGIN`].
#[inline]
fn origin() -> std::time::Instant {
    static ORIGIN: OnceLock<std::time::Instant> = OnceLock::new();
    *ORIGIN.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "this is the one room that reads the clock")]
        let now = std::time::Instant::now();
        HEAD_STARTS.into_iter().find_map(|head| now.checked_sub(head)).unwrap_or(now)
    })
}

/// The present moment on tokio's clock.
#[must_use]
#[inline]
pub fn now() -> Moment {
    moment_of(read())
}

/// The present calendar time, moved by tokio's clock when that is paused.
#[must_use]
pub fn wall() -> WallTime {
    #[expect(clippy::disallowed_methods, reason = "this is the one room that reads the clock")]
    let (system, real) = (std::time::SystemTime::now(), std::time::Instant::now());
    let since_epoch = system.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
    let read = read().into_std();
    // With a running clock both readings agree to the microsecond; a paused one lags or leads.
    let (ahead, behind) =
        (read.saturating_duration_since(real), real.saturating_duration_since(read));
    WallTime::from_unix_millis(millis).plus(ahead).minus(behind)
}

/// The tokio instant at which `moment` is reached, for timers.
#[must_use]
pub fn instant_of(moment: Moment) -> tokio::time::Instant {
    let origin = tokio::time::Instant::from_std(origin());
    origin.checked_add(Duration::from_nanos(moment.nanos())).unwrap_or(origin + THIRTY_YEARS)
}

/// Completes at `moment`, or at once when that has passed.
pub async fn sleep_until(moment: Moment) {
    tokio::time::sleep_until(instant_of(moment)).await;
}

/// A generator seeded by the operating system, for jitter.
#[must_use]
pub fn entropy() -> SeededRng {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    SeededRng::new(high ^ low)
}

/// Asks the system for entropy when the first number is drawn, so that a success never does.
#[derive(Debug, Default)]
pub(crate) struct LazyRng(Option<SeededRng>);

impl Rng for LazyRng {
    fn next_u64(&mut self) -> u64 {
        self.0.get_or_insert_with(entropy).next_u64()
    }
}

/// A generator that threads share: a seed of the system's, and one atomic addition for each number.
#[derive(Debug)]
pub(crate) struct SharedRng(AtomicU64);

impl SharedRng {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(entropy().next_u64()))
    }
}

impl Rng for &SharedRng {
    fn next_u64(&mut self) -> u64 {
        // The n-th number of the sequence is a function of n alone (SplitMix64).
        SeededRng::new(self.0.fetch_add(SPLIT_MIX_STEP, Ordering::Relaxed)).next_u64()
    }
}

/// What SplitMix64 adds to its state for each number.
const SPLIT_MIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

#[expect(clippy::disallowed_methods, reason = "this is the one room that reads the clock")]
fn read() -> tokio::time::Instant {
    #[cfg(test)]
    tests::READINGS.set(tests::READINGS.get() + 1);
    tokio::time::Instant::now()
}

/// An instant before the origin, which only a paused clock could show, is the origin.
#[inline]
fn moment_of(instant: tokio::time::Instant) -> Moment {
    Moment::ORIGIN.plus(instant.into_std().saturating_duration_since(origin()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        /// Readings of the clock by this thread, for tests that count them.
        pub(crate) static READINGS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_moves_moments_and_wall_time_alike() {
        let (moment, wall_before) = (now(), wall());
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(now().since(moment), Duration::from_secs(3_600));
        let passed = wall().since(wall_before).as_millis().abs_diff(3_600_000);
        assert!(passed < 50, "off by {passed} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn instants_and_moments_are_inverse() {
        let later = now().plus(Duration::from_millis(250));
        sleep_until(later).await;
        assert!(now() >= later);
        assert!(now().since(later) <= Duration::from_millis(2));
        assert_eq!(moment_of(instant_of(later)), later);
    }
}
