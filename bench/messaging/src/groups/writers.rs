//! What writers lose by waking the relay: transactions a second, each one business row and one outbox
//! row.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_call::clock::wall;
use mamparo_messaging::relay::announce_commits;
use mamparo_store::PostgresStore;
use mamparo_store::outbox::{self, Event};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Pool, Postgres};
use tokio_util::sync::CancellationToken;

use super::inbox::{ACCOUNTS, SCHEMA, UPDATE};
use super::ours;
use crate::bed::{Bed, Scale};
use crate::case::{Case, Figure, Group};
use crate::{Result, clock, postgres, rabbit, tasks};

/// Clients that write at once.
pub(super) const CLIENTS: [u32; 2] = [8, 32];

const OUTBOX: &str = "CREATE TABLE outbox_by_hand (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind TEXT NOT NULL, body BYTEA NOT NULL)";
const INSERT: &str = "INSERT INTO outbox_by_hand (kind, body) VALUES ('order.created', $1)";
const NOTIFY: &str = "SELECT pg_notify('outbox_by_hand', '')";

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for clients in CLIENTS {
        for (name, notify) in [("none", false), ("notify", true)] {
            let name = format!("writers.{name}.c{clients}");
            cases.push(Case::new(name, move |bed| by_hand(bed, clients, notify)));
        }
        for (name, wake) in [("off", false), ("on", true)] {
            let name = format!("writers.ours.{name}.c{clients}");
            cases.push(Case::new(name, move |bed| ours(bed, clients, wake)));
        }
    }
    Group::new("writers", cases)
}

/// How long they write.
pub(super) fn length(bed: &Bed) -> Duration {
    match bed.scale {
        Scale::Quick => Duration::from_millis(800),
        Scale::Full => Duration::from_secs(2),
    }
}

async fn by_hand(bed: Arc<Bed>, clients: u32, notify: bool) -> Result<Vec<Figure>> {
    let database = bed.database().await?;
    let client = postgres::connect(&database).await?;
    client.batch_execute(SCHEMA).await?;
    client.batch_execute(OUTBOX).await?;
    let options = PgPoolOptions::new().max_connections(clients).min_connections(clients);
    let pool = options.connect(&database).await?;
    let mut listener = PgListener::connect(&database).await?;
    listener.listen("outbox_by_hand").await?;
    let heard = tasks::begin(async move { while listener.recv().await.is_ok() {} });
    let length = length(&bed);
    let own = pool.clone();
    let (rate, _) = write(clients, length, move |n| step(own.clone(), n, notify)).await?;
    drop(heard);
    pool.close().await;
    bed.drop_database(&database).await?;
    Ok(rate)
}

/// The channel that relays listen on.
const CHANNEL: &str = "mamparo_outbox";

/// A process that writes and runs no relay; somebody listens. With `wake` it tells of its commits.
async fn ours(bed: Arc<Bed>, clients: u32, wake: bool) -> Result<Vec<Figure>> {
    let (store, database) = ours::store(&bed, clients).await?;
    let mut listener = PgListener::connect(&database).await?;
    listener.listen(CHANNEL).await?;
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    let hearing = tasks::begin(async move {
        while listener.recv().await.is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let announcing =
        wake.then(|| tasks::begin(announce_commits(store.clone(), CancellationToken::new())));
    let own = store.clone();
    let (rate, _) = write(clients, length(&bed), move |n| enqueue(own.clone(), n)).await?;
    let heard = counted.load(Ordering::Relaxed);
    if wake != (heard > 0) {
        return Err(format!("heard {heard} wake-ups").into());
    }
    drop((hearing, announcing));
    store.close().await;
    bed.drop_database(&database).await?;
    Ok(rate)
}

async fn enqueue(store: PostgresStore, n: i64) -> Result<()> {
    let event = Event::new("order.created", n.to_string(), rabbit::body());
    let mut tx = store.begin().await?;
    sqlx::query(UPDATE).bind(n % ACCOUNTS).execute(&mut *tx).await?;
    outbox::enqueue(&mut tx, &event, wall()).await?;
    Ok(store.commit(tx).await?)
}

/// Runs `clients` loops of `step` for `length`; their rate, and how many steps there were.
pub(super) async fn write<F, R>(
    clients: u32,
    length: Duration,
    step: F,
) -> Result<(Vec<Figure>, usize)>
where
    F: Fn(i64) -> R + Clone + Send + 'static,
    R: Future<Output = Result<()>> + Send,
{
    let start = clock::now();
    let writers: Vec<_> = (0..clients)
        .map(|client| {
            let step = step.clone();
            tasks::begin(async move {
                let mut steps = 0_i64;
                while start.elapsed() < length {
                    step(i64::from(client) + steps * i64::from(clients)).await?;
                    steps += 1;
                }
                Result::Ok(steps)
            })
        })
        .collect();
    let mut steps = 0;
    for writer in writers {
        steps += usize::try_from(writer.end().await??)?;
    }
    Ok((Figure::rate(steps, start.elapsed()), steps))
}

async fn step(pool: Pool<Postgres>, n: i64, notify: bool) -> Result<()> {
    let mut tx = pool.begin().await?;
    sqlx::query(UPDATE).bind(n % ACCOUNTS).execute(&mut *tx).await?;
    sqlx::query(INSERT).bind(rabbit::body()).execute(&mut *tx).await?;
    if notify {
        sqlx::query(NOTIFY).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}
