//! Calls that are made once for everybody who wants the same at the same time.

use super::Ended;
use crate::outcome::Kind;
use crate::time::Moment;

/// May a caller that waited for another one's call take its failure for its own?
///
/// What the dependency said holds for both. That the time ran out, or that a guard refused, may be
/// due to the little time that the other one had: somebody who can wait longer tries on its own.
/// The deadlines are those of the callers; `None` is a caller that can wait for ever.
#[must_use]
pub fn shares(ended: Ended, maker: Option<Moment>, waiter: Option<Moment>) -> bool {
    if let Ended::Failed(failure) = ended
        && matches!(failure.kind, Kind::Transient | Kind::Permanent)
    {
        return true;
    }
    let end = |deadline: Option<Moment>| deadline.unwrap_or(Moment::FAR_FUTURE);
    end(waiter) <= end(maker)
}
