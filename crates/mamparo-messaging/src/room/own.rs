//! The broker's own waiting room: a rejected message stays in its queue and comes back after a while.
//!
//! Nobody can write on a message that stays, so what it goes on with stands in a row of the service's
//! database ([`mamparo_store::retries`]), the time before which it is not to be handled included. The
//! row commits before the message is rejected. What comes back earlier, because it is to wait for longer
//! than the broker's longest delay or because a crash came between, is given back again and counts no
//! attempt.

use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::headers::{self, Headers};
use mamparo_core::message::topology::{QueuePolicy, WaitingRoom};
use mamparo_core::message::waiting::{Again, Stay, again};
use mamparo_store::retries::{self, Recalled};
use mamparo_store::{Backend, Store, StoreError};

use super::{Case, Followed, Moved, Room, Tiers};
use crate::error::chain;
use crate::{Broker, Message};

/// The broker's delayed retry, and its dead letters.
#[derive(Debug)]
pub(crate) struct Own<B, DB: Backend> {
    /// Dead letters and copies go to queues by name.
    queues: Tiers<B>,
    store: Store<DB>,
    policy: QueuePolicy,
}

impl<B: Broker, DB: Backend> Own<B, DB> {
    pub(crate) fn new(queues: Tiers<B>, store: Store<DB>, policy: &QueuePolicy) -> Self {
        Self { queues, store, policy: policy.clone() }
    }

    /// What is known of a message that was given back before; `None` for all others.
    pub(crate) async fn recall(&self, message: &Message) -> Result<Option<Recalled>, StoreError> {
        let known = retries::recall(&self.store, self.policy.consumer(), &message.id).await?;
        // A person has put it back since: the row is about an earlier life.
        let life = |headers: &Headers| headers::get(headers, headers::REPLAYED).map(str::to_owned);
        Ok(known.filter(|known| life(&known.headers) == life(&message.headers)))
    }

    /// The message has left its queue for good.
    pub(crate) async fn forget(&self, message: &Message) -> Result<(), StoreError> {
        retries::done(&self.store, self.policy.consumer(), &message.id).await
    }

    /// How many messages wait here, and for how long the oldest does.
    pub(crate) async fn stats(&self) -> Result<(u64, Duration), StoreError> {
        let (rows, oldest) = retries::stats(&self.store, self.policy.consumer()).await?;
        Ok((rows, oldest.map_or(Duration::ZERO, |oldest| clock::wall().since(oldest))))
    }

    /// How long a message stays away that is given back for `wait`: the broker's delay grows with each
    /// return, whatever the return was for.
    pub(crate) fn stays_away(&self, returns: u32, wait: Duration) -> Duration {
        match again(&self.policy, returns) {
            Again::Reject => {
                wait.max(self.policy.pause(WaitingRoom::Broker, returns.saturating_add(1)))
            }
            Again::Copy => wait,
        }
    }

    async fn give_back(&self, case: &Case<'_>, wait: Duration) -> Moved {
        let now = clock::wall();
        let mut copy = case.copy.clone();
        let due = now.plus(wait).unix_millis().to_string();
        headers::set(&mut copy.headers, headers::NOT_BEFORE, due);
        let returns = case.hand.returns();
        let how = again(&self.policy, returns);
        let returns = match how {
            Again::Reject => returns.saturating_add(1),
            Again::Copy => 0,
        };
        let (consumer, id) = (self.policy.consumer(), &copy.id);
        // Also for a copy: until the original is acknowledged, either may come first.
        let kept = retries::keep(&self.store, consumer, id, &copy.headers, returns, now).await;
        match (kept, how) {
            (Ok(()), Again::Reject) => Moved::Kept,
            (Ok(()), Again::Copy) => self.queues.publish(&self.policy.queue, &copy).await,
            (Err(error), _) => {
                self.store.doubt(error.class());
                let why = chain(&error);
                if error.class().is_away() { Moved::Away(why) } else { Moved::Stays(why) }
            }
        }
    }
}

impl<B: Broker, DB: Backend> Room for Own<B, DB> {
    async fn keep(&self, case: &Case<'_>, stay: Stay) -> Moved {
        self.give_back(case, stay.wait).await
    }

    async fn bury(&self, case: &Case<'_>) -> Moved {
        self.queues.bury(case).await
    }

    async fn put_off(&self, case: &Case<'_>, delay: Duration) -> Moved {
        self.give_back(case, delay).await
    }

    async fn follow(&self, case: &Case<'_>, delay: Duration) -> Followed {
        Followed::Moved(self.give_back(case, delay).await)
    }
}
