//! The payment service provider.
//!
//! It honours idempotency keys, and its ledger has one row for each movement of money: whether a
//! customer was charged twice is counted there and nowhere else. A refund of a key that was never
//! charged bars the key, so that a charge which is still on its way cannot land afterwards.

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};
use mamparo::call::clock;
use mamparo::core::message::idempotency::IdempotencyKey;
use mamparo::core::time::WallTime;
use mamparo::http::Problem;
use mamparo::http::server::{Json, Path};
use mamparo::store::{Store, Transaction};
use serde::{Deserialize, Serialize};

use crate::db::{ShopDb, query};
use crate::services::trouble;

/// The PSP's schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS keys (
    key          TEXT PRIMARY KEY,
    order_id     TEXT NOT NULL,
    status       TEXT NOT NULL,
    amount_cents INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS ledger (
    id       INTEGER PRIMARY KEY,
    order_id TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('CHARGE', 'REFUND')),
    cents    INTEGER NOT NULL CHECK (cents > 0),
    at_ms    INTEGER NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS ledger_by_order ON ledger (order_id);
";

/// Cards are good for 1 000.00; more is declined.
pub const CARD_LIMIT_CENTS: i64 = 100_000;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewCharge {
    order_id: String,
    amount_cents: i64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChargeView {
    charge_id: String,
    status: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RefundView {
    refunded_cents: i64,
}

/// The routes.
pub fn router<DB: ShopDb>(store: Store<DB>) -> Router {
    Router::new()
        .route("/v1/charges", post(charge::<DB>))
        .route("/v1/charges/{key}", get(show::<DB>))
        .route("/v1/charges/{key}/refund", post(refund::<DB>))
        .with_state(store)
}

async fn charge<DB: ShopDb>(
    State(store): State<Store<DB>>,
    headers: HeaderMap,
    Json(new): Json<NewCharge>,
) -> Result<(StatusCode, Json<ChargeView>), Problem> {
    let key = key_of(&headers)?;
    let mut tx = store.begin().await?;
    let status = book(&mut tx, &key, &new, clock::wall()).await.map_err(|e| trouble(&e))?;
    tx.commit().await.map_err(|error| trouble(&error))?;
    match status.as_str() {
        "DECLINED" => Err(Problem::new(StatusCode::PAYMENT_REQUIRED, "CARD_DECLINED")),
        "VOIDED" => Err(Problem::new(StatusCode::CONFLICT, "CHARGE_VOIDED")),
        _ => Ok((StatusCode::CREATED, Json(view(&key, status)))),
    }
}

/// Charges, if this key is new; what became of the key.
async fn book<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    key: &str,
    new: &NewCharge,
    now: WallTime,
) -> Result<String, sqlx::Error> {
    let status = if new.amount_cents > CARD_LIMIT_CENTS { "DECLINED" } else { "CHARGED" };
    // Written before it is looked at: of two that come at once, the second waits and then sees.
    if !insert(tx, key, &new.order_id, status, new.amount_cents).await? {
        return Ok(find(tx, key).await?.0);
    }
    if status == "CHARGED" {
        enter(tx, &new.order_id, "CHARGE", new.amount_cents, now).await?;
    }
    Ok(status.to_owned())
}

async fn show<DB: ShopDb>(
    State(store): State<Store<DB>>,
    Path(key): Path<String>,
) -> Result<Json<ChargeView>, Problem> {
    let known = query("SELECT status FROM keys WHERE key = $1").bind(&key).first(&store).await;
    let known: Option<(String,)> = known.map_err(|error| trouble(&error))?;
    known.map(|(status,)| Json(view(&key, status))).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "CHARGE_NOT_FOUND").detail("this key was never used")
    })
}

async fn refund<DB: ShopDb>(
    State(store): State<Store<DB>>,
    Path(key): Path<String>,
) -> Result<Json<RefundView>, Problem> {
    let mut tx = store.begin().await?;
    let refunded = give_back(&mut tx, &key, clock::wall()).await.map_err(|e| trouble(&e))?;
    tx.commit().await.map_err(|error| trouble(&error))?;
    Ok(Json(RefundView { refunded_cents: refunded }))
}

/// Gives back what was charged, and bars the key. Doing it again answers the same.
async fn give_back<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    key: &str,
    now: WallTime,
) -> Result<i64, sqlx::Error> {
    if insert(tx, key, key, "VOIDED", 0).await? {
        return Ok(0);
    }
    let (status, order_id, cents) = find(tx, key).await?;
    match status.as_str() {
        "CHARGED" => {
            query("UPDATE keys SET status = 'VOIDED' WHERE key = $1").bind(key).run(tx).await?;
            enter(tx, &order_id, "REFUND", cents, now).await?;
            Ok(cents)
        }
        // Voided keys keep what they had been charged, so that a repeated refund says the same.
        "VOIDED" => Ok(cents),
        _ => Ok(0),
    }
}

