//! Mails. The saga only queues them; a sender of its own hands them over when the mail server
//! takes them, however long that lasts.

use mamparo::call::clock;
use mamparo::core::limits;
use mamparo::http::HttpClient;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::{SqliteStore, Transaction};
use sqlx::{Sqlite, SqliteConnection};

use super::answers::{HandlerError, answer};
use crate::events::{OrderCancelled, OrderConfirmed, kind};
use crate::outside::mail::Mail;

/// The schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS mails (
    key       TEXT PRIMARY KEY,
    to_whom   TEXT NOT NULL,
    subject   TEXT NOT NULL,
    state     TEXT NOT NULL DEFAULT 'QUEUED' CHECK (state IN ('QUEUED', 'SENT')),
    queued_ms INTEGER NOT NULL,
    sent_ms   INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS mails_queued ON mails (queued_ms) WHERE state = 'QUEUED';
";

/// Handles what orders say.
#[derive(Debug)]
pub struct Mailroom;

impl Handler<Sqlite> for Mailroom {
    type Facts = (String, Mail);

    async fn prepare(&self, message: &Message) -> Result<Self::Facts, Answer> {
        match message.kind.as_str() {
            kind::ORDER_CONFIRMED => {
                let order: OrderConfirmed = message.decode()?;
                let subject = format!("Your order {} is confirmed", order.order_id);
                let key = format!("{}-confirmed", order.order_id);
                Ok((key, Mail { to: order.customer_id, subject }))
            }
            kind::ORDER_CANCELLED => {
                let order: OrderCancelled = message.decode()?;
                let subject =
                    format!("Your order {} is cancelled: {}", order.order_id, order.reason);
                let key = format!("{}-cancelled", order.order_id);
                Ok((key, Mail { to: order.customer_id, subject }))
            }
            other => Err(Answer::Dead {
                reason: format!("notifications do not know events of type {other:?}"),
            }),
        }
    }

    async fn apply(
        &self,
        _message: &Message,
        (key, mail): Self::Facts,
        tx: &mut Transaction<'_, Sqlite>,
    ) -> Answer {
        match queue(tx, &key, &mail).await {
            Ok(()) => Answer::Done,
            Err(error) => answer(&error.into()),
        }
    }
}

/// Queues a mail. An order that is cancelled twice (the second time to undo something that came
/// late) is still one mail.
async fn queue(tx: &mut SqliteConnection, key: &str, mail: &Mail) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO mails (key, to_whom, subject, queued_ms) VALUES (?, ?, ?, ?)
         ON CONFLICT (key) DO NOTHING",
    )
    .bind(key)
    .bind(&mail.to)
    .bind(&mail.subject)
    .bind(clock::wall().unix_millis())
    .execute(tx)
    .await?;
    Ok(())
}

/// Hands queued mails over.
#[derive(Debug, Clone)]
pub struct Sender {
    /// The service's own database.
    pub store: SqliteStore,
    /// The mail server.
    pub mail: HttpClient,
}

impl Sender {
    /// One round: the oldest queued mails, until one is not taken. How many were sent.
    ///
    /// # Errors
    /// What the database said.
    pub async fn round(&self) -> Result<u32, HandlerError> {
        let waiting: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT key, to_whom, subject FROM mails WHERE state = 'QUEUED'
             ORDER BY queued_ms LIMIT ?",
        )
        .bind(limits::BATCH_MAX)
        .fetch_all(self.store.reader())
        .await?;
        let mut sent = 0;
        for (key, to, subject) in waiting {
            let request = self.mail.put(format!("/v1/mails/{key}")).json(&Mail { to, subject });
            if let Err(error) = request.send().await {
                tracing::warn!(%error, "mails stay queued");
                break;
            }
            let mut tx = self.store.begin().await?;
            sqlx::query("UPDATE mails SET state = 'SENT', sent_ms = ? WHERE key = ?")
                .bind(clock::wall().unix_millis())
                .bind(&key)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            sent += 1;
        }
        Ok(sent)
    }
}
