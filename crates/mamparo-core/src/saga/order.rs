//! The order of TechCorp: created → stock reserved → charged → confirmed, or cancelled on the way.
//!
//! Orders drive nothing themselves: inventory reacts to `order.created`, payments to
//! `stock.reserved`, and orders to what both say. This table is the whole of what orders know.

use super::choreography::{Choreography, Rule, rule};

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderState {
    /// Accepted; waits for inventory.
    Pending,
    /// Inventory holds the goods; waits for payments.
    StockReserved,
    /// Paid. Final.
    Confirmed,
    /// Given up, with a reason. Final.
    Cancelled,
}

/// What can happen to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEvent {
    /// Inventory reserved all lines.
    StockReserved,
    /// Inventory can't.
    StockRejected,
    /// Inventory gave the goods free again.
    StockReleased,
    /// Payments charged.
    PaymentConfirmed,
    /// Payments won't.
    PaymentRejected,
    /// Payments gave the money back.
    PaymentRefunded,
    /// The state's deadline is over; the watchdog's only word.
    DeadlinePassed,
}

/// What orders do in the transaction of the transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Then {
    /// Nothing more.
    Nothing,
    /// Emit `order.confirmed`.
    Confirm,
    /// Emit `order.cancelled` with this reason.
    Cancel(Reason),
    /// Emit `order.cancelled` again: something succeeded too late and has to be undone.
    CancelAgain,
    /// Only count it: it says what is known.
    Known,
    /// Record that the goods are free again.
    NoteReleased,
    /// Record that the money went back.
    NoteRefunded,
    /// It can't be, if everybody keeps the rules: log it as an error for people.
    Alarm,
}

/// Why an order was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Inventory had too little.
    OutOfStock,
    /// Inventory did not answer in time.
    StockTimeout,
    /// The PSP declined.
    PaymentRejected,
    /// No payment in time.
    PaymentTimeout,
    /// The reservation ran out before the payment came.
    ReservationExpired,
}

impl OrderState {
    /// All states.
    pub const ALL: [Self; 4] =
        [Self::Pending, Self::StockReserved, Self::Confirmed, Self::Cancelled];

    /// The name in rows and answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::StockReserved => "STOCK_RESERVED",
            Self::Confirmed => "CONFIRMED",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// The state with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Is the saga over?
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Confirmed | Self::Cancelled => true,
            Self::Pending | Self::StockReserved => false,
        }
    }
}

impl OrderEvent {
    /// All events.
    pub const ALL: [Self; 7] = [
        Self::StockReserved,
        Self::StockRejected,
        Self::StockReleased,
        Self::PaymentConfirmed,
        Self::PaymentRejected,
        Self::PaymentRefunded,
        Self::DeadlinePassed,
    ];

    /// The event with this message type; the deadline has none, it is not a message.
    #[must_use]
    pub fn from_kind(kind: &str) -> Option<Self> {
        Some(match kind {
            "stock.reserved" => Self::StockReserved,
            "stock.rejected" => Self::StockRejected,
            "stock.released" => Self::StockReleased,
            "payment.confirmed" => Self::PaymentConfirmed,
            "payment.rejected" => Self::PaymentRejected,
            "payment.refunded" => Self::PaymentRefunded,
            _ => return None,
        })
    }
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::OutOfStock,
        Self::StockTimeout,
        Self::PaymentRejected,
        Self::PaymentTimeout,
        Self::ReservationExpired,
    ];

    /// The code in rows, events and mails.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::OutOfStock => "OUT_OF_STOCK",
            Self::StockTimeout => "STOCK_TIMEOUT",
            Self::PaymentRejected => "PAYMENT_REJECTED",
            Self::PaymentTimeout => "PAYMENT_TIMEOUT",
            Self::ReservationExpired => "RESERVATION_EXPIRED",
        }
    }
}

use OrderEvent as On;
use OrderState::{Cancelled, Confirmed, Pending, StockReserved};

/// What follows which event.
pub const ORDER: Choreography<OrderState, OrderEvent, Then> =
    Choreography { name: "order", rules: RULES };

