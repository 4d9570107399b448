//! The books: that the verdict can fail, how an order moves in a real database, and what
//! reconciliation does about goods that orders know nothing of.
#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod common;

#[path = "books/ground.rs"]
mod ground;
#[path = "books/order_saga.rs"]
mod order_saga;
#[path = "books/races.rs"]
mod races;
#[path = "books/reconciliation.rs"]
mod reconciliation;
#[path = "books/verdict_can_fail.rs"]
mod verdict_can_fail;
