//! Inventory: hold goods for orders, give them free when the order fails, and look once an hour
//! whether orders see it the same way.

pub mod http;
pub mod jobs;
pub mod rows;
pub mod saga;

#[cfg(test)]
mod tests;
