//! Remembered answers: fresh ones without a call, stale ones when the call fails, and one call for
//! everybody who wants the same at the same time.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[derive(Debug, thiserror::Error)] #[error("down")] struct Down;
//! # impl mamparo_call::Classify for Down {
//! #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::NOT_SENT }
//! # }
//! use std::time::Duration;
//! use mamparo_call::cache::StaleCache;
//! use mamparo_core::call::fallback::Windows;
//!
//! let names: StaleCache<&str, String, Down> = StaleCache::builder("catalog")
//!     .entries(10_000)
//!     .windows(Windows { if_error: Duration::from_secs(3_600), ..Windows::default() })
//!     .build()?;
//! let first = names.get(&"p-1", || async { Ok("Lamp".to_owned().into()) }).await?;
//! assert!(first.answer.is_fresh());
//!
//! let later = names.get(&"p-1", || async { Err(Down) }).await?;
//! let stale = later.answer.fresh().expect_err("the catalog is down");
//! assert_eq!(stale.accept_stale(Duration::from_secs(60)), Ok("Lamp".to_owned()));
//! # Ok(()) }
//! ```
//!
//! Ages are measured by [`crate::clock`] and judged by
//! [`Windows`]. moka, which holds the values,
//! decides only which of them go when there are too many.

mod builder;
mod cached;
mod entry;
mod flight;

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::Arc;

use mamparo_core::call::fallback::{Effect, Ended, Reason, Standing, Windows, ask, shares};
use mamparo_core::limits::CACHE_REFRESH_MAX;
use mamparo_core::outcome::{Failure, Health};
use mamparo_core::time::Moment;

pub use builder::CacheBuilder;
pub use cached::{CacheError, Cached, Fetched, Handling, Keep, Outcome};

use crate::deadline::Deadline;
use crate::fallback::{Lesser, ended};
use crate::observe::CacheObserver;
use crate::{Classify, Context, clock};
use entry::{Entry, Shared};
use flight::{Landing, Maker, Seat, Waiter};

/// A refresh in the background, for whatever runs it to its end: `mamparo_service`'s tasks, say.
pub type Refresh = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The remembered answers of one dependency, by key. Cheap to clone; clones share everything.
///
/// `E` is the error of the calls; a cache that is only put to and recalled from needs none.
pub struct StaleCache<K, V, E = std::convert::Infallible> {
    shared: Arc<Shared<K, V, E>>,
}

/// How a request for a key begins.
enum Begun<K: Hash + Eq, V, E> {
    Serve(Cached<V>),
    Make { maker: Maker<K, V, E>, known: Option<Arc<Entry<V>>>, standing: Standing },
    Join { waiter: Waiter<V, E>, known: Option<Arc<Entry<V>>> },
}

/// What became of waiting for another one's call.
enum Joined<V, E> {
    Ended(Result<Cached<V>, CacheError<E>>),
    /// Nobody makes the call any more, or its failure is not ours.
    Again,
    /// Its answer was for the one who made it.
    Alone(Option<Arc<Entry<V>>>),
}

impl<K, V, E> Clone for StaleCache<K, V, E> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K, V, E> fmt::Debug for StaleCache<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { name, windows, .. } = &*self.shared;
        f.debug_struct("StaleCache")
            .field("name", name)
            .field("windows", windows)
            .finish_non_exhaustive()
    }
}

/// Types of no meaning, so that a call names none: the builder's `build` says what the cache holds.
impl StaleCache<(), (), ()> {
    /// Starts building the cache called `name`, after the dependency whose answers it keeps.
    #[must_use]
    pub fn builder(name: impl Into<Box<str>>) -> CacheBuilder {
        CacheBuilder::new(name.into())
    }
}

impl<K, V, E> StaleCache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn new(name: Box<str>, windows: Windows, entries: u64, observer: CacheObserver) -> Self {
        let entries = moka::sync::Cache::new(entries);
        let shared = Shared { name, windows, entries, flights: Arc::default(), observer };
        Self { shared: Arc::new(shared) }
    }

    /// Remembers an answer that was got in another way, unless a newer one is remembered. It stays,
    /// too, when a call that is under way comes back with an older one.
    pub fn put(&self, key: K, fetched: impl Into<Fetched<V>>) {
        let now = clock::now();
        let entry = self.shared.entry(fetched.into(), now);
        if entry.stored {
            self.shared.remember(key, &Arc::new(entry), now);
        }
    }

    /// What is remembered under `key`, for a call that failed in another way; `None` when there is
    /// nothing or its time is over. A [`crate::fallback::Fallback`] decides whether it stands in.
    #[must_use]
    pub fn recall(&self, key: &K) -> Option<Lesser<V>> {
        let entry = self.shared.entries.get(key)?;
        let age = entry.age(clock::now());
        entry.windows.stands_in(age).then(|| Lesser::Stale(entry.value.clone(), age))
    }

    /// Forgets what is remembered under `key`, because it was changed, say. A call that is under way
    /// may have been answered before: those who wait for it get its answer, nobody who comes later
    /// does.
    pub fn forget(&self, key: &K) {
        self.shared.flights.abandon(key);
        self.shared.entries.invalidate(key);
    }
}

