//! Where a message goes, row by row, and what its copy carries.

use std::time::Duration;

use mamparo_core::message::delivery::{
    Admission, Answer, CRASHES_MAX, Decision, Event, GIVE_BACK_MIN, History, LIFE, Place, settle,
    take,
};
use mamparo_core::message::headers::{self, Attempts, Headers};
use mamparo_core::message::topology::QueuePolicy;
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const NOW: WallTime = WallTime::from_unix_millis(1_796_025_909_042);

fn policy() -> QueuePolicy {
    QueuePolicy::new("orders.saga", "team-orders")
}

fn with(pairs: &[(&str, &str)]) -> Headers {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn answers() -> Vec<Answer> {
    let reason = "r".to_owned();
    let delay = Duration::from_secs(2);
    vec![
        Answer::Done,
        Answer::retry("r"),
        Answer::Defer { delay },
        Answer::Unavailable { delay, reason: reason.clone() },
        Answer::dead("r"),
        Answer::Undecodable { reason: reason.clone() },
        Answer::Panicked { reason },
        Answer::TimedOut { after: delay },
    ]
}

fn history(attempts: u32) -> History {
    History { attempts, crashes: 0 }
}

fn place_of(decision: &Decision) -> Place {
    match decision {
        Decision::Ack => Place::Gone,
        Decision::Wait { .. } => Place::Waiting,
        Decision::GiveBack { .. } => Place::Queued,
        Decision::DeadLetter { .. } => Place::DeadLettered,
    }
}

fn copied(decision: Decision) -> Headers {
    match decision {
        Decision::Wait { headers, .. } | Decision::DeadLetter { headers, .. } => headers,
        Decision::Ack | Decision::GiveBack { .. } => unreachable!("no copy: {decision:?}"),
    }
}

#[test]
fn every_row_of_a_messages_life_is_driven() {
    let mut hits = Vec::new();
    let later = NOW.plus(Duration::from_secs(9)).unix_millis().to_string();
    let early = with(&[(headers::NOT_BEFORE, &later)]);
    for (attempts, crashes, headers, expected) in [
        (0, 0, Headers::new(), Event::Taken),
        (4, 0, Headers::new(), Event::TakenLast),
        (0, CRASHES_MAX, Headers::new(), Event::TakenAfterCrashes),
        (0, 0, early, Event::TakenEarly),
    ] {
        let history = History { attempts, crashes };
        assert_eq!(history.event(&headers, &policy(), NOW), expected);
        let to = match take(&headers, history, &policy(), NOW) {
            Admission::Handle(place) => place,
            Admission::Settle(decision) => place_of(&decision),
        };
        assert_eq!(LIFE.row(Place::Queued, expected).map(|row| row.to), Some(to));
        hits.push((Place::Queued, expected));
    }
    for (place, attempts) in [(Place::InHand, 0), (Place::LastAttempt, 4)] {
        for answer in answers() {
            let decision =
                settle(&Headers::new(), place, history(attempts), &answer, &policy(), NOW);
            let row = LIFE.row(place, answer.event()).expect("a row for every answer");
            assert_eq!(place_of(&decision), row.to, "{place:?} {answer:?}");
            hits.push((place, answer.event()));
        }
        // A death shows as a counted start when the message is handed out again.
        let again = take(&Headers::new(), History { attempts, crashes: 1 }, &policy(), NOW);
        assert_eq!(again, Admission::Handle(place));
        hits.push((place, Event::Crashed));
    }
    // The waiting room, replay and discard are carried out by the broker; the tests below hold
    // their headers to the row.
    for (from, on) in [
        (Place::Waiting, Event::WaitOver),
        (Place::DeadLettered, Event::Replayed),
        (Place::DeadLettered, Event::Discarded),
    ] {
        assert!(LIFE.row(from, on).is_some());
        hits.push((from, on));
    }
    assert_eq!(LIFE.untested(&hits), Vec::<String>::new());
    assert!(LIFE.row(Place::Gone, Event::Taken).is_none());
}

#[test]
fn lesson_k03_k04_k05_broker_headers_and_addresses_are_never_copied() {
    let original = with(&[
        ("X-Death", "[…]"),
        ("x-first-death-queue", "q"),
        ("x-last-death-reason", "expired"),
        ("x-delivery-count", "3"),
        ("user_id", "guest"),
        ("CC", "other"),
        ("BCC", "other"),
        ("expiration", "1000"),
        (headers::REQUEST_ID, "r-1"),
        (headers::TRACEPARENT, "00-a-b-01"),
        ("tenant", "t"),
    ]);
    let retry = settle(&original, Place::InHand, history(0), &Answer::retry("503"), &policy(), NOW);
    let dead = settle(&original, Place::InHand, history(0), &Answer::dead("bad"), &policy(), NOW);
    for copy in [
        copied(retry),
        copied(dead),
        headers::replayed(&original, "orders.saga", "ana", "catalog is back", NOW),
    ] {
        for banned in headers::NEVER_COPIED {
            assert_eq!(headers::get(&copy, banned), None, "{banned}");
        }
        assert_eq!(headers::get(&copy, headers::REQUEST_ID), Some("r-1"));
        assert_eq!(headers::get(&copy, headers::TRACEPARENT), Some("00-a-b-01"));
        assert_eq!(headers::get(&copy, "tenant"), Some("t"));
    }
}

#[test]
fn lesson_k06_attempts_are_read_without_trust() {
    let read = |pairs: &[(&str, &str)]| headers::attempts(&with(pairs), "orders.saga");
    let made = |made| Attempts { made, unreadable: false };
    assert_eq!(read(&[]), made(0));
    assert_eq!(read(&[("x-attempts", "3")]), made(3));
    assert_eq!(read(&[("X-ATTEMPTS", " 2 ")]), made(2));
    for garbage in ["", "-1", "many", "1.5", "99999999999999999999", "\u{0}"] {
        let read = read(&[("x-attempts", garbage)]);
        assert_eq!(read, Attempts { made: 0, unreadable: true }, "{garbage:?}");
    }
}

#[test]
fn lesson_k17_a_count_of_another_queue_is_none_of_ours() {
    let foreign = with(&[("x-attempts", "4"), ("x-attempts-queue", "payments.saga")]);
    assert_eq!(headers::attempts(&foreign, "orders.saga").made, 0);
    let answer = Answer::retry("x");
    let copy = copied(settle(&foreign, Place::InHand, history(0), &answer, &policy(), NOW));
    assert_eq!(headers::attempts(&copy, "orders.saga").made, 1);
}

#[test]
fn messages_c02_attempts_count_by_our_own_header_alone_up_to_the_limit() {
    let mut headers = with(&[("x-death", "count=1")]);
    let mut seen = Vec::new();
    for _ in 0..10 {
        let history = history(headers::attempts(&headers, "orders.saga").made);
        let Admission::Handle(place) = take(&headers, history, &policy(), NOW) else {
            panic!("not admitted")
        };
        let decision = settle(&headers, place, history, &Answer::retry("503"), &policy(), NOW);
        seen.push(decision.outcome());
        headers = copied(decision);
        if seen.last() == Some(&"dead") {
            break;
        }
    }
    assert_eq!(seen, ["retried", "retried", "retried", "retried", "dead"]);
    assert_eq!(headers::get(&headers, headers::ATTEMPTS), Some("5"));
}

#[test]
fn messages_c03_ten_retries_carry_no_trace_of_an_earlier_dead_letter() {
    let patient = QueuePolicy { attempts: 20, ..policy() };
    let mut headers = with(&[("x-death", "maxlen"), ("x-first-death-reason", "maxlen")]);
    for n in 0..10 {
        let answer = Answer::retry("503");
        headers = copied(settle(&headers, Place::InHand, history(n), &answer, &patient, NOW));
        assert!(headers.keys().all(|name| !name.contains("death")), "{headers:?}");
    }
}

#[test]
fn lesson_k12_nothing_that_is_not_the_messages_fault_counts() {
    for place in [Place::InHand, Place::LastAttempt] {
        for answer in [
            Answer::Defer { delay: Duration::from_secs(7) },
            Answer::Unavailable { delay: Duration::from_secs(7), reason: "open".to_owned() },
        ] {
            let decision = settle(&Headers::new(), place, history(4), &answer, &policy(), NOW);
            let Decision::GiveBack { delay, .. } = decision else { panic!("{decision:?}") };
            assert_eq!(delay, Duration::from_secs(7));
        }
    }
    let zero = Answer::Defer { delay: Duration::ZERO };
    let decision = settle(&Headers::new(), Place::InHand, history(0), &zero, &policy(), NOW);
    assert!(matches!(decision, Decision::GiveBack { delay, .. } if delay == GIVE_BACK_MIN));
}

#[test]
fn lesson_k16_a_dead_letter_says_why_since_when_and_how_often() {
    let first = with(&[(headers::FIRST_FAILURE, "2026-11-30T08:00:00.000Z")]);
    let answer = Answer::retry("the PSP said 503\r\nand more");
    let copy = copied(settle(&first, Place::LastAttempt, history(4), &answer, &policy(), NOW));
    let get = |name| headers::get(&copy, name);
    assert_eq!(get(headers::DEAD_REASON), Some("attempts-spent"));
    assert_eq!(get(headers::ATTEMPTS), Some("5"));
    assert_eq!(get(headers::FIRST_FAILURE), Some("2026-11-30T08:00:00.000Z"));
    assert_eq!(get(headers::LAST_FAILURE), Some("2026-11-30T08:05:09.042Z"));
    assert_eq!(get(headers::LAST_ERROR), Some("the PSP said 503  and more"));
    let long = Answer::dead("é".repeat(5_000));
    let copy = copied(settle(&first, Place::InHand, history(0), &long, &policy(), NOW));
    let error = headers::get(&copy, headers::LAST_ERROR).map_or(0, str::len);
    assert!(error <= headers::ERROR_BYTES_MAX && error > 1_000, "{error}");
}

#[test]
fn a_longer_delay_than_the_rooms_is_asked_for_and_a_named_time_is_kept() {
    let asked = Answer::RetryAfter { delay: Some(Duration::from_secs(90)), reason: String::new() };
    let decision = settle(&Headers::new(), Place::InHand, history(0), &asked, &policy(), NOW);
    let Decision::Wait { headers: mut copy, attempts: 1, asked: Some(asked), .. } = decision else {
        panic!("{decision:?}")
    };
    // The waiting room names the time (see `waiting::stay`).
    let due = NOW.plus(asked);
    headers::set(&mut copy, headers::NOT_BEFORE, due.unix_millis().to_string());
    // Back from the waiting room after 30 s: 60 s to go, no attempt counted.
    let back = NOW.plus(Duration::from_secs(30));
    let Admission::Settle(Decision::GiveBack { delay, .. }) =
        take(&copy, history(1), &policy(), back)
    else {
        panic!("handled too early")
    };
    assert_eq!(delay, Duration::from_secs(60));
    assert_eq!(take(&copy, history(1), &policy(), due), Admission::Handle(Place::InHand));
    // The next failure's copy does not inherit the old time.
    let next = settle(&copy, Place::InHand, history(1), &Answer::retry("x"), &policy(), due);
    assert_eq!(headers::not_before(&copied(next)), None);
}

#[test]
fn lesson_s05_a_replay_starts_over_keeps_the_trace_and_says_that_it_is_one() {
    let dead = with(&[
        ("x-attempts", "5"),
        ("x-attempts-queue", "orders.saga"),
        ("x-death", "x"),
        (headers::DEAD_REASON, "attempts-spent"),
        (headers::FIRST_FAILURE, "2026-11-30T08:00:00.000Z"),
        (headers::TRACEPARENT, "00-a-b-01"),
    ]);
    let copy = headers::replayed(&dead, "orders.saga", "ana", "catalog is back", NOW);
    assert_eq!(headers::attempts(&copy, "orders.saga").made, 0);
    assert_eq!(headers::get(&copy, headers::REPLAYED), Some("2026-11-30T08:05:09.042Z"));
    assert_eq!(headers::get(&copy, headers::TRACEPARENT), Some("00-a-b-01"));
    assert_eq!(headers::get(&copy, headers::FIRST_FAILURE), Some("2026-11-30T08:00:00.000Z"));
    assert_eq!(headers::get(&copy, headers::DEAD_REASON), None);
    assert_eq!(headers::get(&copy, "x-death"), None);
    assert_eq!(headers::get(&copy, headers::REPLAYED_BY), Some("ana"));
    assert_eq!(headers::get(&copy, headers::REPLAY_REASON), Some("catalog is back"));
    let again = headers::replayed(&copy, "orders.saga", "bea", " ", NOW);
    assert_eq!(headers::get(&again, headers::REPLAYED_BY), Some("bea"));
    assert_eq!(headers::get(&again, headers::REPLAY_REASON), None, "an old reason is not theirs");
}

#[test]
fn messages_c08_a_message_is_given_up_after_three_processes_died_of_it() {
    for crashes in 0..CRASHES_MAX {
        let history = History { attempts: 0, crashes };
        let admitted = take(&Headers::new(), history, &policy(), NOW);
        assert_eq!(admitted, Admission::Handle(Place::InHand), "{crashes}");
    }
    let history = History { attempts: 0, crashes: CRASHES_MAX };
    let Admission::Settle(decision) = take(&Headers::new(), history, &policy(), NOW) else {
        panic!("handled again")
    };
    assert_eq!(headers::get(&copied(decision), headers::DEAD_REASON), Some("crashes"));
}

proptest! {
    #[test]
    fn no_headers_or_numbers_make_a_decision_panic(
        names in proptest::collection::vec(("(?i)(x-attempts|x-not-before-ms|.{0,9})", ".{0,20}"), 0..6),
        attempts: u32, crashes: u32, which in 0_usize..8, last: bool, error in ".{0,2000}",
    ) {
        let headers: Headers = names.into_iter().collect();
        let read = headers::attempts(&headers, "q").made;
        for attempts in [attempts, read] {
            let history = History { attempts, crashes };
            let _ = take(&headers, history, &policy(), NOW);
            let place = if last { Place::LastAttempt } else { Place::InHand };
            let answer =
                if which == 0 { Answer::retry(error.clone()) } else { answers()[which].clone() };
            let decision = settle(&headers, place, history, &answer, &policy(), NOW);
            if let Decision::Wait { headers, .. } = decision {
                let made = headers::attempts(&headers, "orders.saga").made;
                prop_assert_eq!(made, attempts.saturating_add(1));
            }
        }
    }
}
