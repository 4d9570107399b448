//! What a guarded handler holds: its claim, and an answer that can be given again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, LOCATION};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use mamparo_call::clock;
use mamparo_store::idempotency::{self as keys, ClaimToken, StoredResponse};
use mamparo_store::{Backend, StoreError, Transaction};
use serde::Serialize;

use crate::Problem;

/// The claim of this request, for its handler.
///
/// On a route that is not guarded, or without a key where that is optional, there is nothing to
/// keep and [`Claimed::complete`] does nothing.
#[derive(Debug, Clone, Default)]
pub struct Claimed {
    pub(super) token: Option<ClaimToken>,
    pub(super) kept: Arc<AtomicBool>,
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
pub struct Answer(pub(super) StoredResponse);

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
