//! A request in the making, and how it is sent, attempt by attempt.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use mamparo_call::fault::{Fake, FaultInjector};
use mamparo_call::{Attempt, CallError, Classify, Context, Dependency, Repeatable, clock};
use mamparo_core::call::deadline::is_verdict;
use mamparo_core::call::pipeline::GiveUp;
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::carried::Carried;
use super::{HttpClient, HttpError, Response, Shared};
use crate::{headers, observe};

/// A request in the making. Mistakes are kept and reported by [`Request::send`].
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    client: HttpClient,
    method: Method,
    url: Option<Url>,
    headers: HeaderMap,
    body: Body,
    repeatable: Repeatable,
    mistake: Option<String>,
}

/// What is sent along.
#[derive(Debug, Clone)]
enum Body {
    /// The same for each attempt.
    Bytes(Bytes),
    /// There for the first that takes it.
    Once(Arc<Mutex<Option<reqwest::Body>>>),
}

impl Body {
    fn for_an_attempt(&self) -> Result<Option<reqwest::Body>, HttpError> {
        match self {
            Self::Bytes(bytes) if bytes.is_empty() => Ok(None),
            Self::Bytes(bytes) => Ok(Some(bytes.clone().into())),
            Self::Once(body) => {
                let body = body.lock().unwrap_or_else(PoisonError::into_inner).take();
                let gone = || HttpError::Request { what: "its body was sent before".to_owned() };
                body.ok_or_else(gone).map(Some)
            }
        }
    }
}

impl Request {
    pub(super) fn new(
        client: HttpClient,
        method: Method,
        repeatable: Repeatable,
        url: Result<Url, String>,
    ) -> Self {
        let (url, mistake) = match url {
            Ok(url) => (Some(url), None),
            Err(mistake) => (None, Some(mistake)),
        };
        let (headers, body) = (HeaderMap::new(), Body::Bytes(Bytes::new()));
        Self { client, method, url, headers, body, repeatable, mistake }
    }

    /// Adds a query parameter, percent-encoded.
    pub fn query(mut self, name: &str, value: impl AsRef<str>) -> Self {
        if let Some(url) = &mut self.url {
            url.query_pairs_mut().append_pair(name, value.as_ref());
        }
        self
    }

    /// Sets a header.
    pub fn header(mut self, name: HeaderName, value: impl AsRef<str>) -> Self {
        match HeaderValue::from_str(value.as_ref()) {
            Ok(value) => {
                self.headers.insert(name, value);
            }
            Err(_) => self.mistake = Some(format!("header {name} holds what no header may")),
        }
        self
    }

    /// Sends `body` as JSON. It is encoded here, once: the bytes of every attempt are the same.
    pub fn json<T: Serialize + ?Sized>(mut self, body: &T) -> Self {
        match serde_json::to_vec(body) {
            Ok(bytes) => {
                self.body = Body::Bytes(bytes.into());
                self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            Err(error) => self.mistake = Some(format!("encode body: {error}")),
        }
        self
    }

    /// Sends `body` as it is.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Body::Bytes(body.into());
        self
    }

    /// Sends a body that can be read only once, as it comes: an upload that is passed on, a file.
    ///
    /// The first attempt goes out untouched, and there is no second, not even with a key: an empty or
    /// half body would be worse than none ([`GiveUp::BodyNotReplayable`]). What must survive a failed
    /// attempt is read into memory and given to [`Request::body`]. Clones of the request share the
    /// body; whichever is sent first has it.
    pub fn stream(mut self, body: impl Into<reqwest::Body>) -> Self {
        self.body = Body::Once(Arc::new(Mutex::new(Some(body.into()))));
        self
    }

