//! The events of the shop, as they travel. Each carries all that its receivers need.

use serde::{Deserialize, Serialize};

/// Event types.
pub mod kind {
    /// An order was accepted.
    pub const ORDER_CREATED: &str = "order.created";
    /// An order is paid and reserved.
    pub const ORDER_CONFIRMED: &str = "order.confirmed";
    /// An order was given up.
    pub const ORDER_CANCELLED: &str = "order.cancelled";
    /// Inventory holds all lines of an order.
    pub const STOCK_RESERVED: &str = "stock.reserved";
    /// Inventory can't.
    pub const STOCK_REJECTED: &str = "stock.rejected";
    /// Inventory gave the lines of an order free.
    pub const STOCK_RELEASED: &str = "stock.released";
    /// Payments charged an order.
    pub const PAYMENT_CONFIRMED: &str = "payment.confirmed";
    /// Payments will not charge an order.
    pub const PAYMENT_REJECTED: &str = "payment.rejected";
    /// Payments owe a refund, or must make sure that no charge lands late. Payments' own.
    pub const PAYMENT_REFUND_DUE: &str = "payment.refund-due";
    /// Payments gave the money back.
    pub const PAYMENT_REFUNDED: &str = "payment.refunded";
}

/// A line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Which product.
    pub product_id: String,
    /// How many, 1 to 1 000.
    pub quantity: u32,
}

/// `order.created`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderCreated {
    /// The order.
    pub order_id: String,
    /// Who ordered.
    pub customer_id: String,
    /// What.
    pub lines: Vec<Line>,
    /// For how much.
    pub total_cents: i64,
}

/// `order.confirmed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderConfirmed {
    /// The order.
    pub order_id: String,
    /// Who ordered.
    pub customer_id: String,
    /// For how much.
    pub total_cents: i64,
}

/// `order.cancelled`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderCancelled {
    /// The order.
    pub order_id: String,
    /// Who ordered.
    pub customer_id: String,
    /// A code of `mamparo_core::saga::order::Reason`.
    pub reason: String,
}

/// `stock.reserved`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StockReserved {
    /// The order.
    pub order_id: String,
    /// Who pays.
    pub customer_id: String,
    /// How much is to be charged.
    pub total_cents: i64,
    /// When the reservation runs out: nobody charges after that. Absolute, so that time spent in
    /// queues counts.
    pub expires_at_unix_ms: i64,
}

/// `stock.rejected`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StockRejected {
    /// The order.
    pub order_id: String,
    /// `REJECTED` (a product was short), or `RELEASED` (a reservation by hand had run out).
    pub reason: String,
}

/// `stock.released`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StockReleased {
    /// The order.
    pub order_id: String,
    /// `ORDER_CANCELLED`, `EXPIRED` or `RECONCILED`.
    pub reason: String,
}

/// `payment.confirmed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaymentConfirmed {
    /// The order.
    pub order_id: String,
    /// The PSP's name for the charge.
    pub charge_id: String,
    /// How much was charged.
    pub amount_cents: i64,
}

/// `payment.rejected`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaymentRejected {
    /// The order.
    pub order_id: String,
    /// `DECLINED` or `RESERVATION_EXPIRED`.
    pub reason: String,
}

/// `payment.refund-due`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaymentRefundDue {
    /// The order.
    pub order_id: String,
}

/// `payment.refunded`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PaymentRefunded {
    /// The order.
    pub order_id: String,
    /// How much went back.
    pub amount_cents: i64,
}
