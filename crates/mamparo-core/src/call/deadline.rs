//! How long an attempt may take, seen from the caller's deadline.
//!
//! A limit of ours is never longer than what the caller has left, and work that nobody waits for
//! any more is not begun.

use std::time::Duration;

use crate::limits::ATTEMPT_MIN_USABLE;
use crate::time::Moment;

/// The limit of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptLimit {
    /// When it is cut off: after its own timeout or at the caller's deadline, whichever is nearer.
    /// `None` without any limit.
    pub until: Option<Moment>,
}

/// Is there too little left at `now` for an attempt to be worth starting?
///
/// True when [`ATTEMPT_MIN_USABLE`] (10 ms) or less is left. False without a deadline.
#[must_use]
#[inline]
pub fn too_near(now: Moment, deadline: Option<Moment>) -> bool {
    deadline.is_some_and(|deadline| now.until(deadline) <= ATTEMPT_MIN_USABLE)
}

/// The limit of an attempt that starts at `now`; `None` when too little is left to start it.
#[must_use]
#[inline]
pub fn attempt_limit(
    now: Moment,
    attempt_timeout: Option<Duration>,
    deadline: Option<Moment>,
) -> Option<AttemptLimit> {
    if too_near(now, deadline) {
        return None;
    }
    let own = attempt_timeout.map(|timeout| now.plus(timeout));
    let until = match (own, deadline) {
        (Some(own), Some(deadline)) => Some(own.min(deadline)),
        (own, deadline) => own.or(deadline),
    };
    Some(AttemptLimit { until })
}

/// Does running out of `granted` time say anything about the dependency?
///
/// A caller that comes with a fraction of the usual time proves nothing when that runs out, and must
/// not be able to open the circuit for everybody else. An attempt that got less than half of its own
/// timeout is no verdict; one without a timeout of its own always is.
#[must_use]
pub fn is_verdict(granted: Option<Duration>, attempt_timeout: Option<Duration>) -> bool {
    match (granted, attempt_timeout) {
        (Some(granted), Some(own)) => granted >= own / 2,
        (None, _) | (_, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_millis(1_000);

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn an_attempt_gets_the_lesser_of_its_timeout_and_what_is_left() {
        let timeout = |own, left: Option<u64>| {
            let limit = attempt_limit(NOW, own, left.map(|left| NOW.plus(millis(left))));
            limit.map(|limit| limit.until.map(|until| NOW.until(until)))
        };
        assert_eq!(timeout(Some(millis(700)), Some(3_000)), Some(Some(millis(700))));
        assert_eq!(timeout(Some(millis(700)), Some(300)), Some(Some(millis(300))));
        assert_eq!(timeout(None, Some(300)), Some(Some(millis(300))));
        assert_eq!(timeout(Some(millis(700)), None), Some(Some(millis(700))));
        assert_eq!(timeout(None, None), Some(None));
    }

    #[test]
    fn ten_milliseconds_are_too_few_to_start() {
        assert!(too_near(NOW, Some(NOW.plus(millis(10)))));
        assert!(!too_near(NOW, Some(NOW.plus(millis(11)))));
        assert!(too_near(NOW, Some(NOW.minus(millis(500)))));
        assert!(!too_near(NOW, None));
        assert_eq!(attempt_limit(NOW, None, Some(NOW.plus(millis(10)))), None);
    }

    #[test]
    fn a_caller_in_a_hurry_proves_nothing_about_the_dependency() {
        assert!(!is_verdict(Some(millis(11)), Some(millis(700))));
        assert!(is_verdict(Some(millis(350)), Some(millis(700))));
        assert!(is_verdict(Some(millis(11)), None));
        assert!(is_verdict(None, None));
    }
}
