//! Request id, trace, client identity and criticality: what every later layer, log line and call relies on.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue};
use mamparo_call::{Context, clock};
use mamparo_core::call::shed::Criticality;
use tracing::Instrument;

use crate::trace_context::Traceparent;
use crate::{headers, ids, observe};

/// Most bytes of a `tracestate` that is passed on (the standard asks for at least 512).
const TRACESTATE_BYTES_MAX: usize = 512;

/// How the caller is told apart from others.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Is `x-client-id` the truth? Else the peer's address is.
    pub trust_header: bool,
    /// The most that a caller may claim its request to matter.
    pub criticality_max: Criticality,
}

/// Opens the request's [`Context`] and span, echoes its id and counts its answer.
pub async fn layer(State(identity): State<Identity>, request: Request, next: Next) -> Response {
    let started = clock::now();
    let request_id = ids::valid_id(request.headers(), &headers::REQUEST_ID)
        .map_or_else(ids::new_request_id, str::to_owned);
    let (trace, tracestate) = trace_of(request.headers());
    let method = request.method().clone();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    // At the level of errors: whoever asks for warnings only still sees whose request they are of.
    let span = tracing::error_span!(
        "request",
        request_id = %request_id,
        trace_id = %trace.trace_id(),
        method = %method,
        route = %route,
    );
    let context = Context {
        deadline: None,
        request_id: Some(request_id.as_str().into()),
        traceparent: Some(trace.to_string().into()),
        tracestate,
        client: client_of(identity, &request),
        criticality: criticality_of(identity, request.headers()),
    };
    let echo = HeaderValue::from_str(&request_id).ok();
    async move {
        let mut response = context.scope(next.run(request)).await;
        if let Some(id) = echo {
            response.headers_mut().insert(headers::REQUEST_ID, id);
        }
        let took = clock::now().since(started);
        observe::answered(&route, &method, response.status().as_u16(), took);
        response
    }
    .instrument(span)
    .await
}

/// Our span under the caller's trace, or a new trace; the state only travels with its trace.
fn trace_of(request: &HeaderMap) -> (Traceparent, Option<Arc<str>>) {
    // More than one traceparent is invalid, as a whole.
    let mut values = request.get_all(headers::TRACEPARENT).iter();
    let parent = match (values.next(), values.next()) {
        (Some(only), None) => only.to_str().ok().and_then(Traceparent::parse),
        (None | Some(_), _) => None,
    };
    let Some(parent) = parent else {
        return (Traceparent::root(), None);
    };
    let states: Option<Vec<&str>> =
        request.get_all(headers::TRACESTATE).iter().map(|value| value.to_str().ok()).collect();
    let state = states
        .map(|states| states.join(","))
        .filter(|state| !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX);
    (parent.child(), state.map(Arc::from))
}

fn criticality_of(identity: Identity, request: &HeaderMap) -> Criticality {
    let mut values = request.get_all(headers::CRITICALITY).iter();
    // Who says two things has said nothing.
    let stated = match (values.next(), values.next()) {
        (Some(only), None) => only.to_str().ok(),
        (None | Some(_), _) => None,
    };
    Criticality::admitted(stated, identity.criticality_max)
}

fn client_of(identity: Identity, request: &Request) -> Option<Arc<str>> {
    if identity.trust_header
        && let Some(id) = ids::valid_id(request.headers(), &headers::CLIENT_ID)
    {
        return Some(id.into());
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
    // Without the port: a client's connections are one client.
    Some(peer.0.ip().to_string().into())
}
