//! A map that never outgrows its bound, for what is kept a key: a bucket a client, a breaker a host.
//!
//! Names come from outside, so there is no end to them. [`Keyed`] keeps at most `keys_max`, and asks
//! its values which of them may go ([`Dispensable`]). Nothing scans the map: every eighth call, and
//! each new key, looks at one entry, whichever is next in a circle (a second-chance clock; Corbató
//! 1968), and a key that has nothing to say leaves when it was not asked for during a whole round.

mod shard;
pub(crate) mod sip;

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};

use crate::limits::KEYED_KEYS_MAX;
use crate::rng::{Rng, SeededRng};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Apart, Arc, Mutex, MutexGuard, lock};
use crate::time::Moment;

use shard::{CANDIDATES, Shard};
use sip::Sip;

/// Most parts that are locked on their own. Threads that ask for different keys rarely meet.
const SHARDS_MAX: usize = 32;

/// Least keys a part is made for. Names spread unevenly, the more so the smaller the parts.
const SHARD_KEYS_MIN: usize = 64;

/// May a value be forgotten?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It says what a new one would say: nothing is lost.
    Idle,
    /// It knows something. Where one has to go, it is the one with the least number (of two buckets,
    /// the one that is nearer to being full).
    Nearest(u64),
    /// Somebody holds it: forgetting it would let a second one come into being beside it.
    InUse,
}

/// A value that knows how well it can be spared.
pub trait Dispensable {
    /// May it be forgotten at `now`? Asked under a lock: cheap, and without side effects.
    fn keep(&self, now: Moment) -> Keep;
}

/// In use while anybody but the map has a handle. The map hands them out under the lock under which
/// it asks, so none appears in between.
impl<V: Dispensable> Dispensable for Arc<V> {
    fn keep(&self, now: Moment) -> Keep {
        if Self::strong_count(self) > 1 { Keep::InUse } else { (**self).keep(now) }
    }
}

/// A value a key, for at most `keys_max` keys, shared by reference.
///
/// Memory is bounded whatever comes. When a new key finds its part full, sixteen entries are looked at:
/// those that are idle go, else the one with the least [`Keep::Nearest`]. When all sixteen are in use,
/// the key gets **the overflow value**, which all such keys share, until a later call finds room; calls
/// that had to share are counted ([`Keyed::overflowed`]).
///
/// The map is kept in up to 32 parts of at least 64 keys, each with an equal portion of `keys_max`. A
/// part can be full a little before the whole is; below 128 keys there is one part, and the bound is
/// exact.
///
/// Of a key's code, `Eq` and, for [`Keyed::entries`], `Clone` run under the lock of a part: they must not
/// ask the map. Keys and values are dropped outside of it.
#[derive(Debug)]
pub struct Keyed<K, V> {
    shards: Box<[Part<K, V>]>,
    keys_max: usize,
    /// The key of every hash.
    seed: (u64, u64),
    overflow: Mutex<V>,
    overflowed: AtomicU64,
}

/// What is locked on its own.
type Part<K, V> = Apart<Mutex<Shard<K, V>>>;

impl<K: Hash + Eq, V: Dispensable> Keyed<K, V> {
    /// An empty map of at most `keys_max` (at least 1) keys.
    ///
    /// `seed` is mixed into every hash. Draw it at random where strangers choose the keys, or they can
    /// choose ones that collide; a fixed one replays a simulation. `overflow` is what keys share that
    /// find every place in use.
    #[must_use]
    pub fn new(keys_max: usize, seed: u64, overflow: V) -> Self {
        let keys_max = keys_max.clamp(1, KEYED_KEYS_MAX);
        let wanted = (keys_max / SHARD_KEYS_MIN).clamp(1, SHARDS_MAX);
        let count = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let shards = (0..count).map(|_| Apart(Mutex::new(Shard::new(keys_max / count)))).collect();
        let overflow = Mutex::new(overflow);
        let mut rng = SeededRng::new(seed);
        let seed = (rng.next_u64(), rng.next_u64());
        Self { shards, keys_max, seed, overflow, overflowed: AtomicU64::new(0) }
    }

    /// The value of `key`; where there is none yet, the one that `entry` makes, with the key to keep.
    ///
    /// Looking an existing key up allocates nothing. `entry` runs outside of any lock, and its value
    /// is dropped when another thread was quicker.
    pub fn get_or_insert<Q>(&self, now: Moment, key: &Q, entry: impl FnOnce() -> (K, V)) -> V
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        self.with(now, key, entry, |value| value.clone())
    }

    /// The same for a value that is used in its place. `act` runs under the lock of the key's part.
    pub(crate) fn with<Q, R>(
        &self,
        now: Moment,
        key: &Q,
        entry: impl FnOnce() -> (K, V),
        act: impl FnOnce(&mut V) -> R,
    ) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        if let Some(value) = shard.find(hash, key) {
            let answer = act(value);
            let gone = shard.tick(now);
            drop(shard);
            drop(gone);
            return answer;
        }
        drop(shard);
        self.insert(now, hash, key, entry(), act)
    }

    #[cold]
    fn insert<Q, R>(
        &self,
        now: Moment,
        hash: u64,
        key: &Q,
        (owned, value): (K, V),
        act: impl FnOnce(&mut V) -> R,
    ) -> R
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        debug_assert!(owned.borrow() == key, "the key to keep is the one that was asked for");
        // Declared first, so that what is forgotten ends after the lock. One that the hand finds leaves
        // room, so no further one has to go.
        let mut gone = [const { None }; CANDIDATES];
        let mut shard = self.shard(hash);
        gone[0] = shard.sweep(now);
        if let Some(value) = shard.find(hash, key) {
            return act(value);
        }
        if shard.make_room(now, &mut gone) {
            return act(shard.push(hash, owned, value));
        }
        drop(shard);
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        act(&mut lock(&self.overflow))
    }

    /// What `look` reads from the value of `key`; `None` for a key that is not kept. Keeps nothing
    /// alive. `look` runs under the lock of the key's part.
    pub fn peek<Q, R>(&self, key: &Q, look: impl FnOnce(&V) -> R) -> Option<R>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        self.shard(hash).look(hash, key).map(look)
    }

    /// All keys with their values, in no order, for reports. Parts are read one after the other.
    #[must_use]
    pub fn entries(&self) -> Vec<(K, V)>
    where
        K: Clone,
        V: Clone,
    {
        let mut all = Vec::new();
        for part in &self.shards {
            all.extend(lock(&part.0).entries().map(|(key, value)| (key.clone(), value.clone())));
        }
        all
    }

    /// Keys that are kept.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|part| lock(&part.0).len()).sum()
    }

    /// Most keys that are kept.
    #[must_use]
    pub const fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Calls that had to share the overflow value, since the beginning.
    #[must_use]
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        let mut hasher = Sip::new(self.seed.0, self.seed.1);
        key.hash(&mut hasher);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, V>> {
        // The upper half; the lower one chooses a chain within the part. There are 2ⁿ parts.
        let at = (hash >> 32) as usize & (self.shards.len() - 1);
        lock(&self.shards[at].0)
    }
}
