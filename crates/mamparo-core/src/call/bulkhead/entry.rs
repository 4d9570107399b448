//! What a bulkhead answers.

use std::time::Duration;

use crate::call::bulkhead::Ticket;
use crate::time::Moment;

/// A slot that is held. Give it back with [`super::Bulkhead::release`]; dropped, it is lost for good.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is not released is lost"]
pub struct Slot {
    pub(super) since: Moment,
}

/// The answer to a caller that wants in.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it may hold a slot"]
pub enum Entry {
    /// A slot is taken.
    Granted(Slot),
    /// All slots are taken; wait until the ticket is granted or shed.
    Queued {
        /// The place in the line.
        ticket: Ticket,
        /// Who made room, if somebody did: wake it, so that it leaves.
        shed: Option<Ticket>,
    },
    /// All slots and all places in the queue are taken.
    Full {
        /// When those who wait now will have their slots, as far as is known.
        retry_after: Option<Duration>,
    },
    /// There is room in the queue, but a slot would come too late for this caller.
    TooLate {
        /// When a slot would come, by estimate.
        retry_after: Duration,
    },
}

/// The waiters that own a slot by now: wake them. Holds one without allocating.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "who is not woken sleeps on its slot"]
pub struct Woken {
    first: Option<Ticket>,
    rest: Vec<Ticket>,
}

impl Woken {
    /// Is there nobody to wake?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(in crate::call) fn extend(&mut self, tickets: impl IntoIterator<Item = Ticket>) {
        tickets.into_iter().for_each(|ticket| self.add(ticket));
    }

    pub(super) fn add(&mut self, ticket: Ticket) {
        match self.first {
            None => self.first = Some(ticket),
            Some(_) => self.rest.push(ticket),
        }
    }
}

impl From<Option<Ticket>> for Woken {
    fn from(first: Option<Ticket>) -> Self {
        Self { first, rest: Vec::new() }
    }
}

impl IntoIterator for Woken {
    type Item = Ticket;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Ticket>, std::vec::IntoIter<Ticket>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.rest)
    }
}
