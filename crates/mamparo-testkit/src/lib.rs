//! What tests, benchmarks and the build need and no user does: throwaway servers.
//!
//! Imported by tests, `bench/` and `xtask`, never by a crate that is shipped.

#[cfg(feature = "database")]
pub mod database;
pub mod leavings;
pub mod servers;
