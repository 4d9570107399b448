//! Which waiting room a consumer gets, and for how long a message stays in it.

use std::time::Duration;

use mamparo_core::message::capabilities::{Capabilities, Version};
use mamparo_core::message::topology::{QueuePolicy, RETRY_DELAY_MAX, WaitingRoom};
use mamparo_core::message::waiting::{Again, SPREAD_PERCENT, Stay, again, choose, stay, tier_for};
use mamparo_core::rng::SeededRng;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn policy(room: WaitingRoom, tiers: &[u64]) -> QueuePolicy {
    QueuePolicy {
        waiting_room: room,
        retry_tiers: tiers.iter().copied().map(Duration::from_secs).collect(),
        ..QueuePolicy::new("orders.saga", "team-orders")
    }
}

#[test]
fn every_room_is_given_or_replaced_with_words() {
    let embedded = Capabilities::embedded();
    let rabbit = |major, minor| Capabilities::rabbitmq(Version::new(major, minor, 0));
    let (tiers, parked, broker) = (WaitingRoom::Tiers, WaitingRoom::Parked, WaitingRoom::Broker);
    // Asked for, broker, has a database; given, a word of the reason.
    let rows = [
        (tiers, embedded, true, tiers, None),
        (tiers, rabbit(3, 10), false, tiers, None),
        (tiers, rabbit(4, 3), true, tiers, None),
        (parked, embedded, true, parked, None),
        (parked, rabbit(3, 10), true, parked, None),
        (parked, rabbit(4, 3), true, parked, None),
        (parked, embedded, false, tiers, Some("has none")),
        (parked, rabbit(4, 3), false, tiers, Some("has none")),
        (broker, embedded, true, tiers, Some("embedded broker has no")),
        (broker, rabbit(3, 10), true, tiers, Some("this broker is 3.10.0")),
        (broker, rabbit(3, 13), true, tiers, Some("RabbitMQ 4.3")),
        (broker, rabbit(4, 1), true, tiers, Some("this broker is 4.1.0")),
        (broker, rabbit(4, 3), true, broker, None),
        // The plan does not know of databases, but with one it says what the consumer does.
        (broker, embedded, false, tiers, Some("embedded broker has no")),
        (broker, rabbit(4, 1), false, tiers, Some("this broker is 4.1.0")),
    ];
    for (asked, caps, has_database, given, word) in rows {
        let policy = policy(asked, &[]);
        let choice = choose(&policy, &caps, has_database).unwrap();
        assert_eq!(choice.room, given, "{asked:?} on {caps} {has_database}");
        assert!(!has_database || policy.room_on(&caps) == given, "{asked:?} on {caps}");
        match (&choice.why, word) {
            (None, None) => {}
            (Some(why), Some(word)) => assert!(why.contains(word), "{why}"),
            (why, _) => panic!("{asked:?} on {caps}: {why:?}"),
        }
    }
}

/// The queue would delay by itself, as planned, and nothing would count the attempts.
#[test]
fn the_brokers_own_room_is_not_begun_without_a_database() {
    let asked = policy(WaitingRoom::Broker, &[]);
    let caps = Capabilities::rabbitmq(Version::new(4, 3, 0));
    let why = choose(&asked, &caps, false).unwrap_err();
    assert!(why.contains("no database") && why.contains("waiting_room = \"tiers\""), "{why}");
}

#[test]
fn at_the_broker_the_wait_grows_by_its_first_delay_up_to_the_last_without_spread() {
    let broker = WaitingRoom::Broker;
    let tiers = policy(broker, &[5, 30, 120]);
    let mut rng = SeededRng::new(1);
    let mut at = |attempt, asked| stay(&tiers, broker, attempt, asked, &mut rng).wait;
    for (attempt, seconds) in [(0, 5), (1, 5), (2, 10), (6, 30), (24, 120), (25, 120), (99, 120)] {
        assert_eq!(at(attempt, None), seconds * SECOND, "{attempt}");
    }
    assert_eq!(at(u32::MAX, None), 120 * SECOND);
    assert_eq!(at(1, Some(90 * SECOND)), 90 * SECOND);
    assert_eq!(at(3, Some(SECOND)), 15 * SECOND, "a wish can only lengthen it");
    let one = policy(broker, &[]);
    assert_eq!(stay(&one, broker, 7, None, &mut rng).wait, 30 * SECOND);
}

