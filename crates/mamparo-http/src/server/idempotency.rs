//! `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07): the second request gets the
//! first one's answer.
//!
//! A guarded handler takes [`Claimed`] and keeps its answer *in its own transaction*, so that
//! effect and answer commit together or not at all:
//!
//! ```no_run
//! # use axum::{Router, extract::State, routing::post};
//! # use http::StatusCode;
//! # use mamparo_http::{Problem, server::{Answer, Claimed, Idempotency}};
//! # use mamparo_store::SqliteStore;
//! async fn create(
//!     State(store): State<SqliteStore>,
//!     claimed: Claimed,
//! ) -> Result<Answer, Problem> {
//!     let mut tx = store.begin().await?;
//!     // … the effect …
//!     let answer = Answer::json(StatusCode::CREATED, &serde_json::json!({"id": 7}))?
//!         .location("/v1/orders/7");
//!     claimed.complete(&mut tx, &answer).await?;
//!     store.commit(tx).await?;
//!     Ok(answer)
//! }
//!
//! fn routes(store: SqliteStore, guard: &Idempotency<sqlx::Sqlite>) -> Router {
//!     Router::new().route("/v1/orders", guard.around(post(create))).with_state(store)
//! }
//! ```
//!
//! What becomes of an answer that the handler did *not* keep: 5xx and 429 say that nothing was
//! done, and the key is given back; every other answer is kept by the layer, after the handler's
//! commit. A process that dies between the two loses the answer, not the effect: use
//! [`Claimed::complete`] wherever there is an effect.
//!
//! A request that is dropped half-way (its caller hung up, its deadline passed, its handler
//! panicked) gives its key back with the next request that comes to the guard; a process that dies
//! holds it no longer than its lease.

mod answer;
mod layer;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use axum::routing::MethodRouter;
use mamparo_call::{Context, clock};
use mamparo_core::message::idempotency::IdempotencyKey;
use mamparo_core::time::WallTime;
use mamparo_store::idempotency::{self as keys, Claim, ClaimToken, StoredResponse};
use mamparo_store::{Backend, Store, StoreError};

pub use answer::{Answer, Claimed};

use crate::observe;

/// How long a claim holds without news of its owner. Longer than any request's budget.
const LEASE: Duration = Duration::from_secs(30);

/// How long an answer is kept for replay.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most claims of dropped requests that wait to be given back; beyond, their leases end them.
const ORPHANS_MAX: usize = 1_000;

/// Whose keys they are when nobody knows the caller.
const NAMELESS: &str = "anonymous";

/// Guards routes with idempotency keys. Cheap to clone.
#[derive(Debug)]
pub struct Idempotency<DB: Backend> {
    store: Store<DB>,
    required: bool,
    lease: Duration,
    retention: Duration,
    orphans: Arc<Orphans>,
}

// Derived, it would ask for `DB: Clone`, which no database is.
impl<DB: Backend> Clone for Idempotency<DB> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            orphans: Arc::clone(&self.orphans),
            required: self.required,
            lease: self.lease,
            retention: self.retention,
        }
    }
}

impl<DB: Backend> Idempotency<DB> {
    /// A request without a key is refused with 400.
    #[must_use]
    pub fn required(store: Store<DB>) -> Self {
        Self { store, required: true, lease: LEASE, retention: RETENTION, orphans: Arc::default() }
    }

    /// A request without a key is simply carried out.
    #[must_use]
    pub fn optional(store: Store<DB>) -> Self {
        Self { required: false, ..Self::required(store) }
    }

