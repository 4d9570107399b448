//! Classes and groups of errors, and batches over failed messages.

use std::num::NonZeroU32;
use std::time::Duration;

use mamparo_core::message::failed::{CLASS_BYTES_MAX, Group, class, facts};
use mamparo_core::message::headers::Headers;
use mamparo_core::message::selection::{Batch, End, Pace, Sample, Sent, Sift, Step, Tally};
use mamparo_core::message::topology::consumer_of;
use mamparo_core::time::{Moment, WallTime};
use proptest::prelude::*;

#[test]
fn what_differs_from_one_occurrence_to_the_next_is_no_part_of_a_class() {
    for (error, expected) in [
        ("order 17 timed out after 2003 ms", "order <n> timed out after <n> ms"),
        ("no order o-17 (v1.2)", "no order o-<n> (v<n>.<n>)"),
        ("charge 0af76519-16cd-43dd-8448-eb211c80319c: 503\n  retry", "charge <uuid>: <n> retry"),
        ("trace 0af7651916cd43dd8448eb211c80319c lost", "trace <hex> lost"),
        ("at 0x7ffe12 in add", "at <hex> in add"),
        ("missing field `total` at line 1", "missing field `total` at line <n>"),
        ("12345678 rows", "<n> rows"),
        ("facade decade", "facade decade"),
        ("", ""),
    ] {
        assert_eq!(class(error), expected, "{error:?}");
    }
}

