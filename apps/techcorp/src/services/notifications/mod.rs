//! Mails. The saga only queues them; a sender of its own hands them over when the mail server
//! takes them, however long that lasts.

use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::limits;
use mamparo::http::HttpClient;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::{Store, Transaction};

use super::answers::{HandlerError, answer, chain};
use crate::db::{ShopDb, query};
use crate::events::{OrderCancelled, OrderConfirmed, kind};
use crate::outside::mail::Mail;

/// The schema, safe to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS mails (
    key       TEXT PRIMARY KEY,
    to_whom   TEXT NOT NULL,
    subject   TEXT NOT NULL,
    state     TEXT NOT NULL DEFAULT 'QUEUED' CHECK (state IN ('QUEUED', 'SENT')),
    due_ms    INTEGER NOT NULL,
    sent_ms   INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS mails_queued ON mails (due_ms) WHERE state = 'QUEUED';
";

/// A round begins no mail after this long: whoever stops the service waits for the round's end.
const ROUND: Duration = Duration::from_secs(1);

/// How long a mail that the server refuses for good steps aside. It is not thrown away: whoever
/// mends the server, or us, should not have to write it again.
const REFUSED_PAUSE: Duration = Duration::from_secs(600);

/// Handles what orders say.
#[derive(Debug)]
pub struct Mailroom;

impl<DB: ShopDb> Handler<DB> for Mailroom {
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
        tx: &mut Transaction<'_, DB>,
    ) -> Answer {
        match queue(tx, &key, &mail).await {
            Ok(()) => Answer::Done,
            Err(error) => answer(&error.into()),
        }
    }
}

/// Queues a mail. An order that is cancelled twice (the second time to undo something that came
/// late) is still one mail.
async fn queue<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    key: &str,
    mail: &Mail,
) -> Result<(), sqlx::Error> {
    query(
        "INSERT INTO mails (key, to_whom, subject, due_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (key) DO NOTHING",
    )
    .bind(key)
    .bind(&mail.to)
    .bind(&mail.subject)
    .bind(clock::wall().unix_millis())
    .run(tx)
    .await
    .map(drop)
}

/// Hands queued mails over.
#[derive(Debug)]
pub struct Sender<DB: ShopDb> {
    /// The service's own database.
    pub store: Store<DB>,
    /// The mail server.
    pub mail: HttpClient,
}

impl<DB: ShopDb> Sender<DB> {
    /// One round: the mails that are due, oldest first, until the server takes none. How many were
    /// sent. One that is refused for good steps aside, so that it holds up nobody else's.
    ///
    /// # Errors
    /// What the database said.
    pub async fn round(&self) -> Result<u32, HandlerError> {
        let waiting: Vec<(String, String, String)> = query(
            "SELECT key, to_whom, subject FROM mails WHERE state = 'QUEUED' AND due_ms <= $1
             ORDER BY due_ms LIMIT $2",
        )
        .bind(clock::wall().unix_millis())
        .bind(limits::BATCH_MAX)
        .all(&self.store)
        .await?;
        let (mut sent, end) = (0, clock::now().plus(ROUND));
        for (key, to, subject) in waiting {
            if clock::now() >= end {
                break;
            }
            let request = self.mail.put(format!("/v1/mails/{key}")).json(&Mail { to, subject });
            match request.send().await {
                Ok(_) => {
                    self.mark(&key, "SENT").await?;
                    sent += 1;
                }
                Err(error) if error.is_permanent() => {
                    tracing::error!(mail = key, error = chain(&error), "a mail is refused");
                    self.mark(&key, "QUEUED").await?;
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "mails stay queued");
                    break;
                }
            }
        }
        Ok(sent)
    }

    /// A mail that stays queued is due again after [`REFUSED_PAUSE`].
    async fn mark(&self, key: &str, state: &str) -> Result<(), HandlerError> {
        let now = clock::wall();
        let mut tx = self.store.begin().await?;
        query("UPDATE mails SET state = $1, sent_ms = $2, due_ms = $3 WHERE key = $4")
            .bind(state)
            .bind((state == "SENT").then(|| now.unix_millis()))
            .bind(now.plus(REFUSED_PAUSE).unix_millis())
            .bind(key)
            .run(&mut tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Path;
    use axum::routing::put;
    use http::StatusCode;
    use mamparo::call::Dependency;
    use mamparo::http::serve;
    use mamparo::service::{Role, Tasks};
    use mamparo::store::SqliteStore;
    use tokio::net::TcpListener;

    use super::*;

    /// A mail server that will never take one of the mails.
    async fn picky(Path(key): Path<String>) -> StatusCode {
        if key == "bad" { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::NO_CONTENT }
    }

    #[tokio::test]
    async fn a_mail_that_is_refused_for_good_holds_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tasks = Tasks::new("mail");
        tasks.spawn(Role::Server, "mail", |stop| async move {
            let router = Router::new().route("/v1/mails/{key}", put(picky));
            serve(listener, router, stop.cancelled_owned(), Duration::ZERO).await.map(|_| ())
        });
        let dependency = Dependency::builder("mail").attempt_timeout(Duration::from_secs(5));
        let mail = HttpClient::new(&url, dependency.build().unwrap()).unwrap();
        let store = SqliteStore::open("sqlite::memory:").await.unwrap();
        store.apply(SCHEMA).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        for key in ["bad", "good"] {
            let mail = Mail { to: "c-1".into(), subject: key.into() };
            queue(&mut tx, key, &mail).await.unwrap();
        }
        store.commit(tx).await.unwrap();

        let sender = Sender { store: store.clone(), mail };
        assert_eq!(sender.round().await.unwrap(), 1);
        assert_eq!(sender.round().await.unwrap(), 0, "it is not tried again at once");
        let left: Vec<String> = sqlx::query_scalar("SELECT key FROM mails WHERE state = 'QUEUED'")
            .fetch_all(store.reader())
            .await
            .unwrap();
        assert_eq!(left, ["bad"], "nothing is thrown away");
    }
}
