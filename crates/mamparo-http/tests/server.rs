//! The standard layers against real sockets.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use common::{Act, answer, client, dependency, header, scripted, send_text, start};
use http::StatusCode;
use mamparo_call::{Context, clock};
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_http::health::{self, Check, Readiness};
use mamparo_http::server::{Json, Path, Query, RateLimit};
use mamparo_http::trace_context::Traceparent;
use mamparo_http::{HttpClient, Problem, ServerOptions, standard};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    quantity: u32,
}

#[derive(Debug, Deserialize)]
struct Page {
    #[serde(rename = "page")]
    _page: u32,
}

fn options() -> ServerOptions {
    ServerOptions::new(Duration::from_secs(3))
}

fn shop() -> Router {
    let router = Router::new()
        .route("/orders", post(async |Json(order): Json<Order>| Json(order)))
        .route("/orders/{id}", get(async |Path(id): Path<u64>| id.to_string()))
        .route("/pages", get(async |Query(_): Query<Page>| "page"))
        .route("/bug", get(bug))
        .route("/sold-out", get(async || Problem::new(StatusCode::CONFLICT, "OUT_OF_STOCK")));
    standard(router, options())
}

#[expect(clippy::panic, reason = "the bug that the panic layer is there for")]
async fn bug() -> &'static str {
    panic!("secret of the inside")
}

