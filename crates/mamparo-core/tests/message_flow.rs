//! How many messages a consumer takes, and in which order it handles those of one key.

use std::time::Duration;

use mamparo_core::message::intake::{Decision, Event, FLOW, Intake, PAUSE_MAX, Phase};
use mamparo_core::message::order::{Arrival, Fate, HOLD_GRACE, HOLD_MAX, KeyOrder, Next};
use mamparo_core::time::Moment;

#[test]
fn every_row_of_the_intake_is_driven() {
    let now = Moment::from_millis(1_000);
    let pause = Duration::from_secs(1);
    let mut hits = Vec::new();
    for row in FLOW.rows {
        let mut intake = Intake::new(10);
        match row.from {
            Phase::Flowing => {}
            Phase::Paused => {
                intake.tell(now, Event::Unavailable, pause);
            }
            Phase::Probing => {
                intake.tell(now, Event::Unavailable, pause);
                intake.ask(now.plus(pause), 0);
            }
        }
        assert_eq!(intake.phase(), row.from);
        let change = intake.tell(now, row.on, pause);
        assert_eq!(intake.phase(), row.to, "{row:?}");
        assert_eq!(change, (row.from != row.to).then_some(row.to));
        hits.push((row.from, row.on));
    }
    assert_eq!(FLOW.untested(&hits), Vec::<String>::new());
}

#[test]
fn lesson_k12_a_pause_ends_in_one_probe_at_a_time() {
    let now = Moment::from_millis(1_000);
    let mut intake = Intake::new(10);
    assert_eq!(intake.ask(now, 4), Decision::Take(6));
    assert_eq!(intake.ask(now, 99), Decision::Take(0));
    let until = now.plus(Duration::from_secs(5));
    intake.tell(now, Event::Unavailable, Duration::from_secs(5));
    intake.tell(now, Event::Unavailable, Duration::from_secs(2));
    assert_eq!(intake.ask(now, 0), Decision::Wait(until), "the later end counts");
    assert_eq!(intake.ask(until, 2), Decision::Take(0), "earlier ones are still in hand");
    assert_eq!(intake.ask(until, 0), Decision::Take(1));
    assert_eq!(intake.ask(until, 1), Decision::Take(0));
    intake.tell(until, Event::Handled, Duration::ZERO);
    assert_eq!(intake.ask(until, 0), Decision::Take(10));
    let mut endless = Intake::new(1);
    endless.tell(now, Event::Unavailable, Duration::MAX);
    assert_eq!(endless.ask(now, 0), Decision::Wait(now.plus(PAUSE_MAX)));
}

#[test]
fn lesson_k14_k15_a_key_waits_for_its_first_message_and_others_pass() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    assert_eq!(order.ask(now, "o-1", "created", 1), Arrival::Start);
    assert_eq!(order.ask(now, "o-1", "paid", 2), Arrival::Follow);
    assert_eq!(order.ask(now, "o-2", "other", 3), Arrival::Start);
    assert_eq!(order.ask(now, "", "keyless", 4), Arrival::Start);
    assert_eq!(order.ask(now, "", "another", 8), Arrival::Start);
    assert_eq!(order.ask(now, "", "keyless", 9), Arrival::Follow, "a copy of one in hand");
    assert_eq!(order.tell(now, "", "keyless", Fate::Left), [Next::Start(9)]);
    assert_eq!(order.tell(now, "", "keyless", Fate::Left), []);
    assert_eq!(order.tell(now, "", "another", Fate::Left), []);
    // `created` goes to the waiting room: what follows goes back, in hand or newly come.
    let delay = Duration::from_secs(30);
    let next = order.tell(now, "o-1", "created", Fate::Returns(delay));
    assert_eq!(next, [Next::GiveBack(2, delay)]);
    assert_eq!(order.ask(now, "o-1", "cancelled", 5), Arrival::GiveBack(delay));
    let back = now.plus(delay);
    assert_eq!(order.ask(back, "o-1", "created", 6), Arrival::Start);
    assert_eq!(order.ask(back, "o-1", "paid", 7), Arrival::Follow);
    assert_eq!(order.tell(back, "o-1", "created", Fate::Left), [Next::Start(7)]);
    assert_eq!(order.tell(back, "o-1", "paid", Fate::Left), []);
    assert_eq!(order.ask(back, "o-1", "cancelled", 10), Arrival::Start);
    assert_eq!(order.tell(back, "o-1", "cancelled", Fate::Left), []);
    assert_eq!(order.tell(back, "o-2", "other", Fate::Left), []);
    assert_eq!(order.keys(), 0);
}

