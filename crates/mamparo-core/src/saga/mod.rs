//! Sagas: what follows which event, and what happens when nothing does.
//!
//! - [`choreography`]: services that react to each other's events, as a table of rules.
//! - [`order`]: the reference table, TechCorp's order.
//! - [`watchdog`]: what is overdue, and whether to act on it.
//! - [`reconcile`]: two services compare what they believe, and one gives way.

pub mod choreography;
pub mod order;
pub mod reconcile;
pub mod watchdog;
