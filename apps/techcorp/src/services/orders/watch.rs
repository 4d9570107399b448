//! The watchdog's driver: finds what is overdue and feeds the saga the one event that it has.

use std::collections::BTreeSet;

use mamparo::call::clock;
use mamparo::core::saga::order::OrderEvent;
use mamparo::core::saga::watchdog::{Suspect, Verdict, Watchdog};
use mamparo::core::time::WallTime;
use mamparo::messaging::letters::{Letters as _, Place};
use mamparo::messaging::{AnyBroker, Broker};
use mamparo::store::Store;

use super::rows;
use super::saga::{self, Applied, Deadlines};
use crate::db::ShopDb;
use crate::services::answers::HandlerError;

/// Watches over the orders of one database.
#[derive(Debug)]
pub struct OrderWatch<DB: ShopDb> {
    /// Orders' own database.
    pub store: Store<DB>,
    /// How it works.
    pub watchdog: Watchdog,
    /// Limits of the states.
    pub deadlines: Deadlines,
    /// Where the saga's own dead letters are.
    pub broker: AnyBroker,
}

/// The queue whose dead letters hold the watchdog back: what we ourselves could not apply.
const QUEUE: &str = "orders.saga";
/// Most dead letters that are looked at, the oldest first.
const LETTERS_MAX: u32 = 1_000;

impl<DB: ShopDb> OrderWatch<DB> {
    /// One cycle: how many orders it moved. Each order has a transaction of its own, and one that
    /// can't be moved is passed over, so that no number of them holds back the rest.
    ///
    /// # Errors
    /// What the database said when the overdue orders were listed.
    pub async fn cycle(&self) -> Result<u32, HandlerError> {
        let (now, batch) = (clock::wall(), self.watchdog.batch);
        let mut cursor = (String::new(), WallTime::from_unix_millis(i64::MIN));
        let failed = self.failed().await?;
        let mut moved = 0;
        loop {
            let due = rows::overdue(&self.store, now, &cursor, batch).await?;
            let Some(last) = due.last() else { return Ok(moved) };
            cursor = last.clone();
            for (id, deadline) in due {
                let failed_message = failed.contains(&id);
                let suspect = Suspect { deadline: Some(deadline), failed_message, moved };
                match self.watchdog.ask(now, &suspect) {
                    Verdict::Expire => moved += u32::from(self.try_expire(&id).await),
                    Verdict::Later => return Ok(moved),
                    Verdict::Hold => tracing::error!(order = %id, "overdue, with a failed message"),
                    Verdict::Leave => {}
                }
            }
        }
    }

    /// The orders that have a message among our dead letters. What it says (a payment, perhaps) is
    /// for people to find out. A reservation still runs out meanwhile, and that ends its order.
    async fn failed(&self) -> Result<BTreeSet<String>, HandlerError> {
        let found = async {
            let mut letters = self.broker.letters(QUEUE, Place::Dead).await?;
            let found = letters.fetch(LETTERS_MAX).await?;
            letters.close().await?;
            Ok(found)
        };
        let found = found.await.map_err(HandlerError::Broker)?;
        Ok(found.into_iter().map(|letter| letter.message.key).collect())
    }

    async fn try_expire(&self, id: &str) -> bool {
        self.expire(id).await.unwrap_or_else(|error| {
            let error = crate::services::answers::chain(&error);
            tracing::error!(order = %id, error, "failed to expire an order");
            false
        })
    }

    async fn expire(&self, id: &str) -> Result<bool, HandlerError> {
        let mut tx = self.store.begin().await?;
        let now = clock::wall();
        let event = OrderEvent::DeadlinePassed;
        match saga::apply(&mut tx, id, event, &self.deadlines, now).await? {
            Applied::By(then) => {
                self.store.commit(tx).await?;
                tracing::warn!(order = %id, ?then, "the order's deadline has passed");
                Ok(true)
            }
            // Somebody moved it first; the next cycle sees what is left.
            Applied::Raced => Ok(false),
        }
    }
}
