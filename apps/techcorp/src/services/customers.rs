//! Who may order.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use mamparo::http::Problem;
use mamparo::http::server::{Json, Path};
use mamparo::store::Store;
use serde::{Deserialize, Serialize};

use super::trouble;
use crate::db::{ShopDb, query};

/// The customers' schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS customers (
    id   TEXT PRIMARY KEY,
    name TEXT NOT NULL
) STRICT;
";

/// A customer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Customer {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
}

/// The routes.
pub fn router<DB: ShopDb>(store: Store<DB>) -> Router {
    Router::new().route("/v1/customers/{id}", get(show::<DB>)).with_state(store)
}

async fn show<DB: ShopDb>(
    State(store): State<Store<DB>>,
    Path(id): Path<String>,
) -> Result<Json<Customer>, Problem> {
    let row: Option<(String, String)> = query("SELECT id, name FROM customers WHERE id = $1")
        .bind(&id)
        .first(&store)
        .await
        .map_err(|error| trouble(&error))?;
    row.map(|(id, name)| Json(Customer { id, name })).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "CUSTOMER_NOT_FOUND")
            .detail(format!("no customer {id:?}"))
    })
}

/// Writes down the shop's customers.
///
/// # Errors
/// What the database said.
pub async fn seed<DB: ShopDb>(
    store: &Store<DB>,
    customers: &[Customer],
) -> Result<(), sqlx::Error> {
    let mut tx = store.begin().await.map_err(|error| sqlx::Error::Configuration(error.into()))?;
    for customer in customers {
        query("INSERT INTO customers (id, name) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING")
            .bind(&customer.id)
            .bind(&customer.name)
            .run(&mut tx)
            .await?;
    }
    tx.commit().await
}