impl<K, V, E> StaleCache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Classify + Send + Sync + 'static,
{
    /// The answer under `key`: a remembered one while it is fresh, else what `fetch` gets, else, when
    /// that fails, a remembered one whose time is not over.
    ///
    /// Of those who want the same key at the same time one calls `fetch`, and the others take its
    /// answer. When the one is dropped or panics, another takes over; each waits no longer than its
    /// own [`Context`]'s deadline. `fetch` must not ask for the same key: it would wait for itself. In the
    /// time of `stale-while-revalidate` one caller fetches, and
    /// the others get the stale value at once. Errors are never remembered, and an answer of the
    /// dependency that says no (404) makes the cache forget.
    ///
    /// # Errors
    /// [`CacheError`], when there was no answer and nothing may stand in.
    pub async fn get<F, Fut>(&self, key: &K, fetch: F) -> Result<Cached<V>, CacheError<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Fetched<V>, E>>,
    {
        let begun = self.begin(key);
        self.finish(key, begun, fetch).await
    }

    /// The same, but in the time of `stale-while-revalidate` nobody waits: everybody gets the stale
    /// value, and the call of the first goes to `spawn`, with 30 s to end
    /// ([`CACHE_REFRESH_MAX`]).
    ///
    /// # Errors
    /// [`CacheError`], when there was no answer and nothing may stand in.
    pub async fn get_refreshing<F, Fut>(
        &self,
        key: &K,
        spawn: impl FnOnce(Refresh),
        fetch: F,
    ) -> Result<Cached<V>, CacheError<E>>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Fetched<V>, E>> + Send + 'static,
    {
        match self.begin(key) {
            Begun::Make { maker, known: Some(known), standing: Standing::Revalidate } => {
                let cached = self.shared.stale(&known, clock::now(), Reason::Revalidating);
                spawn(self.refresh(key.clone(), maker, fetch));
                let result = Ok(cached);
                self.shared.observer.asked(&result);
                result
            }
            begun @ (Begun::Serve(_) | Begun::Make { .. } | Begun::Join { .. }) => {
                self.finish(key, begun, fetch).await
            }
        }
    }

    fn refresh<F, Fut>(&self, key: K, maker: Maker<K, V, E>, fetch: F) -> Refresh
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<Fetched<V>, E>> + Send + 'static,
    {
        // The caller's ids go along, its deadline does not: it has its answer.
        let context = Context { deadline: None, ..Context::current() };
        let context = context.with_budget(clock::now(), CACHE_REFRESH_MAX);
        let cache = self.clone();
        Box::pin(context.scope(async move {
            let result = cache.make(&key, Some(maker), None, fetch()).await;
            cache.shared.observer.refreshed(result.is_ok());
        }))
    }

    fn begin(&self, key: &K) -> Begun<K, V, E> {
        let shared = &self.shared;
        let look = || {
            let (entry, now) = (shared.entries.get(key), clock::now());
            let standing =
                entry.as_ref().map_or(Standing::Expired, |e| e.windows.standing(e.age(now)));
            (entry, standing, now)
        };
        let (known, standing, now) = look();
        if let (Some(entry), Standing::Fresh) = (&known, standing) {
            return Begun::Serve(entry.served(now, Outcome::Hit));
        }
        match (shared.flights.board(key, Context::current_deadline()), known) {
            (Seat::Waiter(_), Some(entry)) if standing == Standing::Revalidate => {
                Begun::Serve(shared.stale(&entry, now, Reason::Revalidating))
            }
            (Seat::Waiter(waiter), known) => Begun::Join { waiter, known },
            (Seat::Maker(maker), _) => match look() {
                // Somebody has landed between the look and the seat.
                (Some(entry), Standing::Fresh, now) => {
                    Begun::Serve(entry.served(now, Outcome::Hit))
                }
                (known, standing, _) => Begun::Make { maker, known, standing },
            },
        }
    }

