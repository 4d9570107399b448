//! One part of the map: entries in a row, found through chains, visited in a circle.
//!
//! The standard map can't go on with an iteration where it stopped, and would have to be asked twice
//! for each hash; a row with chains of indices through it does both.

use std::borrow::Borrow;

use crate::time::Moment;

use super::{Dispensable, Keep};

/// Entries that are looked at when a new key finds no room.
pub(super) const CANDIDATES: usize = 16;

/// The hand moves by one entry for so many calls. A round over *n* keys then takes 8 × *n* calls, in
/// which a key that has its even share is missed with a chance of e⁻⁸: what is cheap to keep is not
/// made anew all the time.
const CALLS_A_STEP: u32 = 8;

/// The end of a chain: an index that no entry has.
const END: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Shard<K, V> {
    keys_max: usize,
    /// The first entry of each chain; 2ⁿ of them, at least as many as entries.
    chains: Vec<u32>,
    /// Without holes.
    row: Vec<Entry<K, V>>,
    /// The entry that is looked at next.
    hand: usize,
    /// Calls until the hand moves.
    rest: u32,
}

#[derive(Debug)]
pub(super) struct Entry<K, V> {
    hash: u64,
    next: u32,
    /// Asked for since the hand was here last.
    touched: bool,
    key: K,
    value: V,
}

impl<K, V> Shard<K, V> {
    pub(super) fn new(keys_max: usize) -> Self {
        Self { keys_max, chains: vec![END; 4], row: Vec::new(), hand: 0, rest: CALLS_A_STEP }
    }

    pub(super) fn len(&self) -> usize {
        self.row.len()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.row.iter().map(|entry| (&entry.key, &entry.value))
    }

    /// The value of `key`, which counts as asked for.
    pub(super) fn find<Q>(&mut self, hash: u64, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let at = self.position(hash, key)?;
        let entry = self.row.get_mut(at)?;
        entry.touched = true;
        Some(&mut entry.value)
    }

    /// The value of `key`, without a trace.
    pub(super) fn look<Q>(&self, hash: u64, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.row.get(self.position(hash, key)?).map(|entry| &entry.value)
    }

    fn position<Q>(&self, hash: u64, key: &Q) -> Option<usize>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut at = self.chains[self.chain(hash)];
        while let Some(entry) = self.row.get(at as usize) {
            if entry.hash == hash && entry.key.borrow() == key {
                return Some(at as usize);
            }
            at = entry.next;
        }
        None
    }

    fn chain(&self, hash: u64) -> usize {
        hash as usize & (self.chains.len() - 1)
    }

    /// Appends a key that is not there yet; [`Shard::make_room`] has said that it may come.
    pub(super) fn push(&mut self, hash: u64, key: K, value: V) -> &mut V {
        if self.row.len() >= self.chains.len() {
            self.double();
        }
        let chain = self.chain(hash);
        let at = self.row.len();
        let next = std::mem::replace(&mut self.chains[chain], at as u32);
        self.row.push(Entry { hash, next, touched: true, key, value });
        &mut self.row[at].value
    }

    /// Twice as many chains, so that they stay about one entry long.
    fn double(&mut self) {
        self.chains = vec![END; self.chains.len() * 2];
        for at in 0..self.row.len() {
            let chain = self.chain(self.row[at].hash);
            self.row[at].next = std::mem::replace(&mut self.chains[chain], at as u32);
        }
    }

    /// Takes an entry out. It is the caller's to drop, outside of the lock: a key is a user's code.
    fn remove(&mut self, at: usize) -> Entry<K, V> {
        let after = self.row[at].next;
        self.point(at, after);
        let last = self.row.len() - 1;
        if at != last {
            // The last entry fills the hole.
            self.point(last, at as u32);
        }
        self.row.swap_remove(at)
    }

    /// Lets whatever points at the entry `from` point at `to`.
    fn point(&mut self, from: usize, to: u32) {
        let chain = self.chain(self.row[from].hash);
        let mut at = self.chains[chain];
        if at as usize == from {
            self.chains[chain] = to;
            return;
        }
        while let Some(entry) = self.row.get_mut(at as usize) {
            if entry.next as usize == from {
                entry.next = to;
                return;
            }
            at = entry.next;
        }
    }
}

impl<K, V: Dispensable> Shard<K, V> {
    /// Counts a call, and moves the hand when it is time to. Answers with what is forgotten.
    pub(super) fn tick(&mut self, now: Moment) -> Option<Entry<K, V>> {
        self.rest -= 1;
        if self.rest > 0 {
            return None;
        }
        self.rest = CALLS_A_STEP;
        self.sweep(now)
    }

    /// Moves the hand by one entry. It goes when it is idle and was not asked for during a round.
    pub(super) fn sweep(&mut self, now: Moment) -> Option<Entry<K, V>> {
        if self.hand >= self.row.len() {
            self.hand = 0;
        }
        let entry = self.row.get_mut(self.hand)?;
        if std::mem::take(&mut entry.touched) || entry.value.keep(now) != Keep::Idle {
            self.hand += 1;
            return None;
        }
        // What fills the hole is looked at next.
        Some(self.remove(self.hand))
    }

    /// Is there room for one more? Where the part is full, the next [`CANDIDATES`] are looked at: those
    /// that are idle go, else the one that can best be spared; false when all of them are in use. What
    /// goes is put into `gone`, which has a place for each.
    pub(super) fn make_room(
        &mut self,
        now: Moment,
        gone: &mut [Option<Entry<K, V>>; CANDIDATES],
    ) -> bool {
        if self.row.len() < self.keys_max {
            return true;
        }
        let full = self.row.len();
        let mut nearest: Option<(u64, usize)> = None;
        for place in gone.iter_mut().take(full) {
            if self.hand >= self.row.len() {
                self.hand = 0;
            }
            let at = self.hand;
            let Some(entry) = self.row.get(at) else { break };
            match entry.value.keep(now) {
                // What fills the hole is looked at next.
                Keep::Idle => *place = Some(self.remove(at)),
                Keep::Nearest(rank) => {
                    if nearest.is_none_or(|(least, _)| rank < least) {
                        nearest = Some((rank, at));
                    }
                    self.hand += 1;
                }
                Keep::InUse => self.hand += 1,
            }
        }
        if self.row.len() == full
            && let Some((_, at)) = nearest
        {
            gone[0] = Some(self.remove(at));
        }
        self.row.len() < full
    }
}
