//! Shards of an outbox, and which relay works on which.
//!
//! A row's shard is a function of its key, so one relay at a time publishes the rows of a key. A relay
//! *leases* shards; each change of hands raises the shard's *epoch*, and what a relay reports counts
//! only while it holds the epoch that it read under. Relays share the shards evenly: each looks at who
//! is alive and takes or gives back on its own, without a leader.

use crate::hash::fnv1a;
use crate::time::WallTime;

/// Number of shards of an outbox. Part of what is stored: changing it would move keys between shards.
/// Sixteen relays are more than one database feeds.
pub const SHARDS: u16 = 16;

/// The shard of an event with `key`; events without a key are spread by their `id`.
///
/// FNV-1a in 64 bits (Fowler, Noll, Vo), its upper half folded onto the lower: stored rows depend on
/// it, so it never changes.
#[must_use]
pub fn shard_of(key: &str, id: &str) -> u16 {
    let text = if key.is_empty() { id } else { key };
    let hash = fnv1a(text.bytes());
    ((hash ^ (hash >> 32)) % u64::from(SHARDS)) as u16
}

/// A shard as it stands in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its number, below [`SHARDS`].
    pub shard: u16,
    /// The relay that holds it.
    pub owner: Option<String>,
    /// Grows with each change of hands.
    pub epoch: i64,
    /// Until when it is held.
    pub lease_until: WallTime,
}

/// What a relay does about the shards at a heartbeat. All by number, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Held already: lease them anew.
    pub renew: Vec<u16>,
    /// Free, and ours to take: with a new epoch.
    pub take: Vec<u16>,
    /// Held beyond the fair share: to be given back as soon as nothing of them is in flight. They are
    /// renewed until then.
    pub surplus: Vec<u16>,
}

/// How many shards are the fair share of relay number `place` among `relays`? All shards have a place,
/// and no two relays differ by more than one.
#[must_use]
pub fn fair_share(place: usize, relays: usize) -> usize {
    let (shards, relays) = (usize::from(SHARDS), relays.max(1));
    shards / relays + usize::from(place < shards % relays)
}

/// Is `held` what relay `me` should have among those that are `alive`, no more and no less? Then a
/// heartbeat that finds the same relays has nothing to decide.
#[must_use]
pub fn is_fair(me: &str, held: usize, alive: &[String]) -> bool {
    let names = named(me, alive);
    let place = names.iter().position(|name| *name == me).unwrap_or(0);
    held == fair_share(place, names.len())
}

/// All relays by name, `me` among them.
fn named<'n>(me: &'n str, alive: &'n [String]) -> Vec<&'n str> {
    let mut names: Vec<&str> = alive.iter().map(String::as_str).chain([me]).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Decides what relay `me` does, given all `shards` and the names of all relays that are `alive`
/// (`me` counts as alive in any case).
///
/// A shard whose lease is over belongs to nobody, also when `me` held it: somebody may have worked on it
/// since, and only a new epoch tells the two tenures apart.
#[must_use]
pub fn plan(me: &str, shards: &[Shard], alive: &[String], now: WallTime) -> Plan {
    let names = named(me, alive);
    let place = names.iter().position(|name| *name == me).unwrap_or(0);
    let share = fair_share(place, names.len());
    let held = |shard: &&Shard| shard.owner.as_deref() == Some(me) && now < shard.lease_until;
    let free = |shard: &&Shard| shard.owner.is_none() || shard.lease_until <= now;
    let renew: Vec<u16> = shards.iter().filter(held).map(|shard| shard.shard).collect();
    let take = shards.iter().filter(free).map(|shard| shard.shard);
    let take = take.take(share.saturating_sub(renew.len())).collect();
    let surplus = renew.get(share..).unwrap_or_default().to_vec();
    Plan { renew, take, surplus }
}