const RULES: &[Rule<OrderState, OrderEvent, Then>] = &[
    rule(Pending, On::StockReserved, StockReserved, Then::Nothing, "payments charge next"),
    rule(
        Pending,
        On::StockRejected,
        Cancelled,
        Then::Cancel(Reason::OutOfStock),
        "nothing to sell",
    ),
    // Nobody releases for an order that is not cancelled but the expiry, so there was a reservation.
    rule(
        Pending,
        On::StockReleased,
        Cancelled,
        Then::Cancel(Reason::ReservationExpired),
        "it overtook stock.reserved, and the goods are gone",
    ),
    // Payments only charge what inventory has reserved, so the payment proves the reservation: its
    // own event sits in a retry queue and will be a known fact when it comes.
    rule(Pending, On::PaymentConfirmed, Confirmed, Then::Confirm, "it overtook stock.reserved"),
    rule(
        Pending,
        On::PaymentRejected,
        Cancelled,
        Then::Cancel(Reason::PaymentRejected),
        "it overtook stock.reserved",
    ),
    rule(Pending, On::PaymentRefunded, Pending, Then::Alarm, "nothing was cancelled yet"),
    rule(
        Pending,
        On::DeadlinePassed,
        Cancelled,
        Then::Cancel(Reason::StockTimeout),
        "inventory is too late",
    ),
    rule(StockReserved, On::StockReserved, StockReserved, Then::Known, "said again"),
    rule(StockReserved, On::StockRejected, StockReserved, Then::Alarm, "it was reserved"),
    rule(
        StockReserved,
        On::StockReleased,
        Cancelled,
        Then::Cancel(Reason::ReservationExpired),
        "the goods are gone",
    ),
    rule(StockReserved, On::PaymentConfirmed, Confirmed, Then::Confirm, "reserved and paid"),
    rule(
        StockReserved,
        On::PaymentRejected,
        Cancelled,
        Then::Cancel(Reason::PaymentRejected),
        "the PSP declined",
    ),
    rule(StockReserved, On::PaymentRefunded, StockReserved, Then::Alarm, "nothing was cancelled"),
    rule(
        StockReserved,
        On::DeadlinePassed,
        Cancelled,
        Then::Cancel(Reason::PaymentTimeout),
        "no payment in time",
    ),
    rule(Confirmed, On::StockReserved, Confirmed, Then::Known, "the payment overtook it"),
    rule(Confirmed, On::StockRejected, Confirmed, Then::Alarm, "it was reserved and paid"),
    rule(Confirmed, On::StockReleased, Confirmed, Then::Alarm, "paid goods were given away"),
    rule(Confirmed, On::PaymentConfirmed, Confirmed, Then::Known, "said again"),
    rule(Confirmed, On::PaymentRejected, Confirmed, Then::Alarm, "it was paid"),
    rule(Confirmed, On::PaymentRefunded, Confirmed, Then::Alarm, "money back for sold goods"),
    rule(Confirmed, On::DeadlinePassed, Confirmed, Then::Known, "it was confirmed in between"),
    rule(Cancelled, On::StockReserved, Cancelled, Then::CancelAgain, "too late: release it"),
    rule(Cancelled, On::StockRejected, Cancelled, Then::Known, "nothing to release"),
    rule(Cancelled, On::StockReleased, Cancelled, Then::NoteReleased, "the goods are free"),
    // Never revived, never ignored: the customer has been charged, so the money has to go back.
    rule(Cancelled, On::PaymentConfirmed, Cancelled, Then::CancelAgain, "too late: refund it"),
    rule(Cancelled, On::PaymentRejected, Cancelled, Then::Known, "nothing to refund"),
    rule(Cancelled, On::PaymentRefunded, Cancelled, Then::NoteRefunded, "the money went back"),
    rule(Cancelled, On::DeadlinePassed, Cancelled, Then::Known, "it was cancelled in between"),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives the table along `events` and notes each rule that was used.
    fn drive(
        events: &[OrderEvent],
        hits: &mut Vec<(OrderState, OrderEvent)>,
    ) -> (OrderState, Then) {
        let (mut state, mut then) = (Pending, Then::Nothing);
        for event in events {
            hits.push((state, *event));
            let rule = ORDER.react(state, *event).unwrap();
            (state, then) = (rule.row.to, rule.then);
        }
        (state, then)
    }

    #[test]
    fn every_rule_is_driven_and_the_table_is_total() {
        use On::*;
        let cancel = |reason| (Cancelled, Then::Cancel(reason));
        let mut hits = Vec::new();
        let mut check = |events: &[OrderEvent], expected| {
            assert_eq!(drive(events, &mut hits), expected, "{events:?}");
        };
        check(&[StockReserved], (OrderState::StockReserved, Then::Nothing));
        check(&[StockReserved, PaymentConfirmed], (Confirmed, Then::Confirm));
        check(&[PaymentConfirmed], (Confirmed, Then::Confirm));
        check(&[StockRejected], cancel(Reason::OutOfStock));
        check(&[PaymentRejected], cancel(Reason::PaymentRejected));
        check(&[DeadlinePassed], cancel(Reason::StockTimeout));
        check(&[StockReserved, PaymentRejected], cancel(Reason::PaymentRejected));
        check(&[StockReserved, DeadlinePassed], cancel(Reason::PaymentTimeout));
        check(&[StockReserved, StockReleased], cancel(Reason::ReservationExpired));
        check(&[StockReleased], cancel(Reason::ReservationExpired));
        check(&[PaymentRefunded], (Pending, Then::Alarm));
        check(&[StockReserved, StockReserved], (OrderState::StockReserved, Then::Known));
        for event in [StockRejected, PaymentRefunded] {
            check(&[StockReserved, event], (OrderState::StockReserved, Then::Alarm));
        }
        for event in [StockReserved, PaymentConfirmed, DeadlinePassed] {
            check(&[PaymentConfirmed, event], (Confirmed, Then::Known));
        }
        for event in [StockRejected, StockReleased, PaymentRejected, PaymentRefunded] {
            check(&[PaymentConfirmed, event], (Confirmed, Then::Alarm));
        }
        for event in [StockReserved, PaymentConfirmed] {
            check(&[DeadlinePassed, event], (Cancelled, Then::CancelAgain));
        }
        for event in [StockRejected, PaymentRejected, DeadlinePassed] {
            check(&[DeadlinePassed, event], (Cancelled, Then::Known));
        }
        check(&[DeadlinePassed, StockReleased], (Cancelled, Then::NoteReleased));
        check(&[DeadlinePassed, PaymentRefunded], (Cancelled, Then::NoteRefunded));
        let untested = ORDER.untested(&OrderState::ALL, &OrderEvent::ALL, &hits);
        assert!(untested.is_empty(), "{untested:#?}");
    }

    #[test]
    fn final_states_are_never_left() {
        for rule in ORDER.rules.iter().filter(|rule| rule.row.from.is_final()) {
            assert_eq!(rule.row.from, rule.row.to, "{rule:?}");
        }
    }

    #[test]
    fn lesson_w02_a_late_payment_starts_the_refund_and_never_revives_the_order() {
        let rule = ORDER.react(Cancelled, On::PaymentConfirmed).unwrap();
        assert_eq!((rule.row.to, rule.then), (Cancelled, Then::CancelAgain));
    }

    #[test]
    fn entering_cancelled_or_confirmed_always_tells_the_others() {
        for rule in ORDER.rules.iter().filter(|rule| rule.row.from != rule.row.to) {
            let told = match rule.row.to {
                Cancelled => matches!(rule.then, Then::Cancel(_)),
                Confirmed => rule.then == Then::Confirm,
                Pending | OrderState::StockReserved => true,
            };
            assert!(told, "{rule:?}");
        }
    }

    #[test]
    fn names_and_codes_are_unique_and_read_back() {
        for state in OrderState::ALL {
            assert_eq!(OrderState::from_name(state.name()), Some(state));
        }
        let codes: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|r| r.code()).collect();
        assert_eq!(codes.len(), Reason::ALL.len());
    }
}
