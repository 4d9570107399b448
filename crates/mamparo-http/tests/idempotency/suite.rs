//! What a key means, whatever the database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;

use futures_util::future::join_all;
use http::StatusCode;
use mamparo_http::server::{Answer, Claimed, Idempotency};
use mamparo_http::{Problem, ServerOptions, standard};
use mamparo_store::{Store, Transaction};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use super::{Db, Home, ORDERS};
use crate::common::{self, Server, send_text, spawn, start};

#[derive(Clone)]
struct Shop {
    store: Store<Db>,
    entered: Arc<Notify>,
    release: Arc<Semaphore>,
    dropped: Arc<Notify>,
}

/// Tells when it is dropped, by whatever road.
struct Told(Arc<Notify>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Shop {
    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM orders");
        count.fetch_one(self.store.reader()).await.unwrap()
    }

    /// An order in a transaction of its own, which no answer is part of.
    async fn count_run(&self) {
        let mut tx = self.store.begin().await.unwrap();
        insert(&mut tx).await;
        self.store.commit(tx).await.unwrap();
    }

    /// Waits until the test lets it go on.
    async fn pause(&self) {
        self.entered.notify_one();
        let _told = Told(Arc::clone(&self.dropped));
        self.release.acquire().await.map(|permit| permit.forget()).ok();
    }
}

async fn insert(tx: &mut Transaction<'_, Db>) {
    sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut **tx).await.unwrap();
}

/// Inserts an order; the mode says what goes wrong on the way.
async fn create(
    State(shop): State<Shop>,
    Path(mode): Path<String>,
    claimed: Claimed,
) -> Result<Answer, Problem> {
    let before = shop.orders().await;
    if mode == "slow" {
        shop.pause().await;
    }
    let answer = Answer::json(StatusCode::CREATED, &json!({"id": before + 1}))?
        .location(format!("/orders/{}", before + 1));
    let mut tx = shop.store.begin().await?;
    insert(&mut tx).await;
    if mode != "forgetful" {
        claimed.complete(&mut tx, &answer).await?;
    }
    if mode == "rolled-back" && before == 0 {
        drop(tx);
        return Err(Problem::unavailable(Duration::from_secs(1)));
    }
    shop.store.commit(tx).await?;
    if mode == "lost" {
        shop.pause().await;
    }
    Ok(answer)
}

/// Answers what its caller asks for, and counts its runs as orders.
async fn answer_with(State(shop): State<Shop>, Path(status): Path<u16>) -> Result<(), Problem> {
    shop.count_run().await;
    let status = StatusCode::from_u16(status).unwrap_or_default();
    if status.is_success() { Ok(()) } else { Err(Problem::new(status, "AS_ASKED")) }
}

#[expect(clippy::panic, reason = "a bug in a handler is what the test is about")]
async fn bug(State(shop): State<Shop>) {
    shop.count_run().await;
    panic!("half-way");
}

struct Running {
    shop: Shop,
    address: SocketAddr,
    _server: Server,
    _home: Home,
}

async fn run() -> Running {
    let home = Home::new();
    let store = Store::<Db>::open(&home.url()).await.unwrap();
    store.apply(ORDERS).await.unwrap();
    let shop = Shop {
        store: store.clone(),
        entered: Arc::default(),
        release: Arc::new(Semaphore::new(0)),
        dropped: Arc::default(),
    };
    let guard = Idempotency::required(store.clone());
    let router = Router::new()
        .route("/orders/{mode}", guard.around(post(create)))
        .route("/answers/{status}", guard.around(post(answer_with)))
        .route("/bug", guard.around(post(bug)))
        .route("/optional/{mode}", Idempotency::optional(store).around(post(create)))
        .with_state(shop.clone());
    let options = ServerOptions::new(Duration::from_secs(20)).trust_client_header(true);
    let server = start(standard(router, options)).await;
    Running { shop, address: server.address, _server: server, _home: home }
}

impl Running {
    async fn post(&self, path: &str, key: &str, body: &str) -> common::Answered {
        let headers = format!("idempotency-key: {key}\r\n");
        send_text(self.address, &format!("POST {path}"), &headers, body).await
    }

