//! Payments' own table: one row for each order, written before the PSP is called.

use mamparo::core::time::WallTime;
use sqlx::{Sqlite, SqliteConnection};

/// Payments' schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS charges (
    order_id     TEXT PRIMARY KEY,
    state        TEXT NOT NULL,
    amount_cents INTEGER NOT NULL,
    charge_id    TEXT,
    reason       TEXT,
    started_ms   INTEGER NOT NULL,
    updated_ms   INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS charges_refund_due ON charges (updated_ms) WHERE state = 'REFUND_DUE';
";

/// Where a charge stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The PSP may have been called; nobody knows yet what it did.
    Started,
    /// The PSP has charged.
    Charged,
    /// The PSP will not charge, or we did not ask in time. Final.
    Declined,
    /// The order was cancelled: give back what was charged, and see that nothing lands late.
    RefundDue,
    /// The money went back. Final.
    Refunded,
    /// Cancelled, and nothing had been charged. Final; the PSP refuses the key from now on.
    Void,
}

impl State {
    const ALL: [Self; 6] =
        [Self::Started, Self::Charged, Self::Declined, Self::RefundDue, Self::Refunded, Self::Void];

    /// The name in rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "STARTED",
            Self::Charged => "CHARGED",
            Self::Declined => "DECLINED",
            Self::RefundDue => "REFUND_DUE",
            Self::Refunded => "REFUNDED",
            Self::Void => "VOID",
        }
    }
}

/// A charge as it is stored.
#[derive(Debug, Clone)]
pub struct Charge {
    /// The order; also the PSP's idempotency key.
    pub order_id: String,
    /// Where it stands.
    pub state: State,
    /// How much.
    pub amount_cents: i64,
    /// The PSP's name for it.
    pub charge_id: Option<String>,
}

/// Writes a row if there is none. `true` when it is new.
pub async fn start(
    tx: &mut SqliteConnection,
    order_id: &str,
    state: State,
    amount_cents: i64,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "INSERT INTO charges (order_id, state, amount_cents, started_ms, updated_ms)
         VALUES (?, ?, ?, ?, ?) ON CONFLICT (order_id) DO NOTHING",
    )
    .bind(order_id)
    .bind(state.name())
    .bind(amount_cents)
    .bind(now.unix_millis())
    .bind(now.unix_millis())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// The charge of an order.
pub async fn find<'c, E>(from: E, order_id: &str) -> Result<Option<Charge>, sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    let row: Option<(String, i64, Option<String>)> =
        sqlx::query_as("SELECT state, amount_cents, charge_id FROM charges WHERE order_id = ?")
            .bind(order_id)
            .fetch_optional(from)
            .await?;
    let Some((state, amount_cents, charge_id)) = row else { return Ok(None) };
    let state = State::ALL
        .into_iter()
        .find(|known| known.name() == state)
        .ok_or_else(|| sqlx::Error::Decode(format!("state {state:?}").into()))?;
    Ok(Some(Charge { order_id: order_id.to_owned(), state, amount_cents, charge_id }))
}

/// Refunds that have been due since before `before`: how many, and how many cents at most.
pub async fn refunds_due<'c, E>(from: E, before: WallTime) -> Result<(i64, i64), sqlx::Error>
where
    E: sqlx::Executor<'c, Database = Sqlite>,
{
    sqlx::query_as(
        "SELECT COUNT(*), COALESCE(SUM(amount_cents), 0) FROM charges
         WHERE state = 'REFUND_DUE' AND updated_ms < ?",
    )
    .bind(before.unix_millis())
    .fetch_one(from)
    .await
}

/// Moves a charge from `from` to `to`. `false` when it is no longer in `from`.
pub async fn advance(
    tx: &mut SqliteConnection,
    order_id: &str,
    from: State,
    to: State,
    charge_id: Option<&str>,
    reason: Option<&str>,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let done = sqlx::query(
        "UPDATE charges SET state = ?, charge_id = COALESCE(?, charge_id),
                            reason = COALESCE(?, reason), updated_ms = ?
         WHERE order_id = ? AND state = ?",
    )
    .bind(to.name())
    .bind(charge_id)
    .bind(reason)
    .bind(now.unix_millis())
    .bind(order_id)
    .bind(from.name())
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}
