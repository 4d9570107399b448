//! When a lesser answer may stand in for a call that failed.
//!
//! A fallback never lies: it stands in where the dependency could not answer, never where it did
//! answer and said no, and never where a change may have been made after all.

mod flight;
mod windows;

pub use flight::shares;
pub use windows::{Standing, Windows};

use crate::outcome::{Failure, Health, Kind, Sent};

/// What the call does at the dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It only asks. An older or smaller answer can be true enough.
    Read,
    /// It changes something.
    Write,
}

/// How a call ended that gave no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// One of our own guards refused: open circuit, no slot, no time. Nothing was sent.
    Refused,
    /// It was made, and failed like this.
    Failed(Failure),
}

/// Why there is only a lesser answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// One of our own guards refused the call.
    Refused,
    /// The dependency can't be reached, or asked to be called later.
    Unavailable,
    /// The dependency tried and failed: 500 and the like.
    ServerError,
    /// No answer came in time, or it got lost.
    NoAnswer,
    /// Nothing is wrong: the value is a little old, and a newer one is being fetched.
    Revalidating,
    /// The dependency answered, and said that it had nothing better itself.
    Upstream,
}

/// Why no lesser answer may stand in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Denial {
    /// The dependency answered, and the answer is no: 404, 422. Or the request can't be made at all.
    CallersMistake,
    /// The caller itself gave up; nobody is there to take an answer.
    Cancelled,
    /// It may have been changed: whatever stood in would claim that it was, or that it was not.
    MayHaveRun,
}

/// May a lesser answer stand in for a call that ended like this?
///
/// | ended | read | write |
/// |---|---|---|
/// | refused by our own guards | yes | yes: nothing was sent |
/// | transient (503, 429, connection refused) | yes | only if nothing was sent |
/// | unknown (timeout, lost connection, 504) | yes | never |
/// | permanent, bad health (500, 502) | yes | only if nothing was sent |
/// | permanent, the dependency is fine (404, 422) | never | never |
/// | neutral (cancelled by the caller) | never | never |
///
/// For reads these are the errors of RFC 5861 §4, and 429 with them: who is asked to stay away has
/// no better answer either.
///
/// # Errors
/// [`Denial`] says why not.
pub const fn ask(effect: Effect, ended: Ended) -> Result<Reason, Denial> {
    let Ended::Failed(failure) = ended else { return Ok(Reason::Refused) };
    let reason = match (failure.kind, failure.health) {
        (Kind::Neutral, _) => return Err(Denial::Cancelled),
        (Kind::Permanent, Health::Good | Health::Silent) => return Err(Denial::CallersMistake),
        (Kind::Permanent, Health::Bad) => Reason::ServerError,
        (Kind::Transient, _) => Reason::Unavailable,
        (Kind::Unknown, _) => Reason::NoAnswer,
    };
    match (effect, failure.kind, failure.sent) {
        (Effect::Read, _, _) => Ok(reason),
        (Effect::Write, Kind::Transient | Kind::Permanent, Sent::Nothing) => Ok(reason),
        (Effect::Write, _, _) => Err(Denial::MayHaveRun),
    }
}

impl Reason {
    /// A short, stable word for metrics and headers.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
            Self::ServerError => "server-error",
            Self::NoAnswer => "no-answer",
            Self::Revalidating => "revalidating",
            Self::Upstream => "upstream",
        }
    }
}
