//! The relay's window: order per key, at most one of a key in flight, nothing lost.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::collections::{BTreeMap, BTreeSet};

use mamparo_core::message::relay::Published;
use mamparo_core::message::window::{Landing, Window};
use proptest::prelude::*;

fn started(window: &mut Window<()>) -> Vec<i64> {
    std::iter::from_fn(|| window.start().map(|(row, ())| row)).collect()
}

#[test]
fn a_follower_starts_when_the_one_before_it_is_confirmed() {
    let mut window = Window::new(10);
    for (row, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, ""), (6, "")] {
        assert!(window.offer(row, 0, key, ()));
    }
    assert_eq!(started(&mut window), [1, 3, 5, 6]);
    assert_eq!(window.tell(1, Published::Confirmed), Landing::Confirmed);
    assert_eq!(started(&mut window), [2]);
    assert!(!window.offer(1, 0, "a", ()), "not recorded yet, so a look may still bring it");
    window.recorded(&[1]);
    assert_eq!(window.known().collect::<BTreeSet<_>>(), BTreeSet::from([2, 3, 4, 5, 6]));
}

#[test]
fn the_limit_of_flights_holds() {
    let mut window = Window::new(2);
    for row in 1..=5 {
        assert!(window.offer(row, 0, "", ()));
    }
    assert_eq!(started(&mut window), [1, 2]);
    assert_eq!(window.tell(2, Published::Confirmed), Landing::Confirmed);
    assert_eq!(started(&mut window), [3]);
    assert_eq!(window.flights(), 2);
}

#[test]
fn a_refused_row_parks_its_key_until_the_database_knows() {
    for refusal in [Published::Returned, Published::Nacked, Published::Unknown] {
        let mut window = Window::new(10);
        for (row, key) in [(1, "a"), (2, "a"), (3, "b"), (4, "")] {
            assert!(window.offer(row, 0, key, ()));
        }
        assert_eq!(started(&mut window), [1, 3, 4]);
        assert_eq!(window.tell(1, refusal), Landing::Parked);
        assert!(!window.offer(2, 0, "a", ()), "the look that brings it began before");
        assert_eq!(window.tell(4, refusal), Landing::Parked);
        assert!(window.offer(5, 0, "", ()), "no key, nobody waits");
        assert_eq!(started(&mut window), [5]);
        window.recorded(&[1, 4]);
        assert!(window.offer(1, 0, "a", ()), "its time has come");
        assert!(window.offer(2, 0, "a", ()));
        assert_eq!(started(&mut window), [1]);
    }
}

#[test]
fn a_lost_shard_reports_nothing_and_a_stray_lets_nobody_overtake_it() {
    let mut window = Window::new(10);
    for (row, shard, key) in [(1, 0, "a"), (2, 0, "a"), (3, 1, "b")] {
        assert!(window.offer(row, shard, key, ()));
    }
    assert_eq!(started(&mut window), [1, 3]);
    let before = window.generation();
    window.lose(0);
    assert_ne!(window.generation(), before, "a look under way left out row 1");
    assert_eq!((window.in_shard(0), window.flights_of(0), window.in_shard(1)), (1, 1, 1));
    // The shard is ours again while the old publish is still out.
    assert!(!window.offer(1, 0, "a", ()));
    assert!(window.offer(2, 0, "a", ()));
    assert_eq!(window.tell(1, Published::Unknown), Landing::Void);
    assert_eq!(started(&mut window), Vec::<i64>::new(), "row 1 goes first");
    assert!(window.offer(1, 0, "a", ()));
    assert!(window.offer(2, 0, "a", ()));
    assert_eq!(started(&mut window), [1]);
    assert_eq!(window.tell(9, Published::Confirmed), Landing::Void, "never offered");
    assert_eq!(window.tell(2, Published::Confirmed), Landing::Void, "not in flight");
}

/// A database, a broker and a relay in miniature: what one relay may do in any order.
#[derive(Debug, Clone)]
enum Step {
    Enqueue {
        key: u8,
    },
    /// A look at the database begins.
    Look,
    /// The look's rows are offered.
    Offer,
    Start,
    Answer {
        flight: usize,
        published: u8,
    },
    /// What has landed goes to the database.
    Record,
    /// Parked rows are due again.
    Due,
    LoseAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u8..4).prop_map(|key| Step::Enqueue { key }),
        4 => Just(Step::Look),
        4 => Just(Step::Offer),
        8 => Just(Step::Start),
        8 => (0_usize..8, 0_u8..8).prop_map(|(flight, published)| Step::Answer { flight, published }),
        5 => Just(Step::Record),
        2 => Just(Step::Due),
        1 => Just(Step::LoseAll),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mark {
    Ready,
    Parked,
    Behind,
}

const LIMIT: usize = 3;

struct World {
    window: Window<()>,
    /// Pending rows: key and mark. The truth.
    rows: BTreeMap<i64, (u8, Mark)>,
    last: i64,
    look: Option<(u64, Vec<i64>)>,
    flights: Vec<i64>,
    landed: Vec<(i64, Landing)>,
    recorded: Vec<i64>,
    /// First deliveries by key.
    delivered: BTreeMap<u8, Vec<i64>>,
}

