//! Three services in a row, each of which makes three attempts, and at the end of the row something
//! that is dead: how many calls reach it for one at the top?
#![allow(clippy::unwrap_used, reason = "a test that can't go on stops")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use common::{Server, client, dependency, start};
use http::StatusCode;
use mamparo_call::{CallError, DependencyBuilder};
use mamparo_core::backoff::Backoff;
use mamparo_core::call::plan::Plan;
use mamparo_core::call::retry::Retry;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_http::{HttpClient, HttpError, Problem};

/// What a service answers when its dependency failed.
type Says = fn(CallError<HttpError>) -> Response;

/// Three attempts without noticeable waits, under this budget.
fn with_budget(retry_budget: Option<RetryBudgetConfig>) -> DependencyBuilder {
    let backoff = Backoff { base: Duration::from_micros(1), ..Backoff::default() };
    let retry = Retry { attempts: 3, backoff };
    DependencyBuilder::from_plan(Plan { retry, retry_budget, ..Plan::new("below") })
}

/// The end of the row.
async fn dead() -> (Server, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    let handler = move || async move {
        counter.fetch_add(1, Ordering::Relaxed);
        StatusCode::SERVICE_UNAVAILABLE
    };
    (start(Router::new().route("/", get(handler))).await, asked)
}

/// A service that calls `below` and passes its failure on, as `answer` puts it.
async fn service(below: SocketAddr, dependency: DependencyBuilder, answer: Says) -> Server {
    let below = client(below, dependency);
    let handler = move || async move {
        match below.get("/").send().await {
            Ok(_) => StatusCode::OK.into_response(),
            Err(error) => answer(error),
        }
    };
    start(Router::new().route("/", get(handler))).await
}

/// The share of calls that reach the dead end for `calls` of the client, which is the third layer.
async fn reached(calls: u32, layer: fn() -> DependencyBuilder, answer: Says) -> f64 {
    let (dead, asked) = dead().await;
    let bottom = service(dead.address, layer(), answer).await;
    let middle = service(bottom.address, layer(), answer).await;
    let top: HttpClient = client(middle.address, layer());
    for _ in 0..calls {
        top.get("/").send().await.unwrap_err();
    }
    f64::from(asked.load(Ordering::Relaxed)) / f64::from(calls)
}

#[tokio::test]
async fn three_layers_without_budget_and_without_a_word_make_27_calls_of_one() {
    let layer = || with_budget(None);
    let silent = |_| StatusCode::SERVICE_UNAVAILABLE.into_response();
    assert_eq!(reached(5, layer, silent).await, 27.0);
}

#[tokio::test]
async fn three_layers_as_they_come_make_at_most_a_third_more() {
    let layer = || dependency("below");
    let answered = |error| Problem::from(error).into_response();
    let share = reached(400, layer, answered).await;
    // The layer next to the dead end has 20 % of 400 and a reserve of 20; the others don't repeat.
    assert!((1.2..=1.33).contains(&share), "{share}");
}

#[tokio::test]
async fn budgets_alone_hold_it_where_the_services_between_say_nothing() {
    let layer = || with_budget(Some(RetryBudgetConfig { ratio: 0.1, reserve: 0 }));
    let silent = |_| StatusCode::SERVICE_UNAVAILABLE.into_response();
    let share = reached(400, layer, silent).await;
    assert!((1.2..=1.34).contains(&share), "{share}: 1.1³ = 1.331");
}