#[test]
fn what_a_message_can_spend_covers_either_way_of_waiting() {
    let at_most = |room, tiers: &[u64]| policy(room, tiers).worst_case() - 5 * 30 * SECOND;
    // With 20 % more where tiers are several: it may be tiers.
    assert_eq!(at_most(WaitingRoom::Tiers, &[5, 30, 120, 600]), 906 * SECOND);
    assert_eq!(at_most(WaitingRoom::Broker, &[5, 30, 120, 600]), 906 * SECOND);
    assert_eq!(at_most(WaitingRoom::Broker, &[10, 11, 12, 13, 40]), 100 * SECOND, "10 to 40");
    assert_eq!(at_most(WaitingRoom::Broker, &[]), 120 * SECOND);
}

#[test]
fn a_message_is_given_back_as_a_copy_before_the_broker_gives_it_up() {
    for limit in [1_u32, 2, 3, 5, 20, 100, 10_000] {
        let policy = QueuePolicy { delivery_limit: limit, ..policy(WaitingRoom::Broker, &[]) };
        let rejected = (0..).take_while(|n| again(&policy, *n) == Again::Reject).count();
        let rejected = u32::try_from(rejected).unwrap();
        assert!(rejected >= 1 && rejected <= limit, "{limit}: {rejected}");
        assert!(limit < 2 || rejected * 2 <= limit, "half is left for other deaths: {limit}");
        assert_eq!(again(&policy, u32::MAX), Again::Copy);
    }
}

#[test]
fn one_delay_is_the_lessons_and_a_longer_wish_is_named() {
    let mut rng = SeededRng::new(1);
    let one = policy(WaitingRoom::Tiers, &[]);
    let mut at = |attempt, asked| stay(&one, WaitingRoom::Tiers, attempt, asked, &mut rng);
    let lesson = Stay { tier: 0, wait: 30 * SECOND, named: false };
    for attempt in [0, 1, 2, 5, u32::MAX] {
        assert_eq!(at(attempt, None), lesson);
        assert_eq!(at(attempt, Some(SECOND)), lesson, "a wish can only lengthen it");
    }
    assert_eq!(at(1, Some(90 * SECOND)), Stay { tier: 0, wait: 90 * SECOND, named: true });
    assert_eq!(at(1, Some(Duration::MAX)).wait, RETRY_DELAY_MAX);
}

#[test]
fn lesson_t05_growing_delays_are_spread_so_that_an_outage_does_not_return_in_one_second() {
    let tiers = policy(WaitingRoom::Tiers, &[5, 30, 120, 600]);
    let mut rng = SeededRng::new(7);
    for (attempt, delay) in [(1, 5), (2, 30), (3, 120), (4, 600), (5, 600), (99, 600)] {
        let delay = delay * SECOND;
        let mut seconds = std::collections::HashSet::new();
        for _ in 0..500 {
            let Stay { tier, wait, named } =
                stay(&tiers, WaitingRoom::Tiers, attempt, None, &mut rng);
            assert!(wait >= delay && wait <= delay + delay * SPREAD_PERCENT / 100, "{wait:?}");
            assert!(tiers.retry_tiers[tier] == delay && named == (wait > delay));
            seconds.insert(wait.as_millis() / 100);
        }
        assert!(seconds.len() >= 8, "{attempt}: {} tenths of a second", seconds.len());
    }
    // A dependency that asks for more gets it, by way of the longest tier that is not too long.
    let long = stay(&tiers, WaitingRoom::Tiers, 1, Some(200 * SECOND), &mut rng);
    assert!((long.tier, long.named) == (2, true) && long.wait >= 200 * SECOND, "{long:?}");
}

#[test]
fn a_row_waits_its_own_time() {
    let mut rng = SeededRng::new(3);
    let parked = policy(WaitingRoom::Parked, &[]);
    let waits: Vec<Duration> =
        (0..100).map(|_| stay(&parked, WaitingRoom::Parked, 1, None, &mut rng).wait).collect();
    assert!(waits.iter().all(|wait| *wait >= 30 * SECOND && *wait <= 36 * SECOND));
    assert!(waits.iter().max() > waits.iter().min());
}

proptest! {
    /// Through however many tiers: what is named is never handled early, and never a tier too late.
    #[test]
    fn a_wait_by_tiers_ends_no_earlier_and_at_most_one_shortest_tier_later(
        mut delays in proptest::collection::vec(1_u64..100_000, 1..8),
        wait in 0_u64..1_000_000,
    ) {
        delays.sort_unstable();
        delays.dedup();
        let delays: Vec<Duration> = delays.into_iter().map(Duration::from_millis).collect();
        let (wait, mut passed) = (Duration::from_millis(wait), Duration::ZERO);
        let mut hops = 0_u64;
        while passed < wait {
            passed += delays[tier_for(&delays, wait - passed)];
            hops += 1;
        }
        prop_assert!(passed >= wait && passed <= wait + delays[0]);
        prop_assert!(hops <= 1 + wait.as_millis() as u64 / delays[0].as_millis() as u64);
    }
}
