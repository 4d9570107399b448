//! Random histories of an outbox and two relays, compared step by step with a model in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{LEASE, at};
use mamparo_core::time::WallTime;
use mamparo_store::outbox::{self, Event};
use mamparo_store::{SqliteStore, StoreError};
use proptest::prelude::*;

/// The first one asks for no order.
const KEYS: [&str; 3] = ["", "a", "b"];
const OWNERS: [&str; 2] = ["ada", "bob"];

#[derive(Debug, Clone)]
enum Step {
    Enqueue { key: usize },
    Claim { owner: usize, max: u32 },
    Confirm { owner: usize, from: usize, rows: usize },
    Postpone { owner: usize, row: usize, after: u64 },
    Release { owner: usize },
    Requeue { row: usize },
    Forget,
    Lose { row: usize },
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (owner, row) = (0_usize..2, 0_usize..20);
    prop_oneof![
        6 => (0_usize..3).prop_map(|key| Step::Enqueue { key }),
        6 => (owner.clone(), 1_u32..5).prop_map(|(owner, max)| Step::Claim { owner, max }),
        5 => (owner.clone(), row.clone(), 1_usize..4)
            .prop_map(|(owner, from, rows)| Step::Confirm { owner, from, rows }),
        3 => (owner.clone(), row.clone(), 0_u64..20)
            .prop_map(|(owner, row, after)| Step::Postpone { owner, row, after }),
        1 => owner.prop_map(|owner| Step::Release { owner }),
        1 => row.clone().prop_map(|row| Step::Requeue { row }),
        1 => Just(Step::Forget),
        1 => row.prop_map(|row| Step::Lose { row }),
        3 => (0_u64..15).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// A pending row.
#[derive(Debug, Clone)]
struct Pending {
    row: i64,
    key: usize,
    due: WallTime,
    lease: Option<(usize, WallTime)>,
    tries: u32,
}

#[derive(Debug)]
struct Model {
    now: WallTime,
    /// In the order of their numbers.
    pending: Vec<Pending>,
    confirmed: u64,
    seen: BTreeSet<i64>,
}

impl Model {
    /// Rows that may be claimed, in the order in which they are.
    fn ready(&self) -> Vec<usize> {
        let mut keys = BTreeSet::new();
        let mut ready = Vec::new();
        for (index, row) in self.pending.iter().enumerate() {
            let first = row.key == 0 || keys.insert(row.key);
            let free = row.lease.is_none_or(|(_, until)| until <= self.now);
            if first && free && row.due <= self.now {
                ready.push(index);
            }
        }
        ready.sort_by_key(|index| (self.pending[*index].due, self.pending[*index].row));
        ready
    }

    fn held_by(&self, row: &Pending, owner: usize) -> bool {
        row.lease.is_some_and(|(by, _)| by == owner)
    }
}

async fn take(store: &SqliteStore, model: &mut Model, step: Step) {
    let now = model.now;
    match step {
        Step::Pass { seconds } => model.now = now.plus(Duration::from_secs(seconds)),
        Step::Enqueue { key } => {
            let mut tx = store.begin().await.unwrap();
            let event = Event::new("order.changed", KEYS[key], Vec::new());
            let row = outbox::enqueue(&mut tx, &event, now).await.unwrap();
            store.commit(tx).await.unwrap();
            assert!(model.seen.insert(row), "a number came twice");
            model.pending.push(Pending { row, key, due: now, lease: None, tries: 0 });
        }
        Step::Claim { owner, max } => claim(store, model, owner, max).await,
        Step::Confirm { owner, from, rows } => confirm(store, model, owner, from, rows).await,
        Step::Postpone { owner, row, after } => postpone(store, model, owner, row, after).await,
        Step::Release { owner } => {
            outbox::release_all(store, OWNERS[owner]).await.unwrap();
            for row in &mut model.pending {
                row.lease = row.lease.filter(|(by, _)| *by != owner);
            }
        }
        Step::Requeue { row } => {
            let Some(chosen) = model.pending.get_mut(row) else { return };
            outbox::requeue(store, &[chosen.row], now).await.unwrap();
            if chosen.lease.is_none() {
                chosen.due = chosen.due.min(now);
            }
        }
        Step::Forget => {
            let later = now.plus(Duration::from_secs(1));
            let forgotten = outbox::forget(store, later, 1_000).await.unwrap();
            assert_eq!(forgotten, std::mem::take(&mut model.confirmed));
        }
        Step::Lose { row } => {
            if row < model.pending.len() {
                let lost = model.pending.remove(row).row;
                let sql = format!("DELETE FROM mamparo_outbox WHERE seq = {lost}");
                store.apply(&sql).await.unwrap();
            }
        }
    }
}

async fn claim(store: &SqliteStore, model: &mut Model, owner: usize, max: u32) {
    let now = model.now;
    let claimed = outbox::claim(store, OWNERS[owner], max, LEASE, now).await.unwrap();
    let mut expected = model.ready();
    expected.truncate(max as usize);
    expected.sort_unstable();
    let rows: Vec<_> = claimed.iter().map(|claimed| (claimed.row, claimed.tries)).collect();
    let pending = |index: &usize| &model.pending[*index];
    let model_rows: Vec<_> = expected.iter().map(pending).map(|p| (p.row, p.tries)).collect();
    assert_eq!(rows, model_rows);
    for index in expected {
        let row = &mut model.pending[index];
        row.lease = Some((owner, now.plus(LEASE)));
        row.tries += 1;
    }
}

async fn confirm(store: &SqliteStore, model: &mut Model, owner: usize, from: usize, rows: usize) {
    let now = model.now;
    let chosen: Vec<i64> = model.pending.iter().skip(from).take(rows).map(|row| row.row).collect();
    let done = outbox::confirmed(store, OWNERS[owner], &chosen, now).await.unwrap();
    let before = model.pending.len();
    let pending = std::mem::take(&mut model.pending);
    let stays = |row: &Pending| !(chosen.contains(&row.row) && model.held_by(row, owner));
    model.pending = pending.into_iter().filter(stays).collect();
    assert_eq!(done, (before - model.pending.len()) as u64);
    model.confirmed += done;
}

async fn postpone(store: &SqliteStore, model: &mut Model, owner: usize, row: usize, after: u64) {
    let now = model.now;
    let Some(chosen) = model.pending.get(row).cloned() else { return };
    let due = now.plus(Duration::from_secs(after));
    let said = outbox::postpone(store, OWNERS[owner], chosen.row, due, "no").await;
    if model.held_by(&chosen, owner) {
        said.unwrap();
        model.pending[row] = Pending { due, lease: None, ..chosen };
    } else {
        assert!(matches!(said, Err(StoreError::Fenced { .. })), "{said:?}");
    }
}

async fn run(steps: Vec<Step>) {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let (pending, seen) = (Vec::new(), BTreeSet::new());
    let mut model = Model { now: at(0), pending, confirmed: 0, seen };
    for step in steps {
        take(&store, &mut model, step).await;
        let listed = outbox::list(&store, 1_000).await.unwrap();
        let listed: Vec<i64> = listed.iter().map(|listed| listed.row).collect();
        assert_eq!(listed, model.pending.iter().map(|row| row.row).collect::<Vec<_>>());
    }
    // Whatever happened, everything goes out in the end.
    let mut rounds = 0;
    model.now = model.now.plus(Duration::from_secs(60));
    while !model.pending.is_empty() {
        take(&store, &mut model, Step::Claim { owner: 0, max: 100 }).await;
        take(&store, &mut model, Step::Confirm { owner: 0, from: 0, rows: 1_000 }).await;
        rounds += 1;
        assert!(rounds <= 100, "a key is stuck: {model:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn the_outbox_does_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
