//! How an order moves: an event, the table's rule, a compare-and-set, and what follows from it, in
//! one transaction. Messages and the watchdog take the same way; there is no other.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::saga::order::{ORDER, OrderEvent, OrderState, Then};
use mamparo::core::time::WallTime;
use mamparo::messaging::{Answer, Handler, Message};
use mamparo::store::Transaction;
use serde::Deserialize;

use super::rows::{self, OrderRow};
use crate::db::ShopDb;
use crate::events::{OrderCancelled, OrderConfirmed, kind};
use crate::services::answers::{HandlerError, answer};
use crate::services::emit;

/// How long an order may stay in each state that is not final.
#[derive(Debug, Clone, Default)]
pub struct Deadlines(BTreeMap<&'static str, Duration>);

impl Deadlines {
    /// A limit for each state by its name; other names are left out.
    pub fn new(limits: impl IntoIterator<Item = (String, Duration)>) -> Self {
        let known = |(name, limit): (String, Duration)| {
            OrderState::from_name(&name).map(|state| (state.name(), limit))
        };
        Self(limits.into_iter().filter_map(known).collect())
    }

    /// The states that an order could stay in for ever, for want of a limit.
    pub fn missing(&self) -> impl Iterator<Item = OrderState> {
        let open = OrderState::ALL.into_iter().filter(|state| !state.is_final());
        open.filter(|state| !self.0.contains_key(state.name()))
    }

    /// When an order that enters `state` at `now` is overdue.
    #[must_use]
    pub fn due(&self, state: OrderState, now: WallTime) -> Option<WallTime> {
        if state.is_final() { None } else { self.0.get(state.name()).map(|d| now.plus(*d)) }
    }
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was applied by this rule's action.
    By(Then),
    /// Somebody moved the order in between; read again.
    Raced,
}

/// Applies `event` to an order, all or nothing.
///
/// # Errors
/// What the database said, or that there is no such order.
pub async fn apply<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order_id: &str,
    event: OrderEvent,
    deadlines: &Deadlines,
    now: WallTime,
) -> Result<Applied, HandlerError> {
    let unknown = || HandlerError::Unknown {
        kind: format!("{event:?}"),
        what: "order",
        id: order_id.to_owned(),
    };
    let order = rows::hold(tx, order_id).await?.ok_or_else(unknown)?;
    // The table is total (a test proves it), so a missing rule reads like a missing order.
    let rule = ORDER.react(order.state, event).ok_or_else(unknown)?;
    let (to, reason) = (rule.row.to, reason_of(rule.then));
    if to != order.state {
        let due = deadlines.due(to, now);
        if !rows::advance(tx, &order, to, reason, due, now).await? {
            return Ok(Applied::Raced);
        }
    }
    let (did, name) = (format!("{:?}", rule.then), format!("{event:?}"));
    rows::remember(tx, order_id, &name, to, &did, now).await?;
    act(tx, &order, rule.then, event, now).await?;
    Ok(Applied::By(rule.then))
}

/// What the rule asks for beside the transition.
async fn act<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderRow,
    then: Then,
    event: OrderEvent,
    now: WallTime,
) -> Result<(), HandlerError> {
    match then {
        Then::Nothing => Ok(()),
        Then::Known => {
            tracing::debug!(order = %order.id, ?event, state = order.state.name(), "known already");
            Ok(())
        }
        Then::Confirm => {
            let payload = OrderConfirmed {
                order_id: order.id.clone(),
                customer_id: order.customer_id.clone(),
                total_cents: order.total_cents,
            };
            emit(tx, kind::ORDER_CONFIRMED, &order.id, &payload, now).await
        }
        Then::Cancel(reason) => {
            // What cancels it may be the very news that its goods are free; nobody says it again.
            if event == OrderEvent::StockReleased {
                rows::note(tx, &order.id, true, false).await?;
            }
            emit_cancelled(tx, order, reason.code(), now).await
        }
        Then::CancelAgain => {
            tracing::warn!(order = %order.id, ?event, "came too late; undoing it");
            let reason = order.reason.clone().unwrap_or_default();
            emit_cancelled(tx, order, &reason, now).await
        }
        Then::NoteReleased => Ok(rows::note(tx, &order.id, true, false).await?),
        Then::NoteRefunded => Ok(rows::note(tx, &order.id, false, true).await?),
        Then::Alarm => {
            let state = order.state.name();
            tracing::error!(order = %order.id, ?event, state, "an event that can't be");
            Ok(())
        }
    }
}

async fn emit_cancelled<DB: ShopDb>(
    tx: &mut Transaction<'_, DB>,
    order: &OrderRow,
    reason: &str,
    now: WallTime,
) -> Result<(), HandlerError> {
    let payload = OrderCancelled {
        order_id: order.id.clone(),
        customer_id: order.customer_id.clone(),
        reason: reason.to_owned(),
    };
    emit(tx, kind::ORDER_CANCELLED, &order.id, &payload, now).await
}

fn reason_of(then: Then) -> Option<&'static str> {
    match then {
        Then::Cancel(reason) => Some(reason.code()),
        Then::Nothing
        | Then::Confirm
        | Then::CancelAgain
        | Then::Known
        | Then::NoteReleased
        | Then::NoteRefunded
        | Then::Alarm => None,
    }
}

/// Handles what inventory and payments say about orders.
#[derive(Debug)]
pub struct OrderSaga {
    /// Limits of the states.
    pub deadlines: Deadlines,
}

/// All events about an order have this field; the rest is for others.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AboutOrder {
    order_id: String,
}

impl<DB: ShopDb> Handler<DB> for OrderSaga {
    type Facts = (String, OrderEvent);

    async fn prepare(&self, message: &Message) -> Result<Self::Facts, Answer> {
        let about: AboutOrder = message.decode()?;
        let event = OrderEvent::from_kind(&message.kind).ok_or_else(|| Answer::Dead {
            reason: format!("orders do not know events of type {:?}", message.kind),
        })?;
        Ok((about.order_id, event))
    }

    async fn apply(
        &self,
        _message: &Message,
        (order_id, event): Self::Facts,
        tx: &mut Transaction<'_, DB>,
    ) -> Answer {
        match apply(tx, &order_id, event, &self.deadlines, clock::wall()).await {
            Ok(Applied::By(_)) => Answer::Done,
            Ok(Applied::Raced) => Answer::Defer { delay: Duration::ZERO },
            Err(error) => answer(&error),
        }
    }
}
