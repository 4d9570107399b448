//! One client per dependency: base address, connection pool, policies.
//!
//! Every attempt is one [`Dependency::call`] attempt, headers *and body* of the answer included:
//! the limit of an attempt covers all that the caller waits for, and a body that breaks off is
//! classified like any other failure.

mod error;
mod response;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use mamparo_call::{Attempt, CallError, Classify, Context, Dependency, Repeatable, clock};
use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::time::Moment;
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{HttpError, Upstream};
pub use response::Response;

use crate::trace_context::Traceparent;
use crate::{headers, ids, observe};
use transport::Transport;

/// Calls one dependency over HTTP. Cheap to clone; clones share pool, policies and counters.
///
/// ```no_run
/// # async fn example(catalog: mamparo_call::Dependency) -> Result<(), Box<dyn std::error::Error>> {
/// use mamparo_http::HttpClient;
///
/// let catalog = HttpClient::new("http://catalog:8081", catalog)?;
/// let products: serde_json::Value =
///     catalog.get("/v1/products").query("ids", "a,b").send_json().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct HttpClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: String,
    dependency: Dependency,
    transport: Transport,
}

impl HttpClient {
    /// A client for the dependency at `base_url` (`http://host:port`, a path prefix is kept).
    ///
    /// # Errors
    /// [`HttpError::Request`] when the address is no `http` URL.
    pub fn new(base_url: &str, dependency: Dependency) -> Result<Self, HttpError> {
        let base = base_url.trim_end_matches('/').to_owned();
        let url = Url::parse(&base)
            .map_err(|error| HttpError::Request { what: format!("{base_url:?}: {error}") })?;
        let plain = url.query().is_none() && url.fragment().is_none();
        if url.scheme() != "http" || !url.has_host() || !plain {
            let what = format!("{base_url:?} is no http:// address");
            return Err(HttpError::Request { what });
        }
        observe::register_client(&dependency);
        let transport = Transport::new()?;
        Ok(Self { shared: Arc::new(Shared { base, dependency, transport }) })
    }

    /// The dependency behind it.
    #[must_use]
    pub fn dependency(&self) -> &Dependency {
        &self.shared.dependency
    }

    /// Requests that really left since the start; refused ones are not among them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.transport.sent()
    }

    /// Requests that left although their deadline had passed. Stays 0.
    #[must_use]
    pub fn sent_after_deadline(&self) -> u64 {
        self.shared.transport.sent_after_deadline()
    }

    /// A GET of `path`, which starts with a slash.
    pub fn get(&self, path: impl AsRef<str>) -> Request {
        self.request(Method::GET, path)
    }

    /// A POST; never repeated after it may have arrived unless it carries an idempotency key.
    pub fn post(&self, path: impl AsRef<str>) -> Request {
        self.request(Method::POST, path)
    }

    /// A PUT.
    pub fn put(&self, path: impl AsRef<str>) -> Request {
        self.request(Method::PUT, path)
    }

    /// A DELETE.
    pub fn delete(&self, path: impl AsRef<str>) -> Request {
        self.request(Method::DELETE, path)
    }

    /// A request with any method.
    pub fn request(&self, method: Method, path: impl AsRef<str>) -> Request {
        let path = path.as_ref();
        let url = if path.starts_with('/') {
            Url::parse(&format!("{}{path}", self.shared.base)).map_err(|error| error.to_string())
        } else {
            Err(format!("path {path:?} does not start with a slash"))
        };
        let (url, mistake) = match url {
            Ok(url) => (Some(url), None),
            Err(mistake) => (None, Some(mistake)),
        };
        Request {
            client: self.clone(),
            repeatable: repeatable(&method),
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            mistake,
        }
    }
}

/// A request in the making. Mistakes are kept and reported by [`Request::send`].
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    client: HttpClient,
    method: Method,
    url: Option<Url>,
    headers: HeaderMap,
    body: Bytes,
    repeatable: Repeatable,
    mistake: Option<String>,
}

impl Request {
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
                self.body = bytes.into();
                self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            }
            Err(error) => self.mistake = Some(format!("encode body: {error}")),
        }
        self
    }

    /// Sends `body` as it is.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
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
        let attempt = |attempt: Attempt| {
            let mut request = reqwest::Request::new(self.method.clone(), url.clone());
            *request.headers_mut() = self.headers.clone();
            if !self.body.is_empty() {
                *request.body_mut() = Some(self.body.clone().into());
            }
            // Boxed, because it would otherwise make the future of every caller that much larger.
            let sent = Box::pin(send_attempt(shared, request, &carried, attempt));
            let read = &read;
            async move { read(sent.await?) }
        };
        shared.dependency.call(self.repeatable, attempt).await
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
    let report = observe::Attempted::new(&shared.dependency, started);
    carried.write(request.headers_mut(), attempt.number, attempt.deadline, started);
    let outcome = if attempt.deadline.is_some_and(|deadline| started >= deadline) {
        Err(HttpError::TooLate)
    } else {
        let late = || observe::sent_after_deadline(&shared.dependency);
        shared.transport.send(request, attempt.deadline, late).await
    };
    report.finished(&outcome);
    outcome
}

/// What every attempt of one call carries alike.
#[derive(Debug)]
struct Carried {
    request_id: String,
    trace: Traceparent,
    tracestate: Option<Arc<str>>,
    client: Option<Arc<str>>,
}

impl Carried {
    /// From the context; a call outside of any request starts its own id and trace.
    fn of(context: &Context) -> Self {
        let request_id =
            context.request_id.as_ref().map_or_else(ids::new_request_id, |id| id.to_string());
        let parent = context.traceparent.as_deref().and_then(Traceparent::parse);
        Self {
            request_id,
            trace: parent.unwrap_or_else(Traceparent::root),
            // The state belongs to the trace: without a parent there is none to pass on.
            tracestate: parent.and_then(|_| context.tracestate.clone()),
            client: context.client.clone(),
        }
    }

    fn write(&self, to: &mut HeaderMap, number: u32, deadline: Option<Moment>, now: Moment) {
        let mut put = |name: HeaderName, text: &str| {
            // Ids come validated from the edge; one that can't be a header is simply not sent.
            if let Ok(value) = HeaderValue::from_str(text) {
                to.insert(name, value);
            }
        };
        put(headers::REQUEST_ID, &self.request_id);
        put(headers::TRACEPARENT, &self.trace.child().to_string());
        if let Some(state) = &self.tracestate {
            put(headers::TRACESTATE, state);
        }
        if let Some(client) = &self.client {
            put(headers::CLIENT_ID, client);
        }
        put(headers::ATTEMPT, &number.to_string());
        if let Some(deadline) = deadline {
            put(headers::REQUEST_TIMEOUT_MS, &whole_millis(now.until(deadline)).to_string());
        }
    }
}

/// Rounded down: never promise a callee more time than there is.
fn whole_millis(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 9110 §9.2.2: PUT, DELETE and the safe methods are idempotent by nature.
fn repeatable(method: &Method) -> Repeatable {
    if method.is_idempotent() { Repeatable::Idempotent } else { Repeatable::Unsafe }
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
