//! What keeps load away, in every interleaving of a few threads: rate limits, the map by key, the
//! throttle's window, the shedder.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

mod model;

use std::time::Duration;

use mamparo_core::call::rate_limit::{AllAnswer, Answer, RateLimit, RateLimitConfig, ask_all};
use mamparo_core::call::shed::{Criticality, Lot, Shed, ShedConfig, Work};
use mamparo_core::call::throttle::{Counts, Reply, Throttle, ThrottleConfig};
use mamparo_core::keyed::{Dispensable, Keep, Keyed};
use mamparo_core::rng::SeededRng;
use mamparo_core::sync::Arc;
use mamparo_core::time::Moment;

use model::{Part, check, check_within, together};

const NOW: Moment = Moment::from_millis(1_000_000);

fn limit(burst: u32) -> RateLimit {
    RateLimit::new(RateLimitConfig::new(burst, Duration::from_secs(60)))
}

fn free(limit: &RateLimit) -> u32 {
    match limit.peek(NOW) {
        Answer::Allowed { remaining, .. } => remaining + 1,
        Answer::NotUntil { .. } => 0,
    }
}

#[test]
fn policies_c38_as_many_are_allowed_as_there_are() {
    check_within(3, || {
        let shared = Arc::new(limit(2));
        // One thread has read its clock a little earlier, and says so last or first.
        let parts: Vec<Part<RateLimit, bool>> = [NOW, NOW, Moment::from_millis(999_999)]
            .into_iter()
            .map(|now| -> Part<RateLimit, bool> {
                Box::new(move |limit| matches!(limit.ask(now), Answer::Allowed { .. }))
            })
            .collect();
        let allowed = together(&shared, parts);
        let total = allowed.iter().filter(|allowed| **allowed).count();
        // Who comes with an older moment finds the bucket a millisecond emptier.
        assert!(total == 2 || (total == 1 && allowed[2]), "{allowed:?}");
        assert!(total + free(&shared) as usize <= 2);
    });
}

type Two = (RateLimit, RateLimit);

fn both(two: &Two) -> bool {
    matches!(ask_all(NOW, [&two.0, &two.1]), AllAnswer::Allowed { .. })
}

#[test]
fn policies_c38_of_two_that_ask_in_one_order_one_gets_the_last() {
    for (first, second) in [(1, 1), (1, 2), (2, 1)] {
        check_within(3, move || {
            let shared = Arc::new((limit(first), limit(second)));
            let parts: Vec<Part<Two, bool>> = vec![Box::new(both), Box::new(both)];
            let got = together(&shared, parts).into_iter().filter(|got| *got).count() as u32;
            assert_eq!(got, 1);
            // The narrow one second: who loses it may find that the other has taken from the first since.
            let left = (free(&shared.0), free(&shared.1));
            let lost = u32::from((first, second) == (2, 1));
            assert!(left.0 <= first - got && left.0 + lost >= first - got, "{left:?}");
            assert_eq!(left.1, second - got);
        });
    }
}

#[test]
fn policies_c38_who_takes_from_one_alone_spoils_nothing() {
    check_within(3, || {
        let shared = Arc::new((limit(1), limit(1)));
        let second = |two: &Two| matches!(two.1.ask(NOW), Answer::Allowed { .. });
        let parts: Vec<Part<Two, bool>> = vec![Box::new(both), Box::new(second)];
        let got = together(&shared, parts);
        assert_eq!(got.iter().filter(|got| **got).count(), 1);
        assert_eq!((free(&shared.0), free(&shared.1)), (u32::from(!got[0]), 0));
    });
}

/// Always idle: may go as soon as nobody holds it.
#[derive(Debug)]
struct Idle;

impl Dispensable for Idle {
    fn keep(&self, _now: Moment) -> Keep {
        Keep::Idle
    }
}

type Map = Keyed<u8, Arc<Idle>>;

fn ask(map: &Map, key: u8) -> Arc<Idle> {
    map.get_or_insert(NOW, &key, || (key, Arc::new(Idle)))
}

#[test]
fn a_key_has_one_value_whoever_comes_first() {
    check(|| {
        let map: Arc<Map> = Arc::new(Keyed::new(2, 1, Arc::new(Idle)));
        let part = || -> Part<Map, Arc<Idle>> { Box::new(|map| ask(map, 7)) };
        let values = together(&map, vec![part(), part(), part()]);
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
        assert_eq!((map.keys(), map.overflowed()), (1, 0));
    });
}

#[test]
fn what_is_held_is_not_forgotten_and_the_bound_holds() {
    check(|| {
        let map: Arc<Map> = Arc::new(Keyed::new(1, 1, Arc::new(Idle)));
        let held = |map: &Map| {
            let value = ask(map, 1);
            let shared = map.overflowed() > 0;
            // Unless it is the one that all share, nobody else can have made another meanwhile.
            assert!(shared || Arc::ptr_eq(&value, &ask(map, 1)));
            assert!(map.keys() <= 1);
        };
        let other = |map: &Map| {
            drop(ask(map, 2));
            assert!(map.keys() <= 1);
        };
        let parts: Vec<Part<Map, ()>> = vec![Box::new(held), Box::new(other)];
        together(&map, parts);
    });
}

#[test]
fn a_window_that_turns_over_loses_no_request() {
    check(|| {
        let throttle = Arc::new(Throttle::new(ThrottleConfig::default()));
        // The part that they write to holds what is a window old, until the first of them comes.
        throttle.tell(NOW, Reply::Rejected);
        let later = NOW.plus(Duration::from_secs(120));
        let part = |reply| -> Part<Throttle, ()> { Box::new(move |t| t.tell(later, reply)) };
        let replies = [Reply::Accepted, Reply::Rejected, Reply::Accepted];
        together(&throttle, replies.into_iter().map(part).collect());
        assert_eq!(throttle.counts(later), Counts { requests: 3, accepts: 2 });
    });
}

#[test]
fn a_change_of_the_shedder_is_reported_once() {
    check(|| {
        let shed = Arc::new(Shed::new(ShedConfig::default()));
        let part = || -> Part<Shed, bool> {
            Box::new(|shed| {
                let level = Criticality::Critical;
                let work = Work { criticality: level, load: 0.9, left: None, needs: None };
                shed.ask(work, Lot::drawn(&mut SeededRng::new(1))).change.is_some()
            })
        };
        let reports = together(&shed, vec![part(), part(), part()]);
        assert_eq!(reports.iter().filter(|reported| **reported).count(), 1);
        assert_eq!(shed.refusing(), Some(Criticality::SheddablePlus));
    });
}
