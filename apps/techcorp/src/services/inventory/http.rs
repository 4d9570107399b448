//! Inventory's HTTP side: a reservation by hand, with the order's id as its idempotency key.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use http::StatusCode;
use mamparo::call::clock;
use mamparo::http::Problem;
use mamparo::http::server::{Answer, Claimed, Idempotency, Json};
use mamparo::store::Store;
use serde::Serialize;

use super::rows::State as Stands;
use super::saga;
use crate::db::ShopDb;
use crate::events::OrderCreated;
use crate::services::orders::http::check_lines;
use crate::services::trouble;

/// What the handlers need.
#[derive(Debug)]
pub struct Inventory<DB: ShopDb> {
    /// Inventory's own database.
    pub store: Store<DB>,
    /// How long goods are held.
    pub expiry: Duration,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReservationView {
    order_id: String,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
}

/// The routes.
pub fn router<DB: ShopDb>(inventory: Inventory<DB>) -> Router {
    let guard = Idempotency::required(inventory.store.clone());
    let route = guard.around(post(reserve::<DB>));
    Router::new().route("/v1/reservations", route).with_state(Arc::new(inventory))
}

/// 201 with the reservation, or 409 `OUT_OF_STOCK`: an answer, not a failure. Both are kept.
async fn reserve<DB: ShopDb>(
    State(inventory): State<Arc<Inventory<DB>>>,
    claimed: Claimed,
    Json(order): Json<OrderCreated>,
) -> Result<Answer, Problem> {
    if !crate::services::is_id(&order.order_id) || !crate::services::is_id(&order.customer_id) {
        return Err(Problem::validation("orderId, customerId: 1 to 64 letters, digits or '-'"));
    }
    if order.total_cents < 0 {
        return Err(Problem::validation("totalCents: 0 or more"));
    }
    check_lines(&order.lines)?;
    let mut tx = inventory.store.begin().await?;
    let reserved = saga::reserve(&mut tx, &order, inventory.expiry, clock::wall()).await;
    let reserved = reserved.map_err(|error| trouble(&error))?;
    let view = ReservationView {
        order_id: reserved.order_id,
        status: reserved.state.name(),
        expires_at: reserved.expires.map(|at| at.to_string()),
    };
    let status = match reserved.state {
        Stands::Active | Stands::Sold => StatusCode::CREATED,
        Stands::Released | Stands::Rejected | Stands::Tombstone => StatusCode::CONFLICT,
    };
    let answer = Answer::json(status, &view)?;
    claimed.complete(&mut tx, &answer).await?;
    inventory.store.commit(tx).await?;
    Ok(answer)
}
