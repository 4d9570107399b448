use std::time::Duration;

use mamparo_core::time::Moment;
use mamparo_store::SqliteStore;
use mamparo_store::outbox::{Claimed, Event, RelaySession};
use sqlx::Sqlite;

use super::*;
use crate::{EmbeddedBroker, EmbeddedOptions};

async fn work(wakes: &Wakes) -> Work<'_, EmbeddedBroker, Sqlite> {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let broker = EmbeddedBroker::new(store.clone(), EmbeddedOptions::default());
    let session = Arc::new(RelaySession::new(&store));
    Work::new(session, broker, RelayOptions::default(), store.outbox_signal(), wakes)
}

fn tenure(held: &[u16], surplus: &[u16]) -> Tenure {
    let held = held.iter().map(|shard| Held { shard: *shard, epoch: 1 }).collect();
    Tenure {
        held,
        surplus: surplus.to_vec(),
        taken: Vec::new(),
        relays: vec!["a".to_owned(), "b".to_owned()],
    }
}

fn row(row: i64, shard: u16) -> Claimed {
    let event = Event::new("order.created", format!("o-{row}"), Vec::new());
    Claimed { row, shard, event, enqueued: WallTime::default(), tries: 0, behind: false }
}

/// A look that began before the heartbeat brings rows of a shard that is being given back meanwhile.
/// They are the next holder's.
#[tokio::test]
async fn rows_of_a_shard_that_is_given_back_do_not_start() {
    let wakes = Wakes::default();
    let mut work = work(&wakes).await;
    work.beat(clock::now(), tenure(&[3, 4], &[]));
    let generation = work.window.generation();
    work.beat(clock::now(), tenure(&[3, 4], &[3]));
    assert!(work.idle_surplus().is_some(), "nothing of it is known, so it may go");
    work.looked(generation, vec![row(1, 3), row(2, 4)]);
    assert_eq!(work.window.start().map(|(row, _)| row), Some(2));
    assert_eq!(work.window.start().map(|(row, _)| row), None);
}

/// Commits wake a relay that stands by, too, which has nowhere to look.
#[tokio::test]
async fn a_relay_without_shards_waits_for_its_heartbeat() {
    let wakes = Wakes::default();
    let mut work = work(&wakes).await;
    let now = clock::now();
    work.beat(now, tenure(&[], &[]));
    work.due.look = Moment::ORIGIN;
    work.due.gauges = now.plus(Duration::from_secs(10));
    work.due.house = work.due.gauges;
    assert_eq!(work.next(now), work.due.beat);
    // All that it holds it has to give back.
    work.beat(now, tenure(&[3], &[3]));
    work.due.refused = Moment::FAR_FUTURE;
    work.keeping = true;
    work.due.look = Moment::ORIGIN;
    assert_eq!(work.next(now), Moment::FAR_FUTURE);
    work.beat(now, tenure(&[3], &[]));
    work.due.look = Moment::ORIGIN;
    assert!(work.next(now) <= now.plus(LOOK_GAP), "with a shard it looks");
}

/// A relay that was held up (suspended, starved) past its lease publishes nothing before it has asked
/// what it still holds: another one may be at these rows.
#[tokio::test]
async fn nothing_starts_after_the_lease_is_over() {
    let wakes = Wakes::default();
    let mut work = work(&wakes).await;
    let began = clock::now();
    work.beat(began, tenure(&[3], &[]));
    work.looked(work.window.generation(), vec![row(1, 3)]);
    let over = began.plus(RelayOptions::default().lease);
    work.publish(over);
    assert_eq!(work.flights.len(), 0);
    work.publish(began);
    assert_eq!(work.flights.len(), 1);
}
