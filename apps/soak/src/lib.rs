//! Kills real processes at random and at every write, and counts what became of each message.
//!
//! [`roles`] is what a child process does, [`engines`] what it runs on, [`wire`] the way between the
//! two. [`fight`] deals blows at random (the seed is printed), [`writes`] kills at the n-th write for
//! every n. The [`verdict`] is read from the [`books`] alone.

pub mod books;
pub mod children;
pub mod cli;
pub mod engines;
pub mod fight;
pub mod roles;
pub mod verdict;
pub mod wire;
pub mod writes;

use std::time::Duration;

use mamparo_call::clock;

/// Why a soak could not be carried through. A broken promise is no error but a verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoakError {
    /// A server did not start.
    #[error("start a server: {0}")]
    Server(String),
    /// No server's address.
    #[error("read the address {0:?}: it names no host and port")]
    Address(String),
    /// The store.
    #[error("use the store: {0}")]
    Store(#[from] mamparo_store::StoreError),
    /// The broker.
    #[error("use the broker: {0}")]
    Messaging(#[from] mamparo_messaging::MessagingError),
    /// The books.
    #[error("read the books: {0}")]
    Books(#[from] sqlx::Error),
    /// A process or a socket.
    #[error("run a child: {0}")]
    Io(#[from] std::io::Error),
    /// A task of a child.
    #[error("join a task: {0}")]
    Task(String),
    /// A child that does not stop.
    #[error("stop {0}: it does not end")]
    Hangs(&'static str),
    /// Nothing moves any more.
    #[error("{pair}: nothing moves at {ordered} and {shared} of {total}")]
    Stuck {
        /// The pair.
        pair: &'static str,
        /// Effects of the ordered queue.
        ordered: u64,
        /// Effects of the shared queue.
        shared: u64,
        /// How many there should be.
        total: u64,
    },
    /// A run of the write-by-write kill broke a promise.
    #[error("{0}")]
    Broken(String),
}

/// Progress, for people.
#[expect(clippy::print_stderr, reason = "progress of a command line tool")]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

pub(crate) async fn pause(milliseconds: u64) {
    clock::sleep_until(clock::now().plus(Duration::from_millis(milliseconds))).await;
}