    /// Sends an `Idempotency-Key` (quoted, as the standard has it), by which the receiver
    /// recognises a repetition: from now on a POST may be repeated.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Self {
        let key = key.as_ref();
        if key.is_empty() || !key.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            self.mistake = Some(format!("idempotency key {key:?} is empty or not ASCII"));
            return self;
        }
        if self.repeatable == Repeatable::Unsafe {
            self.repeatable = Repeatable::Keyed;
        }
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        self.header(headers::IDEMPOTENCY_KEY, quoted)
    }

    /// Sends it under the dependency's policies and reads the whole answer.
    ///
    /// # Errors
    /// [`CallError`] names the guard that refused, or how the last attempt failed; anything but a
    /// 2xx answer is a failure.
    pub async fn send(self) -> Result<Response, CallError<HttpError>> {
        self.call(Ok).await
    }

    /// The same, with the answer's body decoded from JSON as part of the attempt.
    ///
    /// # Errors
    /// As [`Request::send`]; a body of another shape is permanent.
    pub async fn send_json<T: DeserializeOwned>(self) -> Result<T, CallError<HttpError>> {
        self.call(|response| response.json()).await
    }

    async fn call<T>(
        self,
        read: impl Fn(Response) -> Result<T, HttpError>,
    ) -> Result<T, CallError<HttpError>> {
        let shared = &*self.client.shared;
        let (Some(url), None) = (&self.url, &self.mistake) else {
            let what = self.mistake.unwrap_or_else(|| "no address".to_owned());
            return Err(unsendable(&shared.dependency, HttpError::Request { what }));
        };
        let carried = Carried::of(&Context::current());
        let repeatable = match &self.body {
            Body::Bytes(_) => self.repeatable,
            Body::Once(_) => Repeatable::OneShot,
        };
        let attempt = |attempt: Attempt| {
            let mut request = reqwest::Request::new(self.method.clone(), url.clone());
            *request.headers_mut() = self.headers.clone();
            let body = self.body.for_an_attempt();
            let (carried, read) = (&carried, &read);
            async move {
                *request.body_mut() = body?;
                read(send_attempt(shared, request, carried, attempt).await?)
            }
        };
        // Boxed, because it would otherwise make the future of every caller that much larger.
        Box::pin(shared.dependency.call(repeatable, attempt)).await
    }
}

/// One attempt: what is known only now is added, and nothing leaves after the deadline.
async fn send_attempt(
    shared: &Shared,
    mut request: reqwest::Request,
    carried: &Carried,
    attempt: Attempt,
) -> Result<Response, HttpError> {
    let started = clock::now();
    let report = observe::Attempted::new(&shared.dependency, attempt.number, started);
    let (fake, started) = match &shared.faults {
        Some(faults) => (injected(faults).await, clock::now()),
        None => (None, started),
    };
    carried.write(request.headers_mut(), attempt.number, attempt.deadline, started);
    let outcome = if let Some(fake) = fake {
        fake
    } else if attempt.deadline.is_some_and(|deadline| started >= deadline) {
        Err(HttpError::TooLate)
    } else {
        let granted = attempt.deadline.map(|deadline| attempt.started.until(deadline));
        let hurried = !is_verdict(granted, shared.dependency.plan().attempt_timeout);
        let late = || observe::sent_after_deadline(&shared.dependency);
        shared.transport.send(request, attempt.deadline, hurried, late).await
    };
    report.finished(outcome.as_ref().map_or_else(HttpError::reason, |_| "success"));
    outcome
}

/// What befalls an attempt on purpose; `None` when it is to be sent.
async fn injected(faults: &FaultInjector) -> Option<Result<Response, HttpError>> {
    let client = Context::current().client;
    let made = match faults.strike(client.as_deref().map(str::as_bytes)).await? {
        Fake::Error => Err(HttpError::Status {
            status: StatusCode::SERVICE_UNAVAILABLE,
            retry_after: None,
            forbidden: false,
            hurried: false,
            problem: None,
            answer: None,
        }),
        Fake::Outcome => {
            let (headers, body) = (HeaderMap::new(), Bytes::new());
            Ok(Response { status: StatusCode::OK, headers, body })
        }
    };
    Some(made)
}

/// A request that can't be made concerns no policy: no attempt, no verdict.
fn unsendable(dependency: &Dependency, source: HttpError) -> CallError<HttpError> {
    CallError::Failed {
        dependency: dependency.name().into(),
        failure: source.classify(),
        source,
        attempts: 0,
        gave_up: GiveUp::Permanent,
    }
}
