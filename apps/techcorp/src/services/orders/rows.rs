//! Orders' own tables.
//!
//! An order moves by compare-and-set on (state, version) only. Its history has one row for each
//! event that was applied, so "applied twice" can be counted afterwards.

use mamparo::core::saga::order::OrderState;
use mamparo::core::time::WallTime;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite, SqliteConnection};

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

const COLUMNS: &str = "id, customer_id, lines, total_cents, state, version, reason, created_ms";

fn read(row: &SqliteRow) -> Result<OrderRow, sqlx::Error> {
    let decode = |what: String| sqlx::Error::Decode(what.into());
    let (state, lines): (String, String) = (row.try_get("state")?, row.try_get("lines")?);
    Ok(OrderRow {
        id: row.try_get("id")?,
        customer_id: row.try_get("customer_id")?,
        lines: serde_json::from_str(&lines).map_err(|error| decode(format!("lines: {error}")))?,
        total_cents: row.try_get("total_cents")?,
        state: OrderState::from_name(&state).ok_or_else(|| decode(format!("state {state:?}")))?,
        version: row.try_get("version")?,
        reason: row.try_get("reason")?,
        created: WallTime::from_unix_millis(row.try_get("created_ms")?),
    })
}

/// Writes a new order in state PENDING.
pub async fn insert(
    tx: &mut SqliteConnection,
    order: &OrderRow,
    deadline: Option<WallTime>,
) -> Result<(), sqlx::Error> {
    let lines = serde_json::to_string(&order.lines).map_err(|e| sqlx::Error::Encode(e.into()))?;
    sqlx::query(
        "INSERT INTO orders (id, customer_id, lines, total_cents, state, version, deadline_ms,
                             created_ms, updated_ms) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)",
    )
    .bind(&order.id)
    .bind(&order.customer_id)
    .bind(lines)
    .bind(order.total_cents)
    .bind(order.state.name())
    .bind(deadline.map(WallTime::unix_millis))
    .bind(order.created.unix_millis())
    .bind(order.created.unix_millis())
    .execute(&mut *tx)
    .await?;
    remember(tx, &order.id, "created", order.state, "Created", order.created).await
}

/// The order with this id.
pub async fn find<'c, E>(from: E, id: &str) -> Result<Option<OrderRow>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let query = format!("SELECT {COLUMNS} FROM orders WHERE id = ?");
    let row = sqlx::query(sqlx::AssertSqlSafe(query)).bind(id).fetch_optional(from).await?;
    row.as_ref().map(read).transpose()
}

/// The orders with these ids, as far as they exist.
pub async fn find_all<'c, E>(from: E, ids: &[String]) -> Result<Vec<OrderRow>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let ids = serde_json::to_string(ids).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let query =
        format!("SELECT {COLUMNS} FROM orders WHERE id IN (SELECT value FROM json_each(?))");
    let rows = sqlx::query(sqlx::AssertSqlSafe(query)).bind(ids).fetch_all(from).await?;
    rows.iter().map(read).collect()
}

/// A customer's orders, newest first.
pub async fn of_customer<'c, E>(
    from: E,
    customer_id: &str,
    max: u32,
) -> Result<Vec<OrderRow>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let query = format!(
        "SELECT {COLUMNS} FROM orders WHERE customer_id = ? ORDER BY created_ms DESC, id LIMIT ?"
    );
    let query = sqlx::query(sqlx::AssertSqlSafe(query)).bind(customer_id).bind(max);
    query.fetch_all(from).await?.iter().map(read).collect()
}

/// Moves an order from the state and version that were read. `false` when it has moved since.
pub async fn advance(
    tx: &mut SqliteConnection,
    order: &OrderRow,
    to: OrderState,
    reason: Option<&str>,
    deadline: Option<WallTime>,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE orders SET state = ?, version = version + 1, reason = COALESCE(?, reason),
                           deadline_ms = ?, updated_ms = ?
         WHERE id = ? AND state = ? AND version = ?",
    )
    .bind(to.name())
    .bind(reason)
    .bind(deadline.map(WallTime::unix_millis))
    .bind(now.unix_millis())
    .bind(&order.id)
    .bind(order.state.name())
    .bind(order.version)
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Records that the goods are free, or the money is back.
pub async fn note(
    tx: &mut SqliteConnection,
    id: &str,
    released: bool,
    refunded: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE orders SET released = released | ?, refunded = refunded | ? WHERE id = ?")
        .bind(released)
        .bind(refunded)
        .bind(id)
        .execute(tx)
        .await?;
    Ok(())
}

/// One line of history for each event that was applied.
pub async fn remember(
    tx: &mut SqliteConnection,
    id: &str,
    event: &str,
    state: OrderState,
    did: &str,
    now: WallTime,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO order_history (order_id, event, state, did, at_ms) VALUES (?,?,?,?,?)",
    )
    .bind(id)
    .bind(event)
    .bind(state.name())
    .bind(did)
    .bind(now.unix_millis())
    .execute(tx)
    .await?;
    Ok(())
}

/// Orders whose deadline is over, the longest overdue first, after the one at `cursor`:
/// (id, deadline).
pub async fn overdue<'c, E>(
    from: E,
    now: WallTime,
    cursor: &(String, WallTime),
    max: u32,
) -> Result<Vec<(String, WallTime)>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let (id, deadline) = cursor;
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "SELECT id, deadline_ms FROM orders
         WHERE deadline_ms <= ? AND (deadline_ms, id) > (?, ?)
         ORDER BY deadline_ms, id LIMIT ?",
    )
    .bind(now.unix_millis())
    .bind(deadline.unix_millis())
    .bind(id)
    .bind(max)
    .fetch_all(from)
    .await?;
    Ok(rows.into_iter().map(|(id, at)| (id, WallTime::from_unix_millis(at))).collect())
}
