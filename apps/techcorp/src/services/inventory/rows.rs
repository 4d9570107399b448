//! Inventory's own tables.
//!
//! Every change of `stock` is made together with a change of `reservations`, so that
//! `free + reserved = initial` holds for each product after every commit; the database checks it.

use mamparo::core::time::WallTime;
use mamparo::store::{Store, Transaction};

use crate::db::{ShopDb, query};
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

/// The columns of [`Reservation`], in their order.
type Columns = (String, String, String, i64, String, i64, Option<i64>, i64);

fn read(row: Columns) -> Result<Reservation, sqlx::Error> {
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
        announced: announced != 0,
    })
}

/// Puts `units` of a product on the shelf, if the product is new.
pub async fn seed<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    product_id: &str,
    units: i64,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO stock (product_id, initial, free, reserved) VALUES ($1, $2, $2, 0)
         ON CONFLICT (product_id) DO NOTHING",
    )
    .bind(product_id)
    .bind(units)
    .run(tx)
    .await
    .map(drop)
}

/// The reservation of an order.
pub async fn find<DB: ShopDb>(
    store: &Store<DB>,
    order_id: &str,
) -> Result<Option<Reservation>, sqlx::Error> {
    let found = query(
        "SELECT order_id, customer_id, lines, total_cents, state, reserved_ms, expires_ms,
                announced FROM reservations WHERE order_id = $1",
    );
    found.bind(order_id).first(store).await?.map(read).transpose()
}

/// The reservation of an order, which nobody else moves until `tx` ends.
pub async fn hold<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
) -> Result<Option<Reservation>, sqlx::Error> {
    let found = query(
        "SELECT order_id, customer_id, lines, total_cents, state, reserved_ms, expires_ms,
                announced FROM reservations WHERE order_id = $1 :lock",
    );
    found.bind(order_id).first_in(tx).await?.map(read).transpose()
}

/// Writes a reservation. `false` when somebody else has written one for this order meanwhile.
pub async fn insert<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    reservation: &Reservation,
    reason: Option<&str>,
) -> Result<bool, sqlx::Error> {
    let lines =
        serde_json::to_string(&reservation.lines).map_err(|e| sqlx::Error::Encode(e.into()))?;
    let written = query(
        "INSERT INTO reservations (order_id, customer_id, lines, total_cents, state, reserved_ms,
                                   expires_ms, reason, announced)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (order_id) DO NOTHING",
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
    .run(tx)
    .await?;
    Ok(written == 1)
}

/// Notes that orders and payments are told of a reservation in this transaction.
pub async fn announce<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
) -> Result<(), sqlx::Error> {
    query("UPDATE reservations SET announced = 1 WHERE order_id = $1")
        .bind(order_id)
        .run(tx)
        .await
        .map(drop)
}

/// The lines in the order of their products: two orders that want the same goods the other way
/// round wait for each other in a row, and not in a circle.
fn in_order(lines: &[Line]) -> Vec<&Line> {
    let mut lines: Vec<&Line> = lines.iter().collect();
    lines.sort_unstable_by(|one, other| one.product_id.cmp(&other.product_id));
    lines
}

/// Takes all lines off the shelf, or none: the first product that is short comes back.
pub async fn take<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    lines: &[Line],
) -> Result<Option<String>, sqlx::Error> {
    let lines = in_order(lines);
    for (taken, line) in lines.iter().enumerate() {
        let done = query(
            "UPDATE stock SET free = free - $1, reserved = reserved + $1
             WHERE product_id = $2 AND free >= $1",
        );
        if done.bind(line.quantity).bind(&line.product_id).run(tx).await? == 0 {
            for line in &lines[..taken] {
                give(tx, line).await?;
            }
            return Ok(Some(line.product_id.clone()));
        }
    }
    Ok(None)
}

/// Puts lines back on the shelf.
pub async fn put_back<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    lines: &[Line],
) -> Result<(), sqlx::Error> {
    for line in in_order(lines) {
        give(tx, line).await?;
    }
    Ok(())
}

async fn give<DB: ShopDb>(tx: &mut Transaction<'_, DB>, line: &Line) -> Result<(), sqlx::Error> {
    query("UPDATE stock SET free = free + $1, reserved = reserved - $1 WHERE product_id = $2")
        .bind(line.quantity)
        .bind(&line.product_id)
        .run(tx)
        .await
        .map(drop)
}

/// Moves a reservation from `from` to `to`; only an active one keeps its expiry. `false` when it
/// is no longer in `from`.
pub async fn advance<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    from: State,
    to: State,
    reason: &str,
) -> Result<bool, sqlx::Error> {
    let moved = query(
        "UPDATE reservations SET state = $1, expires_ms = NULL, reason = $2
         WHERE order_id = $3 AND state = $4",
    )
    .bind(to.name())
    .bind(reason)
    .bind(order_id)
    .bind(from.name())
    .run(tx)
    .await?;
    Ok(moved == 1)
}

/// Active reservations that have run out, the oldest first, after the one at `cursor`:
/// (order id, expiry).
pub async fn expired<DB: ShopDb>(
    store: &Store<DB>,
    now: WallTime,
    cursor: &(String, WallTime),
    max: u32,
) -> Result<Vec<(String, WallTime)>, sqlx::Error> {
    let (order_id, expiry) = cursor;
    let rows: Vec<(String, i64)> = query(
        "SELECT order_id, expires_ms FROM reservations
         WHERE expires_ms <= $1 AND (expires_ms, order_id) > ($2, $3)
         ORDER BY expires_ms, order_id LIMIT $4",
    )
    .bind(now.unix_millis())
    .bind(expiry.unix_millis())
    .bind(order_id)
    .bind(max)
    .all(store)
    .await?;
    Ok(rows.into_iter().map(|(id, at)| (id, WallTime::from_unix_millis(at))).collect())
}

/// Active reservations made before `before`, the oldest first, after `cursor`.
pub async fn active_before<DB: ShopDb>(
    store: &Store<DB>,
    before: WallTime,
    cursor: &str,
    max: u32,
) -> Result<Vec<Reservation>, sqlx::Error> {
    let found = query(
        "SELECT order_id, customer_id, lines, total_cents, state, reserved_ms, expires_ms,
                announced FROM reservations
         WHERE state = 'ACTIVE' AND reserved_ms < $1 AND order_id > $2 ORDER BY order_id LIMIT $3",
    );
    let found = found.bind(before.unix_millis()).bind(cursor).bind(max);
    found.all(store).await?.into_iter().map(read).collect()
}
