//! Sagas: what follows which event, and what happens when nothing does.
//!
//! - [`choreography`]: services that react to each other's events, as a table of rules.
//! - [`order`]: the reference table, TechCorp's order.
//! - [`graph`]: an orchestrated saga's steps as data; [`step`] is the life of one of them.
//! - [`machine`]: its state, read from its [`log`]; [`next`] says what may be done, [`decide`] what is
//!   written down, [`illegal`] what can't be.
//! - [`watchdog`]: what is overdue, and whether to act on it.
//! - [`reconcile`]: two services compare what they believe, and one gives way.

mod apply;
mod back;
pub mod choreography;
pub mod decide;
pub mod graph;
pub mod illegal;
pub mod log;
pub mod machine;
pub mod next;
pub mod order;
pub mod reconcile;
pub mod step;
pub mod watchdog;

#[cfg(test)]
mod model;
