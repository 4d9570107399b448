//! A breaker a key, in bounded memory.

use std::borrow::Borrow;
use std::hash::Hash;

use super::{Breaker, BreakerConfig, Phase};
use crate::keyed::{Dispensable, Keep, Keyed};
use crate::limits::BREAKER_KEYS_MAX;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;

/// Above every count of bad calls, so that no open circuit goes while a closed one is there to go.
const NOT_CLOSED: u64 = 1 << 63;

/// Forgotten when it is closed and knows of no bad call. Where all know something, the one that knows
/// least goes first, and an open one after every closed one; one that a person gave an order stays.
impl Dispensable for Breaker {
    fn keep(&self, now: Moment) -> Keep {
        if self.overridden().is_some() {
            return Keep::InUse;
        }
        let bad = match self.phase(now) {
            Phase::Closed => {
                let counts = self.counts(now);
                u64::from(counts.failed) + u64::from(counts.slow)
            }
            // Of two open ones, the one that is tried sooner.
            Phase::Open | Phase::HalfOpen => {
                let left = self.refuses(now).unwrap_or_default().as_millis();
                NOT_CLOSED.saturating_add(u64::try_from(left).unwrap_or(u64::MAX))
            }
        };
        if bad == 0 { Keep::Idle } else { Keep::Nearest(bad) }
    }
}

/// A breaker a key (a host, a route, a tenant), so that one that is sick does not shut out the others.
///
/// At most [`BREAKER_KEYS_MAX`] (10 000) breakers are kept. Those that know of no bad call leave by
/// themselves while other keys are asked for; one whose handle somebody holds is never forgotten. When
/// all places are in use, further keys share one breaker of the same limits between them
/// ([`KeyedBreaker::overflowed`] counts such calls).
///
/// ```
/// use mamparo_core::call::breaker::{BreakerConfig, KeyedBreaker};
/// use mamparo_core::outcome::Health;
/// use mamparo_core::time::Moment;
///
/// let hosts: KeyedBreaker<String> = KeyedBreaker::new(BreakerConfig::default(), 7);
/// let now = Moment::from_millis(1);
/// let breaker = hosts.get(now, "10.0.0.7");
/// if let Ok(admission) = breaker.ask(now).admission {
///     breaker.tell(now, admission, Health::Bad);
/// }
/// assert_eq!(hosts.get(now, "10.0.0.7").counts(now).failed, 1);
/// assert_eq!(hosts.get(now, "10.0.0.8").counts(now).failed, 0);
/// ```
#[derive(Debug)]
pub struct KeyedBreaker<K> {
    config: BreakerConfig,
    breakers: Keyed<K, Arc<Breaker>>,
    /// Seed of the next breaker, so that the open times of two keys are spread apart.
    next_seed: AtomicU64,
}

impl<K: Hash + Eq> KeyedBreaker<K> {
    /// No key has asked yet. `seed` as in [`Keyed::new`] and [`Breaker::with_seed`]: random where
    /// strangers choose the keys or several instances run.
    #[must_use]
    pub fn new(config: BreakerConfig, seed: u64) -> Self {
        Self::with_keys_max(config, seed, BREAKER_KEYS_MAX)
    }

    /// The same with at most `keys_max` (at least 1) breakers and the one that further keys share.
    #[must_use]
    pub fn with_keys_max(config: BreakerConfig, seed: u64, keys_max: usize) -> Self {
        let overflow = Arc::new(Breaker::with_seed(config, seed));
        Self {
            config,
            breakers: Keyed::new(keys_max, seed, overflow),
            next_seed: AtomicU64::new(seed.wrapping_add(1)),
        }
    }

    /// The breaker of `key`. Ask it, and keep the handle until what it admitted is told.
    #[must_use]
    pub fn get<Q>(&self, now: Moment, key: &Q) -> Arc<Breaker>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let fresh = || {
            let seed = self.next_seed.fetch_add(1, Ordering::Relaxed);
            (key.to_owned(), Arc::new(Breaker::with_seed(self.config, seed)))
        };
        self.breakers.get_or_insert(now, key, fresh)
    }

    /// Keys with their breakers, in no order, for reports. Holding them keeps them.
    #[must_use]
    pub fn entries(&self) -> Vec<(K, Arc<Breaker>)>
    where
        K: Clone,
    {
        self.breakers.entries()
    }

    /// Breakers that are kept.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.breakers.keys()
    }

    /// Calls whose key had to share the common breaker, since the beginning.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.breakers.overflowed()
    }
}
