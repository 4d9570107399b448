//! Orders: take them, follow their saga, give up on what is overdue.

pub mod http;
pub mod rows;
pub mod saga;
pub mod watch;

#[cfg(test)]
mod tests;
