//! A real shop in a temporary directory, somebody who orders there, and one way to wait.
#![allow(
    dead_code,
    unreachable_pub,
    missing_debug_implementations,
    reason = "each test file uses a part"
)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use mamparo::call::clock;
use mamparo::service::{Environment, Telemetry, telemetry};
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde_json::{Value, json};
use tempfile::TempDir;

use techcorp::demo::books::Books;
use techcorp::demo::engines::Engines;
use techcorp::demo::metrics;
use techcorp::demo::scenario::{Fault, Scenario};
use techcorp::demo::site::Site;
use techcorp::demo::staff::Staff;
use techcorp::demo::verdict::{Verdict, judge};
use techcorp::shop::SERVICES;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_techcorp");

/// Longest that anything is waited for. Far beyond what it takes, so that a busy machine fails
/// nothing, and a test that hangs says what it hung on.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A key of a policy file and its value: (service, path, value).
pub type Limit = (&'static str, &'static str, &'static str);

/// A day without a script, with these limits.
pub const fn day(limits: &'static [Limit]) -> Scenario {
    Scenario {
        name: "test",
        about: "what the test does",
        fault: Fault::None,
        begins: 0.1,
        ends: 0.2,
        limits,
    }
}

/// Nothing but the demo's shortened clocks.
pub const PLAIN: Scenario = day(&[]);

/// Looks until `look` sees something; a test that waits in vain fails and says for what.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = clock::now().plus(PATIENCE);
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(clock::now() < give_up, "waited {PATIENCE:?} in vain: {what}");
        clock::sleep_until(clock::now().plus(LOOK)).await;
    }
}

/// An answer, read to its end.
#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub took: Duration,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, headers, body, took } = self;
        write!(f, "{status} in {took:?} {headers:?} {}", String::from_utf8_lossy(body))
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The id of the order that it shows.
    pub fn id(&self) -> String {
        self.json()["id"].as_str().unwrap_or_else(|| panic!("no id: {self:?}")).to_owned()
    }

    pub fn replayed(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Asserts that it is a problem with this status and code.
    #[track_caller]
    pub fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header(CONTENT_TYPE.as_str()), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
    }

    /// Asserts that it says when to come back, in whole seconds.
    #[track_caller]
    pub fn says_when_to_come_back(&self) -> u64 {
        let wait = self.header(RETRY_AFTER.as_str()).unwrap_or_else(|| panic!("{self:?}"));
        let wait = wait.parse().unwrap_or_else(|_| panic!("Retry-After: {wait:?}"));
        assert!(wait >= 1, "{self:?}");
        wait
    }
}

/// A request to order. Nothing is sent that the test does not say.
#[derive(Debug, Clone)]
pub struct Post {
    pub client: String,
    pub key: Option<String>,
    pub body: Value,
    pub timeout_ms: Option<&'static str>,
}

impl Post {
    /// One ordinary product for customer 1, with this key.
    pub fn new(key: &str) -> Self {
        let body = basket("c-1", "p-1", 1);
        Self { client: "tester".to_owned(), key: Some(key.to_owned()), body, timeout_ms: None }
    }

    pub fn of(self, product: &str, quantity: u32) -> Self {
        Self { body: basket("c-1", product, quantity), ..self }
    }
}

pub fn basket(customer: &str, product: &str, quantity: u32) -> Value {
    json!({ "customerId": customer, "lines": [{ "productId": product, "quantity": quantity }] })
}

/// A shop that runs. Whatever its visitors can do, it can be asked to do.
pub struct Shop {
    pub staff: Staff,
    visitor: Visitor,
    /// Removed with the shop.
    _dir: TempDir,
}

impl std::ops::Deref for Shop {
    type Target = Visitor;

    fn deref(&self) -> &Visitor {
        &self.visitor
    }
}

