//! What writers lose by waking the relay: transactions a second, each one business row and one outbox
//! row.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Pool, Postgres};

use super::inbox::{ACCOUNTS, SCHEMA, UPDATE};
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
