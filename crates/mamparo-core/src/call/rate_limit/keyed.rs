//! A bucket a key, in bounded memory.

use std::borrow::Borrow;
use std::hash::Hash;

use super::all::{Together, ask_all, refusal};
use super::{AllAnswer, Answer, MoreThanBurst, Rate, RateLimit, RateLimitConfig};
use crate::keyed::{Dispensable, Keep, Keyed};
use crate::limits::RATE_LIMIT_KEYS_MAX;
use crate::time::Moment;

/// A bucket a key (a client, say), shared by reference, in bounded memory.
///
/// At most [`RATE_LIMIT_KEYS_MAX`] (10 000) buckets are kept. Full ones leave by themselves while others
/// are asked, which changes no answer. A new key that finds no room takes the place of the one, among
/// sixteen, that is nearest to being full: a client can't empty its record by having others knock.
#[derive(Debug)]
pub struct KeyedRateLimit<K> {
    config: RateLimitConfig,
    rate: Rate,
    seed: u64,
    buckets: Keyed<K, Bucket>,
}

/// The theoretical arrival time of one key, in nanoseconds. Guarded by the lock of its part of the map.
#[derive(Debug, Clone, Copy)]
struct Bucket(u64);

impl Bucket {
    const FULL: Self = Self(0);
}

impl Dispensable for Bucket {
    #[inline]
    fn keep(&self, now: Moment) -> Keep {
        if self.0 <= now.nanos() { Keep::Idle } else { Keep::Nearest(self.0) }
    }
}

impl<K: Hash + Eq> KeyedRateLimit<K> {
    /// No key has asked yet: all buckets are full. `seed` as in [`Keyed::new`]: random where strangers
    /// choose the keys.
    #[must_use]
    pub fn new(config: RateLimitConfig, seed: u64) -> Self {
        let buckets = Keyed::new(RATE_LIMIT_KEYS_MAX, seed, Bucket::FULL);
        Self { config, rate: Rate::new(&config), seed, buckets }
    }

    /// The same with at most `keys_max` (at least 1) buckets, all of them full.
    #[must_use]
    pub fn with_keys_max(self, keys_max: usize) -> Self {
        Self { buckets: Keyed::new(keys_max, self.seed, Bucket::FULL), ..self }
    }

    /// Asks for one request of `key`, and takes it when it is allowed.
    #[inline]
    pub fn ask<Q>(&self, now: Moment, key: &Q) -> Answer
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.take(now, key, self.rate.interval)
    }

    /// Asks for `n` requests of `key` at once, and takes all or none.
    ///
    /// # Errors
    /// [`MoreThanBurst`] when a full bucket does not hold as many.
    pub fn ask_n<Q>(&self, now: Moment, key: &Q, n: u32) -> Result<Answer, MoreThanBurst>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let burst = self.config.burst.max(1);
        if n > burst {
            return Err(MoreThanBurst { burst });
        }
        Ok(self.take(now, key, self.rate.interval.saturating_mul(u64::from(n))))
    }

    /// Asks for one request of `key` and of each of `outer` (the limit of the whole service, say), and
    /// takes from all of them or from none.
    ///
    /// The key's bucket is place 0 of the answer, the others follow. No thread comes in between for the
    /// key, so with a single outer limit this is exact: a refusal costs nothing at all. With more of
    /// them, what [`ask_all`] says holds for those.
    pub fn ask_within<Q, const N: usize>(
        &self,
        now: Moment,
        key: &Q,
        outer: [&RateLimit; N],
    ) -> AllAnswer
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let nanos = now.nanos();
        self.buckets.with(
            now,
            key,
            || (key.to_owned(), Bucket::FULL),
            |bucket| {
                let next = self.rate.next(nanos, bucket.0, self.rate.interval);
                let mut together = Together::NOTHING;
                together.add(self.rate.answer(nanos, next), 0);
                match next {
                    Err(_) => together.add_all(refusal(now, &outer)),
                    Ok(next) => {
                        let others = ask_all(now, outer);
                        if matches!(others, AllAnswer::Allowed { .. }) {
                            bucket.0 = next;
                        }
                        together.add_all(Some(others));
                    }
                }
                together.answer()
            },
        )
    }

    /// What [`KeyedRateLimit::ask`] would answer. Takes nothing, and keeps no new key.
    #[must_use]
    pub fn peek<Q>(&self, now: Moment, key: &Q) -> Answer
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let bucket = self.buckets.peek(key, |bucket| *bucket).unwrap_or(Bucket::FULL);
        self.rate.answer(now.nanos(), self.rate.next(now.nanos(), bucket.0, self.rate.interval))
    }

    /// Buckets that are kept.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.buckets.keys()
    }

    /// The limits.
    #[must_use]
    pub const fn config(&self) -> RateLimitConfig {
        self.config
    }

    #[inline]
    fn take<Q>(&self, now: Moment, key: &Q, cost: u64) -> Answer
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let nanos = now.nanos();
        self.buckets.with(
            now,
            key,
            || (key.to_owned(), Bucket::FULL),
            |bucket| {
                let next = self.rate.next(nanos, bucket.0, cost);
                if let Ok(next) = next {
                    bucket.0 = next;
                }
                self.rate.answer(nanos, next)
            },
        )
    }
}
