//! Payments' own table: one row for each order, written before the PSP is called.

use mamparo::core::time::WallTime;
use mamparo::store::{Store, Transaction};

use crate::db::{ShopDb, query};

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
pub async fn start<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    state: State,
    amount_cents: i64,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let written = query(
        "INSERT INTO charges (order_id, state, amount_cents, started_ms, updated_ms)
         VALUES ($1, $2, $3, $4, $4) ON CONFLICT (order_id) DO NOTHING",
    )
    .bind(order_id)
    .bind(state.name())
    .bind(amount_cents)
    .bind(now.unix_millis())
    .run(tx)
    .await?;
    Ok(written == 1)
}

/// The columns of [`Charge`], in their order.
type Columns = (String, String, i64, Option<String>);

fn read(row: Columns) -> Result<Charge, sqlx::Error> {
    let (order_id, state, amount_cents, charge_id) = row;
    let state = State::ALL
        .into_iter()
        .find(|known| known.name() == state)
        .ok_or_else(|| sqlx::Error::Decode(format!("state {state:?}").into()))?;
    Ok(Charge { order_id, state, amount_cents, charge_id })
}

/// The charge of an order.
pub async fn find<DB: ShopDb>(
    store: &Store<DB>,
    order_id: &str,
) -> Result<Option<Charge>, sqlx::Error> {
    let found =
        query("SELECT order_id, state, amount_cents, charge_id FROM charges WHERE order_id = $1");
    found.bind(order_id).first(store).await?.map(read).transpose()
}

/// The charge of an order, which nobody else moves until `tx` ends.
pub async fn hold<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
) -> Result<Option<Charge>, sqlx::Error> {
    let found = query(
        "SELECT order_id, state, amount_cents, charge_id FROM charges WHERE order_id = $1 :lock",
    );
    found.bind(order_id).first_in(tx).await?.map(read).transpose()
}

/// Refunds that have been due since before `before`: how many, and how many cents at most.
pub async fn refunds_due<DB: ShopDb>(
    store: &Store<DB>,
    before: WallTime,
) -> Result<(i64, i64), sqlx::Error> {
    let due = query(
        "SELECT COUNT(*), CAST(COALESCE(SUM(amount_cents), 0) AS BIGINT) FROM charges
         WHERE state = 'REFUND_DUE' AND updated_ms < $1",
    );
    Ok(due.bind(before.unix_millis()).first(store).await?.unwrap_or_default())
}

/// Moves a charge from `from` to `to`. `false` when it is no longer in `from`.
pub async fn advance<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    from: State,
    to: State,
    charge_id: Option<&str>,
    reason: Option<&str>,
    now: WallTime,
) -> Result<bool, sqlx::Error> {
    let moved = query(
        "UPDATE charges SET state = $1, charge_id = COALESCE($2, charge_id),
                            reason = COALESCE($3, reason), updated_ms = $4
         WHERE order_id = $5 AND state = $6",
    )
    .bind(to.name())
    .bind(charge_id)
    .bind(reason)
    .bind(now.unix_millis())
    .bind(order_id)
    .bind(from.name())
    .run(tx)
    .await?;
    Ok(moved == 1)
}
