//! A consumer that handles each message once: an inbox row and a change in one transaction, then ack.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::try_join_all;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Pool, Postgres};
use tokio::sync::{Mutex, mpsc};
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

use super::ours::{self, Filled, Handling};
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::postgres::{self, Connected};
use crate::rabbit::{self, KINDS, Kind};
use crate::{Error, Result, clock, tasks};

pub(super) const MESSAGES: usize = 8_000;
pub(super) const PREFETCH: u16 = 100;
pub(super) const WORKERS: usize = 8;
/// Rows that the messages change in turn; enough that two in flight seldom meet.
pub(super) const ACCOUNTS: i64 = 1_000;

/// The consumer's own table, and the inbox of the loops written by hand.
pub(super) const SCHEMA: &str = "
    CREATE TABLE accounts (id BIGINT PRIMARY KEY, changes BIGINT NOT NULL);
    INSERT INTO accounts SELECT n, 0 FROM generate_series(0, 999) n;
    CREATE TABLE inbox_by_hand (
        consumer TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, at BIGINT NOT NULL,
        PRIMARY KEY (consumer, id));";
/// Refused for an id that is there, which undoes the whole transaction: a duplicate changes nothing.
const INSERT: &str = "INSERT INTO inbox_by_hand VALUES ($1, $2, $3, $4)";
/// The change.
pub(super) const UPDATE: &str = "UPDATE accounts SET changes = changes + 1 WHERE id = $1";

/// How the loop written by hand speaks to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// tokio-postgres, the four statements sent together: one round trip.
    Pipelined,
    /// sqlx, which waits for each statement: four round trips.
    Sqlx,
}

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for kind in KINDS {
        for (name, driver) in [("pipelined", Driver::Pipelined), ("sqlx", Driver::Sqlx)] {
            let name = format!("inbox.{name}.{}", kind.as_str());
            cases.push(Case::new(name, move |bed| by_hand(bed, kind, driver)));
        }
        let name = format!("inbox.ours.{}", kind.as_str());
        cases.push(Case::new(name, move |bed| ours(bed, kind)));
    }
    Group::new("inbox", cases)
}

/// The account that a message changes.
pub(super) fn account(id: &str) -> i64 {
    let number = id.rsplit('-').next().and_then(|part| i64::from_str_radix(part, 16).ok());
    number.unwrap_or(0) % ACCOUNTS
}

async fn ours(bed: Arc<Bed>, kind: Kind) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let (store, database) = ours::store(&bed, u32::try_from(WORKERS)?).await?;
    let mut filled = Filled::new(&bed, kind, PREFETCH, count).await?;
    filled.policy.workers = Some(u32::try_from(WORKERS)?);
    let (took, summary) = ours::consume(&filled, Handling::Changes(&store), count).await?;
    let changes = changes(&database).await?;
    if summary.done != count as u64 || changes != i64::try_from(count)? {
        return Err(format!("{count} messages, {changes} changes: {summary:?}").into());
    }
    filled.remove(0).await?;
    store.close().await;
    bed.drop_database(&database).await?;
    Ok(Figure::rate(count, took))
}

async fn by_hand(bed: Arc<Bed>, kind: Kind, driver: Driver) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let queue = fresh("inbox");
    let database = bed.database().await?;
    postgres::connect(&database).await?.batch_execute(SCHEMA).await?;
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::declare(&channel, &queue, kind).await?;
    rabbit::fill(&channel, &queue, count).await?;
    let own = rabbit::connect(&bed.amqp).await?;
    let taking = own.create_channel().await?;
    let deliveries = rabbit::consume(&taking, &queue, PREFETCH).await?;
    let took = match driver {
        Driver::Pipelined => {
            let workers = try_join_all((0..WORKERS).map(|_| Pipelined::new(&database))).await?;
            consume(deliveries, count, workers).await?
        }
        Driver::Sqlx => {
            let options = PgPoolOptions::new().max_connections(u32::try_from(WORKERS)?);
            let pool = options.min_connections(u32::try_from(WORKERS)?).connect(&database).await?;
            consume(deliveries, count, vec![pool; WORKERS]).await?
        }
    };
    let changes = changes(&database).await?;
    if changes != i64::try_from(count)? {
        return Err(format!("{changes} changes of {count} messages").into());
    }
    rabbit::close(&own).await?;
    rabbit::delete(&channel, &queue).await?;
    rabbit::close(&connection).await?;
    bed.drop_database(&database).await?;
    Ok(Figure::rate(count, took))
}

