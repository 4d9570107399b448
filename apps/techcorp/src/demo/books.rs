//! The books of the shop: every service's own tables, side by side, read only, and what lies at the
//! broker.
//!
//! The demo believes nothing that a service or the traffic says of itself; it counts here. The books
//! of a service are called by its name, `orders.orders` say: on SQLite a file that is attached, on
//! PostgreSQL its schema.

use std::path::Path;
use std::time::Duration;

use mamparo::core::message::topology::{DLQ_SUFFIX, dlq};
use mamparo::messaging::letters::{Letters as _, Place};
use mamparo::messaging::{AnyBroker, Broker, QueuePolicy};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, Postgres, Sqlite, SqlitePool};

use super::DemoError;
use super::engines::Engines;
use crate::db::{Query, Shape, query};
use crate::shop::{SERVICES, default_policy};

/// The databases that are attached on SQLite, by the name that they have in queries.
pub const BOOKS: [&str; 7] =
    ["orders", "inventory", "payments", "notifications", "psp", "mail", "broker"];

/// How long a look may wait for a server that is away just now.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most dead letters of one queue that are counted.
const LETTERS_MAX: u32 = 10_000;

/// All books. Its connections come back by themselves when a server was away.
#[derive(Debug)]
pub struct Books {
    tables: Tables,
    broker: AnyBroker,
    queues: Vec<QueuePolicy>,
}

/// The services' tables alone, for when the broker is away.
#[derive(Debug)]
pub struct Tables(Engine);

#[derive(Debug)]
enum Engine {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Tables {
    /// What `query` finds.
    ///
    /// # Errors
    /// What the database said.
    pub async fn rows<T: Shape>(&self, query: Query) -> Result<Vec<T>, sqlx::Error> {
        match &self.0 {
            Engine::Sqlite(pool) => query.all_at::<Sqlite, T>(&mut *pool.acquire().await?).await,
            Engine::Postgres(pool) => {
                query.all_at::<Postgres, T>(&mut *pool.acquire().await?).await
            }
        }
    }

    /// The one number that `sql` counts.
    ///
    /// # Errors
    /// What the database said.
    pub async fn count(&self, sql: &'static str) -> Result<u64, sqlx::Error> {
        let rows: Vec<(i64,)> = self.rows(query(sql)).await?;
        Ok(rows.first().map_or(0, |(number,)| u64::try_from(*number).unwrap_or(0)))
    }

    /// Closes them, after their work.
    pub async fn close(&self) {
        match &self.0 {
            Engine::Sqlite(pool) => pool.close().await,
            Engine::Postgres(pool) => pool.close().await,
        }
    }
}

impl Books {
    /// Opens the books of the shop that stands on `engines`, with its files in `dir`.
    ///
    /// # Errors
    /// What database or broker said.
    pub async fn open(engines: &Engines, dir: &Path) -> Result<Self, DemoError> {
        let tables = Self::tables(engines, dir)?;
        let broker = AnyBroker::open_existing(&engines.broker_in(dir)).await?;
        Ok(Self { tables, broker, queues: queues()? })
    }

    /// The services' tables without what lies at the broker.
    ///
    /// # Errors
    /// What the database said.
    pub fn tables(engines: &Engines, dir: &Path) -> Result<Tables, sqlx::Error> {
        Ok(Tables(match &engines.store {
            None => Engine::Sqlite(attached(dir)),
            Some(shop) => {
                let one = PgPoolOptions::new().max_connections(1).acquire_timeout(PATIENCE);
                Engine::Postgres(one.connect_lazy(shop)?)
            }
        }))
    }

    /// The broker.
    #[must_use]
    pub fn broker(&self) -> &AnyBroker {
        &self.broker
    }

    /// The consumers' queues.
    #[must_use]
    pub fn queues(&self) -> &[QueuePolicy] {
        &self.queues
    }

    /// What `query` finds.
    ///
    /// # Errors
    /// What the database said.
    pub async fn rows<T: Shape>(&self, query: Query) -> Result<Vec<T>, sqlx::Error> {
        self.tables.rows(query).await
    }

    /// The one number that `sql` counts.
    ///
    /// # Errors
    /// What the database said.
    pub async fn count(&self, sql: &'static str) -> Result<u64, sqlx::Error> {
        self.tables.count(sql).await
    }

    /// Closes them, after their work: whoever copies files next finds them at rest.
    pub async fn close(&self) {
        self.tables.close().await;
        self.broker.close().await;
    }

    /// What is not yet at rest, in words; empty when the shop is drained.
    ///
    /// # Errors
    /// What database or broker said.
    pub async fn unrest(&self) -> Result<Vec<String>, DemoError> {
        let mut unrest = Vec::new();
        for (what, sql) in UNREST {
            match self.count(sql).await? {
                0 => {}
                many => unrest.push(format!("{many} {what}")),
            }
        }
        match self.under_way().await? {
            0 => {}
            many => unrest.push(format!("{many} messages in queues")),
        }
        Ok(unrest)
    }

    /// Messages that wait for a consumer, or for their next attempt, wherever they do.
    ///
    /// # Errors
    /// What database or broker said.
    pub async fn under_way(&self) -> Result<u64, DemoError> {
        let depths = self.depths().await?;
        let waiting = depths.iter().filter(|(queue, _)| !queue.ends_with(DLQ_SUFFIX));
        let waiting: u64 = waiting.map(|(_, many)| many).sum();
        Ok(waiting + self.count(PARKED).await?)
    }

