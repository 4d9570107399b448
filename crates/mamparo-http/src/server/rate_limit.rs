//! Requests per client: 429 with `Retry-After` and the draft's `RateLimit` headers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use http::{HeaderMap, HeaderValue, StatusCode};
use mamparo_call::{Context, clock};
use mamparo_core::call::rate_limit::{Answer, KeyedRateLimit, RateLimitConfig};
use mamparo_core::rng::Rng;
use serde_json::json;

use crate::problem::codes;
use crate::{Problem, headers, observe, retry_after};

/// The name of the policy in the headers.
const POLICY: &str = "client";

/// Who asks when nobody knows: all the nameless share one bucket.
const NAMELESS: &str = "anonymous";

/// A limit for each client of a service or route, in memory, per process.
#[derive(Debug)]
pub struct RateLimit {
    buckets: KeyedRateLimit<Arc<str>>,
}

impl RateLimit {
    /// The limit that every client gets for itself, for example 300 requests a minute:
    /// `RateLimit::new(RateLimitConfig::new(300, Duration::from_secs(60)))`.
    #[must_use]
    pub fn new(config: RateLimitConfig) -> Self {
        // Clients choose their names.
        let seed = clock::entropy().next_u64();
        Self { buckets: KeyedRateLimit::new(config, seed) }
    }

    /// The same limit in front of one expensive route alone.
    pub fn around<S: Clone + Send + Sync + 'static>(
        self,
        route: MethodRouter<S>,
    ) -> MethodRouter<S> {
        route.layer(from_fn_with_state(Arc::new(self), layer))
    }

    fn write(&self, to: &mut HeaderMap, remaining: u32, reset: Duration) {
        let RateLimitConfig { requests, per, .. } = self.buckets.config();
        let window = retry_after::whole_seconds(per);
        let reset = retry_after::whole_seconds(reset);
        for (name, text) in [
            (headers::RATE_LIMIT_POLICY, format!("\"{POLICY}\";q={requests};w={window}")),
            (headers::RATE_LIMIT, format!("\"{POLICY}\";r={remaining};t={reset}")),
        ] {
            if let Ok(value) = HeaderValue::from_str(&text) {
                to.insert(name, value);
            }
        }
    }
}

/// Asks the client's bucket, and answers 429 when it is empty.
pub async fn layer(State(limit): State<Arc<RateLimit>>, request: Request, next: Next) -> Response {
    let client = Context::current().client.unwrap_or_else(|| NAMELESS.into());
    match limit.buckets.ask(clock::now(), &client) {
        Answer::Allowed { remaining, full_after } => {
            let mut response = next.run(request).await;
            limit.write(response.headers_mut(), remaining, full_after);
            response
        }
        Answer::NotUntil { retry_after } => {
            observe::refused("rate-limited");
            let mut response = refusal(retry_after).into_response();
            // `t` and `Retry-After` name the same moment: the standard forbids the latter to be
            // the earlier one.
            limit.write(response.headers_mut(), 0, retry_after);
            response
        }
    }
}

fn refusal(wait: Duration) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, codes::RATE_LIMITED)
        .detail("too many requests of this client")
        .extension("violatedPolicies", json!([POLICY]))
        .retry_after(wait)
}
