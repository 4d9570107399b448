//! The map by key: bounded whatever comes, and what is in use stays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mamparo_core::keyed::{Dispensable, Keep, Keyed};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const NOW: Moment = Moment::from_millis(1_000);

/// Idle from a moment on, as a bucket is.
#[derive(Debug, Default)]
struct Until(AtomicU64);

impl Until {
    fn new(nanos: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(nanos)))
    }
}

impl Dispensable for Until {
    fn keep(&self, now: Moment) -> Keep {
        let until = self.0.load(Ordering::Relaxed);
        if until <= now.nanos() { Keep::Idle } else { Keep::Nearest(until) }
    }
}

type Map = Keyed<String, Arc<Until>>;

fn map(keys_max: usize) -> Map {
    Keyed::new(keys_max, 7, Until::new(0))
}

fn ask(map: &Map, now: Moment, key: &str, until: u64) -> Arc<Until> {
    map.get_or_insert(now, key, || (key.to_owned(), Until::new(until)))
}

fn kept(map: &Map) -> Vec<String> {
    let mut keys: Vec<_> = map.entries().into_iter().map(|(key, _)| key).collect();
    keys.sort();
    keys
}

#[test]
fn a_key_keeps_its_value() {
    let map = map(10);
    let first = ask(&map, NOW, "a", u64::MAX);
    assert!(Arc::ptr_eq(&first, &ask(&map, NOW, "a", u64::MAX)));
    assert!(!Arc::ptr_eq(&first, &ask(&map, NOW, "b", u64::MAX)));
    assert_eq!(map.peek("a", |value| value.0.load(Ordering::Relaxed)), Some(u64::MAX));
    assert_eq!(map.peek("c", |_| ()), None);
    assert_eq!(kept(&map), ["a", "b"]);
}

#[test]
fn idle_ones_go_first_then_the_nearest() {
    let map = map(3);
    for (key, until) in [("far", 9), ("near", 5), ("idle", 0)] {
        ask(&map, NOW, key, until * NOW.nanos());
    }
    ask(&map, NOW, "new", u64::MAX);
    assert_eq!(kept(&map), ["far", "near", "new"]);
    ask(&map, NOW, "newer", u64::MAX);
    assert_eq!(kept(&map), ["far", "new", "newer"]);
}

#[test]
fn what_somebody_holds_is_never_forgotten_and_more_keys_share() {
    let map = map(2);
    // Idle, but held.
    let held = [ask(&map, NOW, "a", 0), ask(&map, NOW, "b", 0)];
    let (one, other) = (ask(&map, NOW, "c", 0), ask(&map, NOW, "d", 0));
    assert!(Arc::ptr_eq(&one, &other), "both have the overflow value");
    assert_eq!((map.keys(), map.overflowed()), (2, 2));
    assert!(Arc::ptr_eq(&held[0], &ask(&map, NOW, "a", 0)));
    drop(held);
    let own = ask(&map, NOW, "c", 0);
    assert!(!Arc::ptr_eq(&one, &own), "as soon as there is room, a key gets its own");
    assert_eq!((map.keys(), map.overflowed()), (2, 2));
}

#[test]
fn idle_keys_go_by_themselves_as_others_are_asked() {
    let map = map(10_000);
    for key in 0..100_000 {
        ask(&map, NOW, &key.to_string(), 2 * NOW.nanos());
    }
    assert!((9_000..=10_000).contains(&map.keys()), "{}", map.keys());
    let later = Moment::from_millis(5_000);
    let busy: Vec<String> = (0..64).map(|key| format!("busy {key}")).collect();
    // Two rounds of each part: the first takes the mark of having been asked for, the second the key.
    for round in 0..6_000 {
        for key in &busy {
            ask(&map, later, key, later.nanos() * 2);
        }
        let left = map.keys();
        assert!(left <= 10_000, "{left} in round {round}");
    }
    let left = kept(&map);
    assert!(busy.iter().all(|key| left.contains(key)));
    // A part that none of the busy keys falls into is not asked, so it stays; that is its own portion.
    assert!(left.len() < 10_000 / 4, "{}", left.len());
}

