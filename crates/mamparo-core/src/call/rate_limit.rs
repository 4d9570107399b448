//! So many requests a period, by the generic cell rate algorithm (GCRA, ITU-T I.371).
//!
//! One moment of state a bucket: the theoretical arrival time. In a stretch of length *w* at most
//! `burst + w / interval` requests pass, where `interval = per / requests`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::RATE_LIMIT_KEYS_MAX;
use crate::time::Moment;

/// How many requests pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// Requests a period, at least 1.
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
    /// what is refilled meanwhile. [`RateLimitConfig::with_burst`] bounds any period at
    /// `requests + burst`.
    #[must_use]
    pub const fn new(requests: u32, per: Duration) -> Self {
        Self { requests, per, burst: requests }
    }

    /// The same limit with at most `burst` requests at once.
    #[must_use]
    pub const fn with_burst(self, burst: u32) -> Self {
        Self { burst, ..self }
    }

    /// Nanoseconds after which one more request may pass, rounded up: never more than the limit.
    fn interval(&self) -> u64 {
        let per = u64::try_from(self.per.as_nanos()).unwrap_or(u64::MAX);
        per.div_ceil(u64::from(self.requests.max(1))).max(1)
    }

    /// The verdict for a bucket with the theoretical arrival time `arrival`, and its new one.
    fn ask(&self, now: Moment, arrival: Moment) -> (Answer, Moment) {
        let interval = self.interval();
        let depth = interval.saturating_mul(u64::from(self.burst.max(1)));
        let next = arrival.max(now).plus(Duration::from_nanos(interval));
        let used = u64::try_from(now.until(next).as_nanos()).unwrap_or(u64::MAX);
        match depth.checked_sub(used) {
            Some(free) => {
                let remaining = u32::try_from(free / interval).unwrap_or(u32::MAX);
                (Answer::Allowed { remaining, full_after: now.until(next) }, next)
            }
            None => {
                let retry_after = Duration::from_nanos(used.saturating_sub(depth));
                (Answer::NotUntil { retry_after }, arrival)
            }
        }
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

/// One bucket.
#[derive(Debug, Clone)]
pub struct RateLimit {
    config: RateLimitConfig,
    arrival: Moment,
}

impl RateLimit {
    /// A full bucket.
    #[must_use]
    pub const fn new(config: RateLimitConfig) -> Self {
        Self { config, arrival: Moment::ORIGIN }
    }

    /// Asks for one request, and takes it when it is allowed.
    pub fn ask(&mut self, now: Moment) -> Answer {
        let (answer, arrival) = self.config.ask(now, self.arrival);
        self.arrival = arrival;
        answer
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> RateLimitConfig {
        self.config
    }
}

/// A bucket a key (a client, say), in bounded memory.
///
/// At most [`RATE_LIMIT_KEYS_MAX`] (10 000) buckets are kept. Full ones are forgotten first, which
/// changes no answer; if none is full, the one that is nearest to it goes.
#[derive(Debug, Clone)]
pub struct KeyedRateLimit<K> {
    config: RateLimitConfig,
    arrivals: BTreeMap<K, Moment>,
    keys_max: usize,
}

impl<K: Ord + Clone> KeyedRateLimit<K> {
    /// No key has asked yet: all buckets are full.
    #[must_use]
    pub const fn new(config: RateLimitConfig) -> Self {
        Self { config, arrivals: BTreeMap::new(), keys_max: RATE_LIMIT_KEYS_MAX }
    }

    /// The same with at most `keys_max` (at least 1) buckets.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { keys_max: keys_max.max(1), ..self }
    }

    /// Asks for one request of `key`, and takes it when it is allowed.
    pub fn ask(&mut self, now: Moment, key: &K) -> Answer {
        if let Some(arrival) = self.arrivals.get_mut(key) {
            let (answer, next) = self.config.ask(now, *arrival);
            *arrival = next;
            return answer;
        }
        if self.arrivals.len() >= self.keys_max {
            self.make_room(now);
        }
        let (answer, arrival) = self.config.ask(now, Moment::ORIGIN);
        self.arrivals.insert(key.clone(), arrival);
        answer
    }

    /// Buckets that are kept.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.arrivals.len()
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> RateLimitConfig {
        self.config
    }

    fn make_room(&mut self, now: Moment) {
        self.arrivals.retain(|_, arrival| *arrival > now);
        if self.arrivals.len() >= self.keys_max {
            let nearest = self.arrivals.iter().min_by_key(|(_, arrival)| **arrival);
            if let Some(key) = nearest.map(|(key, _)| key.clone()) {
                self.arrivals.remove(&key);
            }
        }
    }
}
