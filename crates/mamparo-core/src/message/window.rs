//! The window of a relay: which outbox rows are at the broker, and which follow when one is confirmed.
//!
//! Rows are *offered* in the order of their numbers. Of each key at most one is in flight; the rows
//! behind it wait in the window and start as soon as it is confirmed, without another look at the
//! database. A row that the broker did not take parks its key: what waits behind it leaves the window,
//! stays in the database, and is not offered again before the database knows. An empty key asks for no
//! order, so its rows wait for nobody.
//!
//! A row stays known from its offer until what became of it is *recorded*, so that a look at the
//! database that began before the record can't bring it in again.

use std::collections::{HashMap, VecDeque};

use super::relay::Published;
use super::shards::SHARDS;

/// Where a row in the window stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Behind another one of its key.
    Follows,
    /// May start.
    Ready,
    /// At the broker.
    InFlight,
    /// Its outcome is known here and not yet in the database.
    Landed,
}

#[derive(Debug, Clone)]
struct Held<T> {
    shard: u16,
    key: String,
    place: Place,
    /// Its shard is no longer ours: what becomes of it is not ours to report.
    stray: bool,
    /// Gone once it is at the broker.
    item: Option<T>,
}

/// What came of a row that was in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landing {
    /// Record that it is confirmed.
    Confirmed,
    /// Record that it waits, and its key with it.
    Parked,
    /// Record nothing: its shard went to another relay, or the row is unknown here.
    Void,
}

/// The machine; `T` is whatever the driver needs for publishing a row.
#[derive(Debug, Clone)]
pub struct Window<T> {
    /// Most rows in flight.
    flights_max: usize,
    flights: usize,
    rows: HashMap<i64, Held<T>>,
    ready: VecDeque<i64>,
    /// The rows of each key, in order; the first one is in flight, ready or landed.
    lanes: HashMap<String, VecDeque<i64>>,
    /// Keys whose first row did not go out, with that row; until the database knows.
    parked: HashMap<String, i64>,
    in_shard: [usize; SHARDS as usize],
    generation: u64,
}

impl<T> Window<T> {
    /// An empty window with at most `flights_max` rows in flight; at least one.
    #[must_use]
    pub fn new(flights_max: usize) -> Self {
        Self {
            flights_max: flights_max.max(1),
            flights: 0,
            rows: HashMap::new(),
            ready: VecDeque::new(),
            lanes: HashMap::new(),
            parked: HashMap::new(),
            in_shard: [0; SHARDS as usize],
            generation: 0,
        }
    }

    /// Brings in row number `row`. `false` when it is here already or its key is being parked: the
    /// database will offer it again when its turn comes.
    pub fn offer(&mut self, row: i64, shard: u16, key: &str, item: T) -> bool {
        let shard = shard % SHARDS;
        if self.rows.contains_key(&row) || self.parked.contains_key(key) {
            return false;
        }
        let mut place = Place::Ready;
        if !key.is_empty() {
            let lane = self.lanes.entry(key.to_owned()).or_default();
            if !lane.is_empty() {
                place = Place::Follows;
            }
            // The first one may be at the broker; behind it order is by number, whatever the order
            // of offers was.
            let at = lane.iter().skip(1).position(|other| *other > row);
            lane.insert(at.map_or(lane.len(), |at| at + 1), row);
        }
        if place == Place::Ready {
            self.ready.push_back(row);
        }
        let held = Held { shard, key: key.to_owned(), place, stray: false, item: Some(item) };
        self.rows.insert(row, held);
        self.in_shard[usize::from(shard)] += 1;
        true
    }

    /// The next row to publish; it is in flight from now on. `None` when none may start.
    pub fn start(&mut self) -> Option<(i64, T)> {
        if self.flights >= self.flights_max {
            return None;
        }
        // Rows of lost shards leave `rows` and stay in this line until they are met here; such a row may
        // have come again meanwhile, and may have to wait now.
        while let Some(row) = self.ready.pop_front() {
            let held = self.rows.get_mut(&row).filter(|held| held.place == Place::Ready);
            let Some(held) = held else { continue };
            let Some(item) = held.item.take() else { continue };
            held.place = Place::InFlight;
            self.flights += 1;
            return Some((row, item));
        }
        None
    }

