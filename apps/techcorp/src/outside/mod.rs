//! Worlds outside the shop, with books of their own: what they say happened is what happened.

pub mod mail;
pub mod psp;
