//! Load shedding at the edge, and how a request's criticality travels.

mod common;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use common::{
    Act, Answered, answer, client, dependency, header, scripted, send_text, spawn, start,
};
use http::StatusCode;
use mamparo_call::Context;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::shed::{Criticality, ShedConfig};
use mamparo_http::server::{LoadShed, RateLimit};
use mamparo_http::{Problem, ServerOptions, standard};
use tokio::sync::Semaphore;
use tower::ServiceExt;

fn options() -> ServerOptions {
    ServerOptions::new(Duration::from_secs(30)).criticality_max(Criticality::CriticalPlus)
}

/// A service whose handler under `/held` ends when it gets a permit, and the one under `/` at once.
struct Held {
    ends: Arc<Semaphore>,
    begun: Arc<Semaphore>,
    router: Router,
}

fn held(options: ServerOptions) -> Held {
    let (ends, begun) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (wait, tell) = (Arc::clone(&ends), Arc::clone(&begun));
    let slow = get(move || {
        tell.add_permits(1);
        let wait = Arc::clone(&wait);
        async move {
            if let Ok(permit) = wait.acquire().await {
                permit.forget();
            }
        }
    });
    let router = Router::new().route("/held", slow).route("/", get(async || "done"));
    Held { ends, begun, router: standard(router, options) }
}

async fn ask(address: std::net::SocketAddr, criticality: &str) -> Answered {
    send_text(address, "GET /", &format!("x-criticality: {criticality}\r\n"), "").await
}

#[tokio::test]
async fn what_matters_least_is_refused_first_and_told_when_to_return() {
    let load = Arc::new(LoadShed::new(10, ShedConfig::default()).unwrap());
    let Held { ends, begun, router } = held(options().load_shed(Arc::clone(&load)));
    let server = start(router).await;
    let address = server.address;
    let mut waiting = Vec::new();
    // With each request that is held: which levels are refused for certain, and which are let in.
    for (refused, admitted) in [
        (&[][..], &["best-effort", "sheddable", "critical"][..]),
        (&["best-effort"], &["sheddable", "critical"]),
        (&["best-effort", "sheddable"], &["critical", "critical-plus", "", "unheard-of"]),
    ] {
        let held = if waiting.is_empty() { 7 } else { 1 };
        for _ in 0..held {
            waiting.push(spawn(send_text(address, "GET /held", "x-criticality: critical\r\n", "")));
            begun.acquire().await.unwrap().forget();
        }
        assert_eq!(load.in_flight() as usize, waiting.len());
        for level in admitted {
            assert_eq!(ask(address, level).await.status, 200, "{level}");
        }
        for level in refused {
            let answered = ask(address, level).await;
            let code = answered.problem_code();
            assert_eq!((answered.status, code.as_str()), (503, "SHED"), "{level}");
            let wait: u64 = answered.header("retry-after").unwrap().parse().unwrap();
            assert!((1..=2).contains(&wait), "{wait}");
            assert_eq!(answered.json()["criticality"], *level);
        }
    }
    ends.add_permits(waiting.len());
    for request in waiting {
        assert_eq!(request.await.unwrap().status, 200);
    }
    assert_eq!(load.in_flight(), 0);
    assert_eq!(ask(address, "best-effort").await.status, 200, "there is room again");
}

