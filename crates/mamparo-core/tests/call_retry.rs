//! The retry's decision: the mission's table, row by row.

use std::collections::BTreeSet;
use std::time::Duration;

use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::call::pipeline::GiveUp;
use mamparo_core::call::retry::{Decision, FailedAttempt, Retry};
use mamparo_core::limits;
use mamparo_core::outcome::{Failure, Health, Repeat, Repeatable, failure_of_status};
use mamparo_core::rng::SeededRng;
use proptest::prelude::*;

fn ask(attempt: u32, failure: Failure, repeatable: Repeatable) -> Decision {
    Retry::default().ask(&failed(attempt, failure, repeatable), None, &mut SeededRng::new(1))
}

fn failed(number: u32, failure: Failure, repeatable: Repeatable) -> FailedAttempt {
    FailedAttempt { number, waited: Duration::ZERO, failure, repeatable, left: None }
}

fn again(decision: &Decision) -> bool {
    matches!(decision, Decision::Again { .. })
}

#[test]
fn the_decision_table_of_the_mission() {
    use Repeatable::{Idempotent, Keyed, Unsafe};
    let status = |status| failure_of_status(status, None);
    for (what, failure, repeatable, expected) in [
        ("GET 503", status(503), Idempotent, None),
        ("GET 429", status(429), Idempotent, None),
        ("GET reset", Failure::UNKNOWN, Idempotent, None),
        ("GET timeout", Failure::UNKNOWN, Idempotent, None),
        ("GET 404", status(404), Idempotent, Some(GiveUp::Permanent)),
        ("GET 400", status(400), Idempotent, Some(GiveUp::Permanent)),
        ("GET 422", status(422), Idempotent, Some(GiveUp::Permanent)),
        ("GET 500", status(500), Idempotent, None),
        ("POST without key, timeout", Failure::UNKNOWN, Unsafe, Some(GiveUp::MayHaveRun)),
        ("POST with key, timeout", Failure::UNKNOWN, Keyed, None),
        ("reservation, key = order id, 503", status(503), Keyed, None),
        ("POST without key, refused connection", Failure::NOT_SENT, Unsafe, None),
        ("PSP 402", status(402), Keyed, Some(GiveUp::Permanent)),
        // The database rolled the whole transaction back: nothing is left of it.
        ("deadlock 40P01", Failure { health: Health::Good, ..Failure::NOT_SENT }, Unsafe, None),
        ("our own refusal", Failure::NEUTRAL, Idempotent, Some(GiveUp::Permanent)),
    ] {
        let decision = ask(1, failure, repeatable);
        match expected {
            None => assert!(again(&decision), "{what}: {decision:?}"),
            Some(reason) => assert_eq!(decision, Decision::GiveUp(reason), "{what}"),
        }
    }
}

/// The first attempt has used it up, even where nothing arrived.
#[test]
fn policies_c25_a_body_that_can_be_read_once_allows_no_second_attempt() {
    for failure in [Failure::TRANSIENT, Failure::UNKNOWN, Failure::NOT_SENT] {
        let decision = ask(1, failure, Repeatable::OneShot);
        assert_eq!(decision, Decision::GiveUp(GiveUp::BodyNotReplayable), "{failure:?}");
    }
    // What would not be repeated anyway keeps its own reason.
    let no = ask(1, Failure::PERMANENT, Repeatable::OneShot);
    assert_eq!(no, Decision::GiveUp(GiveUp::Permanent));
}

#[test]
fn whoever_reports_a_failure_may_forbid_another_attempt() {
    for failure in [Failure::TRANSIENT, Failure::UNKNOWN] {
        let forbidden = Failure { repeat: Repeat::Never, ..failure };
        let decision = ask(1, forbidden, Repeatable::Idempotent);
        assert_eq!(decision, Decision::GiveUp(GiveUp::ToldNotTo), "{failure:?}");
    }
}

#[test]
fn each_reason_has_a_slug_of_its_own() {
    let slugs: BTreeSet<&str> = GiveUp::ALL.iter().map(|reason| reason.slug()).collect();
    assert_eq!(slugs.len(), GiveUp::ALL.len());
}