/// How many changes were made in all.
pub(super) async fn changes(database: &str) -> Result<i64> {
    let client = postgres::connect(database).await?;
    let sum = client.query_one("SELECT sum(changes)::bigint FROM accounts", &[]).await?;
    Ok(sum.get(0))
}

/// One of the workers that share the deliveries.
trait Worker: Send + Sync + 'static {
    fn apply(&self, id: &str, kind: &str) -> impl Future<Output = Result<()>> + Send;
}

async fn consume<W: Worker>(
    mut deliveries: lapin::Consumer,
    count: usize,
    workers: Vec<W>,
) -> Result<Duration> {
    let (send, receive) = mpsc::channel::<Delivery>(usize::from(PREFETCH));
    let receive = Arc::new(Mutex::new(receive));
    let running: Vec<_> = workers
        .into_iter()
        .map(|worker| tasks::begin(work(worker, Arc::clone(&receive))))
        .collect();
    let mut first = None;
    for _ in 0..count {
        let Some(delivery) = deliveries.next().await else {
            return Err(Error::from("the deliveries ended early"));
        };
        first.get_or_insert_with(clock::now);
        if send.send(delivery?).await.is_err() {
            break;
        }
    }
    drop(send);
    for worker in running {
        worker.end().await??;
    }
    first.map(|first| first.elapsed()).ok_or_else(|| Error::from("no message came"))
}

async fn work<W: Worker>(worker: W, from: Arc<Mutex<mpsc::Receiver<Delivery>>>) -> Result<()> {
    loop {
        let next = from.lock().await.recv().await;
        let Some(delivery) = next else { return Ok(()) };
        let text = |value: &Option<lapin::types::ShortString>| {
            value.as_ref().map(|text| text.as_str().to_owned()).unwrap_or_default()
        };
        let id = text(delivery.properties.message_id());
        let kind = text(delivery.properties.kind());
        worker.apply(&id, &kind).await?;
        delivery.ack(BasicAckOptions::default()).await?;
    }
}

struct Pipelined {
    client: Connected,
    insert: Statement,
    update: Statement,
}

impl Pipelined {
    async fn new(database: &str) -> Result<Self> {
        let client = postgres::connect(database).await?;
        let (insert, update) = (client.prepare(INSERT).await?, client.prepare(UPDATE).await?);
        Ok(Self { client, insert, update })
    }
}

impl Worker for Pipelined {
    async fn apply(&self, id: &str, kind: &str) -> Result<()> {
        let (account, at) = (account(id), 0_i64);
        let row: [&(dyn ToSql + Sync); 4] = [&"by_hand", &id, &kind, &at];
        let change: [&(dyn ToSql + Sync); 1] = [&account];
        // Polled in this order, so sent in this order, before the first answer.
        let (begun, inserted, updated, committed) = tokio::join!(
            biased;
            self.client.batch_execute("BEGIN"),
            self.client.execute(&self.insert, &row),
            self.client.execute(&self.update, &change),
            self.client.batch_execute("COMMIT"),
        );
        begun.and(inserted).and(updated)?;
        Ok(committed?)
    }
}

impl Worker for Pool<Postgres> {
    async fn apply(&self, id: &str, kind: &str) -> Result<()> {
        let mut tx = self.begin().await?;
        let insert = sqlx::query(INSERT).bind("by_hand").bind(id).bind(kind).bind(0_i64);
        insert.execute(&mut *tx).await?;
        sqlx::query(UPDATE).bind(account(id)).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    }
}
