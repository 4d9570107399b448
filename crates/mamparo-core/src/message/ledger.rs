//! What is in hand on one channel, and which acknowledgements go on the wire.
//!
//! AMQP 0-9-1 acknowledges by a number that counts deliveries of a channel from 1, one by one or
//! *multiple*: everything up to the number. One frame for many saves both sides most of the work;
//! it is right only where nothing below is still open. The ledger knows, and sends single ones for
//! the rest, so that no acknowledgement waits for a slow neighbour.

use std::collections::{BTreeMap, BTreeSet};

/// Deliveries of one channel. Driver: the subscription of a broker that speaks AMQP.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Delivered and not settled: who holds it, `None` while we keep it back ourselves.
    open: BTreeMap<u64, Option<i64>>,
    acked: BTreeSet<u64>,
    rejected: BTreeSet<u64>,
}

/// What to send, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wire {
    /// `basic.reject` with requeue, one each.
    pub rejects: Vec<u64>,
    /// `basic.ack` with `multiple`.
    pub through: Option<u64>,
    /// `basic.ack`, one each.
    pub singles: Vec<u64>,
}

impl Wire {
    /// Is there nothing to send?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rejects.is_empty() && self.through.is_none() && self.singles.is_empty()
    }
}

impl Ledger {
    /// The broker delivered `tag`.
    pub fn arrived(&mut self, tag: u64) {
        self.open.insert(tag, None);
    }

    /// `tag` is handed out as `epoch`, which is larger than any before. `false` when it is not open.
    pub fn hand_out(&mut self, tag: u64, epoch: i64) -> bool {
        match self.open.get_mut(&tag) {
            Some(holder) => {
                *holder = Some(epoch);
                true
            }
            None => false,
        }
    }

    /// The hand-out `epoch` of `tag` is over and the message stays with us, to be handed out again.
    /// `false` when that hand-out was over already.
    pub fn recall(&mut self, tag: u64, epoch: i64) -> bool {
        let held = self.is_held(tag, epoch);
        if held {
            self.open.insert(tag, None);
        }
        held
    }

    /// `tag` is settled for good. `false`, and nothing is sent, when that hand-out was over.
    pub fn ack(&mut self, tag: u64, epoch: i64) -> bool {
        let held = self.is_held(tag, epoch);
        if held {
            self.open.remove(&tag);
            self.acked.insert(tag);
        }
        held
    }

    /// `tag` goes back to its queue. `false`, and nothing is sent, when that hand-out was over.
    pub fn reject(&mut self, tag: u64, epoch: i64) -> bool {
        let held = self.is_held(tag, epoch);
        if held {
            self.open.remove(&tag);
            self.rejected.insert(tag);
        }
        held
    }

    /// Delivered and not settled.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The newest open delivery.
    #[must_use]
    pub fn newest(&self) -> Option<u64> {
        self.open.last_key_value().map(|(tag, _)| *tag)
    }

    /// What has to be sent now; it counts as sent.
    pub fn flush(&mut self) -> Wire {
        let rejects = std::mem::take(&mut self.rejected).into_iter().collect();
        let mut acked = std::mem::take(&mut self.acked);
        let above = match self.open.first_key_value() {
            Some((lowest, _)) => acked.split_off(lowest),
            None => BTreeSet::new(),
        };
        // One acknowledgement alone says the same with or without `multiple`.
        Wire { rejects, through: acked.last().copied(), singles: above.into_iter().collect() }
    }

    fn is_held(&self, tag: u64, epoch: i64) -> bool {
        self.open.get(&tag) == Some(&Some(epoch))
    }
}