    async fn finish<F, Fut>(
        &self,
        key: &K,
        mut begun: Begun<K, V, E>,
        fetch: F,
    ) -> Result<Cached<V>, CacheError<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<Fetched<V>, E>>,
    {
        let result = loop {
            match begun {
                Begun::Serve(cached) => break Ok(cached),
                Begun::Make { maker, known, .. } => {
                    break self.make(key, Some(maker), known, fetch()).await;
                }
                Begun::Join { waiter, known } => match self.join(waiter, known).await {
                    Joined::Ended(result) => break result,
                    // No call begins after the deadline, whoever was to make it before.
                    Joined::Again if is_over(Context::current_deadline()) => {
                        break self.shared.late(self.shared.entries.get(key));
                    }
                    Joined::Alone(known) if is_over(Context::current_deadline()) => {
                        break self.shared.late(known);
                    }
                    Joined::Again => begun = self.begin(key),
                    Joined::Alone(known) => break self.make(key, None, known, fetch()).await,
                },
            }
        };
        self.shared.observer.asked(&result);
        result
    }

    /// Makes the call, for all who wait if there is a `maker`.
    async fn make(
        &self,
        key: &K,
        maker: Option<Maker<K, V, E>>,
        known: Option<Arc<Entry<V>>>,
        fetch: impl Future<Output = Result<Fetched<V>, E>>,
    ) -> Result<Cached<V>, CacheError<E>> {
        let (shared, started) = (&self.shared, clock::now());
        let error = match Deadline::new(fetch, Context::current_deadline()).await {
            Ok(Ok(fetched)) => {
                let (now, mut entry) = (clock::now(), shared.entry(fetched, started));
                // Nobody would notice that it was forgotten since it was asked for.
                entry.stored &= maker.is_some();
                let entry = Arc::new(entry);
                let collapsed = if maker.is_some() { None } else { Some(false) };
                if let Some(maker) = maker {
                    self.land(key, maker, &entry, now);
                }
                return Ok(entry.fetched(now, known.is_some(), collapsed));
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => return shared.late(known),
        };
        let ended = ended(&error);
        if let Ended::Failed(Failure { health: Health::Good, .. }) = ended
            && ask(Effect::Read, ended).is_err()
        {
            // The dependency is alive and says no: what was true before is not any more.
            shared.entries.invalidate(key);
        }
        let error = Arc::new(error);
        if let Some(maker) = maker {
            maker.land(Landing::Failed { error: Arc::clone(&error), ended });
        }
        shared.stand_in(known, ended).ok_or_else(|| shared.failed(error, false))
    }

    /// Remembers an answer, and tells those who wait for it.
    fn land(&self, key: &K, mut maker: Maker<K, V, E>, entry: &Arc<Entry<V>>, now: Moment) {
        if !entry.stored {
            return maker.land(Landing::Unshared);
        }
        // Remembered first: whoever comes between would make the call again.
        self.shared.remember(key.clone(), entry, now);
        if !maker.vacate() {
            self.shared.take_back(key.clone(), entry);
        }
        maker.land(Landing::Landed(Arc::clone(entry)));
    }

    /// Waits for another one's call.
    async fn join(&self, waiter: Waiter<V, E>, known: Option<Arc<Entry<V>>>) -> Joined<V, E> {
        let (shared, deadline) = (&self.shared, Context::current_deadline());
        let maker_deadline = waiter.maker_deadline();
        let Ok(landing) = Deadline::new(waiter.landing(), deadline).await else {
            return Joined::Ended(shared.late(known));
        };
        match landing {
            None => Joined::Again,
            Some(Landing::Landed(entry)) => {
                Joined::Ended(Ok(entry.fetched(clock::now(), known.is_some(), Some(true))))
            }
            Some(Landing::Unshared) => Joined::Alone(known),
            Some(Landing::Failed { error, ended }) => match shared.stand_in(known, ended) {
                Some(cached) => Joined::Ended(Ok(cached)),
                None if shares(ended, maker_deadline, deadline) => {
                    Joined::Ended(Err(shared.failed(error, true)))
                }
                None => Joined::Again,
            },
        }
    }
}

fn is_over(deadline: Option<Moment>) -> bool {
    deadline.is_some_and(|deadline| clock::now() >= deadline)
}
