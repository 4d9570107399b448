//! From the insert of an outbox row to its delivery, at a steady rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use futures_util::stream;
use lapin::Channel;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use mamparo_call::clock::wall;
use mamparo_messaging::relay::announce_commits;
use mamparo_store::{PostgresStore, outbox};
use sqlx::PgPool;
use tokio::sync::Notify;
use tokio_postgres::{AsyncMessage, NoTls, Statement};
use tokio_util::sync::CancellationToken;

use super::relay;
use super::relaying::{self, Relaying};
use crate::bed::{Bed, Scale, fresh};
use crate::case::{Case, Figure, Group};
use crate::postgres::{self, Connected};
use crate::rabbit::{self, Kind};
use crate::tasks::{self, Task};
use crate::{Error, Result, clock};

/// Rows a second.
pub(super) const RATES: [u32; 2] = [50, 500];

const SCHEMA: &str = "CREATE TABLE outbox_by_hand (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body BYTEA NOT NULL)";
const INSERT: &str = "INSERT INTO outbox_by_hand (body) VALUES ($1)";
const NOTIFY: &str = "SELECT pg_notify('outbox_by_hand', '')";
const NEXT: &str = "SELECT id, body FROM outbox_by_hand ORDER BY id LIMIT 500";
const DELETE: &str = "DELETE FROM outbox_by_hand WHERE id = ANY($1)";

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for rate in RATES {
        cases.push(Case::new(format!("wakeup.notify.{rate}"), move |bed| by_hand(bed, rate)));
        for (name, writer) in [("ours", Writer::Elsewhere), ("ours.inside", Writer::Inside)] {
            let name = format!("wakeup.{name}.{rate}");
            cases.push(Case::new(name, move |bed| ours(bed, rate, writer)));
        }
    }
    Group::new("wakeup", cases)
}

/// Whose transactions bring the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Those of a store that knows nothing of the relay's, as another process would open it.
    Elsewhere,
    /// Those of the relay's own store.
    Inside,
}

async fn ours(bed: Arc<Bed>, rate: u32, writer: Writer) -> Result<Vec<Figure>> {
    let count = rows(&bed, rate);
    let relaying = Relaying::start(&bed, Kind::Quorum).await?;
    let (store, _announcing) = match writer {
        Writer::Elsewhere => {
            let store = PostgresStore::open(&relaying.database).await?;
            let announcing = announce_commits(store.clone(), CancellationToken::new());
            (store, Some(tasks::begin(announcing)))
        }
        Writer::Inside => (relaying.store.clone(), None),
    };
    let own = rabbit::connect(&bed.amqp).await?;
    let base = clock::now();
    let taking = own.create_channel().await?;
    let received = receive(&taking, &relaying.queue, base, count).await?;
    for n in 0..count {
        pace(base, rate, n).await;
        let event = relaying::event(&n.to_string(), stamp(base));
        let mut tx = store.begin().await?;
        outbox::enqueue(&mut tx, &event, wall()).await?;
        store.commit(tx).await?;
    }
    let ages = received.end().await??;
    rabbit::close(&own).await?;
    store.close().await;
    relaying.end(&bed).await?;
    Ok(Figure::latencies(ages))
}

/// How many rows a round takes: a hundredth of them are behind the 99th percentile.
pub(super) fn rows(bed: &Bed, rate: u32) -> u32 {
    match bed.scale {
        Scale::Quick => rate * 2,
        Scale::Full => (rate * 4).max(500),
    }
}

/// The time since `base`, as a body.
pub(super) fn stamp(base: Instant) -> Vec<u8> {
    let mut body = format!("{:020}", base.elapsed().as_nanos()).into_bytes();
    body.resize(rabbit::BODY, b' ');
    body
}

/// How long the message that bears this stamp took.
fn age(base: Instant, body: &[u8]) -> Result<Duration> {
    let text = std::str::from_utf8(body)?.trim();
    let sent: u64 = text.parse()?;
    Ok(base.elapsed().saturating_sub(Duration::from_nanos(sent)))
}

