//! The HTTP edges of a service.
//!
//! Outgoing: [`client::HttpClient`], one per dependency, each attempt a policy-guarded call.
//! Incoming: [`server::standard`] stacks the layers in their one order, [`server::idempotency`]
//! guards routes whose effect must happen once, [`health`] answers probes, [`serve`](mod@serve)
//! drains on shutdown. [`caching`] reads and tells what HTTP says of remembered answers. Everything
//! that goes wrong, either way, becomes a [`problem::Problem`].

pub mod caching;
pub mod client;
pub mod headers;
pub mod health;
mod ids;
mod observe;
pub mod problem;
mod pushback;
pub mod retry_after;
pub mod serve;
pub mod server;
pub mod trace_context;

pub use client::{HttpClient, HttpError, Request, Response};
pub use problem::Problem;
pub use serve::{Drained, serve};
pub use server::{ServerOptions, standard};
