//! `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header-07): the second request gets the
//! first one's answer.
//!
//! A guarded handler takes [`Claimed`] and keeps its answer *in its own transaction*, so that
//! effect and answer commit together or not at all:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use axum::{Router, extract::State, routing::post};
//! # use http::StatusCode;
//! # use mamparo_http::{Problem, server::{Answer, Claimed, Idempotency}};
//! # use mamparo_store::SqliteStore;
//! async fn create(
//!     State(store): State<Arc<SqliteStore>>,
//!     claimed: Claimed,
//! ) -> Result<Answer, Problem> {
//!     let mut tx = store.begin().await?;
//!     // … the effect …
//!     let answer = Answer::json(StatusCode::CREATED, &serde_json::json!({"id": 7}))?
//!         .location("/v1/orders/7");
//!     claimed.complete(&mut tx, &answer).await?;
//!     tx.commit().await.map_err(|_| Problem::internal())?;
//!     Ok(answer)
//! }
//!
//! fn routes(store: Arc<SqliteStore>, guard: &Idempotency<sqlx::Sqlite>) -> Router {
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

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use mamparo_call::{Context, clock};
use mamparo_core::limits;
use mamparo_core::message::idempotency::IdempotencyKey;
use mamparo_core::time::WallTime;
use mamparo_store::idempotency::{self as keys, Claim, ClaimToken, StoredResponse};
use mamparo_store::{Backend, Store, StoreError, Transaction};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::extract::too_large;
use crate::problem::{Problem, codes};
use crate::{headers, observe};

/// How long a claim holds without news of its owner. Longer than any request's budget.
const LEASE: Duration = Duration::from_secs(30);

/// How long an answer is kept for replay.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Most claims of dropped requests that wait to be given back; beyond, their leases end them.
const ORPHANS_MAX: usize = 1_000;

/// Whose keys they are when nobody knows the caller.
const NAMELESS: &str = "anonymous";

/// The headers of an answer that are kept and replayed.
const KEPT: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, ETAG];

/// Guards routes with idempotency keys. Cheap to clone.
#[derive(Debug)]
pub struct Idempotency<DB: Backend> {
    store: Arc<Store<DB>>,
    required: bool,
    lease: Duration,
    retention: Duration,
    orphans: Arc<Orphans>,
}

// Derived, it would ask for `DB: Clone`, which no database is.
impl<DB: Backend> Clone for Idempotency<DB> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
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
        Self {
            store: Arc::new(store),
            required: true,
            lease: LEASE,
            retention: RETENTION,
            orphans: Arc::default(),
        }
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
        route.layer(from_fn_with_state(self.clone(), layer::<DB>))
    }

    /// Gives back the keys of requests that were dropped. Only what can't be given back stays.
    async fn release_orphans(&self) {
        for token in self.orphans.take() {
            if let Err(error) = keys::release(&self.store, &token).await {
                observe::store_failed(&error);
                self.orphans.add(token);
            }
        }
    }

    async fn claim(&self, key: &IdempotencyKey, fingerprint: &str) -> Result<Claim, StoreError> {
        let caller = Context::current().client.unwrap_or_else(|| NAMELESS.into());
        let (lease, retention, now) = (self.lease, self.retention, clock::wall());
        keys::claim(&self.store, &caller, key.as_str(), fingerprint, lease, retention, now).await
    }

    /// Keeps an answer that the handler left to us.
    async fn keep(&self, token: &ClaimToken, answer: &StoredResponse) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        keys::complete(&mut tx, token, answer, clock::wall()).await?;
        tx.commit().await.map_err(|source| StoreError::Database {
            operation: "keep the answer of an idempotency key",
            source,
        })
    }
}

/// The claim of this request, for its handler.
///
/// On a route that is not guarded, or without a key where that is optional, there is nothing to
/// keep and [`Claimed::complete`] does nothing.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    token: Option<ClaimToken>,
    kept: Arc<AtomicBool>,
}

impl Claimed {
    /// The claim itself; `None` when the request has no key.
    #[must_use]
    pub fn token(&self) -> Option<&ClaimToken> {
        self.token.as_ref()
    }

