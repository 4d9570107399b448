//! Waiting rooms: where a message is while it waits for another attempt, and where it ends when none
//! is left.
//!
//! Whatever the room, one thing holds: once it says [`Moved::Safe`] the message is durable there, and
//! only then is the original acknowledged. A crash in between makes a second copy, which the inbox or
//! the row's id absorbs, and never a loss.

mod own;
mod parked;
mod tiers;

use std::future::Future;
use std::time::Duration;

use mamparo_core::message::topology::{QueuePolicy, WaitingRoom};
use mamparo_core::message::waiting::{self, Choice, Stay};
use mamparo_store::parked::Failure;
use mamparo_store::{Backend, Store};

use crate::consumer::Hand;
use crate::{Broker, Message};

pub(crate) use own::Own;
pub(crate) use parked::{ASK_LIMIT, KEY_BYTES_MAX, Parked, RENEW_EVERY};
pub(crate) use tiers::Tiers;

/// A message that leaves the hand.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) hand: &'a Hand,
    /// As it goes on, with the headers that it takes along.
    pub(crate) copy: Message,
    /// Attempts that have ended without success.
    pub(crate) attempts: u32,
    /// What went wrong this time.
    pub(crate) failure: Failure,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is safe in the room: acknowledge the original.
    Safe,
    /// The original is settled too.
    Settled,
    /// What is known of it is safe: reject the original, which stays at its place in the broker's queue.
    Kept,
    /// The room did not take it, so the original stays; why.
    Stays(String),
    /// The room's database is away, so the original stays and the consumer pauses; why.
    Away(String),
    /// Somebody else has it by now: nothing was changed.
    Stale,
}

/// What became of a message whose key waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Followed {
    Moved(Moved),
    /// Nothing of its key waits any more.
    Free,
}

/// A waiting room.
pub(crate) trait Room: Send + Sync {
    /// Takes a message that failed and has attempts left.
    fn keep(&self, case: &Case<'_>, stay: Stay) -> impl Future<Output = Moved> + Send;

    /// Takes a message that will not be tried again.
    fn bury(&self, case: &Case<'_>) -> impl Future<Output = Moved> + Send;

    /// Takes a message that is to come again after `delay`, with no attempt counted.
    fn put_off(&self, case: &Case<'_>, delay: Duration) -> impl Future<Output = Moved> + Send;

    /// Lets a message wait behind an earlier one of its key, which comes back after `delay`.
    fn follow(&self, case: &Case<'_>, delay: Duration) -> impl Future<Output = Followed> + Send;
}

/// One of the rooms.
#[derive(Debug)]
pub(crate) enum AnyRoom<B, DB: Backend> {
    Tiers(Tiers<B>),
    Parked(Box<Parked<B, DB>>),
    Own(Box<Own<B, DB>>),
}

impl<B: Broker, DB: Backend> AnyRoom<B, DB> {
    /// The room that fits policy, broker and database, and the choice in words; with the reason when
    /// there is none, which then is never used.
    pub(crate) fn choose(
        broker: &B,
        store: Option<&Store<DB>>,
        policy: &QueuePolicy,
    ) -> (Self, Choice, Option<String>) {
        let (choice, obstacle) =
            match waiting::choose(policy, &broker.capabilities(), store.is_some()) {
                Ok(choice) => (choice, None),
                Err(why) => {
                    let why = Some(why);
                    (Choice { room: WaitingRoom::Tiers, why: why.clone() }, why)
                }
            };
        let tiers = Tiers::new(broker.clone(), policy);
        let room = match (choice.room, store) {
            (WaitingRoom::Parked, Some(store)) => {
                Self::Parked(Box::new(Parked::new(tiers, store.clone(), policy)))
            }
            (WaitingRoom::Broker, Some(store)) => {
                Self::Own(Box::new(Own::new(tiers, store.clone(), policy)))
            }
            (WaitingRoom::Tiers, _) | (WaitingRoom::Parked | WaitingRoom::Broker, None) => {
                Self::Tiers(tiers)
            }
        };
        (room, choice, obstacle)
    }

    pub(crate) const fn parked(&self) -> Option<&Parked<B, DB>> {
        match self {
            Self::Parked(parked) => Some(&**parked),
            Self::Tiers(_) | Self::Own(_) => None,
        }
    }

    pub(crate) const fn own(&self) -> Option<&Own<B, DB>> {
        match self {
            Self::Own(own) => Some(&**own),
            Self::Tiers(_) | Self::Parked(_) => None,
        }
    }
}

impl<B: Broker, DB: Backend> Room for AnyRoom<B, DB> {
    async fn keep(&self, case: &Case<'_>, stay: Stay) -> Moved {
        match self {
            Self::Tiers(room) => room.keep(case, stay).await,
            Self::Parked(room) => room.keep(case, stay).await,
            Self::Own(room) => room.keep(case, stay).await,
        }
    }

    async fn bury(&self, case: &Case<'_>) -> Moved {
        match self {
            Self::Tiers(room) => room.bury(case).await,
            Self::Parked(room) => room.bury(case).await,
            Self::Own(room) => room.bury(case).await,
        }
    }

    async fn put_off(&self, case: &Case<'_>, delay: Duration) -> Moved {
        match self {
            Self::Tiers(room) => room.put_off(case, delay).await,
            Self::Parked(room) => room.put_off(case, delay).await,
            Self::Own(room) => room.put_off(case, delay).await,
        }
    }

    async fn follow(&self, case: &Case<'_>, delay: Duration) -> Followed {
        match self {
            Self::Tiers(room) => room.follow(case, delay).await,
            Self::Parked(room) => room.follow(case, delay).await,
            Self::Own(room) => room.follow(case, delay).await,
        }
    }
}