    /// Messages by queue, empty queues left out.
    ///
    /// # Errors
    /// What the broker said.
    pub async fn depths(&self) -> Result<Vec<(String, u64)>, DemoError> {
        let mut depths = Vec::new();
        for policy in &self.queues {
            for queue in policy.topology(&self.broker.capabilities()).queues {
                let depth = self.broker.depth(&queue.name).await?;
                if depth > 0 {
                    depths.push((queue.name, depth));
                }
            }
        }
        Ok(depths)
    }

    /// All dead letters, those that a service keeps in its own database included:
    /// (dead-letter queue, message id).
    ///
    /// # Errors
    /// What database or broker said.
    pub async fn dead_letters(&self) -> Result<Vec<(String, String)>, DemoError> {
        let kept: Vec<(String, String)> = self.rows(query(KEPT_DEAD)).await?;
        let mut dead: Vec<_> = kept.into_iter().map(|(queue, id)| (dlq(&queue), id)).collect();
        for policy in &self.queues {
            let mut letters = self.broker.letters(&policy.queue, Place::Dead).await?;
            let found = letters.fetch(LETTERS_MAX).await?;
            letters.close().await?;
            dead.extend(found.into_iter().map(|letter| (policy.dlq(), letter.message.id)));
        }
        Ok(dead)
    }

    /// Counts the orders by state.
    ///
    /// # Errors
    /// What the database said.
    pub async fn by_state(&self) -> Result<ByState, sqlx::Error> {
        let count = query("SELECT state, COUNT(*) FROM orders.orders GROUP BY state");
        let rows: Vec<(String, i64)> = self.rows(count).await?;
        let of = |state: &str| {
            let row = rows.iter().find(|(name, _)| name == state);
            row.map_or(0, |(_, many)| u64::try_from(*many).unwrap_or(0))
        };
        Ok(ByState {
            pending: of("PENDING"),
            reserved: of("STOCK_RESERVED"),
            confirmed: of("CONFIRMED"),
            cancelled: of("CANCELLED"),
        })
    }
}

/// What is under way in the services' tables.
const UNREST: [(&str, &str); 6] = [
    (
        "orders under way",
        "SELECT COUNT(*) FROM orders.orders WHERE state IN ('PENDING', 'STOCK_RESERVED')",
    ),
    ("events in outboxes", EVENTS_PENDING),
    (
        "charges unsettled",
        "SELECT COUNT(*) FROM payments.charges WHERE state IN ('STARTED', 'REFUND_DUE')",
    ),
    (
        "refunds unheard of",
        "SELECT COUNT(*) FROM orders.orders o JOIN payments.charges c ON c.order_id = o.id
         WHERE c.state = 'REFUNDED' AND o.refunded = 0",
    ),
    (
        "reservations under way",
        "SELECT COUNT(*) FROM inventory.reservations WHERE state = 'ACTIVE'",
    ),
    ("mails queued", "SELECT COUNT(*) FROM notifications.mails WHERE state = 'QUEUED'"),
];

/// Messages that wait in a service's own database for their next attempt.
const PARKED: &str = "
    SELECT (SELECT COUNT(*) FROM orders.mamparo_parked)
         + (SELECT COUNT(*) FROM inventory.mamparo_parked)
         + (SELECT COUNT(*) FROM payments.mamparo_parked)
         + (SELECT COUNT(*) FROM notifications.mamparo_parked)";

/// Messages that a service has given up, and keeps in its own database.
const KEPT_DEAD: &str = "
    SELECT consumer, id FROM orders.mamparo_failed WHERE status = 'failed'
    UNION ALL SELECT consumer, id FROM inventory.mamparo_failed WHERE status = 'failed'
    UNION ALL SELECT consumer, id FROM payments.mamparo_failed WHERE status = 'failed'
    UNION ALL SELECT consumer, id FROM notifications.mamparo_failed WHERE status = 'failed'";

/// Events that the broker has not confirmed.
pub const EVENTS_PENDING: &str = "
    SELECT (SELECT COUNT(*) FROM orders.mamparo_outbox)
         + (SELECT COUNT(*) FROM inventory.mamparo_outbox)
         + (SELECT COUNT(*) FROM payments.mamparo_outbox)";

/// Orders by state, for the live view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByState {
    /// Accepted, waiting for inventory.
    pub pending: u64,
    /// Reserved, waiting for payments.
    pub reserved: u64,
    /// Paid.
    pub confirmed: u64,
    /// Given up.
    pub cancelled: u64,
}

/// All files of the shop in `dir`, attached to one connection that can't write.
fn attached(dir: &Path) -> SqlitePool {
    // Databases that are attached inherit how the first one was opened, so it has to be a file.
    let first = SqliteConnectOptions::new().filename(dir.join("orders.db"));
    let dir = dir.to_owned();
    let one = SqlitePoolOptions::new().max_connections(1).after_connect(move |conn, _| {
        let files = BOOKS.map(|name| (name, dir.join(format!("{name}.db")).display().to_string()));
        Box::pin(async move {
            sqlx::query("PRAGMA busy_timeout = 5000").execute(&mut *conn).await?;
            for (name, file) in files {
                sqlx::query(sqlx::AssertSqlSafe(format!("ATTACH DATABASE ? AS {name}")))
                    .bind(file)
                    .execute(&mut *conn)
                    .await?;
            }
            sqlx::query("PRAGMA query_only = ON").execute(conn).await.map(drop)
        })
    });
    one.connect_lazy_with(first)
}

/// The queues of all services' own files.
pub(super) fn queues() -> Result<Vec<QueuePolicy>, DemoError> {
    let mut queues = Vec::new();
    for service in SERVICES {
        let text = default_policy(service).unwrap_or_default();
        let file = mamparo::topology::parse(&format!("{service}.toml"), text)?;
        queues.extend(file.queues.iter().map(|queue| queue.policy()));
    }
    Ok(queues)
}