#[tokio::test]
async fn a_request_that_is_shed_uses_up_no_rate() {
    let limit = RateLimit::new(RateLimitConfig::new(2, Duration::from_secs(60)));
    let Held { ends, begun, router } = held(
        options().load_shed(LoadShed::new(1, ShedConfig::default()).unwrap()).rate_limit(limit),
    );
    let server = start(router).await;
    let address = server.address;
    let first = spawn(send_text(address, "GET /held", "", ""));
    begun.acquire().await.unwrap().forget();
    for _ in 0..3 {
        let refused = ask(address, "best-effort").await;
        assert_eq!(refused.problem_code(), "SHED");
        assert_eq!(refused.header("ratelimit"), None);
    }
    ends.add_permits(1);
    assert_eq!(first.await.unwrap().status, 200);
    let second = ask(address, "best-effort").await;
    assert_eq!((second.status, second.header("ratelimit")), (200, Some("\"client\";r=0;t=60")));
    assert_eq!(ask(address, "best-effort").await.problem_code(), "RATE_LIMITED");
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_its_place() {
    let load = Arc::new(LoadShed::new(1, ShedConfig::default()).unwrap());
    let Held { router, .. } = held(options().load_shed(Arc::clone(&load)));
    let request = || http::Request::get("/held").body(axum::body::Body::empty()).unwrap();
    {
        let mut cut = pin!(router.clone().oneshot(request()));
        let pending = poll_fn(|cx| Poll::Ready(cut.as_mut().poll(cx).is_pending())).await;
        assert!(pending && load.in_flight() == 1);
    }
    assert_eq!(load.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_or_is_cut_at_its_deadline_leaves_its_place() {
    async fn bug() -> &'static str {
        std::panic::resume_unwind(Box::new("a bug of the handler"))
    }
    let hangs = get(std::future::pending::<&'static str>);
    let load = Arc::new(LoadShed::new(1, ShedConfig::default()).unwrap());
    let router = Router::new().route("/bug", get(bug)).route("/hangs", hangs);
    let router = standard(router, options().load_shed(Arc::clone(&load)));
    for (path, status) in [("/bug", 500), ("/hangs", 503), ("/bug", 500)] {
        let request = http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!((answer.status().as_u16(), load.in_flight()), (status, 0), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_done_in_time_is_not_begun() {
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let slow = get(move || {
        count.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(200))
    });
    let router = Router::new().route("/slow", slow).route("/quick", get(async || "done"));
    let router =
        standard(router, options().load_shed(LoadShed::new(10, ShedConfig::default()).unwrap()));
    let send = async |path: &str, left: &str| {
        let request = http::Request::get(path).header("x-request-timeout-ms", left);
        let request = request.body(axum::body::Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    for _ in 0..100 {
        assert_eq!(send("/slow", "1000").await, StatusCode::OK);
    }
    let begun = runs.load(Ordering::Relaxed);
    assert_eq!(send("/slow", "150").await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(runs.load(Ordering::Relaxed), begun, "its handler was not asked");
    assert_eq!(send("/slow", "1000").await, StatusCode::OK);
    assert_eq!(send("/quick", "150").await, StatusCode::OK, "each route has a time of its own");
}

#[tokio::test(start_paused = true)]
async fn a_quick_failure_does_not_say_how_long_the_work_takes() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let slow = get(async move || {
        if is_down.load(Ordering::Relaxed) {
            return StatusCode::BAD_GATEWAY;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        StatusCode::OK
    });
    let shed = LoadShed::new(10, ShedConfig::default()).unwrap();
    let router = standard(Router::new().route("/slow", slow), options().load_shed(shed));
    let send = async |left: &str| {
        let request = http::Request::get("/slow").header("x-request-timeout-ms", left);
        let request = request.body(axum::body::Body::empty()).unwrap();
        router.clone().oneshot(request).await.unwrap().status()
    };
    for (fails, status) in [(false, StatusCode::OK), (true, StatusCode::BAD_GATEWAY)] {
        down.store(fails, Ordering::Relaxed);
        for _ in 0..150 {
            assert_eq!(send("1000").await, status);
        }
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(send("150").await, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_criticality_is_capped_at_the_edge_and_travels_on() {
    let ok = answer("200 OK", "connection: close\r\n", "done");
    for (stated, most, sent) in [
        ("", None, "critical"),
        ("x-criticality: critical-plus\r\n", None, "critical"),
        ("x-criticality: critical-plus\r\n", Some(Criticality::CriticalPlus), "critical-plus"),
        ("x-criticality: Best_Effort\r\n", None, "best-effort"),
        ("x-criticality: sheddable\r\n", Some(Criticality::BestEffort), "best-effort"),
        ("x-criticality: life-or-death\r\n", Some(Criticality::CriticalPlus), "critical"),
        ("x-criticality: sheddable\r\nx-criticality: critical\r\n", None, "critical"),
    ] {
        let mut last = scripted(vec![Act::Answer(ok.clone())]).await;
        let catalog = client(last.address, dependency("catalog"));
        let relay = get(move || {
            let catalog = catalog.clone();
            async move { catalog.get("/").send().await.map(|_| "done").map_err(Problem::from) }
        });
        let options = ServerOptions::new(Duration::from_secs(3));
        let options = match most {
            Some(most) => options.criticality_max(most),
            None => options,
        };
        let server = start(standard(Router::new().route("/", relay), options)).await;
        assert_eq!(send_text(server.address, "GET /", stated, "").await.status, 200);
        let request = last.requests.recv().await.unwrap();
        assert_eq!(header(&request, "x-criticality"), Some(sent), "{stated:?} {most:?}");
    }
}

#[tokio::test]
async fn work_that_matters_less_says_so_downstream() {
    let ok = answer("200 OK", "connection: close\r\n", "");
    let mut last = scripted(vec![Act::Answer(ok)]).await;
    let catalog = client(last.address, dependency("catalog"));
    let context = Context { criticality: Criticality::BestEffort, ..Context::current() };
    context.scope(catalog.get("/").send()).await.unwrap();
    let request = last.requests.recv().await.unwrap();
    assert_eq!(header(&request, "x-criticality"), Some("best-effort"));
}

#[test]
fn settings_that_can_not_be_meant_are_all_told() {
    let config = ShedConfig { band: 0.0, ..ShedConfig::default() };
    let mistakes = LoadShed::new(0, config).unwrap_err();
    let keys: Vec<&str> = mistakes.iter().map(|mistake| mistake.key).collect();
    assert_eq!(keys, ["shed.band", "shed.capacity"]);
}