impl Shop {
    /// Everybody at work; services in `apart` in processes of their own.
    pub async fn open(scenario: &Scenario, apart: &[&'static str]) -> Self {
        Self::open_on(&Engines::default(), scenario, apart).await
    }

    /// The same, on these engines.
    pub async fn open_on(engines: &Engines, scenario: &Scenario, apart: &[&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::lay(dir.path(), scenario, engines, &mut clock::entropy()).unwrap();
        let quiet = Environment { log: "off".to_owned(), ..Environment::default() };
        let telemetry = telemetry::install(&quiet).unwrap();
        let visitor = Visitor {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            urls: SERVICES.map(|service| (service, site.url(service))).into(),
            dir: dir.path().to_owned(),
            engines: engines.clone(),
            telemetry: telemetry.clone(),
        };
        let staff = Staff::new(site, telemetry, PROGRAM.into(), apart.to_vec());
        let mut shop = Self { staff, visitor, _dir: dir };
        for service in SERVICES {
            shop.staff.start(service).await.unwrap();
        }
        shop
    }

    /// Somebody who goes on visiting while the staff comes and goes.
    pub fn visitor(&self) -> Visitor {
        self.visitor.clone()
    }
}

/// Somebody who orders at the shop, and reads its books and metrics.
#[derive(Clone)]
pub struct Visitor {
    pub http: reqwest::Client,
    urls: BTreeMap<&'static str, String>,
    dir: PathBuf,
    engines: Engines,
    telemetry: Telemetry,
}

impl Visitor {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn url(&self, service: &str) -> &str {
        &self.urls[service]
    }

    /// The metrics of this process.
    pub fn metrics(&self) -> String {
        self.telemetry.render()
    }

    /// Sends a request; `None` when no whole answer came.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> Option<Answer> {
        let began = clock::now();
        let answer = request.send().await.ok()?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.bytes().await.ok()?.to_vec();
        Some(Answer { status, headers, body, took: clock::now().since(began) })
    }

    pub async fn get(&self, service: &str, path: &str) -> Answer {
        self.get_as("tester", service, path).await
    }

    pub async fn get_as(&self, client: &str, service: &str, path: &str) -> Answer {
        let request = self.http.get(format!("{}{path}", self.url(service)));
        let answer = self.send(request.header("x-client-id", client)).await;
        answer.unwrap_or_else(|| panic!("no answer from {service}{path}"))
    }

    /// Orders at `service`, the gateway or orders themselves; `None` when no answer came.
    pub async fn try_order(&self, service: &str, post: &Post) -> Option<Answer> {
        let url = format!("{}/v1/orders", self.url(service));
        let mut request = self.http.post(url).header("x-client-id", &post.client).json(&post.body);
        if let Some(key) = &post.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(timeout) = post.timeout_ms {
            request = request.header("x-request-timeout-ms", timeout);
        }
        self.send(request).await
    }

    pub async fn order(&self, service: &str, post: &Post) -> Answer {
        self.try_order(service, post).await.unwrap_or_else(|| panic!("no answer from {service}"))
    }

    /// Orders and takes nothing but an order for an answer. Its id.
    pub async fn ordered(&self, post: &Post) -> String {
        let answer = self.order("gateway", post).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.id()
    }

    pub async fn books(&self) -> Books {
        Books::open(&self.engines, self.dir()).await.unwrap()
    }

    /// What a query counts in the books.
    pub async fn count(&self, query: &'static str) -> u64 {
        let books = Books::tables(&self.engines, self.dir()).unwrap();
        let count = books.count(query).await.unwrap();
        books.close().await;
        count
    }

    /// Waits until nothing is under way any more.
    pub async fn rest(&self) {
        let books = self.books().await;
        let mut last = Vec::new();
        let give_up = clock::now().plus(PATIENCE);
        while clock::now() < give_up {
            last = books.unrest().await.unwrap();
            if last.is_empty() {
                return books.close().await;
            }
            clock::sleep_until(clock::now().plus(LOOK)).await;
        }
        panic!("not at rest: {}", last.join(", "));
    }

    /// Waits for rest, and asserts that the books hold.
    pub async fn holds(&self) -> Verdict {
        self.rest().await;
        let books = self.books().await;
        let verdict = judge(&books, 0).await.unwrap();
        books.close().await;
        let broken: Vec<_> = verdict.checks.iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "{broken:#?} {:#?}", verdict.facts);
        verdict
    }

    /// Requests of `service` to `dependency` that left the process.
    pub fn sent(&self, service: &str, dependency: &str) -> u64 {
        let all = metrics::by_dependency(&self.metrics(), "mamparo_http_client_requests_total");
        all.get(&(service.to_owned(), dependency.to_owned())).copied().unwrap_or(0)
    }

    /// Sends orders through the gateway from `buyers` clients at once, each one after the other,
    /// until `stop`; no two loads have a key in common when their names differ. Everything that was
    /// sent, with its answer.
    pub async fn load(&self, name: &str, buyers: u32, stop: &Cell<bool>) -> Vec<Sent> {
        let buyer = async |buyer: u32| {
            let mut sent = Vec::new();
            while !stop.get() {
                let serial = sent.len();
                let post = Post::new(&format!("{name}-{serial}"));
                let post = Post { client: format!("buyer-{buyer}"), ..post };
                let post = post.of(&format!("p-{}", serial % 20 + 1), 1);
                let answer = self.try_order("gateway", &post).await;
                // Who is refused waits a little longer, like people do.
                let refused = answer.as_ref().is_none_or(|answer| answer.status != 201);
                sent.push(Sent { post, answer });
                pause(Duration::from_millis(if refused { 250 } else { 30 })).await;
            }
            sent
        };
        join_all((0..buyers).map(buyer)).await.into_iter().flatten().collect()
    }
}

/// An order that was sent, and what came back.
pub struct Sent {
    pub post: Post,
    pub answer: Option<Answer>,
}

impl Sent {
    /// The id of the order, if it was accepted.
    pub fn accepted(&self) -> Option<String> {
        self.answer.as_ref().filter(|answer| answer.status == 201).map(Answer::id)
    }
}

/// The pace of somebody who orders; nothing is waited for with it.
pub async fn pause(time: Duration) {
    clock::sleep_until(clock::now().plus(time)).await;
}
