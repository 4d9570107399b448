//! A dependency that fails, really or on purpose, and what its caller still answers.

#![expect(clippy::unwrap_used, reason = "what tests share fails by panicking")]

mod common;

use std::time::Duration;

use common::{Act, Scripted, answer, client, dependency, scripted};
use http::header::AGE;
use http::{HeaderMap, StatusCode};
use mamparo_call::cache::{CacheError, Outcome, StaleCache};
use mamparo_call::{CallError, Classify, Context, clock};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::breaker::{BreakerConfig, Phase, Trip};
use mamparo_core::call::fallback::{Reason, Windows};
use mamparo_core::call::fault::{FaultConfig, Latency};
use mamparo_core::outcome::Kind;
use mamparo_http::caching::{self, CacheStatus};
use mamparo_http::{HttpClient, HttpError, Problem, Response};

type Cache = StaleCache<&'static str, Response, CallError<HttpError>>;

fn cache() -> Cache {
    StaleCache::builder("catalog").build().unwrap()
}

async fn ask(
    cache: &Cache,
    client: &HttpClient,
) -> Result<(Response, Outcome, HeaderMap), CacheError<CallError<HttpError>>> {
    let windows = Windows { if_error: Duration::ZERO, ..Windows::default() };
    let fetch = || async { Ok(client.get("/").send().await?.into_fetched(windows)) };
    let cached = cache.get(&"/", fetch).await?;
    let mut headers = HeaderMap::new();
    caching::tell("bff", &cached.handling, &mut headers);
    let response = match cached.answer.fresh() {
        Ok(fresh) => fresh.into_inner(),
        Err(stale) => stale.accept_stale(Duration::from_secs(60)).unwrap(),
    };
    Ok((response, cached.handling.outcome, headers))
}

/// One attempt a call, so that a script has one line for each.
fn once(server: &Scripted) -> HttpClient {
    client(server.address, dependency("catalog").retry(1, Backoff::default()))
}

fn good(headers: &str) -> Act {
    Act::Answer(answer("200 OK", &format!("connection: close\r\n{headers}"), "[1]"))
}

fn bad(status: &str) -> Act {
    Act::Answer(answer(status, "connection: close\r\n", ""))
}

#[tokio::test]
async fn a_dependency_says_for_how_long_it_may_be_stood_in_for() {
    let script = vec![good("cache-control: stale-if-error=60\r\nage: 5\r\n"), bad("500 Oh")];
    let server = scripted(script).await;
    let (cache, client) = (cache(), once(&server));
    let (_, outcome, headers) = ask(&cache, &client).await.unwrap();
    assert!(matches!(outcome, Outcome::Fetched { stored: true, .. }), "{outcome:?}");
    assert_eq!(headers[AGE], "5", "it comes from a cache of the dependency's own");

    let (response, outcome, headers) = ask(&cache, &client).await.unwrap();
    assert_eq!((&response.body[..], outcome), (&b"[1]"[..], Outcome::Stale(Reason::ServerError)));
    assert_eq!(headers[AGE], "5");
    let status = &CacheStatus::read(&headers)[0];
    assert!(status.is_hit() && status.ttl_seconds().is_some_and(|ttl| ttl <= -5), "{status}");
}

#[tokio::test]
async fn what_may_not_be_stored_or_has_no_window_stands_in_for_nothing() {
    for headers in ["cache-control: no-store\r\n", "cache-control: max-age=0, must-revalidate\r\n"]
    {
        let server = scripted(vec![good(headers), bad("503 Away")]).await;
        let (cache, client) = (cache(), once(&server));
        ask(&cache, &client).await.unwrap();
        let error = ask(&cache, &client).await.unwrap_err();
        assert_eq!(error.classify().kind, Kind::Transient, "{headers}");
        let CacheError::Failed { source, .. } = error else { panic!("{error}") };
        assert_eq!(Problem::from(&*source).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

#[tokio::test]
async fn an_injected_error_is_a_503_to_all_who_judge_it_and_nothing_leaves() {
    let server = scripted(vec![good("")]).await;
    let trip = Trip::Failures { failures: 3, window: Duration::from_secs(60) };
    let breaker = BreakerConfig { trip, ..BreakerConfig::default() };
    let dependency = dependency("catalog").breaker(breaker).build().unwrap();
    let address = format!("http://{}", server.address);
    let faults = FaultConfig { enabled: true, error: 1.0, ..FaultConfig::default() };
    let client = HttpClient::with_faults(&address, dependency.clone(), faults).unwrap();
    let error = client.get("/").send().await.unwrap_err();
    assert!(matches!(error, CallError::Failed { attempts: 3, .. }), "{error}");
    assert_eq!(error.cause().and_then(HttpError::status), Some(StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(dependency.breaker_state(), Some(Phase::Open));
    assert_eq!(client.sent(), 0);

    let off = FaultConfig { enabled: false, ..faults };
    let fine = common::dependency("catalog").build().unwrap();
    let client = HttpClient::with_faults(&address, fine.clone(), off).unwrap();
    assert_eq!(client.get("/").send().await.unwrap().status, StatusCode::OK);

    let made_up = FaultConfig { error: 0.0, outcome: 1.0, ..faults };
    let client = HttpClient::with_faults(&address, fine.clone(), made_up).unwrap();
    assert_eq!(client.get("/").send().await.unwrap().body.len(), 0);
    assert_eq!(client.sent(), 0);
    let wrong = HttpClient::with_faults(&address, fine, FaultConfig { error: 2.0, ..faults });
    assert!(matches!(wrong, Err(HttpError::Request { .. })), "{wrong:?}");
}

#[tokio::test]
async fn injected_latency_runs_into_the_callers_deadline_like_any_other() {
    let server = scripted(vec![good("")]).await;
    let long = Duration::from_secs(60);
    let latency = Some(Latency { share: 1.0, least: long, most: long });
    let faults = FaultConfig { enabled: true, latency, ..FaultConfig::default() };
    let dependency = dependency("catalog").build().unwrap();
    let address = format!("http://{}", server.address);
    let client = HttpClient::with_faults(&address, dependency, faults).unwrap();
    let now = clock::now();
    let hurried = Context::default().with_budget(now, Duration::from_millis(50));
    let error = hurried.scope(client.get("/").send()).await.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { .. }), "{error}");
    assert!(clock::now().since(now) < Duration::from_secs(30));
    assert_eq!(client.sent(), 0);
}