#[test]
fn a_key_that_is_asked_for_stays_though_it_is_idle() {
    let map = map(100);
    let first = Arc::downgrade(&ask(&map, NOW, "a", 0));
    for _ in 0..1_000 {
        ask(&map, NOW, "a", 0);
        ask(&map, NOW, "b", 0);
    }
    assert!(first.upgrade().is_some(), "it was not made anew each time");
}

#[test]
fn the_bound_holds_at_its_edges() {
    for keys_max in [0, 1, 2, 127, 128, 1_000] {
        let map = map(keys_max);
        for key in 0..3_000 {
            ask(&map, NOW, &key.to_string(), u64::MAX);
            assert!(map.keys() <= keys_max.max(1));
        }
        assert!(map.keys() >= keys_max - keys_max / 5, "{} of {keys_max}", map.keys());
        assert_eq!(map.overflowed(), 0);
    }
    assert_eq!(map(usize::MAX).keys_max(), 1 << 20);
}

#[test]
fn eight_threads_make_one_value_a_key() {
    let map = map(64);
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (map, made) = (&map, &made);
            scope.spawn(move || {
                let mut rng = SeededRng::new(seed);
                for _ in 0..2_000 {
                    let key = rng.up_to(49).to_string();
                    let value = ask(map, NOW, &key, u64::MAX);
                    if value.0.swap(1, Ordering::Relaxed) == u64::MAX {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                    // It is no longer idle for anybody: put back what keeps it.
                    value.0.store(2 * NOW.nanos(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(map.keys(), 50);
    assert_eq!(map.overflowed(), 0);
    assert_eq!(made.into_inner(), 50);
}

#[derive(Debug, Clone)]
enum Act {
    Ask { key: u8, until: u64 },
    Hold { key: u8 },
    LetGo { key: u8 },
    Pass { millis: u64 },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (any::<u8>(), 0_u64..3_000).prop_map(|(key, until)| Act::Ask { key, until }),
        1 => any::<u8>().prop_map(|key| Act::Hold { key }),
        1 => any::<u8>().prop_map(|key| Act::LetGo { key }),
        1 => (0_u64..500).prop_map(|millis| Act::Pass { millis }),
    ];
    prop::collection::vec(act, 1..400)
}

proptest! {
    /// Against a map without a bound: whoever holds a value that is the key's own gets the same one
    /// again, and there are never more keys than allowed.
    #[test]
    fn held_values_stay_and_the_bound_holds(acts in acts(), keys_max in 1_usize..20) {
        let overflow = Until::new(0);
        let map = Keyed::new(keys_max, 3, Arc::clone(&overflow));
        let mut held: BTreeMap<u8, Arc<Until>> = BTreeMap::new();
        let mut now = NOW;
        for act in acts {
            match act {
                Act::Ask { key, until } => {
                    let until = now.plus(std::time::Duration::from_millis(until)).nanos();
                    let value = map.get_or_insert(now, &key, || (key, Until::new(until)));
                    if let Some(own) = held.get(&key) {
                        prop_assert!(Arc::ptr_eq(own, &value));
                    }
                }
                Act::Hold { key } => {
                    let value = map.get_or_insert(now, &key, || (key, Until::new(0)));
                    if !Arc::ptr_eq(&value, &overflow) {
                        held.insert(key, value);
                    }
                }
                Act::LetGo { key } => {
                    held.remove(&key);
                }
                Act::Pass { millis } => now = now.plus(std::time::Duration::from_millis(millis)),
            }
            prop_assert!(map.keys() <= keys_max);
            prop_assert_eq!(map.entries().len(), map.keys());
            for (key, own) in &held {
                prop_assert_eq!(map.peek(key, |value| Arc::ptr_eq(own, value)), Some(true));
            }
        }
    }
}
