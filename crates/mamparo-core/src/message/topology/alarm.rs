//! When somebody has to look at a waiting room or a dead-letter queue.
//!
//! Neither RabbitMQ's limits nor its own worker can be relied on alone. Of what a classic queue dead-letters
//! into a full one that should refuse, everything beyond the limit is lost (seen on 3.10.8). A quorum queue
//! keeps what its target does not take and tries again every 3 minutes, but no count that AMQP shows has
//! these messages, and without at-least-once the limit does not hold (rabbitmq-server 8495). And the worker
//! that empties a waiting room has been stuck after upgrades and membership changes (rabbitmq-server 12625).
//! So both are watched from outside.

use std::time::Duration;

use super::QueuePolicy;
use crate::message::headers::{self, Headers};
use crate::time::WallTime;

/// How much longer than its delay the oldest message may lie in a waiting room, at least.
pub const LATE_MARGIN_MIN: Duration = Duration::from_secs(60);

/// How full a queue is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fill {
    /// Below four fifths of its limit.
    Fine,
    /// From four fifths on: its owner should look now.
    Near,
    /// At its limit or beyond: consumers can't put anything there any more, and stop.
    Full,
}

/// How full a queue of `depth` messages is that may hold `max_length`.
#[must_use]
pub fn fill(depth: u64, max_length: u32) -> Fill {
    let limit = u64::from(max_length);
    if depth >= limit {
        Fill::Full
    } else if depth.saturating_mul(5) >= limit.saturating_mul(4) {
        Fill::Near
    } else {
        Fill::Fine
    }
}

/// How late a message of a waiting room is: by how much its `age` there exceeds the room's delay and a
/// margin of a tenth of it, 60 s at least. `None` when it is in time.
///
/// A message that is late is not lost. The room's target is missing or full, the target has a backlog, or
/// the broker's worker stands still; `docs/runbooks/topology.md` says how to empty the room.
#[must_use]
pub fn late(age: Duration, delay: Duration) -> Option<Duration> {
    let margin = (delay / 10).max(LATE_MARGIN_MIN);
    let limit = delay.saturating_add(margin);
    age.checked_sub(limit).filter(|late| !late.is_zero())
}

/// A message that came back for another attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// Since its last failure.
    pub age: Duration,
    /// How late it is, if it is.
    pub late: Option<Duration>,
}

/// Did this message come back from a waiting room of `policy`, and how late? `None` for a first attempt,
/// and for one whose headers do not say when it failed.
///
/// The only sign of a waiting room that stands still: AMQP does not count what waits there for its target.
/// When nothing comes back at all there is no such message either; then the count of retries keeps growing
/// beyond the count of returns.
#[must_use]
pub fn returned(message: &Headers, policy: &QueuePolicy, now: WallTime) -> Option<Returned> {
    let made = headers::attempts(message, policy.consumer()).made;
    let made = made.max(headers::attempts(message, &policy.queue).made);
    let nth = usize::try_from(made.checked_sub(1)?).unwrap_or(usize::MAX);
    let failed: WallTime = headers::get(message, headers::LAST_FAILURE)?.parse().ok()?;
    let delays = policy.delays();
    let own = delays.get(nth).or(delays.last()).copied().unwrap_or_default();
    let asked = headers::not_before(message).map(|due| due.since(failed)).unwrap_or_default();
    let age = now.since(failed);
    Some(Returned { age, late: late(age, own.max(asked)) })
}
