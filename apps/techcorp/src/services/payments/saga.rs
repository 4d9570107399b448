//! Charges and refunds, once each, whatever times out or crashes.
//!
//! The row comes before the call: a charge that was started and never settled is asked about, by
//! key, before it is made again. A cancellation makes the row `REFUND_DUE`, and the refund is a
//! message of its own, so that it survives everything that messages survive.

use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::time::WallTime;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::{Store, Transaction};

use super::decide::{AtPsp, Next, Resumed, cancel, next, resume};
use super::psp::Psp;
use super::rows::{self, State};
use crate::db::ShopDb;
use crate::events::{
    OrderCancelled, PaymentConfirmed, PaymentRefundDue, PaymentRefunded, PaymentRejected,
    StockReserved, kind,
};
use crate::services::answers::{HandlerError, answer};
use crate::services::emit;

/// A refund that takes longer than this is reported to people: all attempts of its message are spent
/// by then.
const REFUND_OVERDUE: Duration = Duration::from_secs(600);
/// Time between two looks for such refunds.
const WATCH_EVERY: Duration = Duration::from_secs(60);

/// Handles what inventory and orders say, and payments' own refunds.
#[derive(Debug)]
pub struct PaymentSaga<DB: ShopDb> {
    /// Payments' own database.
    pub store: Store<DB>,
    /// The PSP.
    pub psp: Psp,
}

/// What the PSP, or our own books, have said before the transaction.
#[derive(Debug)]
pub enum Facts {
    /// The charge has this outcome.
    Charge(StockReserved, AtPsp),
    /// The reservation had run out before anything was charged.
    TooLate(StockReserved),
    /// The order is cancelled.
    Cancelled(OrderCancelled),
    /// The PSP has given this much back.
    Refunded(PaymentRefundDue, i64),
    /// Nothing is left to do.
    Settled,
}

impl<DB: ShopDb> Handler<DB> for PaymentSaga<DB> {
    type Facts = Facts;

    async fn prepare(&self, message: &Message) -> Result<Facts, Answer> {
        match message.kind.as_str() {
            kind::STOCK_RESERVED => self.prepare_charge(message.decode()?).await,
            kind::ORDER_CANCELLED => message.decode().map(Facts::Cancelled),
            kind::PAYMENT_REFUND_DUE => self.prepare_refund(message.decode()?).await,
            other => Err(Answer::Dead {
                reason: format!("payments do not know events of type {other:?}"),
            }),
        }
    }

    async fn apply(
        &self,
        _message: &Message,
        facts: Facts,
        tx: &mut Transaction<'_, DB>,
    ) -> Answer {
        let now = clock::wall();
        let done = match facts {
            Facts::Charge(order, outcome) => settle(tx, &order, outcome, now).await,
            Facts::TooLate(order) => reject(tx, &order, "RESERVATION_EXPIRED", now).await,
            Facts::Cancelled(order) => cancelled(tx, &order.order_id, now).await,
            Facts::Refunded(due, cents) => refunded(tx, &due.order_id, cents, now).await,
            Facts::Settled => Ok(()),
        };
        match done {
            Ok(()) => Answer::Done,
            Err(error) => answer(&error),
        }
    }
}

impl<DB: ShopDb> PaymentSaga<DB> {
    async fn prepare_charge(&self, order: StockReserved) -> Result<Facts, Answer> {
        let now = clock::wall();
        let (state, new) = self.start(&order, now).await.map_err(|error| answer(&error))?;
        let in_time = now < WallTime::from_unix_millis(order.expires_at_unix_ms);
        match next(state, new, in_time) {
            Next::Nothing => Ok(Facts::Settled),
            Next::Reject => Ok(Facts::TooLate(order)),
            Next::Charge => self.charge(order).await,
            Next::AskFirst => match resume(self.psp.ask(&order.order_id).await?, in_time) {
                Resumed::Take(outcome) => Ok(Facts::Charge(order, outcome)),
                Resumed::Charge => self.charge(order).await,
                Resumed::VoidAndReject => {
                    self.psp.refund(&order.order_id).await?;
                    Ok(Facts::TooLate(order))
                }
            },
        }
    }

    async fn charge(&self, order: StockReserved) -> Result<Facts, Answer> {
        let StockReserved { order_id, customer_id, total_cents, .. } = &order;
        let outcome = self.psp.charge(order_id, customer_id, *total_cents).await?;
        Ok(Facts::Charge(order, outcome))
    }

