//! Orders' own tables.
//!
//! An order moves by compare-and-set on (state, version) only. Its history has one row for each
//! event that was applied, so "applied twice" can be counted afterwards.

use mamparo::core::saga::order::OrderState;
use mamparo::core::time::WallTime;
use mamparo::store::{Store, Transaction};

use crate::db::{ShopDb, query};
use crate::events::Line;

/// Orders' schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS orders (
    id          TEXT PRIMARY KEY,
    customer_id TEXT NOT NULL,
    lines       TEXT NOT NULL,
    total_cents INTEGER NOT NULL,
    state       TEXT NOT NULL,
    version     INTEGER NOT NULL,
    reason      TEXT,
    deadline_ms INTEGER,
    created_ms  INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL,
    released    INTEGER NOT NULL DEFAULT 0,
    refunded    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS orders_by_customer ON orders (customer_id, created_ms DESC);
CREATE INDEX IF NOT EXISTS orders_by_deadline ON orders (deadline_ms) WHERE deadline_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS order_history (
    id       INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL REFERENCES orders (id),
    event    TEXT NOT NULL,
    state    TEXT NOT NULL,
    did      TEXT NOT NULL,
    at_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS order_history_by_order ON order_history (order_id, id);
";

/// An order as it is stored.
#[derive(Debug, Clone)]
pub struct OrderRow {
    /// The order's id.
    pub id: String,
    /// Who ordered.
    pub customer_id: String,
    /// What was ordered.
    pub lines: Vec<Line>,
    /// For how much.
    pub total_cents: i64,
    /// Where it stands.
    pub state: OrderState,
    /// Grows with each transition.
    pub version: i64,
    /// Why it was cancelled.
    pub reason: Option<String>,
    /// When it was accepted.
    pub created: WallTime,
}

/// The columns of [`OrderRow`], in their order.
type Columns = (String, String, String, i64, String, i64, Option<String>, i64);

fn read(row: Columns) -> Result<OrderRow, sqlx::Error> {
    let decode = |what: String| sqlx::Error::Decode(what.into());
    let (id, customer_id, lines, total_cents, state, version, reason, created) = row;
    Ok(OrderRow {
        id,
        customer_id,
        lines: serde_json::from_str(&lines).map_err(|error| decode(format!("lines: {error}")))?,
        total_cents,
        state: OrderState::from_name(&state).ok_or_else(|| decode(format!("state {state:?}")))?,
        version,
        reason,
        created: WallTime::from_unix_millis(created),
    })
}

/// Writes a new order in state PENDING.
pub async fn insert<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderRow,
    deadline: Option<WallTime>,
) -> Result<(), sqlx::Error> {
    let lines = serde_json::to_string(&order.lines).map_err(|e| sqlx::Error::Encode(e.into()))?;
    query(
        "INSERT INTO orders (id, customer_id, lines, total_cents, state, version, deadline_ms,
                             created_ms, updated_ms) VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $7)",
    )
    .bind(&order.id)
    .bind(&order.customer_id)
    .bind(lines)
    .bind(order.total_cents)
    .bind(order.state.name())
    .bind(deadline.map(WallTime::unix_millis))
    .bind(order.created.unix_millis())
    .run(tx)
    .await?;
    remember(tx, &order.id, "created", order.state, "Created", order.created).await
}

/// The order with this id.
pub async fn find<DB: ShopDb>(
    store: &Store<DB>,
    id: &str,
) -> Result<Option<OrderRow>, sqlx::Error> {
    let found = query(
        "SELECT id, customer_id, lines, total_cents, state, version, reason, created_ms
         FROM orders WHERE id = $1",
    );
    found.bind(id).first(store).await?.map(read).transpose()
}

/// The order with this id, which nobody else moves until `tx` ends.
pub async fn hold<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    id: &str,
) -> Result<Option<OrderRow>, sqlx::Error> {
    let found = query(
        "SELECT id, customer_id, lines, total_cents, state, version, reason, created_ms
         FROM orders WHERE id = $1 :lock",
    );
    found.bind(id).first_in(tx).await?.map(read).transpose()
}

/// The orders with these ids, as far as they exist.
pub async fn find_all<DB: ShopDb>(
    store: &Store<DB>,
    ids: &[String],
) -> Result<Vec<OrderRow>, sqlx::Error> {
    let found = query(
        "SELECT id, customer_id, lines, total_cents, state, version, reason, created_ms
         FROM orders WHERE id IN (:listed)",
    );
    found.bind_list(ids)?.all(store).await?.into_iter().map(read).collect()
}

/// A customer's orders, newest first.
pub async fn of_customer<DB: ShopDb>(
    store: &Store<DB>,
    customer_id: &str,
    max: u32,
) -> Result<Vec<OrderRow>, sqlx::Error> {
    let found = query(
        "SELECT id, customer_id, lines, total_cents, state, version, reason, created_ms
         FROM orders WHERE customer_id = $1 ORDER BY created_ms DESC, id LIMIT $2",
    );
    found.bind(customer_id).bind(max).all(store).await?.into_iter().map(read).collect()
}

/// Moves an order from the state and version that were read. `false` when it has moved since.
pub async fn advance<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderRow,
    to: OrderState,
    reason: Option<&str>,
    deadline: Option<WallTime>,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let moved = query(
        "UPDATE orders SET state = $1, version = version + 1, reason = COALESCE($2, reason),
                           deadline_ms = $3, updated_ms = $4
         WHERE id = $5 AND state = $6 AND version = $7",
    )
    .bind(to.name())
    .bind(reason)
    .bind(deadline.map(WallTime::unix_millis))
    .bind(now.unix_millis())
    .bind(&order.id)
    .bind(order.state.name())
    .bind(order.version)
    .run(tx)
    .await?;
    Ok(moved == 1)
}

/// Records that the goods are free, or the money is back.
pub async fn note<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    id: &str,
    released: bool,
    refunded: bool,
) -> Result<(), sqlx::Error> {
    query("UPDATE orders SET released = released | $1, refunded = refunded | $2 WHERE id = $3")
        .bind(released)
        .bind(refunded)
        .bind(id)
        .run(tx)
        .await
        .map(drop)
}

/// One line of history for each event that was applied.
pub async fn remember<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    id: &str,
    event: &str,
    state: OrderState,
    did: &str,
    now: WallTime,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO order_history (order_id, event, state, did, at_ms)
         VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(id)
    .bind(event)
    .bind(state.name())
    .bind(did)
    .bind(now.unix_millis())
    .run(tx)
    .await
    .map(drop)
}

/// Orders whose deadline is over, the longest overdue first, after the one at `cursor`:
/// (id, deadline).
pub async fn overdue<DB: ShopDb>(
    store: &Store<DB>,
    now: WallTime,
    cursor: &(String, WallTime),
    max: u32,
) -> Result<Vec<(String, WallTime)>, sqlx::Error> {
    let (id, deadline) = cursor;
    let rows: Vec<(String, i64)> = query(
        "SELECT id, deadline_ms FROM orders
         WHERE deadline_ms <= $1 AND (deadline_ms, id) > ($2, $3)
         ORDER BY deadline_ms, id LIMIT $4",
    )
    .bind(now.unix_millis())
    .bind(deadline.unix_millis())
    .bind(id)
    .bind(max)
    .all(store)
    .await?;
    Ok(rows.into_iter().map(|(id, at)| (id, WallTime::from_unix_millis(at))).collect())
}