/// What is known of a key that somebody has used.
async fn find<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    key: &str,
) -> Result<(String, String, i64), sqlx::Error> {
    let found = query("SELECT status, order_id, amount_cents FROM keys WHERE key = $1 :lock");
    found.bind(key).first_in(tx).await?.ok_or(sqlx::Error::RowNotFound)
}

/// Writes a new key. `false` when it has been used.
async fn insert<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    key: &str,
    order_id: &str,
    status: &str,
    cents: i64,
) -> Result<bool, sqlx::Error> {
    let written = query(
        "INSERT INTO keys (key, order_id, status, amount_cents) VALUES ($1, $2, $3, $4)
         ON CONFLICT (key) DO NOTHING",
    )
    .bind(key)
    .bind(order_id)
    .bind(status)
    .bind(cents)
    .run(tx)
    .await?;
    Ok(written == 1)
}

async fn enter<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    kind: &str,
    cents: i64,
    now: WallTime,
) -> Result<(), sqlx::Error> {
    query("INSERT INTO ledger (order_id, kind, cents, at_ms) VALUES ($1, $2, $3, $4)")
        .bind(order_id)
        .bind(kind)
        .bind(cents)
        .bind(now.unix_millis())
        .run(tx)
        .await
        .map(drop)
}

fn view(key: &str, status: String) -> ChargeView {
    ChargeView { charge_id: format!("ch-{key}"), status }
}

fn key_of(headers: &HeaderMap) -> Result<String, Problem> {
    let value = headers.get("idempotency-key").ok_or_else(|| {
        Problem::new(StatusCode::BAD_REQUEST, "IDEMPOTENCY_KEY_MISSING")
            .detail("a charge needs an Idempotency-Key")
    })?;
    let malformed = |what: String| {
        Problem::new(StatusCode::BAD_REQUEST, "IDEMPOTENCY_KEY_MALFORMED").detail(what)
    };
    let text = value.to_str().map_err(|error| malformed(error.to_string()))?;
    let key = IdempotencyKey::parse(text).map_err(|error| malformed(error.to_string()))?;
    Ok(key.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use mamparo::store::SqliteStore;

    use super::*;

    async fn fresh() -> SqliteStore {
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        store.apply(SCHEMA).await.unwrap();
        store
    }

    fn new(cents: i64) -> NewCharge {
        NewCharge { order_id: "o-1".into(), amount_cents: cents }
    }

    async fn movements(store: &SqliteStore) -> Vec<(String, i64)> {
        let query = sqlx::query_as("SELECT kind, cents FROM ledger ORDER BY id");
        query.fetch_all(store.reader()).await.unwrap()
    }

    #[tokio::test]
    async fn a_key_is_charged_once_and_refunded_once() {
        let (store, now) = (fresh().await, WallTime::from_unix_millis(1));
        let mut tx = store.begin().await.unwrap();
        for _ in 0..2 {
            assert_eq!(book(&mut tx, "o-1", &new(500), now).await.unwrap(), "CHARGED");
        }
        for _ in 0..2 {
            assert_eq!(give_back(&mut tx, "o-1", now).await.unwrap(), 500);
        }
        tx.commit().await.unwrap();
        assert_eq!(movements(&store).await, [("CHARGE".into(), 500), ("REFUND".into(), 500)]);
    }

    #[tokio::test]
    async fn a_refund_before_the_charge_bars_the_key() {
        let (store, now) = (fresh().await, WallTime::from_unix_millis(1));
        let mut tx = store.begin().await.unwrap();
        assert_eq!(give_back(&mut tx, "o-1", now).await.unwrap(), 0);
        assert_eq!(book(&mut tx, "o-1", &new(500), now).await.unwrap(), "VOIDED");
        tx.commit().await.unwrap();
        assert!(movements(&store).await.is_empty());
    }

    #[tokio::test]
    async fn a_card_has_a_limit() {
        let (store, now) = (fresh().await, WallTime::from_unix_millis(1));
        let mut tx = store.begin().await.unwrap();
        let amount = CARD_LIMIT_CENTS + 1;
        assert_eq!(book(&mut tx, "o-1", &new(amount), now).await.unwrap(), "DECLINED");
        tx.commit().await.unwrap();
        assert!(movements(&store).await.is_empty());
    }
}