    /// Writes the row before the call, in a transaction of its own.
    async fn start(
        &self,
        order: &StockReserved,
        now: WallTime,
    ) -> Result<(State, bool), HandlerError> {
        let mut tx = self.store.begin().await?;
        let id = &order.order_id;
        let new = rows::start(&mut tx, id, State::Started, order.total_cents, now).await?;
        let charge = rows::hold(&mut tx, id).await?;
        tx.commit().await?;
        Ok((charge.map_or(State::Started, |charge| charge.state), new))
    }

    async fn prepare_refund(&self, due: PaymentRefundDue) -> Result<Facts, Answer> {
        let charge = rows::find(&self.store, &due.order_id).await;
        let charge = charge.map_err(|error| answer(&error.into()))?;
        if charge.is_none_or(|charge| charge.state != State::RefundDue) {
            return Ok(Facts::Settled);
        }
        let cents = self.psp.refund(&due.order_id).await?;
        Ok(Facts::Refunded(due, cents))
    }
}

/// Looks for money that should have gone back long ago: its message lies among the dead letters, or
/// the PSP has been away ever since. How long to pause. It only tells; the message does the rest.
///
/// # Errors
/// What the database said.
pub async fn watch_refunds<DB: ShopDb>(store: &Store<DB>) -> Result<Duration, HandlerError> {
    let before = clock::wall().minus(REFUND_OVERDUE);
    let (refunds, cents) = rows::refunds_due(store, before).await?;
    if refunds > 0 {
        tracing::error!(refunds, cents, "customers wait for their money");
    }
    Ok(WATCH_EVERY)
}

/// Books what the PSP did, and tells the others.
async fn settle<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &StockReserved,
    outcome: AtPsp,
    now: WallTime,
) -> Result<(), HandlerError> {
    let id = &order.order_id;
    match outcome {
        AtPsp::Charged { charge_id } => {
            let (from, to) = (State::Started, State::Charged);
            if rows::advance(tx, id, from, to, Some(&charge_id), None, now).await? {
                let amount_cents = order.total_cents;
                let payload = PaymentConfirmed { order_id: id.clone(), charge_id, amount_cents };
                emit(tx, kind::PAYMENT_CONFIRMED, id, &payload, now).await
            } else {
                // The order was cancelled while the PSP was charging: the money has to go back.
                refund_later(tx, id, now).await
            }
        }
        AtPsp::Declined => reject(tx, order, "DECLINED", now).await,
        // The key is barred. By a cancellation: then the row has left `STARTED`, and this changes
        // nothing. Or by an attempt of ours that was too late and died before it could say so.
        AtPsp::Voided => reject(tx, order, "RESERVATION_EXPIRED", now).await,
        AtPsp::Unheard => Ok(()),
    }
}

async fn reject<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &StockReserved,
    reason: &str,
    now: WallTime,
) -> Result<(), HandlerError> {
    let (id, to) = (&order.order_id, State::Declined);
    if rows::advance(tx, id, State::Started, to, None, Some(reason), now).await? {
        let payload = PaymentRejected { order_id: id.clone(), reason: reason.to_owned() };
        emit(tx, kind::PAYMENT_REJECTED, id, &payload, now).await?;
    }
    Ok(())
}

async fn cancelled<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    now: WallTime,
) -> Result<(), HandlerError> {
    let state = rows::hold(tx, order_id).await?.map(|charge| charge.state);
    match (state, cancel(state)) {
        (_, None) => Ok(()),
        (None, Some(to)) => {
            // A charge that began just now must hear of it: read again.
            let first = rows::start(tx, order_id, to, 0, now).await?;
            if first { Ok(()) } else { Err(HandlerError::Raced) }
        }
        (Some(from), Some(to)) => {
            rows::advance(tx, order_id, from, to, None, Some("ORDER_CANCELLED"), now).await?;
            refund_later(tx, order_id, now).await
        }
    }
}

/// The refund is a message to ourselves, in the transaction that makes it due.
async fn refund_later<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    now: WallTime,
) -> Result<(), HandlerError> {
    let payload = PaymentRefundDue { order_id: order_id.to_owned() };
    emit(tx, kind::PAYMENT_REFUND_DUE, order_id, &payload, now).await
}

async fn refunded<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    cents: i64,
    now: WallTime,
) -> Result<(), HandlerError> {
    let to = if cents > 0 { State::Refunded } else { State::Void };
    if rows::advance(tx, order_id, State::RefundDue, to, None, None, now).await? && cents > 0 {
        let payload = PaymentRefunded { order_id: order_id.to_owned(), amount_cents: cents };
        emit(tx, kind::PAYMENT_REFUNDED, order_id, &payload, now).await?;
    }
    Ok(())
}
