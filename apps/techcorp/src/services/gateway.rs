//! The way in: forwards what the routes name, and never retries. What a service answers reaches
//! the caller as it is, refusals with their `Retry-After` included.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{AGE, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, StatusCode};
use mamparo::call::CallError;
use mamparo::http::headers::CACHE_STATUS;
use mamparo::http::server::Path;
use mamparo::http::{HttpClient, HttpError, Problem};

use super::{is_id, trouble};

/// Request headers that travel on. Ids, trace and deadline are the client's own business.
const INWARD: [HeaderName; 2] = [CONTENT_TYPE, HeaderName::from_static("idempotency-key")];
/// Answer headers that travel back.
const OUTWARD: [HeaderName; 6] = [
    CONTENT_TYPE,
    LOCATION,
    AGE,
    CACHE_STATUS,
    RETRY_AFTER,
    HeaderName::from_static("idempotency-replayed"),
];

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Takes and shows orders.
    pub orders: HttpClient,
    /// Lists orders with names.
    pub bff: HttpClient,
    /// Shows products.
    pub catalog: HttpClient,
}

/// The routes.
pub fn router(gateway: Gateway) -> Router {
    let gateway = Arc::new(gateway);
    Router::new()
        .route("/v1/orders", get(list_orders).post(take_order))
        .route("/v1/orders/{id}", get(show_order))
        .route("/v1/products", get(list_products))
        .with_state(gateway)
}

async fn take_order(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    forward(&gateway.orders, request).await
}

async fn list_orders(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    forward(&gateway.bff, request).await
}

async fn show_order(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    // Nobody's order has such an id, so nobody has to be asked.
    if !is_id(&id) {
        return Problem::new(StatusCode::NOT_FOUND, "ORDER_NOT_FOUND").into_response();
    }
    forward(&gateway.orders, request).await
}

async fn list_products(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    forward(&gateway.catalog, request).await
}

async fn forward(to: &HttpClient, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let limit = mamparo::core::limits::BODY_BYTES_MAX;
    let Ok(body) = axum::body::to_bytes(body, limit).await else {
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE").into_response();
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut forwarded = to.request(parts.method, path).body(body);
    for name in INWARD {
        if let Some(value) = parts.headers.get(&name) {
            let Ok(text) = value.to_str() else {
                let what = format!("header {name} is not ASCII");
                return Problem::new(StatusCode::BAD_REQUEST, "MALFORMED_REQUEST")
                    .detail(what)
                    .into_response();
            };
            forwarded = forwarded.header(name, text);
        }
    }
    match forwarded.send().await {
        Ok(answer) => outward(answer.status, &answer.headers, answer.body.clone()),
        Err(error) => refusal(&error),
    }
}

/// What the service itself has said goes back as it is; what never reached it, or came back
/// broken, is our own answer.
fn refusal(error: &CallError<HttpError>) -> Response {
    match error.cause().and_then(HttpError::answer) {
        Some(answer) => outward(answer.status, &answer.headers, answer.body.clone()),
        None => Problem::from(error).into_response(),
    }
}

fn outward(status: StatusCode, headers: &HeaderMap, body: bytes::Bytes) -> Response {
    let mut response = Response::builder().status(status);
    for name in OUTWARD {
        // A list may stand on several lines.
        for value in headers.get_all(&name) {
            response = response.header(&name, value);
        }
    }
    response.body(body.into()).unwrap_or_else(|error| trouble(&error).into_response())
}