#[test]
fn a_group_is_the_same_on_every_host_and_in_every_release() {
    let group = Group::of("attempts-spent", "order 17 timed out");
    assert_eq!(group, Group::of("attempts-spent", "order 4711 timed out"));
    assert_ne!(group, Group::of("poison", "order 17 timed out"));
    assert_eq!(group.to_string().parse(), Ok(group));
    assert_eq!(Group::of("", "").to_string(), "af63bd4c8601b7df", "known in advance");
    for wrong in ["", "12", "zf63bd4c8601b7df", "+f63bd4c8601b7df"] {
        assert!(wrong.parse::<Group>().is_err(), "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn a_time_that_was_written_is_read(millis in -62_167_219_200_000_i64..253_402_300_799_999) {
        let time = WallTime::from_unix_millis(millis);
        prop_assert_eq!(time.to_string().parse(), Ok(time));
    }

    #[test]
    fn no_text_that_is_no_time_makes_trouble(text in "[-0-9TZ:.]{0,24}|.{0,12}") {
        if let Ok(time) = text.parse::<WallTime>() {
            prop_assert_eq!(time.to_string().parse(), Ok(time));
        }
    }

    #[test]
    fn a_class_is_short_holds_no_digit_and_is_its_own_class(error in ".{0,400}") {
        let class_ = class(&error);
        prop_assert!(class_.len() <= CLASS_BYTES_MAX);
        prop_assert!(!class_.bytes().any(|byte| byte.is_ascii_digit()), "{class_:?}");
        prop_assert_eq!(class(&class_), class_);
    }

    #[test]
    fn numbers_and_uuids_do_not_make_a_group(a in any::<u64>(), b in any::<u64>(), id in any::<[u8; 16]>()) {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        let text = |n: u64, uuid: &str| format!("order {n} of {uuid}: 503 after {n}ms");
        let zero = "00000000-0000-0000-0000-000000000000";
        prop_assert_eq!(Group::of("r", &text(a, &uuid)), Group::of("r", &text(b, zero)));
    }
}

#[test]
fn lesson_s02_a_sift_asks_for_the_type_and_takes_all_conditions_together() {
    let it = Sample {
        id: "m-1",
        kind: "order.created",
        key: "o-1",
        failed: WallTime::from_unix_millis(1_000),
        reason: "attempts-spent",
        error: "Catalog said 503",
    };
    let at = |millis| Some(WallTime::from_unix_millis(millis));
    let text = |text: &str| Some(text.to_owned());
    let all = Sift::default;
    for (sift, expected) in [
        (all(), true),
        (Sift { ids: vec!["m-2".into(), "m-1".into()], ..all() }, true),
        (Sift { ids: vec!["m-2".into()], ..all() }, false),
        (Sift { kind: text("order.created"), ..all() }, true),
        (Sift { kind: text("order"), ..all() }, false),
        (Sift { key: text("o-1"), ..all() }, true),
        (Sift { key: text("o-2"), ..all() }, false),
        (Sift { before: at(1_001), since: at(1_000), ..all() }, true),
        (Sift { before: at(1_000), ..all() }, false),
        (Sift { since: at(1_001), ..all() }, false),
        (Sift { error: text("CATALOG"), ..all() }, true),
        (Sift { error: text("payments"), ..all() }, false),
        (Sift { group: Some(Group::of("attempts-spent", "Catalog said 500")), ..all() }, true),
        (Sift { group: Some(Group::of("poison", "Catalog said 503")), ..all() }, false),
        (Sift { kind: text("order.created"), key: text("o-2"), ..all() }, false),
    ] {
        assert_eq!(sift.takes(&it), expected, "{sift:?}");
    }
}

#[test]
fn a_dead_letter_is_read_from_its_headers_whoever_gave_it_up() {
    let of = |pairs: &[(&str, &str)]| -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let ours = of(&[
        ("x-dead-reason", "poison"),
        ("x-last-death-reason", "delivery_limit"),
        ("x-last-death-queue", "q"),
        ("X-Last-Error", "no"),
        ("x-attempts", "3"),
        ("x-first-failure", "2026-11-30T08:05:09.042Z"),
        ("x-last-failure", "yesterday"),
        ("x-failure-host", "shop-1"),
    ]);
    let read = facts(&ours, "q");
    assert_eq!((read.reason, read.error, read.attempts, read.host), ("poison", "no", 3, "shop-1"));
    assert_eq!((read.first.map(WallTime::unix_millis), read.last), (Some(1_796_025_909_042), None));
    for (headers, reason) in [
        (of(&[]), "unknown"),
        (
            of(&[("x-last-death-reason", "delivery_limit"), ("x-last-death-queue", "q")]),
            "delivery-limit",
        ),
        (of(&[("x-first-death-reason", "maxlen"), ("x-first-death-queue", "q")]), "maxlen"),
        (of(&[("x-first-death-reason", "expired"), ("x-first-death-queue", "q.retry")]), "unknown"),
    ] {
        assert_eq!(facts(&headers, "q").reason, reason);
    }
}

fn now(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn some(n: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(n)
}

#[test]
fn lesson_s03_an_id_that_lies_there_twice_has_one_turn() {
    let mut batch = Batch::new(Pace::default(), ["a", "b", "a", "c", "b"], now(0));
    assert_eq!(batch.ask(now(0)), Step::Send(0..3));
    assert_eq!(
        (0..3).map(|turn| batch.place(turn)).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(3)]
    );
    for turn in 0..3 {
        batch.tell(now(0), turn, Sent::Done);
    }
    assert!(batch.returned("a") && !batch.returned("a") && !batch.returned("z"));
    assert_eq!(batch.ask(now(0)), Step::End(End::Finished));
    assert_eq!(batch.tally(), Tally { done: 3, back: 1, ..Tally::default() });
}

#[test]
fn lesson_s07_a_canary_goes_alone_and_the_rest_waits_for_its_end() {
    let pace = Pace { canary: Some(Duration::from_secs(30)), ..Pace::default() };
    let sent = |sent| {
        let mut batch = Batch::new(pace, ["a", "b", "c"], now(0));
        assert_eq!(batch.ask(now(0)), Step::Send(0..1));
        batch.tell(now(5), 0, sent);
        batch
    };
    let mut handled = sent(Sent::Done);
    assert_eq!(handled.ask(now(6)), Step::Watch(0, now(30_005)));
    assert!(!handled.returned("b"), "not sent yet");
    handled.handled();
    assert_eq!(handled.ask(now(7)), Step::Send(1..3));

    let mut back = sent(Sent::Done);
    assert!(back.returned("a"));
    back.handled();
    assert_eq!(back.ask(now(7)), Step::End(End::CanaryFailed));
    assert_eq!(back.progress(), (3, 1));

    let mut silent = sent(Sent::Done);
    assert_eq!(silent.ask(now(30_005)), Step::End(End::CanaryUnknown));
    assert_eq!(sent(Sent::Refused).ask(now(7)), Step::End(End::CanaryFailed));
    assert_eq!(sent(Sent::Gone).ask(now(7)), Step::Send(1..2), "another canary");
}

#[test]
fn lesson_s07_a_batch_stops_at_the_nth_failure_and_not_later() {
    let pace = Pace { stop_after: some(2), ..Pace::default() };
    let mut batch = Batch::new(pace, ["a", "b", "c", "d", "e"], now(0));
    assert_eq!(batch.ask(now(0)), Step::Send(0..2), "no more at once than may fail");
    batch.tell(now(0), 0, Sent::Refused);
    batch.tell(now(0), 1, Sent::Done);
    assert_eq!(batch.ask(now(0)), Step::Send(2..3));
    batch.tell(now(0), 2, Sent::Done);
    assert!(batch.returned("b"));
    assert_eq!(batch.ask(now(0)), Step::End(End::Stopped));
    assert_eq!(batch.tally(), Tally { done: 2, refused: 1, back: 1, ..Tally::default() });

    let mut stopped = Batch::new(Pace::default(), ["a", "b"], now(0));
    stopped.interrupt();
    assert_eq!(stopped.ask(now(0)), Step::End(End::Interrupted));
}

proptest! {
    /// In no second do more go than the rate and the tenth that may go at once.
    #[test]
    fn lesson_s07_a_rate_holds_whenever_it_is_asked(
        rate in 1_u32..500,
        count in 1_usize..300,
        gaps in proptest::collection::vec(0_u64..700, 1..400),
    ) {
        let ids: Vec<String> = (0..count).map(|n| n.to_string()).collect();
        let pace = Pace { rate: some(rate), ..Pace::default() };
        let mut batch = Batch::new(pace, ids.iter().map(String::as_str), now(0));
        let (mut at, mut sent, mut turns) = (now(0), Vec::new(), Vec::new());
        let mut gaps = gaps.into_iter().cycle();
        loop {
            match batch.ask(at) {
                Step::Send(range) => {
                    for turn in range {
                        batch.tell(at, turn, Sent::Done);
                        sent.push(at);
                        turns.push(turn);
                    }
                }
                Step::Wait(until) => {
                    prop_assert!(until > at, "a wait is no busy loop");
                    at = until.plus(Duration::from_millis(gaps.next().unwrap_or(0)));
                }
                Step::Watch(..) => prop_assert!(false, "no canary was asked for"),
                Step::End(end) => {
                    prop_assert_eq!(end, End::Finished);
                    break;
                }
            }
        }
        prop_assert_eq!(turns, (0..count).collect::<Vec<_>>());
        let most = usize::try_from(rate + (rate / 10).max(1)).unwrap_or(usize::MAX);
        for (first, start) in sent.iter().enumerate() {
            let within = sent.iter().skip(first).take_while(|t| t.since(*start) < Duration::from_secs(1));
            prop_assert!(within.count() <= most, "rate {rate}");
        }
    }

    /// Whatever is told: each id has one turn at most, in order, and nothing goes after the end.
    #[test]
    fn lesson_s03_a_batch_touches_each_id_once_and_in_order(
        ids in proptest::collection::vec("[a-f]", 0..20),
        tells in proptest::collection::vec(0_u8..5, 1..60),
        stop in proptest::option::of(1_u32..4),
        canary in any::<bool>(),
        window in 1_u32..6,
    ) {
        let pace = Pace {
            canary: canary.then_some(Duration::from_secs(1)),
            stop_after: stop.and_then(NonZeroU32::new),
            window: NonZeroU32::new(window).unwrap_or(NonZeroU32::MIN),
            rate: None,
        };
        let mut batch = Batch::new(pace, ids.iter().map(String::as_str), now(0));
        let mut tells = tells.into_iter().cycle();
        let mut touched: Vec<String> = Vec::new();
        let end = loop {
            match batch.ask(now(0)) {
                Step::Send(range) => for turn in range {
                    let id = batch.place(turn).map(|place| ids[place].clone()).unwrap_or_default();
                    prop_assert!(!touched.contains(&id), "{id} twice");
                    touched.push(id);
                    let sent = match tells.next() { Some(0) => Sent::Refused, Some(1) => Sent::Gone, _ => Sent::Done };
                    batch.tell(now(0), turn, sent);
                },
                Step::Watch(turn, _) => match tells.next() {
                    Some(0) => batch.interrupt(),
                    Some(1) => { let id = ids[batch.place(turn).unwrap_or(0)].clone(); batch.returned(&id); }
                    _ => batch.handled(),
                },
                Step::Wait(_) => prop_assert!(false, "no rate was asked for"),
                Step::End(end) => break end,
            }
        };
        prop_assert_eq!(batch.ask(now(9)), Step::End(end));
        let mut firsts: Vec<String> = Vec::new();
        for id in &ids { if !firsts.contains(id) { firsts.push(id.clone()); } }
        prop_assert_eq!(&firsts[..touched.len()], &touched[..]);
        if end == End::Finished { prop_assert_eq!(firsts.len(), touched.len()); }
        if let Some(stop) = stop { prop_assert!(batch.tally().refused + batch.tally().back <= stop); }
    }
}

#[test]
fn the_versions_of_a_queue_are_one_consumer_and_its_attempts_are_theirs() {
    for (queue, consumer) in [
        ("orders.saga", "orders.saga"),
        ("orders.saga.v2", "orders.saga"),
        ("orders.v2.saga", "orders.v2.saga"),
        ("orders.vip", "orders.vip"),
        ("orders.v", "orders.v"),
    ] {
        assert_eq!(consumer_of(queue), consumer);
        let all = [("x-attempts", "5"), ("x-attempts-queue", consumer)];
        let all: Headers = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        assert_eq!(facts(&all, queue).attempts, 5, "{queue}");
        assert_eq!(facts(&all, "mail").attempts, 0, "none of theirs");
    }
}