    /// The broker has answered for `row`. A confirmed row lets the next one of its key start.
    pub fn tell(&mut self, row: i64, published: Published) -> Landing {
        let Some(held) = self.rows.get_mut(&row).filter(|held| held.place == Place::InFlight)
        else {
            return Landing::Void;
        };
        held.place = Place::Landed;
        self.flights -= 1;
        let (key, stray) = (held.key.clone(), held.stray);
        if stray {
            // It may come again, so nothing that was offered behind it may start now.
            self.leave(row);
            self.drop_lane(row, &key);
            self.generation += 1;
            return Landing::Void;
        }
        if published != Published::Confirmed {
            if self.drop_lane(row, &key) {
                self.parked.insert(key, row);
            }
            return Landing::Parked;
        }
        self.follow(row, &key);
        Landing::Confirmed
    }

    /// The database knows what became of these rows, and no look at it that began before is under way.
    pub fn recorded(&mut self, rows: &[i64]) {
        for row in rows {
            if self.rows.get(row).is_some_and(|held| held.place == Place::Landed) {
                self.leave(*row);
            }
        }
    }

    /// Shard `shard` is no longer ours: what has not started leaves, and what is in flight is not
    /// reported.
    pub fn lose(&mut self, shard: u16) {
        let mut gone = Vec::new();
        for (row, held) in self.rows.iter_mut().filter(|(_, held)| held.shard == shard) {
            match held.place {
                Place::InFlight => held.stray = true,
                Place::Follows | Place::Ready | Place::Landed => gone.push(*row),
            }
        }
        for row in gone {
            let key = self.leave(row);
            self.unlane(row, &key);
        }
        self.generation += 1;
    }

    /// Changes when rows left of which the database knows nothing. What a look brings that began under
    /// another generation must not be offered: it left out rows that were known then and are gone now,
    /// and their followers would overtake them.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Rows that the next look at the database need not bring: in any order.
    pub fn known(&self) -> impl Iterator<Item = i64> + '_ {
        self.rows.keys().copied()
    }

    /// Rows of `shard` in the window.
    #[must_use]
    pub fn in_shard(&self, shard: u16) -> usize {
        self.in_shard.get(usize::from(shard)).copied().unwrap_or(0)
    }

    /// Rows at the broker.
    #[must_use]
    pub const fn flights(&self) -> usize {
        self.flights
    }

    /// Rows at the broker whose shard is `shard`, or that were there when it was lost.
    #[must_use]
    pub fn flights_of(&self, shard: u16) -> usize {
        let at_broker = |held: &&Held<T>| held.shard == shard && held.place == Place::InFlight;
        self.rows.values().filter(at_broker).count()
    }

    /// Nothing is known here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Everything behind `row` leaves: the database offers it again. `false` when nothing can be
    /// behind it.
    fn drop_lane(&mut self, row: i64, key: &str) -> bool {
        let Some(lane) = self.lanes.remove(key) else { return false };
        for behind in lane.into_iter().filter(|other| *other != row) {
            self.leave(behind);
        }
        true
    }

    /// Takes `row` out of its lane and lets the next one start.
    fn follow(&mut self, row: i64, key: &str) {
        self.unlane(row, key);
        let next = self.lanes.get(key).and_then(|lane| lane.front().copied());
        let Some(next) = next else { return };
        if let Some(held) = self.rows.get_mut(&next).filter(|held| held.place == Place::Follows) {
            held.place = Place::Ready;
            self.ready.push_back(next);
        }
    }

    fn unlane(&mut self, row: i64, key: &str) {
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.retain(|other| *other != row);
            if lane.is_empty() {
                self.lanes.remove(key);
            }
        }
    }

    /// Forgets `row`; its key.
    fn leave(&mut self, row: i64) -> String {
        let Some(held) = self.rows.remove(&row) else { return String::new() };
        self.in_shard[usize::from(held.shard)] -= 1;
        // The mark of a row that was confirmed before is not the mark of the one that parked the key.
        if self.parked.get(&held.key) == Some(&row) {
            self.parked.remove(&held.key);
        }
        held.key
    }
}
