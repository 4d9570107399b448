//! What the relay does after a publish.

#![allow(clippy::panic, reason = "helpers of tests fail the test")]

use std::time::Duration;

use mamparo_core::message::relay::*;
use mamparo_core::rng::SeededRng;
use mamparo_core::time::WallTime;
use proptest::prelude::*;

const NOW: WallTime = WallTime::from_unix_millis(1_000_000);

/// Takes a row along `events` by the table; every event must fit.
fn walk(events: &[Event], hits: &mut Vec<(State, Event)>) -> State {
    events.iter().fold(State::Pending, |state, on| {
        hits.push((state, *on));
        TABLE.row(state, *on).map_or_else(|| panic!("{state:?} on {on:?}"), |row| row.to)
    })
}

#[test]
fn every_row_of_the_table_is_driven() {
    let mut hits = Vec::new();
    for (events, end) in [
        (vec![Event::Claimed, Event::Confirmed], State::Done),
        (vec![Event::Claimed, Event::Returned, Event::Due, Event::Claimed], State::InFlight),
        (vec![Event::Claimed, Event::Nacked, Event::Due], State::Pending),
        (vec![Event::Claimed, Event::Unknown, Event::Due, Event::Claimed], State::InFlight),
        (vec![Event::Claimed, Event::Released], State::Pending),
        (vec![Event::Claimed, Event::LeaseExpired], State::Pending),
        (vec![Event::KeyParked], State::Behind),
        (vec![Event::KeyParked, Event::KeyFree, Event::Claimed], State::InFlight),
    ] {
        assert_eq!(walk(&events, &mut hits), end, "{events:?}");
    }
    assert_eq!(TABLE.untested(&hits), Vec::<String>::new());
    for on in [Event::Claimed, Event::Confirmed, Event::Due, Event::LeaseExpired] {
        assert_eq!(TABLE.row(State::Done, on), None, "a confirmed row never moves again");
    }
}

#[test]
fn messages_c15_every_answer_of_the_broker_leads_somewhere_as_the_table_says() {
    let (policy, mut rng) = (Policy::default(), SeededRng::new(1));
    for published in
        [Published::Confirmed, Published::Returned, Published::Nacked, Published::Unknown]
    {
        let state = match policy.tell(NOW, 1, published, &mut rng) {
            Decision::Done => State::Done,
            Decision::Postpone { state, .. } => state,
        };
        let row = TABLE.row(State::InFlight, published.event());
        assert_eq!(row.map(|row| row.to), Some(state), "{published:?}");
    }
}

#[test]
fn waits_grow_to_the_cap_and_persistent_refusals_become_errors() {
    let (policy, mut rng) = (Policy::default(), SeededRng::new(2));
    for (tries, low, high) in [
        (1, 500, 1_000),
        (2, 1_000, 2_000),
        (5, 8_000, 16_000),
        (6, 15_000, 30_000),
        (u32::MAX, 15_000, 30_000),
    ] {
        match policy.tell(NOW, tries, Published::Nacked, &mut rng) {
            Decision::Done => panic!("a refused row is never done"),
            Decision::Postpone { due, alarm, .. } => {
                let wait = due.since(NOW).as_millis();
                assert!((low..=high).contains(&wait), "try {tries}: {wait} ms");
                assert_eq!(alarm, if tries >= 5 { Alarm::Error } else { Alarm::Warn });
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_but_a_confirm_ends_a_row(tries: u32, seed: u64) {
        let mut rng = SeededRng::new(seed);
        for published in [Published::Returned, Published::Nacked, Published::Unknown] {
            match Policy::default().tell(NOW, tries, published, &mut rng) {
                Decision::Done => prop_assert!(false, "{:?} lost a row", published),
                Decision::Postpone { due, .. } => {
                    prop_assert!(due > NOW && due.since(NOW) <= Duration::from_secs(30));
                }
            }
        }
    }
}
