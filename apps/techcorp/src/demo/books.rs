//! The books of the shop: every service's own database, side by side, read only.
//!
//! The demo believes nothing that a service or the traffic says of itself; it counts here.

use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

/// The databases, by the name that they have in queries.
pub const BOOKS: [&str; 7] =
    ["orders", "inventory", "payments", "notifications", "psp", "mail", "broker"];

/// Opens all books of the shop in `dir`.
///
/// # Errors
/// What the database said.
pub async fn open(dir: &Path) -> Result<SqliteConnection, sqlx::Error> {
    // Databases that are attached inherit how the first one was opened, so it has to be a file.
    let first = SqliteConnectOptions::new().filename(dir.join("orders.db"));
    let mut books = SqliteConnection::connect_with(&first).await?;
    sqlx::query("PRAGMA busy_timeout = 5000").execute(&mut books).await?;
    for name in BOOKS {
        let file = dir.join(format!("{name}.db"));
        sqlx::query(sqlx::AssertSqlSafe(format!("ATTACH DATABASE ? AS {name}")))
            .bind(file.display().to_string())
            .execute(&mut books)
            .await?;
    }
    sqlx::query("PRAGMA query_only = ON").execute(&mut books).await?;
    Ok(books)
}

/// The one number that `query` counts.
///
/// # Errors
/// What the database said.
pub async fn count(books: &mut SqliteConnection, query: &'static str) -> Result<u64, sqlx::Error> {
    let number: i64 = sqlx::query_scalar(query).fetch_one(books).await?;
    Ok(u64::try_from(number).unwrap_or(0))
}

/// What is not yet at rest, in words; empty when the shop is drained.
///
/// # Errors
/// What the database said.
pub async fn unrest(books: &mut SqliteConnection) -> Result<Vec<String>, sqlx::Error> {
    let open: [(&str, &'static str); 7] = [
        (
            "orders under way",
            "SELECT COUNT(*) FROM orders.orders WHERE state IN ('PENDING', 'STOCK_RESERVED')",
        ),
        (
            "events in outboxes",
            "SELECT (SELECT COUNT(*) FROM orders.mamparo_outbox WHERE confirmed_at IS NULL)
                  + (SELECT COUNT(*) FROM inventory.mamparo_outbox WHERE confirmed_at IS NULL)
                  + (SELECT COUNT(*) FROM payments.mamparo_outbox WHERE confirmed_at IS NULL)",
        ),
        (
            "messages in queues",
            "SELECT COUNT(*) FROM broker.mamparo_messages WHERE queue NOT LIKE '%.dlq'",
        ),
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
    let mut unrest = Vec::new();
    for (what, query) in open {
        match count(books, query).await? {
            0 => {}
            many => unrest.push(format!("{many} {what}")),
        }
    }
    Ok(unrest)
}

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

/// Counts the orders by state.
///
/// # Errors
/// What the database said.
pub async fn by_state(books: &mut SqliteConnection) -> Result<ByState, sqlx::Error> {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT state, COUNT(*) FROM orders.orders GROUP BY state")
            .fetch_all(books)
            .await?;
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

/// Messages by queue, empty queues left out.
///
/// # Errors
/// What the database said.
pub async fn depths(books: &mut SqliteConnection) -> Result<Vec<(String, u64)>, sqlx::Error> {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "SELECT queue, COUNT(*) FROM broker.mamparo_messages GROUP BY queue ORDER BY queue",
    )
    .fetch_all(books)
    .await?;
    Ok(rows.into_iter().map(|(queue, n)| (queue, u64::try_from(n).unwrap_or(0))).collect())
}
