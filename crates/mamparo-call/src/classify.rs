//! The asking trait: policies never guess what an error means, they ask it.

use mamparo_core::outcome::Failure;

/// An error that can say what kind of failure it is.
///
/// Retry and breaker ask this and nothing else. Implement it once for the error type of a
/// transport; for an error that knows nothing better, [`Failure::UNKNOWN`] is the honest answer.
pub trait Classify {
    /// What kind of failure is this?
    fn classify(&self) -> Failure;

    /// Did one of our own guards refuse the call, so that nothing was sent? A fallback may stand in
    /// for that, and not for the caller's own cancellation, which is neutral as well. Default
    /// `false`.
    fn is_refusal(&self) -> bool {
        false
    }
}

/// An error that can't happen; services that answer everything with a value have it.
impl Classify for std::convert::Infallible {
    fn classify(&self) -> Failure {
        match *self {}
    }
}