#[test]
fn lesson_k14_what_waits_in_the_database_holds_nothing_here_and_is_followed_there() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    assert_eq!(order.ask(now, "o-1", "created", 1), Arrival::Start);
    assert_eq!(order.ask(now, "o-1", "paid", 2), Arrival::Follow);
    assert_eq!(order.ask(now, "o-1", "cancelled", 3), Arrival::Follow);
    let next = order.tell(now, "o-1", "created", Fate::Parked);
    assert_eq!(next, [Next::Park(2), Next::Park(3)], "in their order");
    assert_eq!(order.keys(), 0, "the database knows the key now");
    assert_eq!(order.ask(now, "o-1", "created", 4), Arrival::Start);
}

#[test]
fn lesson_k14_a_follower_that_was_sent_away_is_not_passed_when_its_key_is_free_again() {
    let now = Moment::from_millis(1_000);
    let delay = Duration::from_secs(30);
    let at = |seconds| now.plus(Duration::from_secs(seconds));
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    assert_eq!(order.ask(now, "o-1", "paid", 2), Arrival::Follow);
    let next = order.tell(now, "o-1", "created", Fate::Returns(delay));
    assert_eq!(next, [Next::GiveBack(2, delay)]);
    assert!(matches!(order.ask(at(5), "o-1", "packed", 3), Arrival::GiveBack(_)));
    // The waiting room is longer than what was asked for.
    order.away(at(5), "o-1", "paid", delay);
    order.away(at(6), "o-1", "packed", delay);
    assert_eq!(order.ask(at(30), "o-1", "created", 4), Arrival::Start);
    let five = Duration::from_secs(5);
    assert_eq!(order.ask(at(30), "o-1", "cancelled", 5), Arrival::GiveBack(five));
    assert_eq!(order.tell(at(31), "o-1", "created", Fate::Left), []);
    assert!(matches!(order.ask(at(34), "o-1", "cancelled", 6), Arrival::GiveBack(_)));
    assert!(matches!(order.ask(at(34), "o-1", "packed", 7), Arrival::GiveBack(_)), "too early");
    assert_eq!(order.ask(at(35), "o-1", "paid", 8), Arrival::Start);
    assert_eq!(order.ask(at(35), "o-1", "packed", 9), Arrival::Follow);
    assert_eq!(order.ask(at(35), "o-1", "cancelled", 10), Arrival::Follow);
    // It fails once more: before all that followed it, in hand or elsewhere.
    let next = order.tell(at(36), "o-1", "paid", Fate::Returns(delay));
    assert_eq!(next, [Next::GiveBack(9, delay), Next::GiveBack(10, delay)]);
    assert!(matches!(order.ask(at(66), "o-1", "packed", 11), Arrival::GiveBack(_)));
    for id in ["paid", "packed", "cancelled"] {
        assert_eq!(order.ask(at(67), "o-1", id, 12), Arrival::Start, "{id}");
        assert_eq!(order.tell(at(67), "o-1", id, Fate::Left), []);
    }
    assert_eq!(order.keys(), 0);
}

