//! Random histories of an outbox and two relays, compared step by step with a model in memory, on both
//! databases.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{LEASE, at};
use mamparo_core::message::shards::shard_of;
use mamparo_core::time::WallTime;
use mamparo_store::outbox::{
    self, Claimed, Confirmed, Event, Held, Parked, RelaySession, Report, Wait,
};
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store};
use mamparo_testkit::database::Database;
use proptest::prelude::*;

/// The first one asks for no order. The others are in different shards.
const KEYS: [&str; 3] = ["", "o-1", "o-2"];

#[derive(Debug, Clone)]
enum Step {
    Enqueue {
        key: usize,
    },
    Beat {
        relay: usize,
    },
    Leave {
        relay: usize,
    },
    /// Reads, and remembers what was read.
    Read {
        relay: usize,
        room: u32,
    },
    /// Reports on what was read, however long ago.
    Confirm {
        relay: usize,
        from: usize,
        rows: usize,
    },
    Park {
        relay: usize,
        row: usize,
        after: u64,
    },
    Hold {
        relay: usize,
    },
    Wake {
        relay: usize,
    },
    Requeue {
        row: usize,
    },
    Lose {
        row: usize,
    },
    Pass {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (relay, row) = (0_usize..2, 0_usize..20);
    prop_oneof![
        6 => (0_usize..3).prop_map(|key| Step::Enqueue { key }),
        3 => relay.clone().prop_map(|relay| Step::Beat { relay }),
        1 => relay.clone().prop_map(|relay| Step::Leave { relay }),
        6 => (relay.clone(), 1_u32..5).prop_map(|(relay, room)| Step::Read { relay, room }),
        5 => (relay.clone(), row.clone(), 1_usize..4)
            .prop_map(|(relay, from, rows)| Step::Confirm { relay, from, rows }),
        3 => (relay.clone(), row.clone(), 0_u64..20)
            .prop_map(|(relay, row, after)| Step::Park { relay, row, after }),
        3 => relay.clone().prop_map(|relay| Step::Hold { relay }),
        2 => relay.prop_map(|relay| Step::Wake { relay }),
        1 => row.clone().prop_map(|row| Step::Requeue { row }),
        1 => row.prop_map(|row| Step::Lose { row }),
        3 => (0_u64..8).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// A pending row.
#[derive(Debug, Clone, PartialEq)]
struct Pending {
    row: i64,
    key: usize,
    wait: Wait,
    tries: u32,
}

struct Relay<DB: Backend> {
    session: RelaySession<DB>,
    held: BTreeMap<u16, Held>,
    read: Vec<(Claimed, Held)>,
}

struct World<DB: Backend> {
    store: Store<DB>,
    relays: [Relay<DB>; 2],
    now: WallTime,
    /// In the order of their numbers.
    rows: Vec<Pending>,
    /// Who holds a shard, under which epoch.
    owners: BTreeMap<u16, (usize, i64)>,
    seen: BTreeSet<i64>,
}

impl<DB: Backend> World<DB> {
    fn new(store: Store<DB>) -> Self {
        let relay = || Relay {
            session: RelaySession::new(&store),
            held: BTreeMap::new(),
            read: Vec::new(),
        };
        let relays = [relay(), relay()];
        let (rows, owners, seen) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        Self { relays, now: at(0), rows, owners, seen, store }
    }

    fn behind(&self, row: &Pending) -> bool {
        let before = |other: &&Pending| other.row < row.row && other.key == row.key;
        row.key != 0 && self.rows.iter().filter(before).any(|other| other.wait != Wait::Ready)
    }

    /// Is a report under this tenure still worth something?
    fn valid(&self, relay: usize, held: Held) -> bool {
        self.owners.get(&held.shard) == Some(&(relay, held.epoch))
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Step::Pass { seconds } => self.now = self.now.plus(Duration::from_secs(seconds)),
            Step::Enqueue { key } => {
                let event = Event::new("order.changed", KEYS[key], Vec::new());
                let mut tx = self.store.begin().await.unwrap();
                let row = outbox::enqueue(&mut tx, &event, self.now).await.unwrap();
                self.store.commit(tx).await.unwrap();
                assert!(self.seen.insert(row), "a number came twice");
                self.rows.push(Pending { row, key, wait: Wait::Ready, tries: 0 });
            }
            Step::Beat { relay } => {
                let now = self.now;
                let session = &self.relays[relay].session;
                let tenure = session.heartbeat(LEASE, now).await.unwrap();
                self.relays[relay].held =
                    tenure.held.iter().map(|held| (held.shard, *held)).collect();
                for held in &tenure.held {
                    // Whoever had it lost it fairly: its own lease was over, or it gave it back.
                    self.owners.insert(held.shard, (relay, held.epoch));
                }
            }
            Step::Leave { relay } => {
                self.relays[relay].session.leave().await.unwrap();
                self.relays[relay].held.clear();
                self.owners.retain(|_, (owner, _)| *owner != relay);
            }
            Step::Read { relay, room } => self.read(relay, room).await,
            Step::Confirm { relay, from, rows } => self.confirm(relay, from, rows).await,
            Step::Park { relay, row, after } => self.park(relay, row, after).await,
            Step::Hold { relay } => self.hold(relay).await,
            Step::Wake { relay } => self.wake(relay).await,
            Step::Requeue { row } => {
                let Some(chosen) = self.rows.get_mut(row) else { return };
                let waits = matches!(chosen.wait, Wait::Until(_));
                let done = outbox::requeue(&self.store, &[chosen.row]).await.unwrap();
                assert_eq!(done, u64::from(waits));
                if waits {
                    chosen.wait = Wait::Ready;
                }
            }
            Step::Lose { row } => {
                if row < self.rows.len() {
                    let lost = self.rows.remove(row).row;
                    let sql = format!("DELETE FROM mamparo_outbox WHERE seq = {lost}");
                    self.store.apply(&sql).await.unwrap();
                }
            }
        }
    }

    async fn read(&mut self, relay: usize, room: u32) {
        let held: Vec<Held> = self.relays[relay].held.values().copied().collect();
        let mut all = Vec::new();
        for held in held {
            // SQLite may give one shard the room of another, so each is asked on its own.
            let rooms = [(held.shard, room)];
            let read = self.relays[relay].session.read(&rooms, &[]).await.unwrap();
            // An event without a key is in the shard of its id, which the model does not know.
            let keyed: Vec<_> =
                read.iter().filter(|claimed| !claimed.event.key.is_empty()).collect();
            let mine = |row: &&Pending| row.key != 0 && shard_of(KEYS[row.key], "") == held.shard;
            let ready = self.rows.iter().filter(mine).filter(|row| row.wait == Wait::Ready);
            let expected: Vec<_> = ready
                .take(keyed.len().max(if keyed.len() == read.len() { room as usize } else { 0 }))
                .map(|row| (row.row, row.tries, self.behind(row)))
                .collect();
            let got: Vec<_> = keyed.iter().map(|c| (c.row, c.tries, c.behind)).collect();
            assert_eq!(got, expected);
            let free = read.iter().filter(|claimed| claimed.event.key.is_empty());
            for claimed in free {
                let row = self.rows.iter().find(|row| row.row == claimed.row).unwrap();
                assert_eq!(
                    (row.wait, row.tries, claimed.behind),
                    (Wait::Ready, claimed.tries, false)
                );
            }
            all.extend(read.into_iter().map(|claimed| (claimed, held)));
        }
        all.sort_by_key(|(claimed, _)| claimed.row);
        self.relays[relay].read = all;
    }

    async fn confirm(&mut self, relay: usize, from: usize, rows: usize) {
        let chosen = self.relays[relay].read.iter().skip(from).take(rows);
        let confirmed: Vec<Confirmed> =
            chosen.map(|(claimed, held)| Confirmed { row: claimed.row, held: *held }).collect();
        let counts =
            |row: &i64| confirmed.iter().any(|c| c.row == *row && self.valid(relay, c.held));
        // What waits was not taken by the broker: a second report about it is none.
        let ready = self.rows.iter().filter(|row| row.wait == Wait::Ready);
        let gone: BTreeSet<i64> = ready.map(|row| row.row).filter(counts).collect();
        let report = Report { confirmed: confirmed.clone(), ..Report::default() };
        let session = &self.relays[relay].session;
        let done = session.record(&report, Some(self.now)).await.unwrap();
        assert_eq!(done.confirmed, gone.len() as u64);
        let keys: BTreeSet<usize> = self
            .rows
            .iter()
            .filter(|row| row.key != 0 && gone.contains(&row.row))
            .map(|row| row.key)
            .collect();
        self.rows.retain(|row| !gone.contains(&row.row));
        for row in &mut self.rows {
            if row.wait == Wait::Behind && keys.contains(&row.key) {
                row.wait = Wait::Ready;
            }
        }
    }

    async fn park(&mut self, relay: usize, row: usize, after: u64) {
        let Some((claimed, held)) = self.relays[relay].read.get(row) else { return };
        let (row, held) = (claimed.row, *held);
        let due = self.now.plus(Duration::from_secs(after));
        let parked = vec![Parked { row, held, due, error: "no".to_owned() }];
        let report = Report { parked, ..Report::default() };
        let session = &self.relays[relay].session;
        let done = session.record(&report, Some(self.now)).await.unwrap();
        let counts = self.valid(relay, held);
        let ready = |found: &&mut Pending| found.row == row && found.wait == Wait::Ready;
        let found = self.rows.iter_mut().find(ready).filter(|_| counts);
        assert_eq!(done.waiting, u64::from(found.is_some()));
        if let Some(found) = found {
            found.wait = Wait::Until(due);
            found.tries += 1;
        }
    }

    async fn hold(&mut self, relay: usize) {
        let read = &self.relays[relay].read;
        let behind: Vec<Confirmed> = read
            .iter()
            .map(|(claimed, held)| Confirmed { row: claimed.row, held: *held })
            .collect();
        let waits = |row: &&Pending| {
            let held = behind.iter().find(|c| c.row == row.row).map(|c| c.held);
            let valid = held.is_some_and(|held| self.valid(relay, held));
            valid && row.wait == Wait::Ready && self.behind(row)
        };
        let held: BTreeSet<i64> = self.rows.iter().filter(waits).map(|row| row.row).collect();
        let report = Report { behind: behind.clone(), ..Report::default() };
        let done = self.relays[relay].session.record(&report, None).await.unwrap();
        assert_eq!(done.waiting, held.len() as u64);
        for row in self.rows.iter_mut().filter(|row| held.contains(&row.row)) {
            row.wait = Wait::Behind;
        }
    }

    async fn wake(&mut self, relay: usize) {
        let shards: Vec<u16> = (0..16).collect();
        let next = self.relays[relay].session.wake_parked(&shards, self.now).await.unwrap();
        for row in &mut self.rows {
            if matches!(row.wait, Wait::Until(due) if due <= self.now) {
                row.wait = Wait::Ready;
            }
        }
        let dues = self.rows.iter().filter_map(|row| match row.wait {
            Wait::Until(due) => Some(due),
            Wait::Ready | Wait::Behind => None,
        });
        assert_eq!(next, dues.min());
        // What waits behind nothing, because that was deleted by hand, is free again.
        let orphan = |row: &Pending| {
            let before = self.rows.iter().any(|b| b.key == row.key && b.row < row.row);
            row.wait == Wait::Behind && !before
        };
        let orphans: BTreeSet<i64> =
            self.rows.iter().filter(|row| orphan(row)).map(|row| row.row).collect();
        let freed = self.relays[relay].session.mend(&shards).await.unwrap();
        assert_eq!(freed, orphans.len() as u64);
        for row in self.rows.iter_mut().filter(|row| orphans.contains(&row.row)) {
            row.wait = Wait::Ready;
        }
    }

    /// Whatever happened, everything goes out in the end, each key in order.
    async fn drain(&mut self) {
        self.now = self.now.plus(Duration::from_secs(60));
        self.take(&Step::Leave { relay: 1 }).await;
        self.take(&Step::Beat { relay: 0 }).await;
        let mut rounds = 0;
        while !self.rows.is_empty() {
            self.wake(0).await;
            self.read(0, 100).await;
            self.relays[0].read.retain(|(claimed, _)| !claimed.behind);
            self.confirm(0, 0, 1_000).await;
            rounds += 1;
            assert!(rounds <= 100, "a key is stuck: {:?}", self.rows);
        }
    }
}

async fn run<DB: Backend>(store: Store<DB>, steps: &[Step]) {
    let mut world = World::new(store);
    for step in steps {
        world.take(step).await;
        let listed = outbox::list(&world.store, 1_000).await.unwrap();
        let listed: Vec<_> = listed
            .iter()
            .map(|row| (row.row, row.event.key.as_str(), row.wait, row.tries))
            .collect();
        let rows = world.rows.iter().map(|row| (row.row, KEYS[row.key], row.wait, row.tries));
        assert_eq!(listed, rows.collect::<Vec<_>>());
    }
    world.drain().await;
    world.store.close().await;
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_outbox_does_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        runtime().block_on(async {
            run(SqliteStore::open("sqlite::memory:").await.unwrap(), &steps).await;
        });
    }
}

proptest! {
    // A database of its own costs each case a tenth of a second.
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 64, ..ProptestConfig::default() })]
    #[test]
    fn the_outbox_on_postgres_does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..60)
    ) {
        let database = Database::create();
        runtime().block_on(async {
            run(PostgresStore::open(&database.url()).await.unwrap(), &steps).await;
        });
    }
}
