//! What inventory does when orders come and go.

use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::time::WallTime;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::Transaction;

use super::rows::{self, Reservation, State};
use crate::db::ShopDb;
use crate::events::{
    OrderCancelled, OrderConfirmed, OrderCreated, StockRejected, StockReleased, StockReserved, kind,
};
use crate::services::answers::{HandlerError, answer};
use crate::services::emit;

/// Why goods were given free.
pub mod because {
    /// The order was cancelled.
    pub const CANCELLED: &str = "ORDER_CANCELLED";
    /// Nobody confirmed the order in time.
    pub const EXPIRED: &str = "EXPIRED";
    /// Reconciliation found an order that is cancelled or unknown.
    pub const RECONCILED: &str = "RECONCILED";
}

/// Handles what orders say.
#[derive(Debug)]
pub struct StockSaga {
    /// How long goods are held for an order that is not confirmed.
    pub expiry: Duration,
}

/// A message, read.
#[derive(Debug)]
pub enum Said {
    /// `order.created`
    Created(OrderCreated),
    /// `order.confirmed`
    Confirmed(OrderConfirmed),
    /// `order.cancelled`
    Cancelled(OrderCancelled),
}

impl<DB: ShopDb> Handler<DB> for StockSaga {
    type Facts = Said;

    async fn prepare(&self, message: &Message) -> Result<Said, Answer> {
        match message.kind.as_str() {
            kind::ORDER_CREATED => message.decode().map(Said::Created),
            kind::ORDER_CONFIRMED => message.decode().map(Said::Confirmed),
            kind::ORDER_CANCELLED => message.decode().map(Said::Cancelled),
            other => Err(Answer::Dead {
                reason: format!("inventory does not know events of type {other:?}"),
            }),
        }
    }

    async fn apply(&self, _message: &Message, said: Said, tx: &mut Transaction<'_, DB>) -> Answer {
        let now = clock::wall();
        let done = match said {
            Said::Created(order) => created(tx, &order, self.expiry, now).await,
            Said::Confirmed(order) => sell(tx, &order.order_id).await,
            Said::Cancelled(order) => cancel(tx, &order, now).await,
        };
        match done {
            Ok(()) => Answer::Done,
            Err(error) => answer(&error),
        }
    }
}

/// Reserves all lines of an order, or none. An order that has a reservation keeps it.
///
/// Nobody else hears of it yet: what is made by hand concerns its caller alone, and nobody may be
/// charged for an order that does not exist.
///
/// # Errors
/// What the database said.
pub async fn reserve<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderCreated,
    expiry: Duration,
    now: WallTime,
) -> Result<Reservation, HandlerError> {
    if let Some(known) = rows::hold(tx, &order.order_id).await? {
        return Ok(known);
    }
    let short = rows::take(tx, &order.lines).await?;
    let (state, expires) = match short {
        None => (State::Active, Some(now.plus(expiry))),
        Some(_) => (State::Rejected, None),
    };
    let reservation = Reservation {
        order_id: order.order_id.clone(),
        customer_id: order.customer_id.clone(),
        lines: order.lines.clone(),
        total_cents: order.total_cents,
        state,
        reserved: now,
        expires,
        announced: false,
    };
    let reason = short.map(|product| format!("{product} is short"));
    if rows::insert(tx, &reservation, reason.as_deref()).await? {
        Ok(reservation)
    } else {
        Err(HandlerError::Raced)
    }
}

/// An order came in: its goods are reserved, or not, and the others hear which, once.
async fn created<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderCreated,
    expiry: Duration,
    now: WallTime,
) -> Result<(), HandlerError> {
    let reservation = reserve(tx, order, expiry, now).await?;
    if reservation.announced {
        return Ok(());
    }
    let order_id = order.order_id.clone();
    match (reservation.state, reservation.expires) {
        (State::Active, Some(expires)) => {
            let payload = StockReserved {
                order_id,
                customer_id: order.customer_id.clone(),
                total_cents: order.total_cents,
                expires_at_unix_ms: expires.unix_millis(),
            };
            emit(tx, kind::STOCK_RESERVED, &order.order_id, &payload, now).await?;
        }
        // Too little is an answer, not a failure; so is a reservation by hand that has run out.
        (State::Rejected | State::Released, _) => {
            let reason = reservation.state.name().to_owned();
            let payload = StockRejected { order_id, reason };
            emit(tx, kind::STOCK_REJECTED, &order.order_id, &payload, now).await?;
        }
        // Cancelled before it was created: orders know more than this message says.
        (State::Tombstone, _) => return Ok(()),
        (State::Active | State::Sold, _) => {
            let state = reservation.state.name();
            tracing::error!(order = order_id, state, "a reservation that nobody announced");
            return Ok(());
        }
    }
    Ok(rows::announce(tx, &order.order_id).await?)
}

/// The order is paid: its goods are no longer held for a time but for good. Where the reservation
/// ran out before the confirmation came (we were away, or the message was among the dead letters),
/// they are taken again, as long as there are any.
async fn sell<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
) -> Result<(), HandlerError> {
    let Some(reservation) = rows::hold(tx, order_id).await? else {
        tracing::error!(order = order_id, "a confirmed order has no reservation");
        return Ok(());
    };
    let sold = match reservation.state {
        State::Sold => return Ok(()),
        State::Active => true,
        State::Released => rows::take(tx, &reservation.lines).await?.is_none(),
        State::Rejected | State::Tombstone => false,
    };
    let state = reservation.state;
    if sold {
        rows::advance(tx, order_id, state, State::Sold, "ORDER_CONFIRMED").await?;
        if state == State::Released {
            tracing::warn!(order = order_id, "confirmed after its reservation; goods taken again");
        }
    } else {
        let state = state.name();
        tracing::error!(order = order_id, state, "a confirmed order has no goods");
    }
    Ok(())
}

/// The order is cancelled: its goods are free, whether they were reserved before or would be later.
async fn cancel<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderCancelled,
    now: WallTime,
) -> Result<(), HandlerError> {
    match rows::hold(tx, &order.order_id).await? {
        Some(reservation) if reservation.state == State::Active => {
            release(tx, &reservation, because::CANCELLED, now).await.map(|_| ())
        }
        Some(_) => Ok(()),
        None => {
            let tombstone = Reservation {
                order_id: order.order_id.clone(),
                customer_id: order.customer_id.clone(),
                lines: Vec::new(),
                total_cents: 0,
                state: State::Tombstone,
                reserved: now,
                expires: None,
                announced: false,
            };
            let first = rows::insert(tx, &tombstone, Some(&order.reason)).await?;
            if first { Ok(()) } else { Err(HandlerError::Raced) }
        }
    }
}

/// Gives an active reservation's goods free, and says so to those who had heard of it. `false` when it is no longer active.
///
/// # Errors
/// What the database said.
pub async fn release<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    reservation: &Reservation,
    reason: &str,
    now: WallTime,
) -> Result<bool, HandlerError> {
    let id = &reservation.order_id;
    if !rows::advance(tx, id, State::Active, State::Released, reason).await? {
        return Ok(false);
    }
    rows::put_back(tx, &reservation.lines).await?;
    if reservation.announced {
        let payload = StockReleased { order_id: id.clone(), reason: reason.to_owned() };
        emit(tx, kind::STOCK_RELEASED, id, &payload, now).await?;
    }
    Ok(true)
}
