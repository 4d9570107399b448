//! All rows of the table.

mod base;
mod ours;
#[cfg(feature = "peers")]
mod peers;
#[cfg(feature = "peers")]
mod resilience;
mod tower;

use std::future::Future;
use std::time::Duration;

use crate::case::Case;

/// A time limit that no row reaches.
const LONG: Duration = Duration::from_secs(30);
/// A time for which an open circuit stays open: longer than any run.
const FOR_GOOD: Duration = Duration::from_secs(100_000);
/// Slots of every bulkhead: more than there are tasks, so that nobody waits.
const SLOTS: usize = 64;
/// Keys of every keyed limit.
const KEYS: u64 = 10_000;

/// Objects whose memory is of interest.
pub const OBJECTS: &[Object] = ours::OBJECTS;

/// Its name, and what makes it for good and says its inline size.
pub type Object = (&'static str, fn() -> usize);

/// Every row that this build has: ours, the primitives and tower; with the feature `peers` the rest.
#[must_use]
pub fn all() -> Vec<Case> {
    let mut cases = base::cases();
    cases.extend(tower::cases());
    #[cfg(feature = "peers")]
    cases.extend(peers::cases());
    #[cfg(feature = "peers")]
    cases.extend(resilience::cases());
    cases.extend(ours::cases());
    cases
}

/// Brings a policy into the state that a row is about, before anything is measured.
fn settle<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime of one thread needs no more than this process").block_on(future)
}

/// A cheap spread of call numbers over the keys of a keyed limit.
const fn key_of(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS
}
