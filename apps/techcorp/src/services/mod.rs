//! The eight services of the shop.

pub mod answers;
pub mod bff;
pub mod catalog;
pub mod customers;
pub mod gateway;
pub mod inventory;
pub mod notifications;
pub mod orders;
pub mod payments;

use mamparo::core::time::WallTime;
use mamparo::http::Problem;
use mamparo::messaging::event;
use mamparo::store::{Transaction, outbox};

use crate::db::ShopDb;
use answers::HandlerError;

/// Enqueues an event about an order in the transaction that causes it.
///
/// # Errors
/// What the database said.
pub async fn emit<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    kind: &str,
    order_id: &str,
    payload: &impl serde::Serialize,
    now: WallTime,
) -> Result<(), HandlerError> {
    let event = event(kind, order_id, payload)?;
    outbox::enqueue(tx, &event, now).await?;
    Ok(())
}

/// A failure of our own, as the caller sees it: logged with its causes, answered without them. One
/// that passes by itself (the database is away) is a 503 that says when to come back.
pub fn trouble(error: &(dyn std::error::Error + 'static)) -> Problem {
    if answers::passes(error) {
        tracing::warn!(error = answers::chain(error), "refused to answer for now");
        return Problem::unavailable(answers::DATABASE_AWAY);
    }
    tracing::error!(error = answers::chain(error), "failed to answer");
    Problem::internal()
}

/// Ids travel in paths and queries: 1 to 64 letters, digits and dashes.
#[must_use]
pub fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
