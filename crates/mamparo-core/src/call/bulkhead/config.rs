//! What a bulkhead is made from.

use std::fmt;

use crate::call::mistake::Mistakes;
use crate::limits::{BULKHEAD_LIMIT_MAX, BULKHEAD_QUEUE_MAX};

/// The limits of a bulkhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkheadConfig {
    /// Most calls in flight, waits between attempts included; 1 to 100 000. Default 20.
    pub limit: u32,
    /// Most callers that wait for a slot; 0 to 10 000. 0 rejects at once when all are taken. Default 0.
    pub queue: u32,
    /// Who gets the next slot. Default first in, first out.
    pub order: Order,
}

/// Which of those who wait gets the next slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// First in, first out. A full queue refuses newcomers.
    #[default]
    Fifo,
    /// First in, first out while at most half of the queue is taken; above that, last in, first out,
    /// and a full queue sheds its oldest for a newcomer. Under pressure the oldest caller is the one
    /// that is nearest to giving up, and whoever serves it first serves nobody in time (B. Maurer,
    /// "Fail at Scale", ACM Queue 13(8), 2015).
    AdaptiveLifo,
}

impl BulkheadConfig {
    /// First in, first out.
    #[must_use]
    pub const fn new(limit: u32, queue: u32) -> Self {
        Self { limit, queue, order: Order::Fifo }
    }

    /// Adds what can't be meant.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        mistakes.range("bulkhead.limit", self.limit, 1, BULKHEAD_LIMIT_MAX);
        mistakes.range("bulkhead.queue", self.queue, 0, BULKHEAD_QUEUE_MAX);
    }
}

impl fmt::Display for BulkheadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight, {} queued", self.limit, self.queue)?;
        match self.order {
            Order::Fifo => Ok(()),
            Order::AdaptiveLifo => write!(f, ", newest first under pressure"),
        }
    }
}

impl Default for BulkheadConfig {
    fn default() -> Self {
        Self::new(20, 0)
    }
}