#[test]
fn lesson_k14_a_lost_connection_keeps_what_was_in_hand_before_what_is_elsewhere() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.ask(now, "o-1", "paid", 2);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::ZERO));
    order.ask(now, "o-1", "cancelled", 3);
    assert_eq!(order.ask(now, "o-1", "created", 4), Arrival::Start);
    order.let_go();
    assert!(matches!(order.ask(now, "o-1", "cancelled", 5), Arrival::GiveBack(_)));
    assert!(matches!(order.ask(now, "o-1", "paid", 6), Arrival::GiveBack(_)));
    assert_eq!(order.ask(now, "o-1", "created", 7), Arrival::Start);
    order.gone(now, "o-1", "cancelled");
    assert_eq!(order.ask(now, "o-1", "paid", 8), Arrival::Follow);
    assert_eq!(order.tell(now, "o-1", "created", Fate::Left), [Next::Start(8)]);
    assert_eq!(order.tell(now, "o-1", "paid", Fate::Left), []);
    assert_eq!(order.keys(), 0);
}

#[test]
fn lesson_k14_what_fails_again_stays_before_those_that_are_still_away() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.ask(now, "o-1", "paid", 2);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::ZERO));
    assert_eq!(order.ask(now, "o-1", "created", 3), Arrival::Start);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::ZERO));
    assert!(matches!(order.ask(now, "o-1", "paid", 4), Arrival::GiveBack(_)));
    assert_eq!(order.ask(now, "o-1", "created", 5), Arrival::Start);
}

#[test]
fn followers_that_never_come_back_here_hold_their_key_for_one_grace_together() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.ask(now, "o-1", "paid", 2);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::ZERO));
    let late = now.plus(Duration::from_secs(60));
    assert!(matches!(order.ask(late, "o-1", "cancelled", 3), Arrival::GiveBack(_)));
    let over = late.plus(HOLD_GRACE);
    assert_eq!(order.ask(over, "o-1", "cancelled", 4), Arrival::Start);
    order.gone(over, "o-2", "nobody");
    order.away(over, "o-2", "nobody", Duration::ZERO);
    assert_eq!(order.tell(over, "o-1", "cancelled", Fate::Left), []);
    assert_eq!(order.keys(), 0);
}

#[test]
fn a_hold_ends_when_its_message_never_comes_back_here() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::from_secs(30)));
    let due = now.plus(Duration::from_secs(30));
    assert!(matches!(order.ask(due, "o-1", "paid", 2), Arrival::GiveBack(_)));
    let over = due.plus(HOLD_GRACE);
    assert_eq!(order.ask(over, "o-1", "paid", 2), Arrival::Start);
    order.ask(over, "o-2", "x", 3);
    order.tell(over, "o-2", "x", Fate::Returns(Duration::ZERO));
    order.tell(over.plus(HOLD_MAX), "o-1", "paid", Fate::Left);
    assert_eq!(order.keys(), 0, "forgotten holds do not pile up");
}

#[test]
fn lesson_k14_a_pause_while_a_message_waits_does_not_let_later_ones_pass() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::from_secs(30)));
    // The circuit was open for long: the first message that comes is a later one.
    let after = now.plus(Duration::from_secs(300));
    assert!(matches!(order.ask(after, "o-1", "cancelled", 2), Arrival::GiveBack(_)));
    assert_eq!(order.ask(after, "o-1", "created", 3), Arrival::Start);
    assert_eq!(order.ask(after, "o-1", "cancelled", 2), Arrival::Follow);
}

#[test]
fn lesson_k14_a_lost_connection_forgets_what_was_in_hand_and_not_what_waits() {
    let now = Moment::from_millis(1_000);
    let mut order = KeyOrder::default();
    order.ask(now, "o-1", "created", 1);
    order.tell(now, "o-1", "created", Fate::Returns(Duration::from_secs(30)));
    order.ask(now, "o-2", "created", 2);
    order.ask(now, "o-2", "paid", 3);
    order.let_go();
    assert_eq!(order.keys(), 1);
    assert_eq!(order.ask(now, "o-2", "created", 4), Arrival::Start);
    assert!(matches!(order.ask(now, "o-1", "cancelled", 5), Arrival::GiveBack(_)));
}
