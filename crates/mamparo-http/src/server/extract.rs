//! axum's extractors, with rejections that are problems.

use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::problem::{Problem, codes};

/// A JSON body in, a JSON body out.
///
/// Rejections: 415 for another content type, 413 for more than 1 MiB, 400 for what is no JSON, 422
/// for JSON of another shape.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

/// Parameters of the path. Rejection: 400.
#[derive(Debug, Clone, Copy)]
pub struct Path<T>(pub T);

/// Parameters of the query. Rejection: 400.
#[derive(Debug, Clone, Copy)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, codes::UNSUPPORTED_MEDIA_TYPE)
                .detail("the body must be application/json"));
        }
        let body = Bytes::from_request(request, state).await.map_err(|why| body_problem(&why))?;
        serde_json::from_slice(&body).map(Self).map_err(|error| match error.classify() {
            Category::Data => Problem::validation(error.to_string()),
            Category::Syntax | Category::Eof | Category::Io => malformed(error.to_string()),
        })
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                tracing::error!(%error, "failed to encode an answer");
                Problem::internal().into_response()
            }
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        path.map(|path| Self(path.0)).map_err(|rejection| {
            if rejection.status().is_server_error() {
                tracing::error!(%rejection, "a handler asks for path parameters that its route lacks");
                return Problem::internal();
            }
            malformed(rejection.body_text())
        })
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Self(query.0)).map_err(|rejection| malformed(rejection.body_text()))
    }
}

/// `application/json` or any `application/*+json`, parameters ignored.
fn is_json(request: &HeaderMap) -> bool {
    let media = request.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media
        .strip_prefix("application/")
        .is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

fn malformed(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, codes::MALFORMED_REQUEST).detail(detail)
}

/// A body that could not be read: too long, or the caller is gone.
fn body_problem(rejection: &BytesRejection) -> Problem {
    let too_long = matches!(
        rejection,
        BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))
    );
    if too_long { too_large() } else { broken_off() }
}

pub(super) fn broken_off() -> Problem {
    malformed("the body broke off".to_owned())
}

pub(super) fn too_large() -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, codes::PAYLOAD_TOO_LARGE)
        .detail(format!("the body is longer than {} bytes", mamparo_core::limits::BODY_BYTES_MAX))
}
