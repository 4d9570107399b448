//! A message in a consumer's hand, wherever it came from.

use mamparo_store::parked::Claimed;
use mamparo_store::retries::Recalled;

use crate::Message;
use crate::broker::{Delivery, Receipt};

/// Who has the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The broker: it wants an acknowledgement.
    Broker,
    /// A row of our own database.
    Parked,
}

/// A message in hand.
#[derive(Debug, Clone)]
pub(crate) struct Hand {
    /// Names it within one subscription.
    pub(crate) tag: i64,
    pub(crate) origin: Origin,
    pub(crate) delivery: Delivery,
    /// It has a row of [`mamparo_store::retries`]; how often it was given back to the broker.
    kept: Option<u32>,
}

impl Hand {
    pub(super) const fn of_broker(tag: i64, delivery: Delivery) -> Self {
        Self { tag, origin: Origin::Broker, delivery, kept: None }
    }

    pub(super) fn of_row(tag: i64, row: Claimed) -> Self {
        let Claimed { row, epoch, suspect, message } = row;
        let receipt = Receipt { tag: row, epoch };
        let delivery = Delivery { receipt, suspect, message: message.into() };
        Self { tag, origin: Origin::Parked, delivery, kept: None }
    }

    pub(crate) const fn message(&self) -> &Message {
        &self.delivery.message
    }

    /// This message, above suspicion.
    pub(super) fn cleared(&self) -> Self {
        let delivery = Delivery { suspect: false, ..self.delivery.clone() };
        Self { delivery, ..*self }
    }

    /// This message as it goes on after the broker has kept it.
    pub(super) fn recalled(&self, known: Recalled) -> Self {
        let Recalled { headers, returns, suspect } = known;
        let message = self.delivery.message.with_headers(headers);
        let delivery = Delivery { suspect, message, ..self.delivery.clone() };
        Self { delivery, kept: Some(returns), ..*self }
    }

    /// Was it given back to the broker, and does a row tell so?
    pub(crate) const fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Times that it was given back since it came to its queue.
    pub(crate) fn returns(&self) -> u32 {
        self.kept.unwrap_or(0)
    }

    /// The lease of a parked row.
    pub(crate) const fn claim(&self) -> (i64, i64) {
        (self.delivery.receipt.tag, self.delivery.receipt.epoch)
    }

    /// The row that it came from.
    pub(crate) fn row(&self) -> Option<i64> {
        self.is_parked().then_some(self.delivery.receipt.tag)
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.origin == Origin::Parked
    }
}
