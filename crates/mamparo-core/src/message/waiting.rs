//! Where a message waits for another attempt, and for how long.
//!
//! There are three waiting rooms ([`WaitingRoom`]). Which one a consumer gets depends on its policy,
//! on what the broker can do and on whether the consumer has a database; [`choose`] decides and says
//! why, [`stay`] decides for how long.

use std::time::Duration;

use super::capabilities::{Capabilities, Engine};
use super::topology::{QueuePolicy, RETRY_DELAY_MAX, WaitingRoom};
use crate::rng::Rng;

/// How much longer than its delay a message may wait by chance, in percent, where delays grow or
/// rows wait. What failed together in an outage would otherwise come back in the same second.
pub const SPREAD_PERCENT: u32 = 20;

/// The room of a consumer, and why it is not the one that the policy names, if it is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The room.
    pub room: WaitingRoom,
    /// Why another one than the policy's, in words.
    pub why: Option<String>,
}

/// The room that a consumer of `policy` gets. [`QueuePolicy::room_on`] says the same to whoever plans
/// the queue and can't know of the database: only a room that both agree on is ever used.
///
/// A room that can't be had is replaced by [`WaitingRoom::Tiers`], which every broker has: a
/// service that starts and says so is worth more than one that does not start.
///
/// # Errors
/// Why nothing can replace the room: the queue as it is planned delays by itself, which a consumer
/// without a database must not use, because nothing would count its attempts.
pub fn choose(
    policy: &QueuePolicy,
    broker: &Capabilities,
    has_database: bool,
) -> Result<Choice, String> {
    let room = policy.room_on(broker);
    let why = match (policy.waiting_room, room) {
        (WaitingRoom::Parked, _) if !has_database => {
            let why = "parked needs a database, and this consumer has none".to_owned();
            return Ok(Choice { room: WaitingRoom::Tiers, why: Some(why) });
        }
        (WaitingRoom::Broker, WaitingRoom::Broker) if !has_database => {
            return Err(
                "waiting_room \"broker\" needs a database: the broker's delayed retry keeps no \
                 attempts, and this consumer has no database to count them in; give it one, or set \
                 waiting_room = \"tiers\""
                    .to_owned(),
            );
        }
        (WaitingRoom::Broker, WaitingRoom::Tiers) => Some(match broker.engine {
            Engine::Embedded => "the embedded broker has no delayed retry".to_owned(),
            Engine::RabbitMq => {
                format!("delayed retry begins with RabbitMQ 4.3, this broker is {}", broker.version)
            }
        }),
        (WaitingRoom::Tiers | WaitingRoom::Parked | WaitingRoom::Broker, _) => None,
    };
    Ok(Choice { room, why })
}

/// How a message that waits at the broker is given back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Rejected: it keeps its place, and the broker counts one return more.
    Reject,
    /// As a copy at the queue's end, for which the broker counts from zero.
    Copy,
}

/// How to give a message back to its broker that was given back `returns` times since it came.
///
/// Each rejection counts towards [`QueuePolicy::delivery_limit`], at which the broker gives the
/// message up, whatever we count. So half of the limit is used; the other half is for what else the
/// broker counts, dead processes say. A message that is to wait for longer than the broker's longest
/// delay comes back, and is given back, as often as it takes.
#[must_use]
pub fn again(policy: &QueuePolicy, returns: u32) -> Again {
    if returns < (policy.delivery_limit / 2).max(1) { Again::Reject } else { Again::Copy }
}

/// How long a message waits, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stay {
    /// The tier's place in [`QueuePolicy::delays`]; means nothing in the other rooms.
    pub tier: usize,
    /// Not to be handled before this has passed.
    pub wait: Duration,
    /// The tier ends before that, so the copy names the time.
    pub named: bool,
}

/// How long does the message wait after its failed attempt `attempt` (counted from one)?
///
/// The delay of attempt n is the n-th of the policy's, the last one from there on; at the broker it is
/// n times the first one and at most the last ([`QueuePolicy::pause`]). `asked` is what the handler or
/// a dependency's `Retry-After` wants; it can only lengthen the wait. With one delay and no wish the
/// stay is that delay exactly, as in the lesson.
pub fn stay(
    policy: &QueuePolicy,
    room: WaitingRoom,
    attempt: u32,
    asked: Option<Duration>,
    rng: &mut impl Rng,
) -> Stay {
    let delays = policy.delays();
    let own = policy.pause(room, attempt);
    let wait = asked.unwrap_or_default().max(own).min(RETRY_DELAY_MAX);
    let wait = if policy.spreads(room) { spread_over(wait, rng) } else { wait };
    let tier = tier_for(delays, wait);
    let named = delays.get(tier).is_some_and(|delay| *delay < wait);
    Stay { tier, wait, named }
}

/// The tier for a message that is to wait for `left`: the longest that does not keep it for longer,
/// so that nothing comes late; what then is left of the wait is spent in a shorter one. The shortest
/// tier when even that is too long.
#[must_use]
pub fn tier_for(delays: &[Duration], left: Duration) -> usize {
    let fitting = delays.iter().enumerate().filter(|(_, delay)| **delay <= left);
    fitting.max_by_key(|(_, delay)| **delay).map_or_else(
        || delays.iter().enumerate().min_by_key(|(_, delay)| **delay).map_or(0, |(at, _)| at),
        |(at, _)| at,
    )
}

/// `wait` and up to [`SPREAD_PERCENT`] of it more.
fn spread_over(wait: Duration, rng: &mut impl Rng) -> Duration {
    let width = u64::try_from((wait * SPREAD_PERCENT / 100).as_nanos()).unwrap_or(u64::MAX);
    wait.saturating_add(Duration::from_nanos(rng.up_to(width))).min(RETRY_DELAY_MAX)
}
