//! Failed messages of a service's own database, in the hand of a tool.
//!
//! They are put back through the broker: a copy is confirmed in its queue before the row is marked.
//! Rows are held by a lease while their copies are on their way, so two people never send one.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;
use mamparo_call::clock;
use mamparo_core::message::headers;
use mamparo_core::message::lineage;
use mamparo_core::message::selection::Sift;
use mamparo_store::failed::{self, Acted, FailedMessage, Query, Status, Target, UNDO_WINDOW};
use mamparo_store::{Backend, Store, StoreError, inbox};

use crate::broker::{Broker, Confirm, Stored};
use crate::letters::{Letters, Order, Place, Settling};
use crate::{Message, MessagingError};

/// How long rows are held while their copies are on their way. A publish ends within 5 s.
const LEASE: Duration = Duration::from_secs(60);

/// A session over the failed messages of one consumer.
#[derive(Debug)]
pub struct StoreLetters<DB: Backend, B> {
    store: Store<DB>,
    /// Takes copies; without one nothing can be put back.
    broker: Option<B>,
    query: Query,
    place: Place,
    owner: String,
    total: u64,
    /// Ids of messages that this session put back and that have not come back.
    sent: BTreeSet<String>,
}

impl<DB: Backend, B: Broker> StoreLetters<DB, B> {
    /// Opens a session over what `consumer` gave up, or over what people discarded of it. `sift` is
    /// asked of the database, which has indexes.
    ///
    /// # Errors
    /// What the database said.
    pub async fn open(
        store: Store<DB>,
        broker: Option<B>,
        consumer: &str,
        place: Place,
        sift: Sift,
    ) -> Result<Self, MessagingError> {
        let status = match place {
            Place::Dead => Status::Failed,
            Place::Archive => Status::Discarded,
        };
        let (consumer, status) = (Some(consumer.to_owned()), Some(status));
        let all = Query { consumer, status, ..Query::default() };
        let total = failed::count(&store, &all).await;
        let total = total.map_err(MessagingError::store("count failed messages"))?;
        let (query, owner) = (Query { sift, ..all }, uuid::Uuid::now_v7().to_string());
        Ok(Self { store, broker, query, place, owner, total, sent: BTreeSet::new() })
    }

    fn consumer(&self) -> &str {
        self.query.consumer.as_deref().unwrap_or_default()
    }