    /// Sends a request and hangs up once its handler pauses.
    async fn hang_up_in(&self, path: &str, key: &str) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 0\r\n\r\n"
        );
        stream.write_all(text.as_bytes()).await.unwrap();
        self.shop.entered.notified().await;
        drop(stream);
        self.shop.dropped.notified().await;
    }
}

#[tokio::test]
async fn the_second_request_gets_the_first_ones_answer() {
    let running = run().await;
    let first = running.post("/orders/fine", "\"k-1\"", "{}").await;
    assert_eq!((first.status, first.body.as_str()), (201, "{\"id\":1}"));
    assert_eq!(first.header("idempotency-replayed"), None);
    // Quoted or bare, it is the same key.
    for key in ["\"k-1\"", "k-1"] {
        let second = running.post("/orders/fine", key, "{}").await;
        assert_eq!((second.status, &second.body), (201, &first.body));
        assert_eq!(second.header("location"), Some("/orders/1"));
        assert_eq!(second.header("content-type"), Some("application/json"));
        assert_eq!(second.header("idempotency-replayed"), Some("true"));
    }
    assert_eq!(running.shop.orders().await, 1);
    assert_eq!(running.post("/orders/fine", "k-2", "{}").await.body, "{\"id\":2}");
}

#[tokio::test]
async fn a_key_that_is_missing_or_none_is_refused() {
    let running = run().await;
    let missing = send_text(running.address, "POST /orders/fine", "", "").await;
    let code = missing.problem_code();
    assert_eq!((missing.status, code.as_str()), (400, "IDEMPOTENCY_KEY_MISSING"));
    let long = "x".repeat(300);
    for key in ["", "\"open", "\"\"", "a\r\nidempotency-key: b", long.as_str(), "caf\u{e9}"] {
        let answered = running.post("/orders/fine", key, "").await;
        let code = answered.problem_code();
        assert_eq!((answered.status, code.as_str()), (400, "IDEMPOTENCY_KEY_MALFORMED"), "{key}");
    }
    assert_eq!(running.shop.orders().await, 0);
}

#[tokio::test]
async fn messages_c40_a_key_of_another_request_is_a_mismatch() {
    let running = run().await;
    assert_eq!(running.post("/orders/fine", "k", "{\"a\":1}").await.status, 201);
    let mut firsts = None;
    for (path, body) in [
        ("/orders/fine", "{\"a\":2}"),
        ("/orders/fine?x=1", "{\"a\":1}"),
        ("/answers/200", "{\"a\":1}"),
    ] {
        let answered = running.post(path, "k", body).await;
        let code = answered.problem_code();
        assert_eq!((answered.status, code.as_str()), (422, "IDEMPOTENCY_KEY_MISMATCH"), "{path}");
        let document = answered.json();
        let first = document["firstFingerprint"].as_str().unwrap().to_owned();
        assert_ne!(document["fingerprint"].as_str().unwrap(), first);
        assert_eq!(firsts.get_or_insert(first.clone()), &first, "what the key stands for");
    }
    assert_eq!(running.shop.orders().await, 1);
}

#[tokio::test]
async fn what_moves_from_the_body_to_the_query_is_another_request() {
    let running = run().await;
    assert_eq!(running.post("/orders/fine", "k", "a=1").await.status, 201);
    let moved = running.post("/orders/fine?a=1", "k", "").await;
    assert_eq!(moved.problem_code(), "IDEMPOTENCY_KEY_MISMATCH");
}

#[tokio::test]
async fn keys_of_different_callers_never_meet() {
    let running = run().await;
    for (client, id) in [("ana", 1), ("ben", 2), ("ana", 1)] {
        let headers = format!("x-client-id: {client}\r\nidempotency-key: k\r\n");
        let answered = send_text(running.address, "POST /orders/fine", &headers, "").await;
        assert_eq!(answered.body, format!("{{\"id\":{id}}}"));
    }
}

