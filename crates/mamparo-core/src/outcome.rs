//! What came of an attempt, and the two questions asked of it.
//!
//! *Does it count against the dependency's health?* The breaker asks that. *May it be repeated?*
//! The retry asks that. They are different questions: a 500 is bad health and hardly worth
//! repeating, a 429 is a healthy dependency that wants to be asked again later.

use std::time::Duration;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It did not work now and may work later: connection refused, 503, deadlock.
    Transient,
    /// It will not work however often it is asked: 404, 422, a bug.
    Permanent,
    /// Nobody can tell whether it ran: the answer timed out or got lost on the way back.
    Unknown,
    /// It says nothing about the dependency: cancelled by the caller, or refused locally.
    Neutral,
}

/// What an outcome says about the dependency's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Health {
    /// The dependency is alive, even if the answer was no (404, 409, 422, 429).
    Good,
    /// The dependency failed to do its work (5xx, timeout, reset, refused).
    Bad,
    /// No verdict; a probe slot goes back without one.
    Silent,
}

/// How often a failed attempt may be repeated, if repeating is safe at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// Never; the answer would be the same, or the server said not to.
    Never,
    /// At most one more attempt (500: it may be a hiccup, it may be a bug).
    Once,
    /// As often as the policy has attempts.
    Freely,
}

/// Can the request have reached the dependency?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sent {
    /// It is proven that nothing was sent: connection refused, name not resolved.
    Nothing,
    /// Some of it, or all, may have arrived.
    Maybe,
}

/// A failed attempt, as the error that describes it was asked (never guessed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure.
    pub kind: Kind,
    /// What it says about the dependency's health.
    pub health: Health,
    /// How often it may be repeated.
    pub repeat: Repeat,
    /// Whether the request can have arrived.
    pub sent: Sent,
    /// When the dependency asked to be called again, counted from the receipt of its answer.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A transient failure of the dependency: bad health, may be repeated, may have arrived.
    pub const TRANSIENT: Self = Self {
        kind: Kind::Transient,
        health: Health::Bad,
        repeat: Repeat::Freely,
        sent: Sent::Maybe,
        retry_after: None,
    };
    /// A refusal that will not change: the dependency is alive, and repeating is pointless.
    pub const PERMANENT: Self = Self {
        kind: Kind::Permanent,
        health: Health::Good,
        repeat: Repeat::Never,
        sent: Sent::Maybe,
        retry_after: None,
    };
    /// No answer in time: it may have run.
    pub const UNKNOWN: Self = Self {
        kind: Kind::Unknown,
        health: Health::Bad,
        repeat: Repeat::Freely,
        sent: Sent::Maybe,
        retry_after: None,
    };
    /// Cancelled or refused before it became the dependency's business.
    pub const NEUTRAL: Self = Self {
        kind: Kind::Neutral,
        health: Health::Silent,
        repeat: Repeat::Never,
        sent: Sent::Nothing,
        retry_after: None,
    };
    /// The connection was never made, so nothing can have run.
    pub const NOT_SENT: Self = Self { sent: Sent::Nothing, ..Self::TRANSIENT };

    /// This failure of an attempt, seen as the end of a call in which `earlier` went before.
    ///
    /// Whether a call ran is a question about all of its attempts: that the last one never left
    /// proves nothing about the one that got no answer before it. A permanent answer stays one.
    #[must_use]
    pub const fn after(mut self, earlier: Self) -> Self {
        if matches!(earlier.sent, Sent::Maybe) {
            self.sent = Sent::Maybe;
        }
        if matches!((earlier.kind, self.kind), (Kind::Unknown, Kind::Transient | Kind::Neutral)) {
            self.kind = Kind::Unknown;
        }
        self
    }

    /// Could it pass, if whoever reported it did not say that it must not be repeated?
    #[must_use]
    pub const fn is_forbidden(&self) -> bool {
        matches!((self.repeat, self.kind), (Repeat::Never, Kind::Transient | Kind::Unknown))
    }

    /// What decides about a repetition after this failure and that of another attempt which was under
    /// way at the same time: a no to one of them is a no to the call, and of two waits that were asked
    /// for the longer one keeps both promises.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        let settled = matches!(self.repeat, Repeat::Never);
        let decisive = if other.is_forbidden() && !settled { other } else { self };
        decisive.with_retry_after(self.retry_after.max(other.retry_after))
    }

    /// The same failure with the time that the dependency named.
    #[must_use]
    pub const fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }
}

