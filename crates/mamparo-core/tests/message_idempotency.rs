//! The claim machine of idempotency keys, and the format of the keys.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::time::Duration;

use mamparo_core::limits::IDEMPOTENCY_KEY_BYTES_MAX;
use mamparo_core::message::idempotency::*;
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(24 * 3_600);

fn at(seconds: i64) -> WallTime {
    WallTime::from_unix_millis(seconds * 1_000)
}

fn claim(now: WallTime, record: Option<&Record>, fingerprint: &str) -> Decision {
    ask(now, record, fingerprint, LEASE, RETENTION)
}

fn granted(decision: Decision) -> (Record, GrantReason) {
    match decision {
        Decision::Grant { record, reason } => (record, reason),
        other @ (Decision::InProgress { .. } | Decision::Replay | Decision::Mismatch) => {
            panic!("not granted: {other:?}")
        }
    }
}

#[test]
fn every_row_of_the_table_is_what_the_machine_does() {
    let mut hits = Vec::new();
    let late = at(0).plus(RETENTION);
    let running = granted(claim(at(0), None, "a")).0;
    hits.push((State::Absent, Event::Claim));
    let released = tell(Some(&running), 1, Report::Release).unwrap();
    let completed = tell(Some(&running), 1, Report::Complete).unwrap();
    hits.extend([(State::Running, Event::Release), (State::Running, Event::Complete)]);
    for (record, now, fingerprint) in [
        (&running, at(1), "a"),
        (&running, at(30), "a"),
        (&running, at(1), "b"),
        (&running, late, "b"),
        (&released, at(1), "a"),
        (&released, at(1), "b"),
        (&released, late, "a"),
        (&completed, at(1), "a"),
        (&completed, at(1), "b"),
        (&completed, late, "b"),
    ] {
        let event = event_of_claim(now, record, fingerprint);
        let after = match claim(now, Some(record), fingerprint) {
            Decision::Grant { record: new, .. } => {
                assert_eq!(new.epoch, record.epoch + 1, "a grant fences the owner before");
                new.state()
            }
            Decision::InProgress { .. } | Decision::Replay | Decision::Mismatch => record.state(),
        };
        let row = TABLE.row(record.state(), event);
        assert_eq!(row.map(|row| row.to), Some(after), "{:?} on {event:?}", record.state());
        hits.push((record.state(), event));
    }
    assert_eq!(released.state(), State::Released);
    assert_eq!(completed.state(), State::Completed);
    assert_eq!(TABLE.untested(&hits), Vec::<String>::new());
}

#[test]
fn decisions_follow_the_draft() {
    let (running, reason) = granted(claim(at(0), None, "a"));
    assert_eq!((running.epoch, reason), (1, GrantReason::Fresh));
    assert_eq!(claim(at(29), Some(&running), "a"), Decision::InProgress { until: at(30) });
    let completed = tell(Some(&running), 1, Report::Complete).unwrap();
    assert_eq!(claim(at(29), Some(&completed), "a"), Decision::Replay);
    assert_eq!(claim(at(31), Some(&completed), "a"), Decision::Replay);
}

#[test]
fn messages_c40_the_same_key_with_another_payload_is_a_mismatch_in_every_phase() {
    let (running, _) = granted(claim(at(0), None, "a"));
    let completed = tell(Some(&running), 1, Report::Complete).unwrap();
    let released = tell(Some(&running), 1, Report::Release).unwrap();
    for record in [&running, &completed, &released] {
        for now in [at(0), at(31)] {
            assert_eq!(claim(now, Some(record), "b"), Decision::Mismatch, "{record:?}");
        }
    }
}

#[test]
fn a_dead_owner_is_replaced_and_fenced_off() {
    let (first, _) = granted(claim(at(0), None, "a"));
    let (second, reason) = granted(claim(at(30), Some(&first), "a"));
    assert_eq!((second.epoch, reason), (2, GrantReason::LeaseExpired));
    assert_eq!(tell(Some(&second), first.epoch, Report::Complete), Err(Unfit::Fenced));
    assert!(tell(Some(&second), second.epoch, Report::Complete).is_ok());
}

#[test]
fn a_released_key_keeps_its_epoch_so_that_an_older_owner_stays_fenced() {
    let (first, _) = granted(claim(at(0), None, "a"));
    let (second, _) = granted(claim(at(30), Some(&first), "a"));
    let released = tell(Some(&second), 2, Report::Release).unwrap();
    let (third, reason) = granted(claim(at(31), Some(&released), "a"));
    assert_eq!((third.epoch, reason), (3, GrantReason::Released));
    assert_eq!(tell(Some(&third), 1, Report::Complete), Err(Unfit::Fenced));
}

#[test]
fn a_second_report_changes_nothing() {
    let (first, _) = granted(claim(at(0), None, "a"));
    let completed = tell(Some(&first), 1, Report::Complete).unwrap();
    let released = tell(Some(&first), 1, Report::Release).unwrap();
    for report in [Report::Complete, Report::Release] {
        assert_eq!(tell(Some(&completed), 1, report), Err(Unfit::AlreadyCompleted));
        assert_eq!(tell(Some(&released), 1, report), Err(Unfit::AlreadyReleased));
        assert_eq!(tell(None, 1, report), Err(Unfit::Fenced));
    }
}