    /// How long a claim holds when its process dies. Default 30 s; must exceed the longest request.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long answers are kept. Default 24 h; publish it to your callers.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The guarded route.
    pub fn around<S: Clone + Send + Sync + 'static>(
        &self,
        route: MethodRouter<S>,
    ) -> MethodRouter<S> {
        route.layer(from_fn_with_state(self.clone(), layer::layer::<DB>))
    }

    /// Gives back the keys of requests that were dropped, one by one: a request that is dropped
    /// while it does so leaves the rest to the next.
    async fn release_orphans(&self) {
        while let Some(token) = self.orphans.take() {
            let mut held = Held { token: Some(token.clone()), orphans: &self.orphans };
            if let Err(error) = keys::release(&self.store, &token).await {
                // A store that fails for one would fail for all, and this request pays for it.
                observe::store_failed(&error);
                return;
            }
            held.token = None;
        }
    }

    /// The time that leases are in: the database's, once somebody has measured it.
    fn now(&self) -> WallTime {
        self.store.time(clock::wall())
    }

    async fn claim(&self, key: &IdempotencyKey, fingerprint: &str) -> Result<Claim, StoreError> {
        let (lease, retention) = (self.lease, self.retention);
        let (caller, key) = (caller(), key.as_str());
        let now = || self.now();
        keys::claim(&self.store, &caller, key, fingerprint, lease, retention, now).await
    }

    /// What the key was first used for.
    async fn first_fingerprint(&self, key: &IdempotencyKey) -> Result<Option<String>, StoreError> {
        keys::fingerprint(&self.store, &caller(), key.as_str()).await
    }

    /// Keeps an answer that the handler left to us.
    async fn keep(&self, token: &ClaimToken, answer: &StoredResponse) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        match keys::complete(&mut tx, token, answer, self.now()).await {
            Ok(()) => self.store.commit(tx).await,
            // The handler has kept its answer itself: that one counts.
            Err(StoreError::Settled { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Whose keys they are.
fn caller() -> Arc<str> {
    Context::current().client.unwrap_or_else(|| NAMELESS.into())
}

/// A claim whose request is under way; dropped before it is settled, it becomes an orphan.
struct Held<'a> {
    token: Option<ClaimToken>,
    orphans: &'a Orphans,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            self.orphans.add(token);
        }
    }
}

/// Claims whose requests were dropped. They are given back by the next request, because a `Drop`
/// can't wait for a database and a library owns no tasks.
#[derive(Debug, Default)]
struct Orphans {
    tokens: Mutex<Vec<ClaimToken>>,
}

impl Orphans {
    fn add(&self, token: ClaimToken) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() < ORPHANS_MAX {
            tokens.push(token);
        }
    }

    fn take(&self) -> Option<ClaimToken> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context as Waking, Waker};

    use tower::ServiceExt;

    use super::*;

    async fn guard(folder: &tempfile::TempDir) -> Idempotency<sqlx::Sqlite> {
        let address = format!("sqlite:{}", folder.path().join("keys.db").display());
        Idempotency::required(mamparo_store::SqliteStore::open(&address).await.unwrap())
    }

    #[tokio::test]
    async fn an_answer_that_can_not_be_kept_never_frees_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(&folder).await;
        // The effect is done, and then the database goes away.
        let store = guard.store.clone();
        let done = async move || store.close().await;
        let router = axum::Router::new().route("/", guard.around(axum::routing::post(done)));
        let request = http::Request::post("/").header("idempotency-key", "k");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), http::StatusCode::OK, "the answer stands");
        assert_eq!(guard.orphans.take(), None, "it would be done a second time");
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_while_it_gives_keys_back_loses_none() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(&folder).await;
        for key in ["a", "b", "c"] {
            let claim = guard.claim(&IdempotencyKey::parse(key).unwrap(), "same").await.unwrap();
            let Claim::Granted(token) = claim else { panic!("{claim:?}") };
            guard.orphans.add(token);
        }
        {
            let mut giving_back = pin!(guard.release_orphans());
            let mut waking = Waking::from_waker(Waker::noop());
            assert!(giving_back.as_mut().poll(&mut waking).is_pending());
        }
        guard.release_orphans().await;
        for key in ["a", "b", "c"] {
            let claim = guard.claim(&IdempotencyKey::parse(key).unwrap(), "same").await.unwrap();
            assert!(matches!(claim, Claim::Granted(_)), "{key} is locked: {claim:?}");
        }
    }
}
