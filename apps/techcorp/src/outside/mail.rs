//! The mail server: takes each mail once, by its key, and keeps it.

use axum::Router;
use axum::extract::State;
use axum::routing::put;
use http::StatusCode;
use mamparo::call::clock;
use mamparo::http::Problem;
use mamparo::http::server::{Json, Path};
use mamparo::store::Store;
use serde::{Deserialize, Serialize};

use crate::db::{ShopDb, query};
use crate::services::trouble;

/// The mail server's schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS delivered (
    key     TEXT PRIMARY KEY,
    to_whom TEXT NOT NULL,
    subject TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    copies  INTEGER NOT NULL DEFAULT 1
) STRICT;
";

/// A mail.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mail {
    /// Who gets it.
    pub to: String,
    /// What it says.
    pub subject: String,
}

/// The routes.
pub fn router<DB: ShopDb>(store: Store<DB>) -> Router {
    Router::new().route("/v1/mails/{key}", put(deliver::<DB>)).with_state(store)
}

/// A PUT under the mail's key: sending it again is no second mail, and is counted.
async fn deliver<DB: ShopDb>(
    State(store): State<Store<DB>>,
    Path(key): Path<String>,
    Json(mail): Json<Mail>,
) -> Result<StatusCode, Problem> {
    let mut tx = store.begin().await?;
    query(
        "INSERT INTO delivered (key, to_whom, subject, at_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (key) DO UPDATE SET copies = delivered.copies + 1",
    )
    .bind(&key)
    .bind(&mail.to)
    .bind(&mail.subject)
    .bind(clock::wall().unix_millis())
    .run(&mut tx)
    .await
    .map_err(|error| trouble(&error))?;
    tx.commit().await.map_err(|error| trouble(&error))?;
    Ok(StatusCode::NO_CONTENT)
}
