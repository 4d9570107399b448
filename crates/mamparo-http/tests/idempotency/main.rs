//! Idempotency keys against real databases and real sockets: one suite, run on each of them.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know for such")]

#[path = "../common/mod.rs"]
mod common;
mod postgres;
mod sqlite;