#[test]
fn attempts_count_the_first_and_a_500_is_repeated_once() {
    let spent = Decision::GiveUp(GiveUp::AttemptsSpent);
    assert!(again(&ask(2, Failure::TRANSIENT, Repeatable::Idempotent)));
    assert_eq!(ask(3, Failure::TRANSIENT, Repeatable::Idempotent), spent);
    let hiccup = failure_of_status(500, None);
    assert!(again(&ask(1, hiccup, Repeatable::Idempotent)));
    assert_eq!(ask(2, hiccup, Repeatable::Idempotent), spent);
    for once in [Failure::TRANSIENT, hiccup] {
        let first = failed(1, once, Repeatable::Idempotent);
        assert_eq!(Retry::NONE.ask(&first, None, &mut SeededRng::new(1)), spent);
    }
}

#[test]
fn a_transaction_is_tried_three_times_from_fifty_milliseconds() {
    let Retry { attempts, backoff } = Retry::TRANSACTION;
    assert_eq!((attempts, backoff.base), (3, Duration::from_millis(50)));
    assert_eq!(backoff.worst_total(attempts), Duration::from_millis(150));
}

#[test]
fn policies_c34_retry_after_lengthens_and_is_capped() {
    let wait = |seconds| {
        let failure = failure_of_status(503, Some(Duration::from_secs(seconds)));
        match ask(1, failure, Repeatable::Idempotent) {
            Decision::Again { after, paid } => {
                assert_eq!(paid, None, "without a budget nothing is paid");
                after
            }
            Decision::GiveUp(reason) => panic!("{reason:?}"),
        }
    };
    assert_eq!(wait(7), Duration::from_secs(7));
    assert!(wait(0) <= Duration::from_millis(100), "zero does not shorten the backoff to nothing");
    assert_eq!(wait(9_999_999_999_999_999_999), limits::RETRY_AFTER_MAX);
}

#[test]
fn a_wait_that_reaches_the_deadline_is_not_begun() {
    let failure = failure_of_status(503, Some(Duration::from_secs(2)));
    let ask = |left| {
        let left = Some(Duration::from_millis(left));
        let failed = FailedAttempt { left, ..failed(1, failure, Repeatable::Idempotent) };
        Retry::default().ask(&failed, None, &mut SeededRng::new(1))
    };
    assert!(again(&ask(2_011)));
    for left in [0, 1_999, 2_000, 2_010] {
        assert_eq!(ask(left), Decision::GiveUp(GiveUp::DeadlineTooNear), "{left} ms left");
    }
}

/// Waits that grow from the one before grow from the one that was made, a server's included.
#[test]
fn a_decorrelated_wait_knows_the_one_before() {
    let backoff = Backoff { jitter: Jitter::Decorrelated, ..Backoff::default() };
    let retry = Retry { attempts: 9, backoff };
    let longest = |waited| {
        let waited = Duration::from_millis(waited);
        let failed = FailedAttempt { waited, ..failed(2, Failure::TRANSIENT, Repeatable::Keyed) };
        let waits =
            (0..1_000).map(|seed| match retry.ask(&failed, None, &mut SeededRng::new(seed)) {
                Decision::Again { after, .. } => after.as_millis(),
                Decision::GiveUp(reason) => panic!("{reason:?}"),
            });
        waits.max().unwrap_or_default()
    };
    assert!((290..=300).contains(&longest(100)), "{}", longest(100));
    assert!((880..=900).contains(&longest(300)), "{}", longest(300));
    assert!((1_950..=2_000).contains(&longest(300_000)), "{}", longest(300_000));
}

proptest! {
    #[test]
    fn policies_c22_waits_are_bounded_for_any_attempt(
        attempt in prop_oneof![1_u32..40, Just(1_025), Just(u32::MAX - 1)], seed: u64,
        named in prop::option::of(any::<u64>()), left in prop::option::of(any::<u64>()),
    ) {
        let retry = Retry { attempts: u32::MAX, backoff: Backoff::default() };
        let failure = Failure::TRANSIENT.with_retry_after(named.map(Duration::from_secs));
        let left = left.map(Duration::from_millis);
        let failed = FailedAttempt { left, ..failed(attempt, failure, Repeatable::Keyed) };
        match retry.ask(&failed, None, &mut SeededRng::new(seed)) {
            Decision::Again { after, paid: _ } => {
                prop_assert!(after <= limits::RETRY_AFTER_MAX.max(retry.backoff.cap));
                prop_assert!(left.is_none_or(|left| after < left));
            }
            Decision::GiveUp(reason) => prop_assert_eq!(reason, GiveUp::DeadlineTooNear),
        }
    }
}
