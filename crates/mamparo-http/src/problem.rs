//! RFC 9457 problem details: the one shape of every error answer.

pub mod codes;

use std::borrow::Cow;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use mamparo_call::{CallError, Classify, Context};
use mamparo_core::call::pipeline::{GiveUp, Refusal};
use mamparo_core::outcome::Kind;
use mamparo_store::StoreError;
use serde_json::{Map, Value};

use crate::client::HttpError;
use crate::headers::SHOULD_RETRY;
use crate::{observe, retry_after};

/// The wait that is named when nobody knows better.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

/// An error answer: `application/problem+json` with `type`, `title`, `status`, `detail`, `code`,
/// `requestId` and extensions.
///
/// ```
/// use http::StatusCode;
/// use mamparo_http::Problem;
///
/// let problem = Problem::new(StatusCode::CONFLICT, "OUT_OF_STOCK")
///     .detail("product 7 has 2 left")
///     .extension("available", 2);
/// assert_eq!(problem.to_json()["type"], "urn:mamparo:problem:out-of-stock");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    // Boxed: a problem travels in the `Err` of every handler.
    inner: Box<Inner>,
}

#[derive(Debug, Clone, PartialEq)]
struct Inner {
    status: StatusCode,
    code: Cow<'static, str>,
    title: Option<Cow<'static, str>>,
    detail: Option<String>,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    repeated: bool,
    extensions: Map<String, Value>,
}

impl Problem {
    /// A problem with a stable, upper-case `code` (`OUT_OF_STOCK`), from which `type` is made.
    #[must_use]
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>) -> Self {
        let inner = Inner {
            status,
            code: code.into(),
            title: None,
            detail: None,
            request_id: None,
            retry_after: None,
            repeated: false,
            extensions: Map::new(),
        };
        Self { inner: Box::new(inner) }
    }

    /// A bug: 500 without any internals. Log the cause; the answer carries only the request id.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, codes::INTERNAL_ERROR)
    }

    /// 422: readable, but not acceptable.
    #[must_use]
    pub fn validation(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, codes::VALIDATION_FAILED).detail(detail)
    }

    /// 503: the service itself can't work right now (its database is away); come back in `wait`.
    #[must_use]
    pub fn unavailable(wait: Duration) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, codes::SERVICE_UNAVAILABLE).retry_after(wait)
    }

    /// 503: the caller's time is up. `Retry-After` is the shortest there is, 1 s: the next request has
    /// its own time.
    #[must_use]
    pub fn deadline_exceeded() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, codes::DEADLINE_EXCEEDED)
            .retry_after(RETRY_AFTER_DEFAULT)
    }

    /// The short text that is the same for every occurrence; the status's phrase when not given.
    #[must_use]
    pub fn title(mut self, title: impl Into<Cow<'static, str>>) -> Self {
        self.inner.title = Some(title.into());
        self
    }

    /// What happened this time, for people.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.inner.detail = Some(detail.into());
        self
    }

    /// When to come back: sent as `Retry-After` in whole seconds, rounded up, at least 1.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.inner.retry_after = Some(wait);
        self
    }

    /// All the attempts that are worth making have been made: sent as `x-should-retry: false`, which
    /// our own clients obey. People and message queues may come back after `Retry-After`; a layer that
    /// repeats what this one has repeated already multiplies the load of whatever is down.
    #[must_use]
    pub fn repeated(mut self) -> Self {
        self.inner.repeated = true;
        self
    }

    /// The request's id. Inside a request it is found by itself.
    #[must_use]
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.inner.request_id = Some(id.into());
        self
    }

    /// A further member. RFC 9457 asks for three or more characters of `[A-Za-z0-9_]`, a letter
    /// first; the standard members can't be overwritten.
    #[must_use]
    pub fn extension(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.inner.extensions.insert(name.into(), value.into());
        self
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.inner.status
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.inner.code
    }

    /// The document as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let phrase = self.inner.status.canonical_reason().unwrap_or("Error");
        let title = self.inner.title.as_deref().unwrap_or(phrase);
        let mut document = self.inner.extensions.clone();
        for standard in ["detail", "instance", "requestId"] {
            document.remove(standard);
        }
        let mut put = |name: &str, value: Value| document.insert(name.to_owned(), value);
        put("type", format!("urn:mamparo:problem:{}", slug(&self.inner.code)).into());
        put("title", title.into());
        put("status", self.inner.status.as_u16().into());
        put("code", self.inner.code.as_ref().into());
        if let Some(detail) = &self.inner.detail {
            put("detail", detail.as_str().into());
        }
        if let Some(id) = &self.inner.request_id {
            put("requestId", id.as_str().into());
        }
        Value::Object(document)
    }
}

