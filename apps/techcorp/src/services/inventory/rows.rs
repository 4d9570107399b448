//! Inventory's own tables.
//!
//! Every change of `stock` is made together with a change of `reservations`, so that
//! `free + reserved = initial` holds for each product after every commit; the database checks it.

use mamparo::core::time::WallTime;
use sqlx::{Sqlite, SqliteConnection};

use crate::events::Line;

/// Inventory's schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS stock (
    product_id TEXT PRIMARY KEY,
    initial    INTEGER NOT NULL,
    free       INTEGER NOT NULL CHECK (free >= 0),
    reserved   INTEGER NOT NULL CHECK (reserved >= 0),
    CHECK (free + reserved = initial)
) STRICT;
CREATE TABLE IF NOT EXISTS reservations (
    order_id    TEXT PRIMARY KEY,
    customer_id TEXT NOT NULL,
    lines       TEXT NOT NULL,
    total_cents INTEGER NOT NULL,
    state       TEXT NOT NULL,
    reserved_ms INTEGER NOT NULL,
    expires_ms  INTEGER,
    reason      TEXT,
    announced   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS reservations_by_expiry ON reservations (expires_ms)
    WHERE expires_ms IS NOT NULL;
";

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The goods are held until the expiry.
    Active,
    /// The order is confirmed: held for good.
    Sold,
    /// The goods are free again.
    Released,
    /// There was too little.
    Rejected,
    /// The order was cancelled before anything was reserved: a late `order.created` finds this
    /// and reserves nothing.
    Tombstone,
}

impl State {
    /// The name in rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Sold => "SOLD",
            Self::Released => "RELEASED",
            Self::Rejected => "REJECTED",
            Self::Tombstone => "TOMBSTONE",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Active, Self::Sold, Self::Released, Self::Rejected, Self::Tombstone]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// A reservation as it is stored.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// The order it is for.
    pub order_id: String,
    /// Who ordered.
    pub customer_id: String,
    /// What is held.
    pub lines: Vec<Line>,
    /// What the order costs.
    pub total_cents: i64,
    /// Where it stands.
    pub state: State,
    /// When it was made.
    pub reserved: WallTime,
    /// When it runs out, while active.
    pub expires: Option<WallTime>,
    /// Have orders and payments heard of it? One that was made by hand is between us and its caller.
    pub announced: bool,
}

type Tuple = (String, String, String, i64, String, i64, Option<i64>, bool);

fn read(row: Tuple) -> Result<Reservation, sqlx::Error> {
    let (order_id, customer_id, lines, total_cents, state, reserved, expires, announced) = row;
    Ok(Reservation {
        order_id,
        customer_id,
        lines: serde_json::from_str(&lines).map_err(|error| sqlx::Error::Decode(error.into()))?,
        total_cents,
        state: State::from_name(&state)
            .ok_or_else(|| sqlx::Error::Decode(format!("state {state:?}").into()))?,
        reserved: WallTime::from_unix_millis(reserved),
        expires: expires.map(WallTime::from_unix_millis),
        announced,
    })
}

/// Puts `units` of a product on the shelf, if the product is new.
pub async fn seed(
    tx: &mut SqliteConnection,
    product_id: &str,
    units: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO stock (product_id, initial, free, reserved) VALUES (?, ?, ?, 0)
         ON CONFLICT (product_id) DO NOTHING",
    )
    .bind(product_id)
    .bind(units)
    .bind(units)
    .execute(tx)
    .await?;
    Ok(())
}

/// The reservation of an order.
pub async fn find<'c, E>(from: E, order_id: &str) -> Result<Option<Reservation>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let row: Option<Tuple> = sqlx::query_as(
        "SELECT order_id, customer_id, lines, total_cents, state, reserved_ms, expires_ms,
                announced FROM reservations WHERE order_id = ?",
    )
    .bind(order_id)
    .fetch_optional(from)
    .await?;
    row.map(read).transpose()
}

