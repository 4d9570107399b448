//! May a request be sent again, and how is it made again?

use mamparo_core::outcome::Repeatable;

/// Tells [`RetryLayer`](crate::tower::RetryLayer) what it needs to know of a request.
///
/// ```
/// use mamparo_call::{Repeatable, tower::Replay};
///
/// enum Body { Bytes(Vec<u8>), Stream }
/// struct Request { method: &'static str, body: Body }
///
/// #[derive(Clone)]
/// struct ByMethod;
///
/// impl Replay<Request> for ByMethod {
///     fn repeatable(&self, request: &Request) -> Repeatable {
///         match request.method {
///             "GET" | "PUT" | "DELETE" => Repeatable::Idempotent,
///             _ => Repeatable::Unsafe,
///         }
///     }
///
///     fn replay(&self, request: &Request) -> Option<Request> {
///         match &request.body {
///             Body::Bytes(bytes) => {
///                 Some(Request { body: Body::Bytes(bytes.clone()), ..*request })
///             }
///             Body::Stream => None, // it can be read once: one attempt, untouched
///         }
///     }
/// }
/// let upload = Request { method: "PUT", body: Body::Stream };
/// assert_eq!(ByMethod.repeatable(&upload), Repeatable::Idempotent);
/// assert!(ByMethod.replay(&upload).is_none());
/// ```
pub trait Replay<R> {
    /// May it be done twice?
    fn repeatable(&self, request: &R) -> Repeatable;

    /// The same request once more, to the last byte; `None` when that can't be had, which means one
    /// attempt. Asked before each attempt.
    fn replay(&self, request: &R) -> Option<R>;
}

/// Every request is cloned, and all are equally repeatable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cloned(pub Repeatable);

impl<R: Clone> Replay<R> for Cloned {
    fn repeatable(&self, _: &R) -> Repeatable {
        self.0
    }

    fn replay(&self, request: &R) -> Option<R> {
        Some(request.clone())
    }
}

/// No request is sent twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Once;

impl<R> Replay<R> for Once {
    fn repeatable(&self, _: &R) -> Repeatable {
        Repeatable::Unsafe
    }

    fn replay(&self, _: &R) -> Option<R> {
        None
    }
}
