//! At most so many calls in flight, and a bounded queue in front of them, first come first served.
//!
//! A slot is handed from the call that ends to the waiter that is first in the queue, so a newcomer
//! never overtakes and the limit holds at every instant. Whoever leaves while a slot is already on
//! its way hands it on.

use std::collections::VecDeque;

/// The limits of a bulkhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkheadConfig {
    /// Most calls in flight, waits between attempts included; at least 1. Default 20.
    pub limit: u32,
    /// Most callers that wait for a slot. 0 rejects at once when all are taken. Default 0.
    pub queue: u32,
}

impl Default for BulkheadConfig {
    fn default() -> Self {
        Self { limit: 20, queue: 0 }
    }
}

/// A place in the queue. Ends in exactly one [`Bulkhead::claim`] or [`Bulkhead::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// The answer to a caller that wants in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A slot is taken; give it back with [`Bulkhead::release`].
    Granted,
    /// All slots are taken; wait until the ticket is granted.
    Queued(Ticket),
    /// All slots and all places in the queue are taken.
    Full,
}

/// The slots of one dependency.
#[derive(Debug, Clone)]
pub struct Bulkhead {
    config: BulkheadConfig,
    /// Slots taken, those of granted but not yet claimed tickets included.
    taken: u32,
    /// In order of arrival, so also in order of ticket numbers.
    queue: VecDeque<Ticket>,
    /// Tickets that own a slot which their holder has not picked up yet.
    granted: Vec<Ticket>,
    next_ticket: u64,
}

impl Bulkhead {
    /// A bulkhead with all slots free.
    #[must_use]
    pub const fn new(config: BulkheadConfig) -> Self {
        Self { config, taken: 0, queue: VecDeque::new(), granted: Vec::new(), next_ticket: 0 }
    }

    /// Asks for a slot.
    pub fn ask(&mut self) -> Entry {
        if self.taken < self.config.limit {
            self.taken += 1;
            return Entry::Granted;
        }
        if self.queue.len() >= self.config.queue as usize {
            return Entry::Full;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.queue.push_back(ticket);
        Entry::Queued(ticket)
    }

    /// Gives a slot back. Answers with the waiter that owns it now, if there was one: wake it.
    pub fn release(&mut self) -> Option<Ticket> {
        match self.queue.pop_front() {
            Some(next) => {
                self.granted.push(next);
                Some(next)
            }
            None => {
                self.taken = self.taken.saturating_sub(1);
                None
            }
        }
    }

    /// Does this ticket own a slot by now?
    #[must_use]
    pub fn is_granted(&self, ticket: Ticket) -> bool {
        self.granted.contains(&ticket)
    }

    /// Picks up the slot of a granted ticket. False when it is not granted (yet, or any more).
    pub fn claim(&mut self, ticket: Ticket) -> bool {
        self.forget_grant(ticket)
    }

    /// Leaves the queue: timed out or cancelled. A slot that was granted meanwhile is handed on, and
    /// the answer is the waiter that owns it now.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Ticket> {
        if let Ok(place) = self.queue.binary_search(&ticket) {
            self.queue.remove(place);
            None
        } else if self.forget_grant(ticket) {
            self.release()
        } else {
            None
        }
    }

    /// Slots taken.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.taken
    }

    /// Callers that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    fn forget_grant(&mut self, ticket: Ticket) -> bool {
        let place = self.granted.iter().position(|granted| *granted == ticket);
        place.map(|place| self.granted.swap_remove(place)).is_some()
    }
}
