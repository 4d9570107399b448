//! One call for everybody who wants the same at the same time.
//!
//! The one who makes it holds a [`Maker`]. However that goes, landed, dropped or unwound by a panic,
//! those who wait hear of it: there is no state in which nobody makes the call and somebody waits.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mamparo_core::call::fallback::Ended;
use mamparo_core::time::Moment;
use tokio::sync::watch;

use super::Entry;

/// The calls under way, at most one a key. As many as there are callers in flight.
pub(super) struct Flights<K, V, E> {
    under_way: Mutex<HashMap<K, Waiter<V, E>>>,
}

/// How a call came down.
pub(super) enum Landing<V, E> {
    /// With an answer for all.
    Landed(Arc<Entry<V>>),
    /// With an answer that is only for the one who made it.
    Unshared,
    /// With an error.
    Failed { error: Arc<E>, ended: Ended },
}

/// The one who makes the call, or one who waits for it.
pub(super) enum Seat<K: Hash + Eq, V, E> {
    Maker(Maker<K, V, E>),
    Waiter(Waiter<V, E>),
}

/// Makes the call for `key`. Dropped before it landed, it leaves the call to somebody else.
pub(super) struct Maker<K: Hash + Eq, V, E> {
    flights: Arc<Flights<K, V, E>>,
    key: K,
    landing: watch::Sender<Option<Landing<V, E>>>,
    vacated: bool,
}

/// Waits for a call.
pub(super) struct Waiter<V, E> {
    maker_deadline: Option<Moment>,
    landing: watch::Receiver<Option<Landing<V, E>>>,
}

impl<K, V, E> Default for Flights<K, V, E> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<K: Hash + Eq + Clone, V, E> Flights<K, V, E> {
    /// A seat on the call for `key`. `deadline` is the caller's, and tells the others how long it can
    /// wait if it makes the call.
    pub(super) fn board(self: &Arc<Self>, key: &K, deadline: Option<Moment>) -> Seat<K, V, E> {
        // Cloned first, and dropped last: a key's `Clone` and `Drop` are a user's, and no business of
        // the lock.
        let (place, own) = (key.clone(), key.clone());
        let mut under_way = self.lock();
        if let Some(waiter) = under_way.get(key) {
            return Seat::Waiter(waiter.clone());
        }
        let (landing, receiver) = watch::channel(None);
        under_way.insert(place, Waiter { maker_deadline: deadline, landing: receiver });
        drop(under_way);
        Seat::Maker(Maker { flights: Arc::clone(self), key: own, landing, vacated: false })
    }

    /// Whoever comes from now on makes a call anew. The one under way goes on for those who wait for
    /// it.
    pub(super) fn abandon(&self, key: &K) {
        let gone = self.lock().remove_entry(key);
        drop(gone);
    }
}

impl<K, V, E> Flights<K, V, E> {
    /// A key's `Hash` and `Eq` run under this lock, and the map is whole when they panic.
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Waiter<V, E>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq, V, E> Maker<K, V, E> {
    /// Tells those who wait.
    pub(super) fn land(mut self, landing: Landing<V, E>) {
        self.vacate();
        self.landing.send_replace(Some(landing));
    }

    /// Gives the place free. Before anybody is told: who then begins anew does not find a call that is
    /// over. Answers whether it was its place to the end; not so when the key was
    /// [abandoned](Flights::abandon) meanwhile.
    pub(super) fn vacate(&mut self) -> bool {
        if self.vacated {
            return false;
        }
        self.vacated = true;
        let own = self.landing.subscribe();
        let mut under_way = self.flights.lock();
        let is_own = under_way.get(&self.key).is_some_and(|it| it.landing.same_channel(&own));
        let gone = if is_own { under_way.remove_entry(&self.key) } else { None };
        drop(under_way);
        // What goes with it is a user's, and its drop is no business of the lock.
        drop(gone);
        is_own
    }
}

impl<K: Hash + Eq, V, E> Drop for Maker<K, V, E> {
    fn drop(&mut self) {
        self.vacate();
    }
}

impl<V, E> Waiter<V, E> {
    /// How long the one who makes the call can wait.
    pub(super) const fn maker_deadline(&self) -> Option<Moment> {
        self.maker_deadline
    }

    /// How the call came down; `None` when nobody makes it any more.
    pub(super) async fn landing(mut self) -> Option<Landing<V, E>> {
        let landed = self.landing.wait_for(Option::is_some).await;
        landed.ok().and_then(|landing| landing.clone())
    }
}

impl<V, E> Clone for Waiter<V, E> {
    fn clone(&self) -> Self {
        Self { maker_deadline: self.maker_deadline, landing: self.landing.clone() }
    }
}

impl<V, E> Clone for Landing<V, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Landed(entry) => Self::Landed(Arc::clone(entry)),
            Self::Unshared => Self::Unshared,
            Self::Failed { error, ended } => {
                Self::Failed { error: Arc::clone(error), ended: *ended }
            }
        }
    }
}
