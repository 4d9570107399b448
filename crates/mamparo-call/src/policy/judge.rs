//! Who says what a result means.

use mamparo_core::outcome::Failure;

use crate::Classify;

/// Tells policies what a result says; `None` is a success.
///
/// [`ByError`] asks the error and takes every `Ok` for a success. Where an answer is a value whatever
/// it says (an HTTP response with status 503), a closure looks into it:
///
/// ```
/// use mamparo_call::{Failure, policy::Judge};
/// use mamparo_core::outcome::failure_of_status;
///
/// struct Response { status: u16 }
///
/// let judge = |result: &Result<Response, std::io::Error>| match result {
///     Ok(response) if response.status < 400 => None,
///     Ok(response) => Some(failure_of_status(response.status, None)),
///     Err(_) => Some(Failure::UNKNOWN),
/// };
/// assert_eq!(judge.judge(&Ok(Response { status: 503 })), Some(Failure::TRANSIENT));
/// assert_eq!(judge.judge(&Ok(Response { status: 204 })), None);
/// ```
pub trait Judge<T, E> {
    /// What kind of failure the result is; `None` for a success.
    fn judge(&self, result: &Result<T, E>) -> Option<Failure>;
}

/// Every `Ok` is a success, every error is asked by [`Classify`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByError;

impl<T, E: Classify> Judge<T, E> for ByError {
    fn judge(&self, result: &Result<T, E>) -> Option<Failure> {
        result.as_ref().err().map(Classify::classify)
    }
}

/// For policies that do not care how a call ends, such as a rate limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unjudged;

impl<T, E> Judge<T, E> for Unjudged {
    fn judge(&self, _: &Result<T, E>) -> Option<Failure> {
        None
    }
}

impl<T, E, F: Fn(&Result<T, E>) -> Option<Failure>> Judge<T, E> for F {
    fn judge(&self, result: &Result<T, E>) -> Option<Failure> {
        self(result)
    }
}
