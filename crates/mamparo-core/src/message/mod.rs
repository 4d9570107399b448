//! Messages: where they go next, and which of two requests or deliveries may act.

pub mod capabilities;
pub mod clock;
pub mod closure;
pub mod delivery;
pub mod failed;
pub mod headers;
pub mod housekeeping;
pub mod idempotency;
pub mod intake;
pub mod ledger;
pub mod lineage;
pub mod order;
pub mod patience;
pub mod relay;
pub mod selection;
pub mod shards;
pub mod topology;
pub mod transaction;
pub mod waiting;
pub mod window;
