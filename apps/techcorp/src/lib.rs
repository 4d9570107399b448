//! TechCorp: a shop of eight services that takes orders, loses dependencies, recovers, and can
//! prove from its books what happened.
//!
//! - [`shop`]: which services there are and how each is wired; [`host`]: from policy file to
//!   running service.
//! - [`db`]: the shop's SQL, once for both databases.
//! - [`services`]: the eight of them. [`outside`]: the PSP and the mail server.
//! - [`demo`]: traffic, a scripted fault, a live view, and the verdict.

pub mod cli;
pub mod db;
pub mod demo;
pub mod events;
pub mod handbook;
pub mod host;
pub mod outside;
pub mod services;
pub mod shop;
pub mod stock;
pub mod weather;
