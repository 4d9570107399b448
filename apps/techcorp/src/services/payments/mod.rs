//! Payments: charge through the PSP once, give back what was charged for cancelled orders.

pub mod decide;
pub mod psp;
pub mod rows;
pub mod saga;

#[cfg(test)]
mod tests;
