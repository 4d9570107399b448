//! One client per dependency: base address, connection pool, policies.
//!
//! Every attempt is one [`Dependency::call`] attempt, headers *and body* of the answer included:
//! the limit of an attempt covers all that the caller waits for, and a body that breaks off is
//! classified like any other failure.

mod carried;
mod error;
mod request;
mod response;
mod transport;

use std::sync::Arc;

use http::Method;
use mamparo_call::fault::FaultInjector;
use mamparo_call::{Dependency, Repeatable};
use mamparo_core::call::fault::FaultConfig;
use reqwest::Url;

pub use error::{HttpError, Upstream};
pub use request::Request;
pub use response::Response;

use crate::observe;
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
    faults: Option<FaultInjector>,
}

impl HttpClient {
    /// A client for the dependency at `base_url` (`http://host:port`, a path prefix is kept).
    ///
    /// # Errors
    /// [`HttpError::Request`] when the address is no `http` URL.
    pub fn new(base_url: &str, dependency: Dependency) -> Result<Self, HttpError> {
        Self::build(base_url, dependency, None)
    }

    /// The same with faults on purpose where the network would be, for staging and game days. What is
    /// drawn by key is drawn by the context's client. An injected error is a 503 that never left, an
    /// injected outcome a 200 without a body. Switched off, as by default, it is [`HttpClient::new`].
    ///
    /// # Errors
    /// [`HttpError::Request`] when the address is no `http` URL, or `faults` can't be meant.
    pub fn with_faults(
        base_url: &str,
        dependency: Dependency,
        faults: FaultConfig,
    ) -> Result<Self, HttpError> {
        let plan = dependency.plan();
        let faults = FaultInjector::new(&plan.service, &plan.dependency, faults)
            .map_err(|error| HttpError::Request { what: error.to_string() })?;
        Self::build(base_url, dependency, Some(faults).filter(FaultInjector::is_on))
    }

    fn build(
        base_url: &str,
        dependency: Dependency,
        faults: Option<FaultInjector>,
    ) -> Result<Self, HttpError> {
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
        Ok(Self { shared: Arc::new(Shared { base, dependency, transport, faults }) })
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
        let url = if !path.starts_with('/') {
            Err(format!("path {path:?} does not start with a slash"))
        } else if climbs(path) {
            Err(format!("path {path:?} climbs with a dot segment"))
        } else {
            Url::parse(&format!("{}{path}", self.shared.base)).map_err(|error| error.to_string())
        };
        let repeatable = repeatable(&method);
        Request::new(self.clone(), method, repeatable, url)
    }
}

/// Is there a `.` or `..` among the segments? A URL parser would resolve it, and an id from outside
/// could then reach another route, or leave the base's prefix.
fn climbs(path: &str) -> bool {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    })
}

/// RFC 9110 §9.2.2: PUT, DELETE and the safe methods are idempotent by nature.
fn repeatable(method: &Method) -> Repeatable {
    if method.is_idempotent() { Repeatable::Idempotent } else { Repeatable::Unsafe }
}
