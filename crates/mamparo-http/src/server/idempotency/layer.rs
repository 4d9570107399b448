//! One guarded request: claim, carry out, settle.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::LengthLimitError;
use mamparo_core::limits;
use mamparo_core::message::idempotency::IdempotencyKey;
use mamparo_core::time::WallTime;
use mamparo_store::idempotency::{self as keys, Claim, ClaimToken, StoredResponse};
use mamparo_store::{Backend, StoreError};
use sha2::{Digest, Sha256};

use super::{Answer, Claimed, Held, Idempotency};
use crate::problem::{Problem, codes};
use crate::server::extract::{broken_off, too_large};
use crate::{headers, observe};

/// What the second of two simultaneous requests is told to wait, at most. The first ends within its
/// budget, and only the one whose process died holds its key until the lease is over.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The headers of an answer that are kept and replayed.
const KEPT: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, ETAG];

pub(super) async fn layer<DB: Backend>(
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
    let body = to_bytes(body, limits::BODY_BYTES_MAX).await.map_err(|error| {
        if error.into_inner().is::<LengthLimitError>() { too_large() } else { broken_off() }
    })?;
    let fingerprint = fingerprint(&parts, &body);
    guard.release_orphans().await;
    match guard.claim(&key, &fingerprint).await? {
        Claim::Granted(token) => {
            observe::idempotency("granted");
            let request = Request::from_parts(parts, Body::from(body));
            Ok(carry_out(guard, token, request, next).await)
        }
        Claim::InProgress { until } => Err(in_use(guard.now(), until)),
        Claim::Replay(stored) => {
            observe::idempotency("replayed");
            let mut response = Answer(stored).into_response();
            let yes = HeaderValue::from_static("true");
            response.headers_mut().insert(headers::IDEMPOTENCY_REPLAYED, yes);
            Ok(response)
        }
        Claim::Mismatch => {
            observe::idempotency("mismatch");
            Err(mismatch(guard.first_fingerprint(&key).await?, fingerprint))
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
    let mut held = Held { token: Some(token.clone()), orphans: &guard.orphans };
    let response = next.run(request).await;
    let (parts, body) = response.into_parts();
    // From here on there is an answer: unless it says that nothing was done, giving the key back
    // would invite a second time. Should keeping it fail, the lease decides.
    if !nothing_done(parts.status) {
        held.token = None;
    }
    let body = match to_bytes(body, limits::BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => {
            tracing::error!(%error, "failed to read the handler's answer");
            return Problem::internal().into_response();
        }
    };
    let kept = kept.load(Ordering::Acquire);
    match settle(guard, &token, &parts, &body, kept).await {
        Ok(()) => held.token = None,
        // The answer stands, whatever became of its copy.
        Err(error) => observe::store_failed(&error),
    }
    Response::from_parts(parts, Body::from(body))
}

/// Does the answer say that nothing was done, so that the same request may be tried again?
fn nothing_done(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
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
    if nothing_done(status) {
        // If the handler committed all the same, its answer stays kept.
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

/// Both fingerprints, so that a caller can see which of its two requests is the odd one.
fn mismatch(first: Option<String>, this: String) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, codes::IDEMPOTENCY_KEY_MISMATCH)
        .detail("the key was used for another request")
        .extension("firstFingerprint", first)
        .extension("fingerprint", this)
}

fn in_use(now: WallTime, until: WallTime) -> Problem {
    observe::idempotency("in-progress");
    Problem::new(StatusCode::CONFLICT, codes::IDEMPOTENCY_KEY_IN_USE)
        .detail("the first request with this key is still running")
        .retry_after(until.since(now).min(AGAIN_AFTER))
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
