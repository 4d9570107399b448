//! Making a [`StaleCache`]: all mistakes come back at once.

use std::hash::Hash;

use mamparo_core::call::fallback::Windows;
use mamparo_core::call::plan::Mistake;
use mamparo_core::limits::CACHE_ENTRIES_MAX;

use super::StaleCache;
use crate::BuildError;
use crate::observe::CacheObserver;

/// Builds a [`StaleCache`].
#[derive(Debug, Clone)]
pub struct CacheBuilder {
    name: Box<str>,
    service: Box<str>,
    entries: u64,
    windows: Windows,
}

impl CacheBuilder {
    pub(super) fn new(name: Box<str>) -> Self {
        Self { name, service: "".into(), entries: 10_000, windows: Windows::default() }
    }

    /// Name of the calling service, the label `service` of the metrics. Default empty.
    #[must_use]
    pub fn service(mut self, name: impl Into<Box<str>>) -> Self {
        self.service = name.into();
        self
    }

    /// Most answers that are remembered, 1 to 1 000 000; those that are rarely asked for go first.
    /// Default 10 000.
    #[must_use]
    pub const fn entries(mut self, entries: u64) -> Self {
        self.entries = entries;
        self
    }

    /// For how long they are good for what. Default: never without asking, for 24 h when the
    /// dependency fails.
    #[must_use]
    pub const fn windows(mut self, windows: Windows) -> Self {
        self.windows = windows;
        self
    }

    /// The cache, empty.
    ///
    /// # Errors
    /// [`BuildError`] lists every value that can't be meant.
    pub fn build<K, V, E>(self) -> Result<StaleCache<K, V, E>, BuildError>
    where
        K: Hash + Eq + Clone + Send + Sync + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let Self { name, service, entries, windows } = self;
        let mut mistakes = windows.mistakes();
        if !(1..=CACHE_ENTRIES_MAX).contains(&entries) {
            let text = format!("is {entries}, must be from 1 to {CACHE_ENTRIES_MAX}");
            mistakes.push(Mistake { key: "cache.entries", text });
        }
        if !mistakes.is_empty() {
            return Err(BuildError { dependency: name.into(), mistakes });
        }
        let observer = CacheObserver::new(&service, &name);
        Ok(StaleCache::new(name, windows, entries, observer))
    }
}
