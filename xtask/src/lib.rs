//! Automation of this workspace, in Rust instead of shell scripts.
//!
//! [`tidy`] holds the checks of the house (they also run inside `cargo test`), [`steps`] runs
//! programs and times them, [`mod@bench`] measures policies and messages, [`demo`] plays TechCorp's
//! scenarios on servers, [`gates`] puts all together
//! into what a newcomer and CI call, and [`servers`] is where suites that need a server get one.

pub mod bench;
pub mod demo;
pub mod gates;
pub mod servers;
pub mod steps;
pub mod tidy;