/// The row of the decision table for an HTTP status of the dependency.
///
/// | status | kind | health | repeat |
/// |---|---|---|---|
/// | 429 | transient | good | freely |
/// | 503 | transient | bad | freely |
/// | 504 | unknown | bad | freely |
/// | 500, 502 and other 5xx | permanent | bad | once |
/// | everything else | permanent | good | never |
///
/// Success (2xx) is no failure and has no row.
#[must_use]
pub const fn failure_of_status(status: u16, retry_after: Option<Duration>) -> Failure {
    let failure = match status {
        429 => Failure { health: Health::Good, ..Failure::TRANSIENT },
        503 => Failure::TRANSIENT,
        // A gateway gave up waiting: the work behind it may be done.
        504 => Failure::UNKNOWN,
        500..=599 => Failure { health: Health::Bad, repeat: Repeat::Once, ..Failure::PERMANENT },
        _ => Failure::PERMANENT,
    };
    failure.with_retry_after(retry_after)
}

/// What the caller vouches for: may this operation be done twice?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repeatable {
    /// Doing it twice is the same as once by nature: GET, PUT, DELETE (RFC 9110 §9.2.2).
    Idempotent,
    /// The receiver recognises a repetition by its idempotency key.
    Keyed,
    /// Doing it twice may do it twice: a POST without a key.
    Unsafe,
    /// It can't be sent a second time, whatever it does: its body is read as it is sent and gone
    /// then (a stream).
    OneShot,
}

impl Repeatable {
    /// Is it safe to repeat after a failure where `sent` holds?
    #[must_use]
    pub const fn safe_after(self, sent: Sent) -> bool {
        match (self, sent) {
            (Self::Idempotent | Self::Keyed, _) | (Self::Unsafe, Sent::Nothing) => true,
            // Even what never arrived may have used up the body.
            (Self::Unsafe, Sent::Maybe) | (Self::OneShot, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_h01_health_and_repeatability_are_two_questions() {
        for status in [500, 502, 501, 599] {
            let failure = failure_of_status(status, None);
            assert_eq!((failure.health, failure.repeat), (Health::Bad, Repeat::Once), "{status}");
        }
        for status in [503, 504] {
            let failure = failure_of_status(status, None);
            assert_eq!((failure.health, failure.repeat), (Health::Bad, Repeat::Freely), "{status}");
        }
        for status in [400, 401, 404, 409, 422, 301] {
            let failure = failure_of_status(status, None);
            assert_eq!((failure.health, failure.repeat), (Health::Good, Repeat::Never), "{status}");
        }
        let wait = Some(Duration::from_secs(3));
        let throttled = failure_of_status(429, wait);
        assert_eq!((throttled.health, throttled.repeat), (Health::Good, Repeat::Freely));
        assert_eq!(throttled.retry_after, wait);
    }

    #[test]
    fn what_an_earlier_attempt_left_open_is_closed_by_an_answer_only() {
        for last in [Failure::TRANSIENT, Failure::NOT_SENT, Failure::NEUTRAL] {
            let whole = last.after(Failure::UNKNOWN);
            assert_eq!((whole.kind, whole.sent), (Kind::Unknown, Sent::Maybe), "{last:?}");
        }
        assert_eq!(Failure::PERMANENT.after(Failure::UNKNOWN), Failure::PERMANENT);
        assert_eq!(Failure::NOT_SENT.after(Failure::NOT_SENT), Failure::NOT_SENT);
        assert_eq!(Failure::NEUTRAL.after(Failure::TRANSIENT).sent, Sent::Maybe);
    }

    #[test]
    fn an_unsafe_operation_is_repeated_only_with_proof_that_nothing_was_sent() {
        assert!(Repeatable::Idempotent.safe_after(Sent::Maybe));
        assert!(Repeatable::Keyed.safe_after(Sent::Maybe));
        assert!(Repeatable::Unsafe.safe_after(Sent::Nothing));
        assert!(!Repeatable::Unsafe.safe_after(Sent::Maybe));
        assert!(!Repeatable::OneShot.safe_after(Sent::Maybe));
        assert!(!Repeatable::OneShot.safe_after(Sent::Nothing));
    }
}
