//! The client against real sockets: what is sent, what is repeated, how failures are told apart.

mod common;

use std::time::Duration;

use common::{Act, answer, body, client, dependency, header, scripted};
use http::StatusCode;
use mamparo_call::{CallError, Classify, Context, clock};
use mamparo_core::call::breaker::{BreakerConfig, Trip};
use mamparo_core::call::pipeline::{GiveUp, Refusal};
use mamparo_core::message::idempotency::IdempotencyKey;
use mamparo_core::outcome::{Kind, Sent};
use mamparo_http::trace_context::Traceparent;
use mamparo_http::{HttpClient, HttpError, Problem};
use serde_json::json;

#[tokio::test]
async fn policies_c25_every_attempt_carries_the_same_bytes() {
    let busy = Act::Answer(answer("503 Service Unavailable", "connection: close\r\n", ""));
    let done = Act::Answer(answer("201 Created", "connection: close\r\n", "{\"id\":7}"));
    let mut server = scripted(vec![busy.clone(), busy, done]).await;
    let client = client(server.address, dependency("orders"));

    let order = json!({"customerId": "c-1", "lines": [{"productId": "p", "quantity": 2}]});
    let response =
        client.post("/v1/orders").json(&order).idempotency_key("order-7").send().await.unwrap();
    assert_eq!(response.status, StatusCode::CREATED);
    assert_eq!(response.json::<serde_json::Value>().unwrap(), json!({"id": 7}));

    let mut traces = Vec::new();
    let mut first_head = None;
    for number in 1..=3 {
        let request = server.requests.recv().await.unwrap();
        assert_eq!(body(&request), order.to_string());
        assert_eq!(header(&request, "x-attempt"), Some(number.to_string().as_str()));
        assert_eq!(header(&request, "idempotency-key"), Some("\"order-7\""));
        assert_eq!(header(&request, "content-type"), Some("application/json"));
        let id = header(&request, "x-request-id").unwrap().to_owned();
        assert_eq!(first_head.get_or_insert(id.clone()), &id);
        let left: u64 = header(&request, "x-request-timeout-ms").unwrap().parse().unwrap();
        assert!((4_000..=5_000).contains(&left), "{left}");
        traces.push(Traceparent::parse(header(&request, "traceparent").unwrap()).unwrap());
    }
    assert!(traces.windows(2).all(|pair| pair[0].trace_id() == pair[1].trace_id()));
    assert!(traces.windows(2).all(|pair| pair[0] != pair[1]), "one span id for each attempt");
    assert_eq!((client.sent(), client.sent_after_deadline()), (3, 0));
}

#[tokio::test]
async fn lesson_h02_a_connection_closed_mid_request_is_unknown_and_not_permanent() {
    let done = Act::Answer(answer("200 OK", "connection: close\r\n", "{}"));
    let server = scripted(vec![Act::Close, done]).await;
    let client_ = client(server.address, dependency("catalog"));
    // An idempotent request survives a rolling restart.
    assert!(client_.get("/").send().await.is_ok());
    assert_eq!(client_.sent(), 2);

    // One that must not be done twice ends with "it may have run", after one attempt.
    let server = scripted(vec![Act::Close]).await;
    let client = client(server.address, dependency("psp"));
    let error = client.post("/charges").body("x").send().await.unwrap_err();
    let CallError::Failed { source, failure, gave_up, attempts, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(matches!(source, HttpError::Lost { .. }), "{source:?}");
    assert_eq!((failure.kind, failure.sent), (Kind::Unknown, Sent::Maybe));
    assert_eq!((*gave_up, *attempts), (GiveUp::MayHaveRun, 1));
    assert_eq!(Problem::from(&error).status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn policies_c27_lesson_h03_a_body_that_breaks_off_is_a_failure_of_the_attempt() {
    let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 100\r\n\r\n{\"half\":";
    let done = Act::Answer(answer("200 OK", "connection: close\r\n", "{}"));
    let server = scripted(vec![Act::Answer(head.to_owned()), done]).await;
    let client_ = client(server.address, dependency("catalog"));
    assert!(client_.get("/").send().await.is_ok());
    assert_eq!(client_.sent(), 2, "the broken body was repeated like any other failure");

    let server = scripted(vec![Act::Answer(head.to_owned())]).await;
    let client = client(server.address, dependency("psp"));
    let error = client.post("/charges").send().await.unwrap_err();
    let CallError::Failed { source, failure, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source, HttpError::BodyLost { status: StatusCode::OK, .. }), "{source:?}");
    assert_eq!((failure.kind, failure.sent), (Kind::Unknown, Sent::Maybe));
}

#[tokio::test]
async fn lesson_h03_a_body_that_never_ends_is_cut_at_the_attempts_limit() {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":";
    let mut server = scripted(vec![Act::Stall(head.to_owned())]).await;
    let client = client(server.address, dependency("psp"));
    let call = client.post("/charges").send();
    let time = async {
        server.requests.recv().await.unwrap();
        // The answer's first half is on its way; only now does the clock move.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(5)).await;
    };
    let (outcome, ()) = tokio::join!(call, time);
    let error = outcome.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { attempts: 1, .. }), "{error:?}");
    let problem = Problem::from(&error);
    assert_eq!(problem.code(), "DEPENDENCY_UNAVAILABLE");
    assert_eq!(problem.to_json()["reason"], "timeout");
}

#[tokio::test]
async fn a_refused_connection_proves_that_nothing_was_sent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = client(address, dependency("psp"));
    let error = client.post("/charges").send().await.unwrap_err();
    let CallError::Failed { source, failure, attempts, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source, HttpError::Connect { .. }), "{source:?}");
    assert_eq!((failure.kind, failure.sent), (Kind::Transient, Sent::Nothing));
    assert_eq!(*attempts, 3, "even an unsafe POST may be repeated: it can't have run");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_not_connected() {
    let dependency = dependency("nowhere").build().unwrap();
    let client = HttpClient::new("http://name.invalid:1", dependency).unwrap();
    let error = client.get("/").send().await.unwrap_err();
    let CallError::Failed { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(source, HttpError::Connect { .. }), "{source:?}");
}

