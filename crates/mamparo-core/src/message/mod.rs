//! Messages: where they go next, and which of two requests or deliveries may act.

pub mod idempotency;
pub mod relay;
