//! The incoming edge: layers in their one order.
//!
//! Outside in: request id, trace, client identity and criticality ([`edge`]) → panic to 500
//! ([`mod@panic`]) → deadline ([`deadline`]) → load shed ([`shed`]) → rate limit ([`rate_limit`]) →
//! handler; routes whose effect must happen once wrap themselves in [`idempotency`].
//!
//! What may refuse stands inside what must see every answer, and what costs nothing stands before
//! what costs something.

pub mod deadline;
pub mod edge;
pub mod extract;
pub mod idempotency;
pub mod panic;
pub mod rate_limit;
pub mod shed;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::{from_fn, from_fn_with_state};
use http::StatusCode;
use mamparo_core::call::shed::Criticality;
use mamparo_core::limits;

use crate::problem::{Problem, codes};

pub use extract::{Json, Path, Query};
pub use idempotency::{Answer, Claimed, Idempotency};
pub use rate_limit::RateLimit;
pub use shed::LoadShed;

/// How the server side treats every request.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    request_budget: Duration,
    minimum_left: Duration,
    trust_client_header: bool,
    criticality_max: Criticality,
    load_shed: Option<Arc<LoadShed>>,
    rate_limit: Option<Arc<RateLimit>>,
}

impl ServerOptions {
    /// Options with the longest time that a request may take, whatever its caller allows.
    #[must_use]
    pub fn new(request_budget: Duration) -> Self {
        Self {
            request_budget,
            minimum_left: limits::ATTEMPT_MIN_USABLE,
            trust_client_header: false,
            criticality_max: Criticality::Critical,
            load_shed: None,
            rate_limit: None,
        }
    }

    /// Requests with this much left, or less, are refused at once. Default 10 ms.
    #[must_use]
    pub fn minimum_left(mut self, left: Duration) -> Self {
        self.minimum_left = left;
        self
    }

    /// Takes `x-client-id` for the caller's identity. Only where every caller is one of ours: a
    /// stranger would pick somebody else's name. Default off: the peer's address is the identity.
    #[must_use]
    pub fn trust_client_header(mut self, trust: bool) -> Self {
        self.trust_client_header = trust;
        self
    }

    /// The most that a caller may claim by `x-criticality`; what says more counts as this. Default
    /// critical: capacity that is set aside is for callers inside the system, whose services raise it
    /// to critical-plus.
    #[must_use]
    pub fn criticality_max(mut self, most: Criticality) -> Self {
        self.criticality_max = most;
        self
    }

    /// Refuses the least important requests under load. Default none. Who keeps a handle can read how
    /// many are in flight.
    #[must_use]
    pub fn load_shed(mut self, shed: impl Into<Arc<LoadShed>>) -> Self {
        self.load_shed = Some(shed.into());
        self
    }

    /// Limits the requests of each client. Default none.
    #[must_use]
    pub fn rate_limit(mut self, limit: RateLimit) -> Self {
        self.rate_limit = Some(Arc::new(limit));
        self
    }
}

/// Wraps all routes of `router` in the standard layers, and answers unknown ones as problems.
///
/// A fallback that `router` has is replaced. Merge [`crate::health::routes`] *afterwards*: probes
/// are neither limited nor timed by the rules for callers.
pub fn standard(router: Router, options: ServerOptions) -> Router {
    let ServerOptions { request_budget, minimum_left, trust_client_header, .. } = options;
    let ServerOptions { criticality_max, load_shed, rate_limit, .. } = options;
    let timing = deadline::Timing { request_budget, minimum_left };
    let identity = edge::Identity { trust_header: trust_client_header, criticality_max };
    let mut router = router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(limits::BODY_BYTES_MAX));
    // The layer that is added last is the outermost, so this reads from the inside out.
    if let Some(limit) = rate_limit {
        router = router.layer(from_fn_with_state(limit, rate_limit::layer));
    }
    if let Some(shed) = load_shed {
        router = router.layer(from_fn_with_state(shed, shed::layer));
    }
    router
        .layer(from_fn_with_state(timing, deadline::layer))
        .layer(from_fn(panic::layer))
        .layer(from_fn_with_state(identity, edge::layer))
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, codes::NOT_FOUND).detail("no such route")
}

pub(crate) async fn method_not_allowed() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, codes::METHOD_NOT_ALLOWED)
        .detail("this route has no such method")
}
