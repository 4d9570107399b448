//! Every decision of mamparo, as pure state machines.
//!
//! Nothing here reads a clock, does I/O, logs or draws randomness: `now`, `rng` and events come in,
//! decisions and changes come out. The same machines are driven by tokio in production, by virtual
//! time in tests and simulations, and by the lab page. What you simulate is what you run.
//!
//! Each machine has the same two verbs: `ask(now, …)` answers with a decision, `tell(now, …)`
//! takes an outcome and answers with the change that it made, if any.
//!
//! Modules only look downwards: [`time`] → [`outcome`] → [`call`] → [`message`], [`saga`],
//! [`process`].

pub mod backoff;
pub mod call;
mod hash;
pub mod keyed;
pub mod limits;
pub mod message;
pub mod outcome;
pub mod process;
pub mod rng;
pub mod saga;
pub mod sync;
pub mod table;
pub mod time;