impl World {
    fn new() -> Self {
        let (rows, delivered) = (BTreeMap::new(), BTreeMap::new());
        let (flights, landed, recorded) = (Vec::new(), Vec::new(), Vec::new());
        let window = Window::new(LIMIT);
        Self { window, rows, last: 0, look: None, flights, landed, recorded, delivered }
    }

    fn key(key: u8) -> String {
        if key == 0 { String::new() } else { key.to_string() }
    }

    fn behind(&self, row: i64, key: u8) -> bool {
        let before = self.rows.range(..row);
        key != 0 && before.into_iter().any(|(_, (k, mark))| *k == key && *mark != Mark::Ready)
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Enqueue { key } => {
                self.last += 1;
                self.rows.insert(self.last, (key, Mark::Ready));
            }
            Step::Look if self.look.is_none() => {
                let known: BTreeSet<i64> = self.window.known().collect();
                let (mut seen, mut late) = (Vec::new(), Vec::new());
                for (row, (key, mark)) in &self.rows {
                    if *mark == Mark::Ready && !known.contains(row) {
                        if self.behind(*row, *key) { late.push(*row) } else { seen.push(*row) }
                    }
                }
                for row in late {
                    self.rows.get_mut(&row).unwrap().1 = Mark::Behind;
                }
                self.look = Some((self.window.generation(), seen));
            }
            Step::Look => {}
            Step::Offer => {
                let Some((generation, seen)) = self.look.take() else { return };
                if generation == self.window.generation() {
                    for row in seen {
                        let Some((key, _)) = self.rows.get(&row).copied() else { continue };
                        self.window.offer(row, u16::from(key), &Self::key(key), ());
                    }
                }
                let recorded = std::mem::take(&mut self.recorded);
                self.window.recorded(&recorded);
            }
            Step::Start => {
                let Some((row, ())) = self.window.start() else { return };
                let (key, _) = self.rows[&row];
                for other in &self.flights {
                    assert!(key == 0 || self.rows.get(other).is_none_or(|(k, _)| *k != key));
                }
                self.flights.push(row);
                assert!(self.flights.len() <= LIMIT);
            }
            Step::Answer { flight, published } => self.answer(flight, published),
            Step::Record => self.record(),
            Step::Due => self.due(),
            Step::LoseAll => {
                (0..4).for_each(|shard| self.window.lose(shard));
                // A report of an earlier tenure changes nothing.
                self.landed.clear();
            }
        }
    }

    fn answer(&mut self, flight: usize, published: u8) {
        if self.flights.is_empty() {
            return;
        }
        let row = self.flights.remove(flight % self.flights.len());
        let published = match published {
            0 => Published::Returned,
            1 => Published::Nacked,
            2 => Published::Unknown,
            _ => Published::Confirmed,
        };
        if let (Published::Confirmed, Some((key, _))) = (published, self.rows.get(&row)) {
            let delivered = self.delivered.entry(*key).or_default();
            if *key != 0 && !delivered.contains(&row) {
                assert!(delivered.iter().all(|before| *before < row), "{row} after {delivered:?}");
            }
            delivered.push(row);
        }
        let landing = self.window.tell(row, published);
        if landing != Landing::Void {
            self.landed.push((row, landing));
        }
    }

    fn record(&mut self) {
        for (row, landing) in std::mem::take(&mut self.landed) {
            match landing {
                Landing::Confirmed => {
                    let (key, _) = self.rows.remove(&row).unwrap();
                    let due = self.rows.values().any(|r| *r == (key, Mark::Parked));
                    for (other, mark) in self.rows.values_mut() {
                        if *other == key && !due && *mark == Mark::Behind {
                            *mark = Mark::Ready;
                        }
                    }
                }
                Landing::Parked => self.rows.get_mut(&row).unwrap().1 = Mark::Parked,
                Landing::Void => unreachable!("never kept"),
            }
            self.recorded.push(row);
        }
        if self.look.is_none() {
            let recorded = std::mem::take(&mut self.recorded);
            self.window.recorded(&recorded);
        }
    }

    fn due(&mut self) {
        for (_, mark) in self.rows.values_mut() {
            if *mark == Mark::Parked {
                *mark = Mark::Ready;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn order_holds_and_everything_leaves_whatever_happens(
        steps in prop::collection::vec(step(), 1..200)
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        let drain = [
            Step::Offer, Step::Record, Step::Due, Step::Look, Step::Offer, Step::Start,
            Step::Start, Step::Start, Step::Answer { flight: 0, published: 7 },
            Step::Answer { flight: 0, published: 7 }, Step::Answer { flight: 0, published: 7 },
        ];
        for _ in 0..200 {
            drain.iter().for_each(|step| world.take(step));
        }
        world.take(&Step::Record);
        world.take(&Step::Offer);
        prop_assert!(world.rows.is_empty(), "left: {:?}", world.rows);
        prop_assert!(world.window.is_empty());
        let sent: BTreeSet<i64> = world.delivered.values().flatten().copied().collect();
        prop_assert_eq!(sent.len(), usize::try_from(world.last).unwrap());
    }
}