/// Takes `count` messages as they come; how long each took. The consumer is subscribed when this
/// returns.
pub(super) async fn receive(
    channel: &Channel,
    queue: &str,
    base: Instant,
    count: u32,
) -> Result<Task<Result<Vec<Duration>>>> {
    channel.basic_qos(1_000, BasicQosOptions::default()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consumer = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    let mut deliveries = consumer.await?;
    Ok(tasks::begin(async move {
        let mut ages = Vec::new();
        for _ in 0..count {
            let next = deliveries.next().await.ok_or_else(|| Error::from("the queue is gone"))?;
            ages.push(age(base, &next?.data)?);
        }
        Ok(ages)
    }))
}

/// The `n`th moment of a steady rate.
pub(super) async fn pace(base: Instant, rate: u32, n: u32) {
    let due = base + Duration::from_secs(1) * n / rate;
    tokio::time::sleep_until(due.into()).await;
}

/// One writer whose transactions notify, by the same driver as ours; one relay that listens.
async fn by_hand(bed: Arc<Bed>, rate: u32) -> Result<Vec<Figure>> {
    let count = rows(&bed, rate);
    let name = fresh("wakeup");
    let database = bed.database().await?;
    let writer = postgres::connect(&database).await?;
    writer.batch_execute(SCHEMA).await?;
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    relay::topology(&channel, &name, Kind::Quorum).await?;
    let own = rabbit::connect(&bed.amqp).await?;
    let base = clock::now();
    let taking = own.create_channel().await?;
    let received = receive(&taking, &name, base, count).await?;
    let wake = Arc::new(Notify::new());
    let _listening = listen(&database, Arc::clone(&wake)).await?;
    let relay = Relay::new(&database, channel.clone(), &name).await?;
    let relay = tasks::begin(async move { relay.run(&wake, count).await });
    let writers = PgPool::connect(&database).await?;
    for n in 0..count {
        pace(base, rate, n).await;
        let body = stamp(base);
        let mut tx = writers.begin().await?;
        sqlx::query(INSERT).bind(body).execute(&mut *tx).await?;
        sqlx::query(NOTIFY).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    let ages = received.end().await??;
    relay.end().await??;
    writers.close().await;
    relay::remove(&channel, &name).await?;
    rabbit::close(&own).await?;
    rabbit::close(&connection).await?;
    bed.drop_database(&database).await?;
    Ok(Figure::latencies(ages))
}

/// Wakes `wake` whenever the database notifies, until the task is dropped.
async fn listen(
    database: &str,
    wake: Arc<Notify>,
) -> Result<(tokio_postgres::Client, Task<Result<()>>)> {
    let (client, mut connection) = tokio_postgres::connect(database, NoTls).await?;
    let moving = tasks::begin(async move {
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(message) = messages.next().await {
            if matches!(message?, AsyncMessage::Notification(_)) {
                wake.notify_one();
            }
        }
        Ok(())
    });
    client.batch_execute("LISTEN outbox_by_hand").await?;
    Ok((client, moving))
}

struct Relay {
    client: Connected,
    next: Statement,
    delete: Statement,
    channel: Channel,
    exchange: String,
}

impl Relay {
    async fn new(database: &str, channel: Channel, exchange: &str) -> Result<Self> {
        let client = postgres::connect(database).await?;
        let (next, delete) = (client.prepare(NEXT).await?, client.prepare(DELETE).await?);
        Ok(Self { client, next, delete, channel, exchange: exchange.to_owned() })
    }

    async fn run(self, wake: &Notify, count: u32) -> Result<()> {
        let mut left = 0;
        while left < count {
            let rows = self.client.query(&self.next, &[]).await?;
            if rows.is_empty() {
                wake.notified().await;
                continue;
            }
            let mut confirms = Vec::with_capacity(rows.len());
            for row in &rows {
                let (number, kind) = (usize::try_from(left)?, "order.created");
                let properties = rabbit::properties(number, kind);
                let published =
                    rabbit::publish(&self.channel, &self.exchange, kind, row.get(1), properties);
                confirms.push(published.await?);
                left += 1;
            }
            try_join_all(confirms.into_iter().map(rabbit::confirmed)).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            self.client.execute(&self.delete, &[&ids]).await?;
        }
        Ok(())
    }
}
