//! How long the request may take: the least of what the callers still wait and our own budget.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName};
use mamparo_call::{Context, clock};

use crate::{Problem, headers, observe};

/// Most of a caller's time that is set aside for the way back: an answer that is given when the
/// caller stops waiting comes too late.
const MARGIN_MAX: Duration = Duration::from_millis(20);

/// The limits of the deadline layer.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Our own budget for a request.
    pub request_budget: Duration,
    /// What must be left for a request to be started.
    pub minimum_left: Duration,
}

/// What a request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// It may take this long.
    Within(Duration),
    /// Too little is left to start.
    TooLittle,
}

impl Timing {
    /// What the request with these headers may use, counted from its receipt.
    ///
    /// A caller's limit loses a twentieth (20 ms at most) for the way back; our own budget does
    /// not. Headers that are no whole number of milliseconds count as absent: a caller can only
    /// shorten what we allow, never lengthen it.
    #[must_use]
    pub fn allowance(&self, request: &HeaderMap) -> Allowance {
        let stated = [headers::REQUEST_TIMEOUT_MS, headers::ENVOY_TIMEOUT_MS];
        let caller = stated.iter().filter_map(|name| stated_millis(request, name)).min();
        let left = match caller {
            Some(left) if left <= self.minimum_left => return Allowance::TooLittle,
            Some(left) => (left - (left / 20).min(MARGIN_MAX)).min(self.request_budget),
            None => self.request_budget,
        };
        Allowance::Within(left)
    }
}

fn stated_millis(request: &HeaderMap, name: &HeaderName) -> Option<Duration> {
    let least = request.get_all(name).iter().filter_map(|value| {
        let text = value.to_str().ok()?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(u64::MAX))
    });
    least.min().map(Duration::from_millis)
}

/// Refuses what can't be done in time, and answers for a handler that is not done in time.
pub async fn layer(State(timing): State<Timing>, request: Request, next: Next) -> Response {
    let Allowance::Within(left) = timing.allowance(request.headers()) else {
        observe::refused("deadline-too-near");
        return Problem::deadline_exceeded()
            .detail("too little time is left to start")
            .into_response();
    };
    let deadline = clock::now().plus(left);
    let context = Context::current().with_deadline(deadline);
    let handled = context.scope(next.run(request));
    match tokio::time::timeout_at(clock::instant_of(deadline), handled).await {
        Ok(response) => response,
        Err(_elapsed) => {
            observe::refused("deadline-exceeded");
            Problem::deadline_exceeded()
                .detail(format!("not done within {} ms; it may have run", left.as_millis()))
                .into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use mamparo_core::limits;

    #[test]
    fn the_least_of_all_limits_wins_and_garbage_is_ignored() {
        let timing = Timing {
            request_budget: Duration::from_secs(3),
            minimum_left: limits::ATTEMPT_MIN_USABLE,
        };
        let within = |millis| Allowance::Within(Duration::from_millis(millis));
        for (own, envoy, expected) in [
            (None, None, within(3_000)),
            (Some("1000"), None, within(980)),
            (Some("1000"), Some("200"), within(190)),
            (Some("200"), Some("1000"), within(190)),
            // Longer than our budget: the budget.
            (Some("60000"), None, within(3_000)),
            (Some("99999999999999999999999"), None, within(3_000)),
            (Some("11"), None, Allowance::Within(Duration::from_micros(10_450))),
            (Some("10"), None, Allowance::TooLittle),
            (Some("0"), None, Allowance::TooLittle),
            (Some("-5"), None, within(3_000)),
            (Some("1.5"), None, within(3_000)),
            (Some("soon"), Some(""), within(3_000)),
        ] {
            let mut request = HeaderMap::new();
            if let Some(text) = own {
                request.insert(headers::REQUEST_TIMEOUT_MS, HeaderValue::from_static(text));
            }
            if let Some(text) = envoy {
                request.insert(headers::ENVOY_TIMEOUT_MS, HeaderValue::from_static(text));
            }
            assert_eq!(timing.allowance(&request), expected, "{own:?} {envoy:?}");
        }
    }
}
