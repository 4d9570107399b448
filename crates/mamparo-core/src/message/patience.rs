//! Does the broker wait for as long as a handler may take?
//!
//! RabbitMQ takes a message back when its consumer has not settled it in time, and closes the channel.
//! A handler that hangs for longer than that is then handled twice, and the consumer learns of it only by
//! losing its channel. So a handler's own limit must end earlier.

use std::time::Duration;

use super::capabilities::{Capabilities, Engine};
use super::topology::QueuePolicy;

/// RabbitMQ's `consumer_timeout` when nobody sets it, in `rabbit.schema` of 3.8.17 and later.
pub const CONSUMER_TIMEOUT: Duration = Duration::from_secs(1_800);

/// How much earlier everything in hand should be settled. RabbitMQ looks once a minute.
pub const MARGIN: Duration = Duration::from_secs(60);

/// What the limits of a consumer mean to its broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Everything in hand is settled in time, or the broker's leases are renewed.
    Enough,
    /// One handler ends in time, but the last message in hand may wait for others for this long.
    Crowded(Duration),
    /// A single handler may take too long.
    TooShort,
}

/// Judges `policy` on `broker`, which waits for `timeout`.
#[must_use]
pub fn patience(policy: &QueuePolicy, broker: &Capabilities, timeout: Duration) -> Patience {
    let settled_by = timeout.saturating_sub(MARGIN);
    let rounds = policy.prefetch.div_ceil(policy.workers().max(1));
    let last = policy.handler_timeout.saturating_mul(rounds);
    match broker.engine {
        Engine::RabbitMq if policy.handler_timeout > settled_by => Patience::TooShort,
        Engine::RabbitMq if last > settled_by => Patience::Crowded(last),
        Engine::RabbitMq | Engine::Embedded => Patience::Enough,
    }
}