    /// Sends the copies of rows that are held. What became of each.
    async fn send(&self, orders: &[Order<'_>], held: &[i64]) -> Vec<Settling> {
        let publish = |order| async move {
            let Order { letter, copy, .. }: &Order<'_> = order;
            if !held.contains(&letter.tag) {
                return Settling::Gone;
            }
            let Some((queue, copy)) = copy else { return Settling::Done };
            let Some(broker) = &self.broker else {
                return Settling::Refused("no broker was named to send it by".to_owned());
            };
            match broker.publish("", queue, copy).await {
                Confirm::Confirmed => Settling::Done,
                Confirm::Returned => Settling::Refused(format!("queue {queue:?} does not exist")),
                Confirm::Nacked(why) => {
                    Settling::Refused(format!("queue {queue:?} refused it: {why}"))
                }
                Confirm::Unknown(why) => {
                    Settling::Refused(format!("nobody knows whether {queue:?} has it: {why}"))
                }
            }
        };
        // Polled in their order, so they are published in it.
        orders.iter().map(publish).collect::<FuturesOrdered<_>>().collect().await
    }

    /// Marks rows whose copies have arrived, those without a note together.
    async fn mark(&self, orders: &[Order<'_>], settled: &[Settling]) -> Result<(), StoreError> {
        let done = orders.iter().zip(settled).filter(|(_, is)| **is == Settling::Done);
        let mut replayed: Vec<&Order<'_>> = Vec::new();
        for (order, _) in done {
            let Some(note) = &order.archive else {
                replayed.push(order);
                continue;
            };
            let edited_to = note.edited_to.as_deref();
            let (what, to) = match edited_to {
                Some(_) => ("edited", Status::Archived),
                None => ("discarded", Status::Discarded),
            };
            let acted = Acted { what, to, actor: &note.actor, reason: &note.reason, edited_to };
            self.act(&[order.letter.tag], &acted).await?;
        }
        let Some((_, copy)) = replayed.first().and_then(|order| order.copy.as_ref()) else {
            return Ok(());
        };
        // Who and why stand in the copy, the same in all of a batch.
        let said = |name| headers::get(&copy.headers, name).unwrap_or("");
        let (actor, reason) = (said(headers::REPLAYED_BY), said(headers::REPLAY_REASON));
        let (what, to) = ("replayed", Status::Replayed);
        let rows: Vec<i64> = replayed.iter().map(|order| order.letter.tag).collect();
        self.act(&rows, &Acted { what, to, actor, reason, edited_to: None }).await
    }

    async fn act(&self, rows: &[i64], acted: &Acted<'_>) -> Result<(), StoreError> {
        let owner = Some(self.owner.as_str());
        let target = Target { rows, status: Status::Failed, owner, acted_since: None };
        failed::act(&self.store, &target, acted, clock::wall()).await.map(drop)
    }

    async fn restore(&self, orders: &[Order<'_>]) -> Result<Vec<Settling>, StoreError> {
        let mut settled = Vec::with_capacity(orders.len());
        for order in orders {
            let now = clock::wall();
            let rows = [order.letter.tag];
            let acted_since = Some(now.minus(UNDO_WINDOW));
            let target =
                Target { rows: &rows, status: Status::Discarded, owner: None, acted_since };
            let note = order.archive.as_ref();
            let (actor, reason) = note.map_or(("", ""), |note| (&note.actor, &note.reason));
            let (what, to) = ("restored", Status::Failed);
            let acted = Acted { what, to, actor, reason, edited_to: None };
            let changed = failed::act(&self.store, &target, &acted, now).await?;
            settled.push(if changed == 1 { Settling::Done } else { Settling::Gone });
        }
        Ok(settled)
    }

    async fn settle_failed(&mut self, orders: &[Order<'_>]) -> Result<Vec<Settling>, StoreError> {
        let rows: Vec<i64> = orders.iter().map(|order| order.letter.tag).collect();
        let held = failed::claim(&self.store, &self.owner, &rows, LEASE, clock::wall).await?;
        let settled = self.send(orders, &held).await;
        self.mark(orders, &settled).await?;
        if settled.iter().any(|one| matches!(one, Settling::Refused(_))) {
            failed::release(&self.store, &self.owner).await?;
        }
        let arrived = orders.iter().zip(&settled).filter(|(_, is)| **is == Settling::Done);
        let copies = arrived.filter_map(|(order, _)| order.copy.as_ref());
        self.sent.extend(copies.map(|(_, copy)| copy.id.clone()));
        Ok(settled)
    }
}

impl<DB: Backend, B: Broker> Letters for StoreLetters<DB, B> {
    fn total(&self) -> u64 {
        self.total
    }

    async fn fetch(&mut self, max: u32) -> Result<Vec<Stored>, MessagingError> {
        let query = Query { max, ..self.query.clone() };
        let rows = failed::list(&self.store, &query).await;
        let rows = rows.map_err(MessagingError::store("list failed messages"))?;
        self.query.after = rows.last().map_or(self.query.after, |row| row.row);
        Ok(rows.into_iter().map(|row| stored(row, self.place)).collect())
    }

    /// Those that this session put back and that wait for a person again.
    async fn arrivals(&mut self) -> Result<Vec<String>, MessagingError> {
        if self.sent.is_empty() || self.place == Place::Archive {
            return Ok(Vec::new());
        }
        let sift = Sift { ids: self.sent.iter().cloned().collect(), ..Sift::default() };
        let consumer = self.query.consumer.clone();
        let query = Query { consumer, sift, max: u32::MAX, ..Query::default() };
        let rows = failed::list(&self.store, &query).await;
        let rows = rows.map_err(MessagingError::store("list failed messages"))?;
        let ids: Vec<String> = rows.into_iter().map(|row| row.message.id).collect();
        for id in &ids {
            self.sent.remove(id);
        }
        Ok(ids)
    }

    async fn settle(&mut self, orders: &[Order<'_>]) -> Result<Vec<Settling>, MessagingError> {
        let settled = match self.place {
            Place::Dead => self.settle_failed(orders).await,
            Place::Archive => self.restore(orders).await,
        };
        settled.map_err(MessagingError::store("settle failed messages"))
    }

    /// The inbox of the same database knows.
    async fn handled(&mut self, _: &str, id: &str) -> Result<Option<bool>, MessagingError> {
        let found = inbox::contains(&self.store, self.consumer(), id).await;
        found.map(Some).map_err(MessagingError::store("look into the inbox"))
    }

    async fn close(self) -> Result<(), MessagingError> {
        let released = failed::release(&self.store, &self.owner).await;
        released.map(drop).map_err(MessagingError::store("release failed messages"))
    }
}

/// A row as a letter: what its columns say of the failure stands in its headers, as a broker's dead
/// letter has it.
fn stored(row: FailedMessage, place: Place) -> Stored {
    let mut message = Message::from(row.message);
    let all = &mut message.headers;
    for (name, value) in [
        (headers::DEAD_REASON, row.reason),
        (headers::LAST_ERROR, row.error),
        (headers::FIRST_FAILURE, row.first_failure.to_string()),
        (headers::LAST_FAILURE, row.last_failure.to_string()),
        (headers::FAILURE_HOST, row.host),
        (headers::FAILURE_VERSION, row.version),
        (headers::ATTEMPTS, row.attempts.to_string()),
        (lineage::REPLAYS, row.replays.to_string()),
    ] {
        headers::remove(all, name);
        if !value.is_empty() && (name != lineage::REPLAYS || row.replays > 0) {
            headers::set(all, name, value);
        }
    }
    // The count is this consumer's, whichever of its queues' names the header says.
    headers::remove(all, headers::ATTEMPTS_QUEUE);
    let since = match place {
        Place::Dead => row.last_failure,
        Place::Archive => row.acted_at.unwrap_or(row.last_failure),
    };
    Stored { tag: row.row, since, message }
}