#[tokio::test]
async fn a_second_request_during_the_first_is_a_conflict() {
    let running = Arc::new(run().await);
    let first = Arc::clone(&running);
    let first = spawn(async move { first.post("/orders/slow", "k", "").await });
    running.shop.entered.notified().await;
    let second = running.post("/orders/slow", "k", "").await;
    let code = second.problem_code();
    assert_eq!((second.status, code.as_str()), (409, "IDEMPOTENCY_KEY_IN_USE"));
    assert_eq!(second.header("retry-after"), Some("1"), "the first ends long before its lease");
    running.shop.release.add_permits(1);
    assert_eq!(first.await.unwrap().status, 201);
    let third = running.post("/orders/slow", "k", "").await;
    assert_eq!(third.header("idempotency-replayed"), Some("true"));
    assert_eq!(running.shop.orders().await, 1);
}

#[tokio::test]
async fn of_many_at_once_exactly_one_has_the_effect() {
    let running = run().await;
    let all = join_all((0..50).map(|_| running.post("/orders/fine", "k", ""))).await;
    let fresh = |answered: &&common::Answered| {
        answered.status == 201 && answered.header("idempotency-replayed").is_none()
    };
    assert_eq!(all.iter().filter(fresh).count(), 1);
    assert!(all.iter().all(|answered| matches!(answered.status, 201 | 409)), "{all:?}");
    assert_eq!(running.shop.orders().await, 1);
}

#[tokio::test]
async fn effect_and_answer_commit_together_or_not_at_all() {
    let running = run().await;
    // The handler kept its answer and then rolled back: nothing of both may stay.
    assert_eq!(running.post("/orders/rolled-back", "k", "").await.status, 503);
    assert_eq!(running.shop.orders().await, 0);
    // The key was given back, so another order in between lets the same request succeed.
    assert_eq!(running.post("/orders/fine", "other", "").await.status, 201);
    let again = running.post("/orders/rolled-back", "k", "").await;
    assert_eq!((again.status, again.body.as_str()), (201, "{\"id\":2}"));
}

#[tokio::test]
async fn what_the_handler_did_not_keep_is_kept_or_given_back_by_its_status() {
    for (status, runs) in [(200, 1), (404, 1), (422, 1), (429, 3), (500, 3), (503, 3)] {
        let running = run().await;
        for attempt in 0..3 {
            let answered = running.post(&format!("/answers/{status}"), "k", "").await;
            assert_eq!(answered.status, status);
            let replayed = answered.header("idempotency-replayed").is_some();
            assert_eq!(replayed, runs == 1 && attempt > 0, "{status}");
        }
        assert_eq!(running.shop.orders().await, runs, "{status}");
    }
    let running = run().await;
    for _ in 0..2 {
        let answered = running.post("/orders/forgetful", "k", "").await;
        assert_eq!(answered.body, "{\"id\":1}");
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_leave_its_key_locked() {
    let running = run().await;
    running.hang_up_in("/orders/slow", "k").await;
    running.shop.release.add_permits(1);
    let again = running.post("/orders/slow", "k", "").await;
    assert_eq!((again.status, again.body.as_str()), (201, "{\"id\":1}"), "{again:?}");
}

#[tokio::test]
async fn an_answer_that_got_lost_after_the_commit_is_given_again() {
    let running = run().await;
    running.hang_up_in("/orders/lost", "k").await;
    let again = running.post("/orders/lost", "k", "").await;
    assert_eq!((again.status, again.body.as_str()), (201, "{\"id\":1}"));
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(running.shop.orders().await, 1);
}

#[tokio::test]
async fn a_handler_that_panics_does_not_leave_its_key_locked() {
    let running = run().await;
    for runs in 1..=2 {
        let answered = running.post("/bug", "k", "").await;
        let code = answered.problem_code();
        assert_eq!((answered.status, code.as_str()), (500, "INTERNAL_ERROR"));
        assert_eq!(running.shop.orders().await, runs);
    }
}

#[tokio::test]
async fn an_optional_key_may_be_missing() {
    let running = run().await;
    for id in 1..=2 {
        let answered = send_text(running.address, "POST /optional/fine", "", "").await;
        assert_eq!(answered.body, format!("{{\"id\":{id}}}"));
    }
    for _ in 0..2 {
        assert_eq!(running.post("/optional/fine", "k", "").await.body, "{\"id\":3}");
    }
}
