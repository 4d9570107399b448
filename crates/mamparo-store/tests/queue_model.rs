//! Random histories of a queue and its retry queue, compared step by step with a model in memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::time::Duration;

use common::{LEASE, at, message, queue};
use mamparo_core::time::WallTime;
use mamparo_store::SqliteStore;
use mamparo_store::queue::{self as rows, QueueMessage, QueueSpec, Selection};
use proptest::prelude::*;

/// Hardly longer than a lease, so that many a TTL ends while somebody holds the message.
const TTL: Duration = Duration::from_secs(12);
const NAMES: [&str; 2] = ["q", "q.retry"];
const OWNERS: [&str; 2] = ["ada", "bob"];
/// The first is none: no order is kept for it.
const KEYS: [&str; 3] = ["", "k", "l"];

#[derive(Debug, Clone)]
enum Step {
    Publish { queue: usize, key: usize },
    Lease { queue: usize, owner: usize, max: u32 },
    Ack { handle: usize },
    GiveBack { handle: usize, after: u64 },
    GiveBackAll { owner: usize },
    Renew { owner: usize },
    Move { from: usize, nth: usize },
    Discard { from: usize, nth: usize },
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (queue, owner) = (0_usize..2, 0_usize..2);
    prop_oneof![
        4 => (queue.clone(), 0_usize..3).prop_map(|(queue, key)| Step::Publish { queue, key }),
        4 => (queue.clone(), owner.clone(), 1_u32..4)
            .prop_map(|(queue, owner, max)| Step::Lease { queue, owner, max }),
        4 => (0_usize..12).prop_map(|handle| Step::Ack { handle }),
        2 => (0_usize..12, 0_u64..20)
            .prop_map(|(handle, after)| Step::GiveBack { handle, after }),
        1 => owner.clone().prop_map(|owner| Step::GiveBackAll { owner }),
        1 => owner.prop_map(|owner| Step::Renew { owner }),
        1 => (queue.clone(), 0_usize..4).prop_map(|(from, nth)| Step::Move { from, nth }),
        1 => (queue, 0_usize..4).prop_map(|(from, nth)| Step::Discard { from, nth }),
        3 => (0_u64..25).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// A message as the model has it; the order in the model is the order in the queue.
#[derive(Debug, Clone)]
struct Held {
    id: String,
    key: usize,
    queue: usize,
    since: WallTime,
    visible: WallTime,
    epoch: i64,
    /// A lease on it ran out.
    suspect: bool,
    lease: Option<(usize, WallTime)>,
    /// The row, once a lease has told it.
    row: Option<i64>,
}

impl Held {
    fn new((id, key): (String, usize), queue: usize, now: WallTime) -> Self {
        Self {
            id,
            key,
            queue,
            since: now,
            visible: now,
            epoch: 0,
            suspect: false,
            lease: None,
            row: None,
        }
    }

    fn free(&self, now: WallTime) -> bool {
        self.lease.is_none_or(|(_, until)| until <= now)
    }
}

#[derive(Debug)]
struct Model {
    now: WallTime,
    held: Vec<Held>,
    published: usize,
    acked: usize,
    archived: usize,
    /// Every delivery that there ever was: row, epoch, id.
    handles: Vec<(i64, i64, String)>,
}

impl Model {
    /// Messages whose TTL is over go to the end of the main queue, those that waited longest first.
    fn expire(&mut self) {
        let now = self.now;
        let over = |held: &Held| held.queue == 1 && held.since.plus(TTL) <= now && held.free(now);
        let (mut moved, stay): (Vec<_>, Vec<_>) = self.held.drain(..).partition(over);
        moved.sort_by_key(|held| held.since);
        self.held = stay;
        self.held.extend(moved.into_iter().map(|held| Held::new((held.id, held.key), 0, now)));
    }

    /// The message of a delivery, if that delivery is still the current one.
    fn current(&mut self, handle: &(i64, i64, String)) -> Option<usize> {
        self.held.iter().position(|held| {
            held.row == Some(handle.0) && held.epoch == handle.1 && held.lease.is_some()
        })
    }
}

async fn run(steps: Vec<Step>) {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    rows::declare(&store, &queue(NAMES[0])).await.unwrap();
    let (message_ttl, dead_letter_to) = (Some(TTL), Some(NAMES[0].to_owned()));
    let retry = QueueSpec { name: NAMES[1].to_owned(), message_ttl, dead_letter_to };
    rows::declare(&store, &retry).await.unwrap();
    let mut model = Model {
        now: at(0),
        held: Vec::new(),
        published: 0,
        acked: 0,
        archived: 0,
        handles: Vec::new(),
    };
    for step in steps {
        take(&store, &mut model, step).await;
        check(&store, &model).await;
    }
}

async fn take(store: &SqliteStore, model: &mut Model, step: Step) {
    let now = model.now;
    match step {
        Step::Pass { seconds } => model.now = now.plus(Duration::from_secs(seconds)),
        Step::Publish { queue, key } => {
            let id = model.published.to_string();
            model.published += 1;
            let message = QueueMessage { key: KEYS[key].to_owned(), ..message(&id) };
            rows::publish(store, "", NAMES[queue], &message, now).await.unwrap();
            model.held.push(Held::new((id, key), queue, now));
        }
        Step::Lease { queue, owner, max } => lease(store, model, queue, owner, max).await,
        Step::Ack { handle } => {
            let Some(handle) = model.handles.iter().rev().nth(handle).cloned() else { return };
            let current = model.current(&handle);
            let acked = rows::ack(store, handle.0, handle.1).await.unwrap();
            assert_eq!(acked, current.is_some());
            if let Some(index) = current {
                model.held.remove(index);
                model.acked += 1;
            }
        }
        Step::GiveBack { handle, after } => {
            let Some(handle) = model.handles.iter().rev().nth(handle).cloned() else { return };
            let (current, visible) = (model.current(&handle), now.plus(Duration::from_secs(after)));
            let given = rows::give_back(store, handle.0, handle.1, visible).await.unwrap();
            assert_eq!(given, current.is_some());
            if let Some(index) = current {
                model.held[index].lease = None;
                model.held[index].visible = visible;
            }
        }
        Step::GiveBackAll { owner } => {
            rows::give_back_all(store, OWNERS[owner]).await.unwrap();
            for held in &mut model.held {
                held.lease = held.lease.filter(|(by, _)| *by != owner);
            }
        }
        Step::Renew { owner } => {
            rows::renew(store, OWNERS[owner], LEASE, now).await.unwrap();
            for held in &mut model.held {
                let renewed = |(by, until)| (by, if by == owner { now.plus(LEASE) } else { until });
                held.lease = held.lease.map(renewed);
            }
        }
        Step::Move { from, nth } => take_out(store, model, from, nth, true).await,
        Step::Discard { from, nth } => take_out(store, model, from, nth, false).await,
    }
}

async fn lease(store: &SqliteStore, model: &mut Model, queue: usize, owner: usize, max: u32) {
    if queue == 0 {
        model.expire();
    }
    let now = model.now;
    let until = now.plus(LEASE);
    let leased = rows::lease(store, NAMES[queue], OWNERS[owner], max, LEASE, now).await;
    let mut leased = leased.unwrap().into_iter();
    // A key is taken up to its first message that another one holds or that is put off.
    let mut closed = Vec::new();
    let mut fits = |held: &&mut Held| {
        if held.queue != queue || (held.key != 0 && closed.contains(&held.key)) {
            return false;
        }
        let mine = held.lease.is_some_and(|(by, _)| by == owner);
        if held.visible > now || (!held.free(now) && !mine) {
            closed.push(held.key);
        }
        held.visible <= now && held.free(now)
    };
    for held in model.held.iter_mut().filter(|held| fits(held)).take(max as usize) {
        let got = leased.next().unwrap();
        held.epoch += 1;
        held.suspect |= held.lease.is_some();
        held.lease = Some((owner, until));
        held.row = Some(got.row);
        assert_eq!((&got.message.id, got.epoch), (&held.id, held.epoch));
        assert_eq!(got.suspect, held.suspect);
        model.handles.push((got.row, got.epoch, held.id.clone()));
    }
    assert!(leased.next().is_none(), "more was handed out than there is");
}

/// A person moves a message to the other queue, or discards it.
async fn take_out(store: &SqliteStore, model: &mut Model, from: usize, nth: usize, to_other: bool) {
    let now = model.now;
    let everything = Selection { max: 1_000, ..Selection::default() };
    let listed = rows::list(store, NAMES[from], &everything).await.unwrap();
    let Some(chosen) = listed.get(nth) else { return };
    let index = model.held.iter().position(|held| held.id == chosen.message.id).unwrap();
    let free = model.held[index].free(now);
    let taken = if to_other {
        let headers = &chosen.message.headers;
        rows::move_to(store, chosen.row, NAMES[1 - from], headers, now).await
    } else {
        rows::discard(store, chosen.row, "ada", "why", now).await
    };
    assert_eq!(taken.unwrap(), free);
    if free {
        let held = model.held.remove(index);
        if to_other {
            model.held.push(Held::new((held.id, held.key), 1 - from, now));
        } else {
            model.archived += 1;
        }
    }
}

/// Everything that was published lies where the model has it, in its order, and the books agree.
async fn check(store: &SqliteStore, model: &Model) {
    let everything = Selection { max: 1_000, ..Selection::default() };
    for (index, name) in NAMES.iter().enumerate() {
        let listed = rows::list(store, name, &everything).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|row| &row.message.id).collect();
        let held = model.held.iter().filter(|held| held.queue == index);
        assert_eq!(listed, held.map(|held| &held.id).collect::<Vec<_>>(), "{name}");
    }
    let totals = rows::totals(store).await.unwrap();
    assert!(totals.iter().all(rows::Totals::balanced), "{totals:?}");
    let sum = |of: fn(&rows::Totals) -> u64| totals.iter().map(of).sum::<u64>();
    assert_eq!(sum(|totals| totals.acked), model.acked as u64);
    assert_eq!(sum(|totals| totals.archived), model.archived as u64);
    assert_eq!(sum(|totals| totals.published), model.published as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn queues_do_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