/// `OUT_OF_STOCK` → `out-of-stock`: the name of the docs page.
#[must_use]
pub fn slug(code: &str) -> String {
    code.to_ascii_lowercase().replace('_', "-")
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        if self.inner.request_id.is_none() {
            self.inner.request_id = Context::current().request_id.map(|id| id.to_string());
        }
        let mut response = (self.inner.status, self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(codes::MEDIA_TYPE));
        if let Some(wait) = self.inner.retry_after {
            headers.insert(RETRY_AFTER, retry_after::value(wait));
        }
        if self.inner.repeated {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}

/// What our own caller gets when a dependency's call gave no value: never an anonymous 500.
///
/// | the call | the answer |
/// |---|---|
/// | refused because the deadline is over | 503 `DEADLINE_EXCEEDED` |
/// | refused otherwise, timed out, transient, unknown | 503 `DEPENDENCY_UNAVAILABLE` + `Retry-After` |
/// | permanent | 502 `DEPENDENCY_ERROR` + `upstreamStatus` |
/// | a bug of ours: a request that can't be made, the call machinery | 500 `INTERNAL_ERROR`, logged as error |
///
/// A call that was repeated here, or could not be for want of budget, adds [`Problem::repeated`].
impl From<&CallError<HttpError>> for Problem {
    fn from(error: &CallError<HttpError>) -> Self {
        let problem = Self::of(error);
        if was_repeated(error) { problem.repeated() } else { problem }
    }
}

impl Problem {
    fn of(error: &CallError<HttpError>) -> Self {
        let wait = error.retry_after().unwrap_or(RETRY_AFTER_DEFAULT);
        match error {
            CallError::Refused { reason: Refusal::DeadlineExceeded, .. } => {
                Self::deadline_exceeded()
            }
            CallError::Refused { dependency, reason, .. } => {
                let problem = unavailable(dependency, wait).extension("reason", reason.slug());
                problem.extension("dependency", dependency.as_ref())
            }
            CallError::TimedOut { dependency, .. } => {
                let problem = unavailable(dependency, wait).extension("reason", "timeout");
                problem.extension("dependency", dependency.as_ref())
            }
            // It never left, so the dependency gave no answer that could be to blame.
            CallError::Failed { source: source @ HttpError::Request { .. }, .. } => {
                observe::unexpected(source);
                Self::internal()
            }
            CallError::Failed { dependency, source, failure, .. } => match failure.kind {
                Kind::Transient | Kind::Unknown => {
                    let problem =
                        unavailable(dependency, wait).extension("reason", source.reason());
                    problem.extension("dependency", dependency.as_ref())
                }
                Kind::Neutral => Self::deadline_exceeded(),
                Kind::Permanent => with_upstream(bad_gateway(dependency), source)
                    .extension("dependency", dependency.as_ref()),
            },
            // A bug of ours, and what is newer than this table.
            CallError::Misfit { .. } | _ => {
                observe::unexpected(error);
                Self::internal()
            }
        }
    }
}

/// Has this layer done what repeating can do? Or was it told by one that has?
fn was_repeated(error: &CallError<HttpError>) -> bool {
    match error {
        CallError::TimedOut { attempts, gave_up, .. }
        | CallError::Failed { attempts, gave_up, .. } => {
            *attempts > 1
                || matches!(gave_up, GiveUp::BudgetSpent | GiveUp::ToldNotTo | GiveUp::CircuitOpen)
        }
        // A guard's no costs the dependency nothing, however often it is heard.
        CallError::Refused { .. } | CallError::Misfit { .. } | _ => false,
    }
}

impl From<CallError<HttpError>> for Problem {
    fn from(error: CallError<HttpError>) -> Self {
        Self::from(&error)
    }
}

/// An answer that could be received and not be used, such as [`crate::Response::json`] reports it:
/// 502, or 503 where the same request may work later; 500 for a request that can't be made.
/// [`CallError`] also knows the dependency.
impl From<HttpError> for Problem {
    fn from(error: HttpError) -> Self {
        if matches!(error, HttpError::Request { .. }) {
            observe::unexpected(&error);
            return Self::internal();
        }
        let failure = error.classify();
        match failure.kind {
            Kind::Permanent => with_upstream(bad_gateway("a dependency"), &error),
            Kind::Transient | Kind::Unknown => {
                unavailable("a dependency", failure.retry_after.unwrap_or(RETRY_AFTER_DEFAULT))
                    .extension("reason", error.reason())
            }
            Kind::Neutral => Self::deadline_exceeded(),
        }
    }
}

/// The database failed the request: 503, or 409 when another request took our key over meanwhile,
/// or 503 as a deadline when the request's own time was over before the transaction began.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        observe::store_failed(&error);
        if matches!(error, StoreError::Fenced { .. }) {
            Self::new(StatusCode::CONFLICT, codes::IDEMPOTENCY_KEY_IN_USE)
                .retry_after(RETRY_AFTER_DEFAULT)
        } else if matches!(error, StoreError::Deadline { .. }) {
            Self::deadline_exceeded()
        } else {
            Self::unavailable(RETRY_AFTER_DEFAULT)
        }
    }
}

fn unavailable(dependency: &str, wait: Duration) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, codes::DEPENDENCY_UNAVAILABLE)
        .detail(format!("{dependency} does not answer right now"))
        .retry_after(wait)
}

fn bad_gateway(dependency: &str) -> Problem {
    Problem::new(StatusCode::BAD_GATEWAY, codes::DEPENDENCY_ERROR)
        .detail(format!("{dependency} gave an answer that can't be used"))
}

fn with_upstream(problem: Problem, source: &HttpError) -> Problem {
    let problem = match source.status() {
        Some(status) => problem.extension("upstreamStatus", status.as_u16()),
        None => problem,
    };
    match source.upstream_code() {
        Some(code) => problem.extension("upstreamCode", code),
        None => problem,
    }
}

#[cfg(test)]
mod tests;
