//! `/health/live`, `/health/ready` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde::Serialize;
use serde_json::json;

use crate::server::Json;
use crate::server::method_not_allowed;

/// What one part of the service says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The part: `database`, `broker`.
    pub name: String,
    /// Can it do its work?
    pub ready: bool,
    /// Why not, or what is not as it should be although it can, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// All checks: the service is ready when every one is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The checks, in the order in which they are shown.
    pub checks: Vec<Check>,
    /// Is the service on its way out? Then it is not ready, whatever the checks say.
    pub draining: bool,
}

impl Readiness {
    /// May callers be sent here?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.draining && self.checks.iter().all(|check| check.ready)
    }
}

/// The routes of the probes. `ready` and `metrics` answer from what is known; they must not wait.
///
/// Live is 200 as long as the process can answer at all: a dependency that is down is no reason to
/// be restarted. Ready is 200 or 503 with every check by name. Merge them after
/// [`crate::standard`], so that a full rate limit never makes a service look dead.
pub fn routes(
    ready: impl Fn() -> Readiness + Send + Sync + 'static,
    metrics: impl Fn() -> String + Send + Sync + 'static,
) -> Router {
    let (ready, metrics) = (Arc::new(ready), Arc::new(metrics));
    let answer_ready = move || {
        let readiness = ready();
        async move { readiness_answer(&readiness) }
    };
    let answer_metrics = move || {
        let text = metrics();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text) }
    };
    Router::new()
        .route("/health/live", get(live).fallback(method_not_allowed))
        .route("/health/ready", get(answer_ready).fallback(method_not_allowed))
        .route("/metrics", get(answer_metrics).fallback(method_not_allowed))
}

async fn live() -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(json!({"status": "live"}))).into_response()
}

fn readiness_answer(readiness: &Readiness) -> Response {
    let (status, word) = match (readiness.is_ready(), readiness.draining) {
        (true, _) => (StatusCode::OK, "ready"),
        (false, true) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    let body = Json(json!({"status": word, "checks": readiness.checks}));
    (status, [(CACHE_CONTROL, "no-store")], body).into_response()
}