#[tokio::test]
async fn lesson_h04_statuses_follow_the_table_and_retry_after_is_kept() {
    let problem_type = "content-type: application/problem+json; charset=utf-8\r\n";
    let out_of_stock =
        "{\"code\":\"OUT_OF_STOCK\",\"status\":\"wrong type\",\"detail\":\"2 left\"}";
    for (status, headers, text, expected, attempts, wait) in [
        ("404 Not Found", "", "", Kind::Permanent, 1, None),
        ("409 Conflict", problem_type, out_of_stock, Kind::Permanent, 1, None),
        ("500 Internal Server Error", "", "", Kind::Permanent, 2, None),
        ("302 Found", "location: http://127.0.0.1:1/\r\n", "", Kind::Permanent, 1, None),
        ("504 Gateway Timeout", "", "", Kind::Unknown, 3, None),
        ("503 Service Unavailable", "retry-after: 0\r\n", "", Kind::Transient, 3, Some(0)),
        ("503 Service Unavailable", "retry-after: -4\r\n", "", Kind::Transient, 3, None),
        // Longer than the call has: no further attempt, and the caller is told.
        ("429 Too Many Requests", "retry-after: 60\r\n", "", Kind::Transient, 1, Some(60)),
    ] {
        let headers = format!("connection: close\r\n{headers}");
        let server = scripted(vec![Act::Answer(answer(status, &headers, text))]).await;
        let client = client(server.address, dependency("catalog"));
        let context = Context::default().with_budget(clock::now(), Duration::from_secs(20));
        let error = context.scope(client.get("/").send()).await.unwrap_err();
        let CallError::Failed { source, failure, .. } = &error else { panic!("{error:?}") };
        assert_eq!(failure.kind, expected, "{status}");
        assert_eq!(client.sent(), attempts, "{status}");
        assert_eq!(source.classify().retry_after.map(|wait| wait.as_secs()), wait, "{status}");
        if status.starts_with("409") {
            assert_eq!(source.upstream_code(), Some("OUT_OF_STOCK"));
            assert_eq!(source.answer().map(|answer| &answer.body[..]), Some(text.as_bytes()));
            let problem = Problem::from(&error);
            assert_eq!((problem.status().as_u16(), problem.code()), (502, "DEPENDENCY_ERROR"));
            assert_eq!(problem.to_json()["upstreamStatus"], 409);
        }
    }
}

