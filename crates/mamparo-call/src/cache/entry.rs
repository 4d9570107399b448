//! What a cache holds, and the answers that it makes of it.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::call::fallback::{Effect, Ended, Reason, Windows, ask};
use mamparo_core::outcome::Failure;
use mamparo_core::time::Moment;
use moka::ops::compute::Op;

use super::flight::Flights;
use super::{CacheError, Cached, Fetched, Handling, Keep, Outcome};
use crate::clock;
use crate::fallback::{Answer, Degraded, Fresh, Source};
use crate::observe::CacheObserver;

/// What the clones of a cache share.
pub(super) struct Shared<K, V, E> {
    pub(super) name: Box<str>,
    pub(super) windows: Windows,
    pub(super) entries: moka::sync::Cache<K, Arc<Entry<V>>>,
    pub(super) flights: Arc<Flights<K, V, E>>,
    pub(super) observer: CacheObserver,
}

/// A remembered answer.
pub(super) struct Entry<V> {
    pub(super) value: V,
    /// When it was asked for, and how old it was then. Not one moment: an answer may be older than
    /// any moment of this process.
    asked: Moment,
    age_then: Duration,
    pub(super) windows: Windows,
    pub(super) stored: bool,
    /// The dependency itself called it stale.
    stale: bool,
}

impl<K, V, E> Shared<K, V, E>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Remembers it, unless what is remembered was said later: of two answers that overtake each
    /// other, or come from caches of different age, the newer one stays.
    pub(super) fn remember(&self, key: K, entry: &Arc<Entry<V>>, now: Moment) {
        self.entries.entry(key).and_upsert_with(|known| match known {
            Some(known) if known.value().age(now) < entry.age(now) => known.into_value(),
            Some(_) | None => Arc::clone(entry),
        });
    }

    /// Forgets this very entry, and none that has taken its place.
    pub(super) fn take_back(&self, key: K, entry: &Arc<Entry<V>>) {
        self.entries.entry(key).and_compute_with(|known| match known {
            Some(known) if Arc::ptr_eq(known.value(), entry) => Op::Remove,
            Some(_) | None => Op::Nop,
        });
    }
}

impl<K, V: Clone, E> Shared<K, V, E> {
    pub(super) fn entry(&self, fetched: Fetched<V>, started: Moment) -> Entry<V> {
        let Fetched { value, age, keep, stale } = fetched;
        let (mut windows, stored) = match keep {
            Keep::AsConfigured => (self.windows, true),
            Keep::For(windows) => (windows, true),
            Keep::Never => (self.windows, false),
        };
        if stale {
            windows.fresh_for = Duration::ZERO;
        }
        Entry { value, asked: started, age_then: age, windows, stored, stale }
    }

    /// The stale value in place of a call that ended like this, if one may stand in.
    pub(super) fn stand_in(&self, known: Option<Arc<Entry<V>>>, ended: Ended) -> Option<Cached<V>> {
        let (entry, reason, now) = (known?, ask(Effect::Read, ended).ok()?, clock::now());
        entry.windows.stands_in(entry.age(now)).then(|| self.stale(&entry, now, reason))
    }

    pub(super) fn stale(&self, entry: &Entry<V>, now: Moment, reason: Reason) -> Cached<V> {
        let age = entry.age(now);
        let degraded = Degraded::new(entry.value.clone(), Source::Stale { age }, reason);
        self.observer.stood_in(age, reason);
        Cached {
            answer: Answer::Degraded(degraded),
            handling: entry.handling(age, Outcome::Stale(reason)),
        }
    }

    /// The caller's time is over.
    pub(super) fn late(&self, known: Option<Arc<Entry<V>>>) -> Result<Cached<V>, CacheError<E>> {
        let stale = self.stand_in(known, Ended::Failed(Failure::UNKNOWN));
        stale.ok_or_else(|| CacheError::Late { cache: self.name.clone() })
    }

    pub(super) fn failed(&self, source: Arc<E>, collapsed: bool) -> CacheError<E> {
        CacheError::Failed { cache: self.name.clone(), source, collapsed }
    }
}

impl<V> Entry<V> {
    pub(super) fn age(&self, now: Moment) -> Duration {
        self.age_then.saturating_add(now.since(self.asked))
    }
}

impl<V: Clone> Entry<V> {
    pub(super) fn fetched(
        &self,
        now: Moment,
        had_stale: bool,
        collapsed: Option<bool>,
    ) -> Cached<V> {
        let stored = self.stored;
        self.served(now, Outcome::Fetched { had_stale, collapsed, stored })
    }

    pub(super) fn served(&self, now: Moment, outcome: Outcome) -> Cached<V> {
        let (age, value) = (self.age(now), self.value.clone());
        let answer = if self.stale {
            Answer::Degraded(Degraded::new(value, Source::Stale { age }, Reason::Upstream))
        } else {
            Answer::Fresh(Fresh::new(value))
        };
        Cached { answer, handling: self.handling(age, outcome) }
    }

    fn handling(&self, age: Duration, outcome: Outcome) -> Handling {
        Handling { outcome, age, ttl_seconds: self.windows.ttl_seconds(age) }
    }
}