#[tokio::test]
async fn every_way_to_fail_is_a_problem_document() {
    let server = start(shop()).await;
    let json = "content-type: application/json; charset=utf-8\r\n";
    let long = format!("{{\"quantity\":1{}}}", " ".repeat(mamparo_core::limits::BODY_BYTES_MAX));
    for (line, headers, body, status, code) in [
        ("GET /nowhere", "", "", 404, "NOT_FOUND"),
        ("DELETE /orders", "", "", 405, "METHOD_NOT_ALLOWED"),
        ("POST /orders", json, "{\"quantity\":", 400, "MALFORMED_REQUEST"),
        ("POST /orders", json, "", 400, "MALFORMED_REQUEST"),
        ("POST /orders", json, "{\"quantity\":-1}", 422, "VALIDATION_FAILED"),
        ("POST /orders", json, "{}", 422, "VALIDATION_FAILED"),
        ("POST /orders", json, long.as_str(), 413, "PAYLOAD_TOO_LARGE"),
        ("POST /orders", "content-type: text/plain\r\n", "{}", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("POST /orders", "", "{\"quantity\":1}", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("GET /orders/seven", "", "", 400, "MALFORMED_REQUEST"),
        ("GET /orders/%ff", "", "", 400, "MALFORMED_REQUEST"),
        ("GET /pages?page=x", "", "", 400, "MALFORMED_REQUEST"),
        ("GET /pages", "", "", 400, "MALFORMED_REQUEST"),
        ("GET /sold-out", "", "", 409, "OUT_OF_STOCK"),
        ("GET /orders/1", "x-request-timeout-ms: 10\r\n", "", 503, "DEADLINE_EXCEEDED"),
        ("GET /orders/1", "x-envoy-expected-rq-timeout-ms: 3\r\n", "", 503, "DEADLINE_EXCEEDED"),
        ("GET /bug", "", "", 500, "INTERNAL_ERROR"),
    ] {
        let answered = send_text(server.address, line, headers, body).await;
        assert_eq!((answered.status, answered.problem_code().as_str()), (status, code), "{line}");
        assert!(!answered.body.contains("secret"), "{answered:?}");
        if status == 503 {
            assert_eq!(answered.header("retry-after"), Some("1"));
        }
        if status == 405 {
            assert_eq!(answered.header("allow"), Some("POST"));
        }
    }
    let fine = send_text(server.address, "POST /orders", json, "{\"quantity\":2}").await;
    assert_eq!((fine.status, fine.body.as_str()), (200, "{\"quantity\":2}"));
    assert_eq!(fine.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn a_request_id_is_kept_when_it_is_one_and_made_when_it_is_not() {
    let server = start(shop()).await;
    let answered = send_text(server.address, "GET /orders/1", "x-request-id: abc-7\r\n", "").await;
    assert_eq!(answered.header("x-request-id"), Some("abc-7"));
    for headers in ["", "x-request-id: two words\r\n"] {
        let answered = send_text(server.address, "GET /orders/1", headers, "").await;
        let id = uuid::Uuid::parse_str(answered.header("x-request-id").unwrap()).unwrap();
        assert_eq!(id.get_version_num(), 7);
    }
}

/// Answers with the context that the handler sees.
fn mirror(options: ServerOptions) -> Router {
    let see = async || {
        let context = Context::current();
        Json(serde_json::json!({
            "client": context.client.as_deref(),
            "trace": context.traceparent.as_deref(),
            "state": context.tracestate.as_deref(),
            "left_ms": context.left(clock::now()).map(|left| left.as_millis() as u64),
        }))
    };
    standard(Router::new().route("/", get(see)), options)
}

#[tokio::test]
async fn a_trace_goes_on_only_when_it_is_valid() {
    let server = start(mirror(options())).await;
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("traceparent: 00-{id}-00f067aa0ba902b7-01\r\n");
    let headers = format!("{parent}tracestate: a=1\r\ntracestate: b=2\r\n");
    let seen = send_text(server.address, "GET /", &headers, "").await.json();
    let trace = seen["trace"].as_str().unwrap();
    assert!(trace.starts_with(&format!("00-{id}-")) && trace.ends_with("-01"), "{trace}");
    assert!(!trace.contains("00f067aa0ba902b7"), "the server's span is its own");
    assert_eq!(seen["state"], "a=1,b=2");

    let long = format!("{parent}tracestate: a={}\r\n", "x".repeat(600));
    let seen = send_text(server.address, "GET /", &long, "").await.json();
    assert!(seen["trace"].as_str().unwrap().contains(id) && seen["state"].is_null(), "{seen}");

    for headers in [
        format!("traceparent: 00-{id}-zero-01\r\ntracestate: a=1\r\n"),
        format!("{parent}{parent}tracestate: a=1\r\n"),
        "tracestate: a=1\r\n".to_owned(),
    ] {
        let seen = send_text(server.address, "GET /", &headers, "").await.json();
        assert!(!seen["trace"].as_str().unwrap().contains(id), "{headers}");
        assert_eq!(seen["state"], serde_json::Value::Null, "{headers}");
    }
}

#[tokio::test]
async fn a_strangers_word_is_no_identity() {
    let server = start(mirror(options())).await;
    let headers = "x-client-id: somebody\r\n";
    let seen = send_text(server.address, "GET /", headers, "").await.json();
    assert_eq!(seen["client"], "127.0.0.1");

    let server = start(mirror(options().trust_client_header(true))).await;
    let seen = send_text(server.address, "GET /", headers, "").await.json();
    assert_eq!(seen["client"], "somebody");
    let seen = send_text(server.address, "GET /", "", "").await.json();
    assert_eq!(seen["client"], "127.0.0.1");
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_cut_at_its_deadline_and_the_caller_gets_an_answer() {
    let slow = get(async || std::future::pending::<&'static str>().await);
    let router = standard(Router::new().route("/", slow), options());
    for (header, expected) in [(None, 3_000), (Some("1000"), 980)] {
        let started = clock::now();
        let mut request = http::Request::get("/");
        if let Some(millis) = header {
            request = request.header("x-request-timeout-ms", millis);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let took = clock::now().since(started).as_millis();
        assert!((expected..=expected + 2).contains(&took), "{took} ms");
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(document["code"], "DEADLINE_EXCEEDED");
    }
}

#[tokio::test]
async fn each_client_has_its_own_limit_and_is_told_when_to_return() {
    let limit = RateLimit::new(RateLimitConfig::new(2, Duration::from_secs(60)));
    let options = options().trust_client_header(true).rate_limit(limit);
    let server = start(mirror(options)).await;
    let ask = async |client: &str| {
        send_text(server.address, "GET /", &format!("x-client-id: {client}\r\n"), "").await
    };
    let first = ask("ana").await;
    assert_eq!(first.header("ratelimit-policy"), Some("\"client\";q=2;w=60"));
    assert_eq!(first.header("ratelimit"), Some("\"client\";r=1;t=30"));
    assert_eq!(ask("ana").await.status, 200);
    let refused = ask("ana").await;
    assert_eq!((refused.status, refused.problem_code().as_str()), (429, "RATE_LIMITED"));
    assert_eq!(refused.header("retry-after"), Some("30"));
    assert_eq!(refused.header("ratelimit"), Some("\"client\";r=0;t=30"));
    assert_eq!(ask("ben").await.status, 200, "another client's requests are its own");
}

#[tokio::test]
async fn an_expensive_route_may_have_its_own_limit() {
    let limit = RateLimit::new(RateLimitConfig::new(1, Duration::from_secs(60)));
    let router = Router::new()
        .route("/expensive", limit.around(get(async || "expensive")))
        .route("/cheap", get(async || "cheap"));
    let server = start(standard(router, options())).await;
    let ask =
        async |path: &str| send_text(server.address, &format!("GET {path}"), "", "").await.status;
    assert_eq!([ask("/expensive").await, ask("/expensive").await], [200, 429]);
    assert_eq!([ask("/cheap").await, ask("/cheap").await], [200, 200]);
}

/// A service that asks the next one and answers what the dependency's failure means.
fn relaying(next: HttpClient, options: ServerOptions) -> Router {
    let ask = move || {
        let next = next.clone();
        async move {
            let answered = next.get("/").send().await?;
            Ok::<_, Problem>(String::from_utf8_lossy(&answered.body).into_owned())
        }
    };
    standard(Router::new().route("/", get(ask)), options)
}

#[tokio::test]
async fn the_context_shrinks_through_two_hops() {
    let ok = answer("200 OK", "connection: close\r\n", "done");
    let mut last = scripted(vec![Act::Answer(ok)]).await;
    let trusting = || options().trust_client_header(true);
    let catalog = client(last.address, dependency("catalog"));
    let orders = start(relaying(catalog.clone(), trusting())).await;
    let gateway = start(relaying(client(orders.address, dependency("orders")), trusting())).await;

    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = format!(
        "x-request-timeout-ms: 2000\r\nx-request-id: r-7\r\nx-client-id: ana\r\n\
         traceparent: 00-{id}-00f067aa0ba902b7-01\r\ntracestate: a=1\r\n"
    );
    let answered = send_text(gateway.address, "GET /", &headers, "").await;
    assert_eq!((answered.status, answered.body.as_str()), (200, "done"));

    let request = last.requests.recv().await.unwrap();
    let left: u64 = header(&request, "x-request-timeout-ms").unwrap().parse().unwrap();
    // 2000 less the margin of each hop, 20 ms twice, and what the way took.
    assert!(left <= 1_960, "{left}");
    assert_eq!(header(&request, "x-request-id"), Some("r-7"));
    assert_eq!(header(&request, "x-client-id"), Some("ana"));
    assert_eq!(header(&request, "tracestate"), Some("a=1"));
    let trace = Traceparent::parse(header(&request, "traceparent").unwrap()).unwrap();
    assert_eq!(trace.trace_id(), id);
    assert_eq!(catalog.sent(), 1);
}

#[tokio::test]
async fn a_request_with_ten_milliseconds_left_causes_no_outgoing_call() {
    let last = scripted(vec![Act::Answer(answer("200 OK", "", ""))]).await;
    let catalog = client(last.address, dependency("catalog"));
    let orders = start(relaying(catalog.clone(), options())).await;
    let headers = "x-request-timeout-ms: 10\r\n";
    let answered = send_text(orders.address, "GET /", headers, "").await;
    assert_eq!((answered.status, answered.problem_code().as_str()), (503, "DEADLINE_EXCEEDED"));
    assert_eq!(catalog.sent(), 0);
}

#[tokio::test]
async fn a_dependency_that_is_down_becomes_503_and_one_that_refuses_502() {
    let problem = "connection: close\r\ncontent-type: application/problem+json\r\n";
    let text = "{\"code\":\"NO_SUCH_PRODUCT\"}";
    let busy = "connection: close\r\nretry-after: 9\r\n";
    for (status, headers, body, expected) in [
        ("503 Service Unavailable", busy, "", (503, "DEPENDENCY_UNAVAILABLE")),
        ("404 Not Found", problem, text, (502, "DEPENDENCY_ERROR")),
    ] {
        let last = scripted(vec![Act::Answer(answer(status, headers, body))]).await;
        let catalog = client(last.address, dependency("catalog"));
        let orders = start(relaying(catalog, options())).await;
        let answered = send_text(orders.address, "GET /", "", "").await;
        assert_eq!((answered.status, answered.problem_code().as_str()), expected);
        if answered.status == 503 {
            assert_eq!(answered.header("retry-after"), Some("9"));
        } else {
            assert_eq!(answered.json()["upstreamStatus"], 404);
            assert_eq!(answered.json()["upstreamCode"], "NO_SUCH_PRODUCT");
        }
    }
}

#[tokio::test]
async fn readiness_names_every_check_and_probes_are_never_limited() {
    let state = Arc::new(Mutex::new(Readiness::default()));
    let (shared, scrapes) = (Arc::clone(&state), AtomicU64::new(0));
    let probes = health::routes(
        move || shared.lock().unwrap().clone(),
        move || format!("scrapes {}\n", scrapes.fetch_add(1, Ordering::Relaxed)),
    );
    let limit = RateLimit::new(RateLimitConfig::new(1, Duration::from_secs(60)));
    let server = start(mirror(options().rate_limit(limit)).merge(probes)).await;
    let ask = async |path: &str| send_text(server.address, &format!("GET {path}"), "", "").await;

    assert_eq!(ask("/").await.status, 200);
    assert_eq!(ask("/").await.status, 429);
    let check = |name: &str, ready, detail: Option<&str>| Check {
        name: name.into(),
        ready,
        detail: detail.map(str::to_owned),
    };
    for (checks, draining, status, word) in [
        (vec![], false, 200, "ready"),
        (vec![check("database", true, None)], false, 200, "ready"),
        (vec![check("broker", false, Some("connecting"))], false, 503, "not ready"),
        (vec![check("database", true, None)], true, 503, "draining"),
    ] {
        *state.lock().unwrap() = Readiness { checks: checks.clone(), draining };
        let answered = ask("/health/ready").await;
        assert_eq!((answered.status, answered.json()["status"].as_str()), (status, Some(word)));
        assert_eq!(answered.json()["checks"].as_array().unwrap().len(), checks.len());
        assert_eq!(ask("/health/live").await.status, 200, "alive whatever the dependencies do");
    }
    *state.lock().unwrap() =
        Readiness { checks: vec![check("broker", false, Some("connecting"))], draining: false };
    let expected = serde_json::json!([{"name": "broker", "ready": false, "detail": "connecting"}]);
    assert_eq!(ask("/health/ready").await.json()["checks"], expected);
    assert_eq!(ask("/metrics").await.body, "scrapes 0\n");
    let wrong = send_text(server.address, "POST /health/live", "", "").await;
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.header("content-type"), Some("application/problem+json"));
}