    /// Keeps `answer` in the transaction of the work itself. Commit it afterwards.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when another request took the key over meanwhile: roll back.
    pub async fn complete<DB: Backend>(
        &self,
        tx: &mut Transaction<'_, DB>,
        answer: &Answer,
    ) -> Result<(), StoreError> {
        let Some(token) = &self.token else { return Ok(()) };
        keys::complete(tx, token, &answer.0, clock::wall()).await?;
        self.kept.store(true, Ordering::Release);
        Ok(())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Claimed {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// An answer that can be kept and given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(StoredResponse);

impl Answer {
    /// An answer with a JSON body.
    ///
    /// # Errors
    /// [`Problem::internal`] when `body` can't be encoded.
    pub fn json<T: Serialize + ?Sized>(status: StatusCode, body: &T) -> Result<Self, Problem> {
        let body = serde_json::to_vec(body).map_err(|error| {
            tracing::error!(%error, "failed to encode an answer");
            Problem::internal()
        })?;
        let headers = vec![(CONTENT_TYPE.to_string(), "application/json".to_owned())];
        Ok(Self(StoredResponse { status: status.as_u16(), headers, body }))
    }

    /// Names the created thing's address.
    #[must_use]
    pub fn location(mut self, address: impl Into<String>) -> Self {
        self.0.headers.push((LOCATION.to_string(), address.into()));
        self
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let mut response = Response::new(Body::from(self.0.body));
        // What can't be read back was not written by us; the body is still the best answer.
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in self.0.headers {
            if let (Ok(name), Ok(value)) =
                (name.parse::<HeaderName>(), HeaderValue::from_str(&value))
            {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

async fn layer<DB: Backend>(
    State(guard): State<Idempotency<DB>>,
    request: Request,
    next: Next,
) -> Response {
    match guarded(&guard, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn guarded<DB: Backend>(
    guard: &Idempotency<DB>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let Some(key) = key_of(request.headers(), guard.required)? else {
        return Ok(next.run(request).await);
    };
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, limits::BODY_BYTES_MAX).await.map_err(|_| too_large())?;
    let fingerprint = fingerprint(&parts, &body);
    guard.release_orphans().await;
    match guard.claim(&key, &fingerprint).await? {
        Claim::Granted(token) => {
            observe::idempotency("granted");
            let request = Request::from_parts(parts, Body::from(body));
            Ok(carry_out(guard, token, request, next).await)
        }
        Claim::InProgress { until } => Err(in_use(clock::wall(), until)),
        Claim::Replay(stored) => {
            observe::idempotency("replayed");
            let mut response = Answer(stored).into_response();
            let yes = HeaderValue::from_static("true");
            response.headers_mut().insert(headers::IDEMPOTENCY_REPLAYED, yes);
            Ok(response)
        }
        Claim::Mismatch => {
            observe::idempotency("mismatch");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, codes::IDEMPOTENCY_KEY_MISMATCH)
                .detail("the key was used for another request")
                .extension("fingerprint", fingerprint))
        }
    }
}

/// Runs the handler under its claim and sees to it that the key does not stay locked.
async fn carry_out<DB: Backend>(
    guard: &Idempotency<DB>,
    token: ClaimToken,
    mut request: Request,
    next: Next,
) -> Response {
    let claimed = Claimed { token: Some(token.clone()), kept: Arc::default() };
    let kept = Arc::clone(&claimed.kept);
    request.extensions_mut().insert(claimed);
    let mut held = Held { token: Some(token), orphans: &guard.orphans };
    let response = next.run(request).await;
    let (parts, body) = response.into_parts();
    let body = match to_bytes(body, limits::BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => {
            tracing::error!(%error, "failed to read the handler's answer");
            return Problem::internal().into_response();
        }
    };
    if let Some(token) = &held.token {
        let kept = kept.load(Ordering::Acquire);
        let settled = settle(guard, token, &parts, &body, kept).await;
        match settled {
            Ok(()) => held.token = None,
            // The answer stands, whatever became of its copy; the key is given back or expires.
            Err(error) => observe::store_failed(&error),
        }
    }
    Response::from_parts(parts, Body::from(body))
}

/// Keeps the answer or gives the key back.
async fn settle<DB: Backend>(
    guard: &Idempotency<DB>,
    token: &ClaimToken,
    parts: &http::response::Parts,
    body: &Bytes,
    kept: bool,
) -> Result<(), StoreError> {
    let status = parts.status;
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        // Nothing was done. If the handler committed all the same, its answer stays kept.
        return keys::release(&guard.store, token).await;
    }
    if kept && status.is_success() {
        return Ok(());
    }
    let kept_headers = KEPT.iter().filter_map(|name| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some((name.to_string(), value.to_owned()))
    });
    let answer = StoredResponse {
        status: status.as_u16(),
        headers: kept_headers.collect(),
        body: body.to_vec(),
    };
    guard.keep(token, &answer).await
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

    fn take(&self) -> Vec<ClaimToken> {
        std::mem::take(&mut self.tokens.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn key_of(request: &HeaderMap, required: bool) -> Result<Option<IdempotencyKey>, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, codes::IDEMPOTENCY_KEY_MALFORMED).detail(detail)
    };
    let mut values = request.get_all(headers::IDEMPOTENCY_KEY).iter();
    match (values.next(), values.next()) {
        (None, _) if required => {
            Err(Problem::new(StatusCode::BAD_REQUEST, codes::IDEMPOTENCY_KEY_MISSING)
                .detail("this operation needs an Idempotency-Key header"))
        }
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(malformed("more than one Idempotency-Key".to_owned())),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| malformed("it is not ASCII".to_owned()))?;
            IdempotencyKey::parse(text).map(Some).map_err(|error| malformed(error.to_string()))
        }
    }
}

fn in_use(now: WallTime, until: WallTime) -> Problem {
    observe::idempotency("in-progress");
    Problem::new(StatusCode::CONFLICT, codes::IDEMPOTENCY_KEY_IN_USE)
        .detail("the first request with this key is still running")
        .retry_after(until.since(now))
}

/// SHA-256 over method, path, query and body, each with its length in front, so that no two
/// different requests read the same.
fn fingerprint(parts: &Parts, body: &Bytes) -> String {
    let mut hash = Sha256::new();
    let uri = &parts.uri;
    let fields = [
        parts.method.as_str().as_bytes(),
        uri.path().as_bytes(),
        uri.query().unwrap_or_default().as_bytes(),
        body,
    ];
    for field in fields {
        hash.update((field.len() as u64).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