/// Writes a reservation that was not there.
pub async fn insert(
    tx: &mut SqliteConnection,
    reservation: &Reservation,
    reason: Option<&str>,
) -> Result<(), sqlx::Error> {
    let lines =
        serde_json::to_string(&reservation.lines).map_err(|e| sqlx::Error::Encode(e.into()))?;
    sqlx::query(
        "INSERT INTO reservations (order_id, customer_id, lines, total_cents, state, reserved_ms,
                                   expires_ms, reason, announced)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(&reservation.order_id)
    .bind(&reservation.customer_id)
    .bind(lines)
    .bind(reservation.total_cents)
    .bind(reservation.state.name())
    .bind(reservation.reserved.unix_millis())
    .bind(reservation.expires.map(WallTime::unix_millis))
    .bind(reason)
    .bind(reservation.announced)
    .execute(tx)
    .await?;
    Ok(())
}

/// Notes that orders and payments are told of a reservation in this transaction.
pub async fn announce(tx: &mut SqliteConnection, order_id: &str) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE reservations SET announced = 1 WHERE order_id = ?")
        .bind(order_id)
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes all lines off the shelf, or none: the first product that is short comes back.
pub async fn take(
    tx: &mut SqliteConnection,
    lines: &[Line],
) -> Result<Option<String>, sqlx::Error> {
    for (taken, line) in lines.iter().enumerate() {
        let done = sqlx::query(
            "UPDATE stock SET free = free - ?, reserved = reserved + ?
             WHERE product_id = ? AND free >= ?",
        )
        .bind(line.quantity)
        .bind(line.quantity)
        .bind(&line.product_id)
        .bind(line.quantity)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            put_back(tx, &lines[..taken]).await?;
            return Ok(Some(line.product_id.clone()));
        }
    }
    Ok(None)
}

/// Puts lines back on the shelf.
pub async fn put_back(tx: &mut SqliteConnection, lines: &[Line]) -> Result<(), sqlx::Error> {
    for line in lines {
        sqlx::query(
            "UPDATE stock SET free = free + ?, reserved = reserved - ? WHERE product_id = ?",
        )
        .bind(line.quantity)
        .bind(line.quantity)
        .bind(&line.product_id)
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

/// Moves a reservation from `from` to `to`; only an active one keeps its expiry. `false` when it
/// is no longer in `from`.
pub async fn advance(
    tx: &mut SqliteConnection,
    order_id: &str,
    from: State,
    to: State,
    reason: &str,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE reservations SET state = ?, expires_ms = NULL, reason = ?
         WHERE order_id = ? AND state = ?",
    )
    .bind(to.name())
    .bind(reason)
    .bind(order_id)
    .bind(from.name())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Active reservations that have run out, the oldest first, after the one at `cursor`:
/// (order id, expiry).
pub async fn expired<'c, E>(
    from: E,
    now: WallTime,
    cursor: &(String, WallTime),
    max: u32,
) -> Result<Vec<(String, WallTime)>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let (order_id, expiry) = cursor;
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "SELECT order_id, expires_ms FROM reservations
         WHERE expires_ms <= ? AND (expires_ms, order_id) > (?, ?)
         ORDER BY expires_ms, order_id LIMIT ?",
    )
    .bind(now.unix_millis())
    .bind(expiry.unix_millis())
    .bind(order_id)
    .bind(max)
    .fetch_all(from)
    .await?;
    Ok(rows.into_iter().map(|(id, at)| (id, WallTime::from_unix_millis(at))).collect())
}

/// Active reservations made before `before`, the oldest first, after `cursor`.
pub async fn active_before<'c, E>(
    from: E,
    before: WallTime,
    cursor: &str,
    max: u32,
) -> Result<Vec<Reservation>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let rows: Vec<Tuple> = sqlx::query_as(
        "SELECT order_id, customer_id, lines, total_cents, state, reserved_ms, expires_ms,
                announced FROM reservations WHERE state = 'ACTIVE' AND reserved_ms < ? AND order_id > ?
         ORDER BY order_id LIMIT ?",
    )
    .bind(before.unix_millis())
    .bind(cursor)
    .bind(max)
    .fetch_all(from)
    .await?;
    rows.into_iter().map(read).collect()
}
