//! Servers that suites need, brought up before the tests and stopped after them.
//!
//! Every suite of today runs on SQLite and the embedded broker, so the list is empty. A server joins
//! by adding its function to [`SERVERS`]; a missing server must fail and say how to get it, never
//! skip.

use std::process::Child;

/// A running server, and how a test finds it.
#[derive(Debug)]
pub struct Server {
    /// The environment variable that carries its address to the tests.
    pub variable: &'static str,
    /// The address.
    pub address: String,
    /// The process that was started for it; `None` when the address was given from outside.
    pub process: Option<Child>,
}

/// Brings one server up, or says how to get it.
pub type BringUp = fn() -> Result<Server, String>;

/// All servers, in the order in which they start.
pub const SERVERS: &[BringUp] = &[];

/// Brings all of [`SERVERS`] up.
///
/// # Errors
/// What the first server that did not start said; those before it are stopped.
pub fn bring_up() -> Result<Vec<Server>, String> {
    SERVERS.iter().map(|bring_up| bring_up()).collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have ended by itself; either way nothing of ours is left running.
            process.kill().ok();
            process.wait().ok();
        }
    }
}
