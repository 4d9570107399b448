//! Order per key: messages of one key are handled one at a time and in order, others beside them.
//!
//! A key whose first message waits for another attempt is *held*: later messages of it are given
//! back until the first one has returned, so that a `cancelled` never overtakes its `created`.
//! This is known per process. Several processes on one queue keep the order of a key while one of its
//! messages waits only with the waiting room in the database ([`Fate::Parked`]), where later ones line
//! up behind it; messages that two processes have in hand at once have no order. Give each key to one
//! process where that matters.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::time::Moment;

/// How long a held key waits for the message that it is held for, once a later message has come and
/// found it overdue. Afterwards somebody else has taken that message, and followers go on. Counted
/// from the follower and not from the due time: a consumer that was paused at that time could not
/// have seen it come back.
pub const HOLD_GRACE: Duration = Duration::from_secs(5);

/// How long after its due time a hold that nobody asks about is remembered.
pub const HOLD_MAX: Duration = Duration::from_secs(3_600);

/// How soon a follower looks again when the message before it should be back already.
pub const FOLLOWER_DELAY: Duration = Duration::from_millis(250);

/// What to do with a message that has just been taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Handle it now.
    Start,
    /// Keep it in hand behind the earlier one of its key.
    Follow,
    /// Give it back for this long: an earlier one of its key waits elsewhere.
    GiveBack(Duration),
}

/// Where a handled message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It will not come back: acknowledged or dead-lettered.
    Left,
    /// It comes back after this long, and later ones of its key are held until then.
    Returns(Duration),
    /// It waits in the service's database, where later ones of its key wait behind it: nothing is held
    /// here.
    Parked,
}

/// What follows when a message has left the hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Start this one.
    Start(i64),
    /// Give this one back for so long.
    GiveBack(i64, Duration),
    /// Let this one wait behind the one that was just parked.
    Park(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    id: String,
    due: Moment,
    /// When a later message first found it overdue.
    missed: Option<Moment>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Lane {
    busy: bool,
    waiting: VecDeque<i64>,
    held: Option<Held>,
}

/// The machine. Messages are known by their delivery tag. An empty key asks for no order, but copies
/// of one message still run one after the other: side by side, the start of one would look like a
/// crash of the other.
#[derive(Debug, Clone, Default)]
pub struct KeyOrder {
    lanes: HashMap<String, Lane>,
    /// So many lanes are worth the next look for those that can be forgotten.
    sweep_at: usize,
}

/// Fewer lanes than this are not worth a look.
const SWEEP_MIN: usize = 64;

impl KeyOrder {
    /// May message `id`, delivered as `tag`, start?
    pub fn ask(&mut self, now: Moment, key: &str, id: &str, tag: i64) -> Arrival {
        let lane = self.lanes.entry(lane_of(key, id).to_owned()).or_default();
        if let Some(held) = lane.held.as_mut().filter(|held| held.id != id) {
            if now < held.due {
                return Arrival::GiveBack(now.until(held.due).max(FOLLOWER_DELAY));
            }
            let missed = *held.missed.get_or_insert(now);
            if now < missed.plus(HOLD_GRACE) {
                return Arrival::GiveBack(FOLLOWER_DELAY);
            }
        }
        lane.held = None;
        if lane.busy {
            lane.waiting.push_back(tag);
            return Arrival::Follow;
        }
        lane.busy = true;
        Arrival::Start
    }

    /// Message `id` of `key`, which had been started, has met its fate.
    pub fn tell(&mut self, now: Moment, key: &str, id: &str, fate: Fate) -> Vec<Next> {
        let Some(lane) = self.lanes.get_mut(lane_of(key, id)) else { return Vec::new() };
        lane.busy = false;
        match fate {
            Fate::Left => {
                if let Some(tag) = lane.waiting.pop_front() {
                    lane.busy = true;
                    return vec![Next::Start(tag)];
                }
                self.lanes.remove(lane_of(key, id));
                self.forget_expired(now);
                Vec::new()
            }
            Fate::Parked => {
                let parked = lane.waiting.drain(..).map(Next::Park).collect();
                self.lanes.remove(lane_of(key, id));
                parked
            }
            Fate::Returns(after) => {
                lane.held = Some(Held { id: id.to_owned(), due: now.plus(after), missed: None });
                let delay = after.max(FOLLOWER_DELAY);
                lane.waiting.drain(..).map(|tag| Next::GiveBack(tag, delay)).collect()
            }
        }
    }

    /// Everything in hand has been given back. What waits elsewhere is still waited for.
    pub fn let_go(&mut self) {
        self.lanes.retain(|_, lane| {
            lane.busy = false;
            lane.waiting.clear();
            lane.held.is_some()
        });
    }

    /// Keys that are in hand or held.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.lanes.len()
    }

    /// Holds whose message never came back here would stay for ever otherwise. Looking only when the
    /// lanes have doubled keeps the cost of a look in proportion, however many keys are held.
    fn forget_expired(&mut self, now: Moment) {
        if self.lanes.len() < self.sweep_at {
            return;
        }
        self.lanes.retain(|_, lane| {
            let held = lane.held.as_ref().is_some_and(|held| now < held.due.plus(HOLD_MAX));
            lane.busy || held
        });
        self.sweep_at = (self.lanes.len() * 2).max(SWEEP_MIN);
    }
}

fn lane_of<'a>(key: &'a str, id: &'a str) -> &'a str {
    if key.is_empty() { id } else { key }
}
