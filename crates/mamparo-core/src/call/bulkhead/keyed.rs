//! A bulkhead a key, in bounded memory.

use std::borrow::Borrow;
use std::hash::Hash;

use super::{Bulkhead, BulkheadConfig};
use crate::keyed::{Dispensable, Keep, Keyed};
use crate::limits::BULKHEAD_KEYS_MAX;
use crate::sync::Arc;
use crate::time::Moment;

/// Forgotten when nobody is in it. Its service time goes too: an estimate that the next crowd makes anew.
impl Dispensable for Bulkhead {
    fn keep(&self, _now: Moment) -> Keep {
        if self.in_flight() == 0 && self.queued() == 0 { Keep::Idle } else { Keep::InUse }
    }
}

/// A bulkhead a key (a tenant, a host, a class of clients), so that none of them can take all slots.
///
/// At most [`BULKHEAD_KEYS_MAX`] (10 000) bulkheads are kept. One that somebody holds a handle, a slot or
/// a place of is never forgotten; the others leave by themselves while keys are asked for. When all places
/// are in use, further keys share one bulkhead of the same limits between them
/// ([`KeyedBulkhead::overflowed`] counts such calls): they are slowed, and memory stays bounded.
///
/// It bounds each key. To bound their sum, put a [`Bulkhead`] in front.
#[derive(Debug)]
pub struct KeyedBulkhead<K> {
    config: BulkheadConfig,
    bulkheads: Keyed<K, Arc<Bulkhead>>,
}

impl<K: Hash + Eq> KeyedBulkhead<K> {
    /// No key has asked yet. `seed` as in [`Keyed::new`]: random where strangers choose the keys.
    #[must_use]
    pub fn new(config: BulkheadConfig, seed: u64) -> Self {
        Self::with_keys_max(config, seed, BULKHEAD_KEYS_MAX)
    }

    /// The same with at most `keys_max` (at least 1) bulkheads and the one that further keys share.
    #[must_use]
    pub fn with_keys_max(config: BulkheadConfig, seed: u64, keys_max: usize) -> Self {
        let overflow = Arc::new(Bulkhead::new(config));
        Self { config, bulkheads: Keyed::new(keys_max, seed, overflow) }
    }

    /// The bulkhead of `key`. Ask it, and keep the handle for as long as what it granted.
    #[must_use]
    pub fn get<Q>(&self, now: Moment, key: &Q) -> Arc<Bulkhead>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let fresh = || (key.to_owned(), Arc::new(Bulkhead::new(self.config)));
        self.bulkheads.get_or_insert(now, key, fresh)
    }

    /// Keys with their bulkheads, in no order, for reports. Holding them keeps them.
    #[must_use]
    pub fn entries(&self) -> Vec<(K, Arc<Bulkhead>)>
    where
        K: Clone,
    {
        self.bulkheads.entries()
    }

    /// Bulkheads that are kept.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.bulkheads.keys()
    }

    /// Calls whose key had to share the common bulkhead, since the beginning.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.bulkheads.overflowed()
    }
}