#[test]
fn a_retention_shorter_than_the_lease_does_not_cut_the_lease() {
    let (record, _) = granted(ask(at(0), None, "a", LEASE, Duration::ZERO));
    assert_eq!(claim(at(29), Some(&record), "a"), Decision::InProgress { until: at(30) });
}

#[test]
fn keys_are_read_quoted_or_bare() {
    for (value, key) in [
        ("\"8e03978e-40d5\"", "8e03978e-40d5"),
        ("8e03978e-40d5", "8e03978e-40d5"),
        ("  order:17/a=b \t", "order:17/a=b"),
        ("\"with space\"", "with space"),
        (r#""a\"b\\c""#, r#"a"b\c"#),
        ("\"k\";v=1", "k"),
    ] {
        assert_eq!(IdempotencyKey::parse(value).unwrap().as_str(), key, "{value}");
    }
}

#[test]
fn malformed_keys_say_what_is_wrong_and_where() {
    let long = "x".repeat(IDEMPOTENCY_KEY_BYTES_MAX + 1);
    for (value, error) in [
        ("", KeyError::Empty),
        ("  ", KeyError::Empty),
        ("\"\"", KeyError::Empty),
        ("\"abc", KeyError::Unterminated),
        ("\"", KeyError::Unterminated),
        (r#""a\b""#, KeyError::Escape { at: 2 }),
        (r#""a\"#, KeyError::Escape { at: 2 }),
        ("a b", KeyError::Byte { at: 1 }),
        (" a,b", KeyError::Byte { at: 2 }),
        ("clé", KeyError::Byte { at: 2 }),
        ("\"clé\"", KeyError::Byte { at: 3 }),
        ("\"a\" \"b\"", KeyError::Byte { at: 3 }),
        ("\"a\";\u{7}", KeyError::Byte { at: 4 }),
        (long.as_str(), KeyError::TooLong { bytes: 256 }),
    ] {
        assert_eq!(IdempotencyKey::parse(value), Err(error), "{value:?}");
        assert!(!error.to_string().is_empty());
    }
    assert!(IdempotencyKey::parse(&long[1..]).is_ok());
}

/// What happens next in a random history of requests and owners.
#[derive(Debug, Clone)]
enum Step {
    Claim { fingerprint: &'static str },
    Report { owner: usize, report: Report },
    Pass { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let report = prop_oneof![Just(Report::Complete), Just(Report::Release)];
    let step = prop_oneof![
        4 => prop_oneof![4 => Just("a"), 1 => Just("b")]
            .prop_map(|fingerprint| Step::Claim { fingerprint }),
        3 => (0_usize..8, report).prop_map(|(owner, report)| Step::Report { owner, report }),
        3 => (0_u64..40).prop_map(|seconds| Step::Pass { seconds }),
        1 => Just(Step::Pass { seconds: 90_000 }),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// However requests, deaths and late owners interleave: grants have rising epochs, only the
    /// latest owner's report counts, and no grant comes while a lease runs or after completion.
    #[test]
    fn at_most_one_owner_counts(steps in steps()) {
        let (mut now, mut record, mut owners) = (at(0), None::<Record>, Vec::<i64>::new());
        for step in steps {
            match step {
                Step::Pass { seconds } => now = now.plus(Duration::from_secs(seconds)),
                Step::Claim { fingerprint } => {
                    let decision = claim(now, record.as_ref(), fingerprint);
                    let Decision::Grant { record: new, .. } = decision else { continue };
                    if let Some(before) = record.filter(|before| now < before.keep_until) {
                        prop_assert_eq!(&before.fingerprint, &new.fingerprint);
                        match before.phase {
                            Phase::Completed => prop_assert!(false, "granted what is done"),
                            Phase::Running { lease_until } => prop_assert!(now >= lease_until),
                            Phase::Released => {}
                        }
                    }
                    prop_assert!(owners.last().is_none_or(|last| *last < new.epoch));
                    owners.push(new.epoch);
                    record = Some(new);
                }
                Step::Report { owner, report } => {
                    let Some(epoch) = owners.get(owner) else { continue };
                    let settled = record.as_ref().is_some_and(|it| it.state() != State::Running);
                    match tell(record.as_ref(), *epoch, report) {
                        Ok(new) => {
                            prop_assert!(!settled);
                            prop_assert_eq!(Some(epoch), owners.last());
                            record = Some(new);
                        }
                        Err(Unfit::Fenced) => prop_assert_ne!(Some(epoch), owners.last()),
                        Err(Unfit::AlreadyCompleted | Unfit::AlreadyReleased) => {
                            prop_assert!(settled);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn no_header_value_makes_the_parser_panic(value in "\\PC{0,300}|[\"\\\\a ;,\t]{0,20}") {
        if let Ok(key) = IdempotencyKey::parse(&value) {
            let bytes = key.as_str().len();
            prop_assert!((1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&bytes));
            prop_assert_eq!(IdempotencyKey::parse(&key.to_header()), Ok(key));
        }
    }
}