#[tokio::test]
async fn an_open_circuit_sends_nothing() {
    let error = answer("503 Service Unavailable", "connection: close\r\n", "");
    let server = scripted(vec![Act::Answer(error)]).await;
    let trip = Trip::Failures { failures: 3, window: Duration::from_secs(10) };
    let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
    let client = client(server.address, dependency("catalog").breaker(breaker));
    assert!(client.get("/").send().await.is_err());
    assert_eq!(client.sent(), 3);

    let error = client.get("/").send().await.unwrap_err();
    let CallError::Refused { reason: Refusal::CircuitOpen, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(client.sent(), 3, "nothing left");
    let problem = Problem::from(&error);
    assert_eq!((problem.status().as_u16(), problem.code()), (503, "DEPENDENCY_UNAVAILABLE"));
    use axum::response::IntoResponse;
    let wait = problem.into_response().headers()["retry-after"].to_str().unwrap().to_owned();
    assert!((1..=30).contains(&wait.parse::<u64>().unwrap()), "{wait}");
}

#[tokio::test]
async fn a_dependency_that_names_its_own_dependency_is_alive() {
    let headers = "connection: close\r\ncontent-type: application/problem+json\r\n";
    for (code, openings) in [("DEPENDENCY_UNAVAILABLE", 0), ("SERVICE_UNAVAILABLE", 1)] {
        let text = format!("{{\"code\":\"{code}\"}}");
        let error = answer("503 Service Unavailable", headers, &text);
        let server = scripted(vec![Act::Answer(error)]).await;
        let trip = Trip::Failures { failures: 3, window: Duration::from_secs(10) };
        let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
        let client = client(server.address, dependency("orders").breaker(breaker));
        assert!(client.get("/").send().await.is_err());
        assert_eq!((client.sent(), client.dependency().snapshot().openings), (3, openings));
    }
}

#[tokio::test]
async fn a_dependency_that_ran_out_of_time_is_a_timeout_and_proves_nothing_to_those_in_a_hurry() {
    let headers = "connection: close\r\ncontent-type: application/problem+json\r\n";
    // The limit of an attempt is 5 s.
    for (left, openings) in [(1, 0), (60, 1)] {
        let text = "{\"code\":\"DEADLINE_EXCEEDED\"}";
        let error = answer("503 Service Unavailable", headers, text);
        let server = scripted(vec![Act::Answer(error)]).await;
        let trip = Trip::Failures { failures: 3, window: Duration::from_secs(10) };
        let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
        let client = client(server.address, dependency("orders").breaker(breaker));
        let context = Context::default().with_budget(clock::now(), Duration::from_secs(left));
        let error = context.scope(client.get("/").send()).await.unwrap_err();
        let CallError::Failed { failure, .. } = &error else { panic!("{error:?}") };
        assert_eq!(failure.kind, Kind::Unknown, "its handler may have run");
        assert_eq!((client.sent(), client.dependency().snapshot().openings), (3, openings));
    }
}

#[tokio::test]
async fn a_key_that_is_in_use_is_asked_again_and_never_a_final_no() {
    let headers = "connection: close\r\ncontent-type: application/problem+json\r\n";
    let in_use = answer("409 Conflict", headers, "{\"code\":\"IDEMPOTENCY_KEY_IN_USE\"}");
    let done = answer("201 Created", "connection: close\r\n", "{}");
    let server = scripted(vec![Act::Answer(in_use.clone()), Act::Answer(done)]).await;
    let orders = client(server.address, dependency("orders"));
    let answered = orders.post("/v1/orders").idempotency_key("k").send().await.unwrap();
    assert_eq!(answered.status, StatusCode::CREATED);

    let server = scripted(vec![Act::Answer(in_use)]).await;
    let orders = client(server.address, dependency("orders"));
    let error = orders.post("/v1/orders").idempotency_key("k").send().await.unwrap_err();
    let CallError::Failed { failure, .. } = &error else { panic!("{error:?}") };
    assert_eq!((failure.kind, failure.sent), (Kind::Unknown, Sent::Maybe));
    assert!(!error.is_permanent());
}

#[tokio::test]
async fn policies_c24_nothing_is_sent_with_ten_milliseconds_left_or_after_the_deadline() {
    let server = scripted(vec![Act::Answer(answer("200 OK", "", "{}"))]).await;
    let client = client(server.address, dependency("catalog"));
    for left in [Duration::from_millis(10), Duration::ZERO] {
        let context = Context::default().with_budget(clock::now(), left);
        let error = context.scope(client.get("/").send()).await.unwrap_err();
        let CallError::Refused { reason: Refusal::DeadlineExceeded, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(Problem::from(&error).code(), "DEADLINE_EXCEEDED");
    }
    assert_eq!((client.sent(), client.sent_after_deadline()), (0, 0));
}

#[tokio::test]
async fn a_success_that_can_not_be_used_is_permanent() {
    let server = scripted(vec![Act::Answer(answer("200 OK", "", "no json"))]).await;
    let client_ = client(server.address, dependency("catalog"));
    let error = client_.get("/").send().await.unwrap().json::<serde_json::Value>().unwrap_err();
    assert!(matches!(error, HttpError::Decode { .. }), "{error:?}");
    assert_eq!(error.classify().kind, Kind::Permanent);

    // Decoded as part of the attempt, it is the same, and the dependency's health is not at fault.
    let error = client_.get("/").send_json::<serde_json::Value>().await.unwrap_err();
    assert!(error.is_permanent() && error.attempts() == 1, "{error:?}");

    let endless = "x".repeat(mamparo_core::limits::BODY_BYTES_MAX + 1);
    let server = scripted(vec![Act::Answer(answer("200 OK", "", &endless))]).await;
    let client = client(server.address, dependency("catalog"));
    let error = client.get("/").send().await.unwrap_err();
    assert!(error.is_permanent(), "{error:?}");
    assert_eq!(client.sent(), 1);
}

#[tokio::test]
async fn a_key_is_quoted_and_a_state_without_its_trace_stays_here() {
    let done = answer("200 OK", "connection: close\r\n", "");
    let mut server = scripted(vec![Act::Answer(done)]).await;
    let orders = client(server.address, dependency("orders"));
    let key = r#"a "b" \c"#;
    let context = Context {
        traceparent: Some("00-nonsense".into()),
        tracestate: Some("a=1".into()),
        ..Context::default()
    };
    context.scope(orders.post("/").idempotency_key(key).send()).await.unwrap();
    let request = server.requests.recv().await.unwrap();
    let sent = header(&request, "idempotency-key").unwrap();
    assert_eq!(sent, r#""a \"b\" \\c""#);
    assert_eq!(IdempotencyKey::parse(sent).unwrap().as_str(), key, "the receiver reads the same");
    assert_eq!(header(&request, "tracestate"), None);
    assert!(Traceparent::parse(header(&request, "traceparent").unwrap()).is_some());
}

#[tokio::test]
async fn a_request_that_can_not_be_made_concerns_no_policy() {
    let server = scripted(vec![Act::Close]).await;
    let client = client(server.address, dependency("catalog"));
    for request in [
        client.get("no-slash"),
        client.get("/v1/customers/../orders"),
        client.get("/v1/customers/%2E%2e?x=1"),
        client.get("/v1/customers/..\\orders"),
        client.get("/").header(http::header::ACCEPT, "line\nbreak"),
        client.post("/").idempotency_key(""),
        client.post("/").idempotency_key("ключ"),
    ] {
        let error = request.send().await.unwrap_err();
        assert!(error.is_permanent() && error.attempts() == 0, "{error:?}");
    }
    assert_eq!((client.sent(), client.dependency().snapshot().attempts), (0, 0));
}

#[tokio::test]
async fn queries_and_paths_are_put_together() {
    let ok = answer("200 OK", "connection: close\r\n", "");
    let mut server = scripted(vec![Act::Answer(ok)]).await;
    let base = format!("http://{}/prefix/", server.address);
    let client = HttpClient::new(&base, dependency("catalog").build().unwrap()).unwrap();
    client
        .get("/v1/products")
        .query("ids", "a,b")
        .query("dots", "../..")
        .query("q", "ñ & ?")
        .send()
        .await
        .unwrap();
    let request = server.requests.recv().await.unwrap();
    let line = request.lines().next().unwrap();
    assert_eq!(line, "GET /prefix/v1/products?ids=a%2Cb&dots=..%2F..&q=%C3%B1+%26+%3F HTTP/1.1");
}

#[test]
fn addresses_that_are_none_are_refused_at_once() {
    for address in ["catalog:8081", "https://catalog", "http://", "", "http://c/?q=1", "/x"] {
        let dependency = dependency("catalog").build().unwrap();
        assert!(HttpClient::new(address, dependency).is_err(), "{address:?}");
    }
}

#[test]
fn the_counter_that_stays_zero_is_there_from_the_start() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let dependency = dependency("catalog").service("orders").build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        HttpClient::new("http://127.0.0.1:1", dependency).unwrap();
    });
    let line = r#"mamparo_attempts_after_deadline_total{service="orders",dependency="catalog"} 0"#;
    assert!(metrics.render().contains(line), "{}", metrics.render());
}
