//! A panic in a handler becomes a 500 with the request's id and nothing else.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use crate::{Problem, observe};

/// Answers for a handler that panicked. The panic is logged as an error; the caller gets no
/// internals.
pub async fn layer(request: Request, next: Next) -> Response {
    // The handler's state is dropped with its future; what it shares guards itself.
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            observe::panicked(text_of(&*panic));
            Problem::internal().into_response()
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
