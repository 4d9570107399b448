//! The outbox relay: rows that are committed, to the broker and confirmed, and marked as such.

use std::sync::Arc;

use futures_util::future::try_join_all;
use lapin::Channel;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::FieldTable;

use super::relaying::{self, Relaying};
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::postgres::{self, Connected};
use crate::rabbit::{self, KINDS, Kind};
use crate::{Error, Result, clock};

pub(super) const ROWS: usize = 10_000;
pub(super) const BATCH: usize = 500;

/// The outbox of the loop written by hand.
const SCHEMA: &str = "
    CREATE TABLE outbox_by_hand (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message TEXT NOT NULL, kind TEXT NOT NULL,
        key TEXT NOT NULL, body BYTEA NOT NULL, published TIMESTAMPTZ);
    CREATE INDEX outbox_by_hand_due ON outbox_by_hand (id) WHERE published IS NULL;";
const FILL: &str = "INSERT INTO outbox_by_hand (message, kind, key, body)
    SELECT gen_random_uuid()::text, 'order.created', (n / 4)::text, $2 FROM generate_series(1, $1) n";
const NEXT: &str = "SELECT id, message, kind, body FROM outbox_by_hand WHERE published IS NULL
    ORDER BY id LIMIT $1";
const MARK: &str = "UPDATE outbox_by_hand SET published = now() WHERE id = ANY($1)";

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for kind in KINDS {
        let at = kind.as_str();
        cases.push(Case::new(format!("relay.serial.{at}"), move |bed| serial(bed, kind)));
        cases.push(Case::new(format!("relay.publish.{at}"), move |bed| only_publish(bed, kind)));
        for (name, keys) in [("ours", Keys::Apart), ("ours.bursts", Keys::Together)] {
            cases.push(Case::new(format!("relay.{name}.{at}"), move |bed| ours(bed, kind, keys)));
        }
    }
    Group::new("relay", cases)
}

/// How the four rows of each key lie in the outbox. They leave one after the other in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// A quarter of all rows apart, as the events of an order that lives for a while.
    Apart,
    /// Next to each other, as the events of one that is over at once.
    Together,
}

/// From the commit of all rows until nothing is left: each key in order, no row skipped.
async fn ours(bed: Arc<Bed>, kind: Kind, keys: Keys) -> Result<Vec<Figure>> {
    let count = bed.amount(ROWS);
    let relaying = Relaying::start(&bed, kind).await?;
    let key = |number: usize| match keys {
        Keys::Apart => number % (count / 4),
        Keys::Together => number / 4,
    };
    let events = (0..count).map(|n| relaying::event(&key(n).to_string(), rabbit::body()));
    relaying.enqueue(events.collect()).await?;
    let start = clock::now();
    relaying.delivered(count).await?;
    relaying.drained().await?;
    let took = start.elapsed();
    relaying.end(&bed).await?;
    Ok(Figure::rate(count, took))
}

/// A topic exchange and a queue bound to it, as events go.
pub(super) async fn topology(channel: &Channel, name: &str, kind: Kind) -> Result<()> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let topic = ExchangeKind::Topic;
    channel.exchange_declare(name.into(), topic, durable, FieldTable::default()).await?;
    rabbit::declare(channel, name, kind).await?;
    let (options, none) = (QueueBindOptions::default(), FieldTable::default());
    Ok(channel.queue_bind(name.into(), name.into(), "order.*".into(), options, none).await?)
}

/// Read a batch, publish it, await its confirms, mark it, and again: no order but by accident.
async fn serial(bed: Arc<Bed>, kind: Kind) -> Result<Vec<Figure>> {
    let count = bed.amount(ROWS);
    let name = fresh("relay");
    let database = bed.database().await?;
    let client = postgres::connect(&database).await?;
    client.batch_execute(SCHEMA).await?;
    client.execute(FILL, &[&i32::try_from(count)?, &rabbit::body()]).await?;
    client.batch_execute("ANALYZE outbox_by_hand").await?;
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    topology(&channel, &name, kind).await?;
    let (start, mut sent) = (clock::now(), 0);
    let (next, mark) = (client.prepare(NEXT).await?, client.prepare(MARK).await?);
    loop {
        let rows = client.query(&next, &[&i64::try_from(BATCH)?]).await?;
        if rows.is_empty() {
            break;
        }
        let mut confirms = Vec::with_capacity(rows.len());
        for row in &rows {
            let (kind, body): (&str, &[u8]) = (row.get(2), row.get(3));
            let properties = rabbit::properties(sent, kind);
            let published = rabbit::publish(&channel, &name, kind, body, properties);
            confirms.push(published.await?);
            sent += 1;
        }
        try_join_all(confirms.into_iter().map(rabbit::confirmed)).await?;
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        client.execute(&mark, &[&ids]).await?;
    }
    let took = start.elapsed();
    tidy_up(&bed, &database, client, &channel, &name, (sent, count)).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took))
}

/// The same publishes without a database.
async fn only_publish(bed: Arc<Bed>, kind: Kind) -> Result<Vec<Figure>> {
    let count = bed.amount(ROWS);
    let name = fresh("relay");
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    topology(&channel, &name, kind).await?;
    let body = rabbit::body();
    let start = clock::now();
    for at in (0..count).step_by(BATCH) {
        let mut confirms = Vec::with_capacity(BATCH);
        for number in at..count.min(at + BATCH) {
            let properties = rabbit::properties(number, "order.created");
            let published = rabbit::publish(&channel, &name, "order.created", &body, properties);
            confirms.push(published.await?);
        }
        try_join_all(confirms.into_iter().map(rabbit::confirmed)).await?;
    }
    let took = start.elapsed();
    remove(&channel, &name).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took))
}

async fn tidy_up(
    bed: &Bed,
    database: &str,
    client: Connected,
    channel: &Channel,
    name: &str,
    (sent, count): (usize, usize),
) -> Result<()> {
    if sent != count {
        return Err(Error::from(format!("{sent} of {count} rows left")));
    }
    drop(client);
    remove(channel, name).await?;
    bed.drop_database(database).await
}

/// Removes what [`topology`] declared.
pub(super) async fn remove(channel: &Channel, name: &str) -> Result<()> {
    rabbit::delete(channel, name).await?;
    Ok(channel.exchange_delete(name.into(), Default::default()).await?)
}
