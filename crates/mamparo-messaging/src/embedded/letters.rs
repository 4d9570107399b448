//! Dead letters and the archive of the embedded broker, in the hand of a tool.
//!
//! Nothing is held: a letter is named by its row, and whoever settles it first has it.

use mamparo_call::clock;
use mamparo_core::message::topology;
use mamparo_store::letters::{self, Settlement};
use mamparo_store::{StoreError, queue};

use super::EmbeddedBroker;
use crate::broker::{Broker, Filter, Stored};
use crate::letters::{Letters, Order, Place, Settling};
use crate::{Message, MessagingError};

/// Most rows that are read at once.
const PAGE: u32 = 500;

/// A session over the letters of one queue.
#[derive(Debug)]
pub struct EmbeddedLetters {
    broker: EmbeddedBroker,
    /// The dead-letter queue.
    queue: String,
    place: Place,
    total: u64,
    /// The youngest row when the session was opened.
    last: i64,
    /// The last row that was offered.
    offered: i64,
    /// The last row that was told as an arrival.
    arrived: i64,
}

impl EmbeddedLetters {
    pub(super) async fn open(
        broker: &EmbeddedBroker,
        queue: &str,
        place: Place,
    ) -> Result<Self, MessagingError> {
        let (broker, queue) = (broker.clone(), topology::dlq(queue));
        let failed = MessagingError::store("open dead letters");
        let (last, total) = match place {
            Place::Dead => {
                let last = letters::last(broker.store(), &queue).await.map_err(failed)?;
                (last, broker.depth(&queue).await?)
            }
            Place::Archive => {
                let totals = queue::totals(broker.store()).await.map_err(failed)?;
                let here = totals.iter().find(|totals| totals.queue == queue);
                (i64::MAX, here.map_or(0, |totals| totals.archived))
            }
        };
        Ok(Self { broker, queue, place, total, last, offered: 0, arrived: last })
    }

    async fn archived(&mut self, max: u32) -> Result<Vec<Stored>, MessagingError> {
        let page = letters::archive(self.broker.store(), &self.queue, self.offered, max)
            .await
            .map_err(MessagingError::store("list the archive"))?;
        let stored = page.into_iter().map(|row| Stored {
            tag: row.row,
            since: row.archived.archived,
            message: row.archived.message.into(),
        });
        Ok(stored.collect())
    }

    /// Out of the archive, one transaction each: they are few.
    async fn restore(&self, orders: &[Order<'_>]) -> Result<Vec<Settling>, StoreError> {
        let mut settled = Vec::with_capacity(orders.len());
        for order in orders {
            let Some((to, copy)) = &order.copy else {
                settled.push(Settling::Refused("the archive is only left by a copy".to_owned()));
                continue;
            };
            let (store, row) = (self.broker.store(), order.letter.tag);
            let restored = letters::restore(store, row, to, &copy.headers, clock::wall()).await?;
            settled.push(if restored { Settling::Done } else { Settling::Gone });
        }
        Ok(settled)
    }

    async fn settle_dead(&self, orders: &[Order<'_>]) -> Result<Vec<Settling>, StoreError> {
        let copies: Vec<_> = orders
            .iter()
            .map(|order| order.copy.as_ref().map(|(to, copy)| (to.as_str(), copy.clone().into())))
            .collect();
        let settlements: Vec<Settlement<'_>> = orders
            .iter()
            .zip(&copies)
            .map(|(order, copy)| Settlement {
                row: order.letter.tag,
                copy: copy.as_ref().map(|(to, copy)| (*to, copy)),
                archive: order.archive.as_ref().map(|note| letters::Note {
                    actor: &note.actor,
                    reason: &note.reason,
                    headers: &note.headers,
                }),
            })
            .collect();
        let settled = letters::settle(self.broker.store(), &settlements, clock::wall()).await?;
        let told = |done| if done { Settling::Done } else { Settling::Gone };
        Ok(settled.into_iter().map(told).collect())
    }
}

impl Letters for EmbeddedLetters {
    fn total(&self) -> u64 {
        self.total
    }

    async fn fetch(&mut self, max: u32) -> Result<Vec<Stored>, MessagingError> {
        let page = match self.place {
            Place::Dead => {
                let store = self.broker.store();
                let page = letters::page(store, &self.queue, self.offered, self.last, max).await;
                let page = page.map_err(MessagingError::store("list dead letters"))?;
                page.into_iter().map(stored).collect()
            }
            Place::Archive => self.archived(max).await?,
        };
        self.offered = page.last().map_or(self.offered, |letter| letter.tag);
        Ok(page)
    }

    async fn arrivals(&mut self) -> Result<Vec<String>, MessagingError> {
        let mut ids = Vec::new();
        if self.place == Place::Archive {
            return Ok(ids);
        }
        loop {
            let store = self.broker.store();
            let page = letters::page(store, &self.queue, self.arrived, i64::MAX, PAGE).await;
            let page = page.map_err(MessagingError::store("list dead letters"))?;
            let Some(last) = page.last() else { return Ok(ids) };
            self.arrived = last.row;
            ids.extend(page.into_iter().map(|listed| listed.message.id));
        }
    }

    async fn settle(&mut self, orders: &[Order<'_>]) -> Result<Vec<Settling>, MessagingError> {
        let settled = match self.place {
            Place::Dead => self.settle_dead(orders).await,
            Place::Archive => self.restore(orders).await,
        };
        self.broker.wake();
        match settled {
            Err(StoreError::UnknownQueue { queue }) => {
                let refused = Settling::Refused(format!("queue {queue:?} does not exist"));
                Ok(vec![refused; orders.len()])
            }
            settled => settled.map_err(MessagingError::store("settle dead letters")),
        }
    }

    async fn handled(&mut self, queue: &str, id: &str) -> Result<Option<bool>, MessagingError> {
        let filter = Filter { ids: vec![id.to_owned()], ..Filter::default() };
        let names = queue::names(self.broker.store())
            .await
            .map_err(MessagingError::store("list queues"))?;
        let rooms = format!("{queue}{}", topology::RETRY_SUFFIX);
        for name in names {
            let room = name == rooms || name.starts_with(&format!("{rooms}."));
            if (name == queue || room) && !self.broker.browse(&name, &filter).await?.is_empty() {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    async fn close(self) -> Result<(), MessagingError> {
        Ok(())
    }
}

fn stored(row: queue::Listed) -> Stored {
    Stored { tag: row.row, since: row.since, message: Message::from(row.message) }
}
