//! Order per key: messages of one key are handled one at a time and in order, others beside them.
//!
//! A key whose first message waits for another attempt is *held*: later messages of it are given
//! back until the first one has returned, so that a `cancelled` never overtakes its `created`.
//! A later message that was sent away to wait is waited for in its turn, so a key that fails once and
//! has a message every few seconds stays behind by up to one shortest tier until it pauses for so long;
//! the waiting room in the database has no such cost.
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

/// A message that is elsewhere and comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    id: String,
    due: Moment,
    /// When a later message first found it overdue.
    missed: Option<Moment>,
}

impl Held {
    const fn until(id: String, due: Moment) -> Self {
        Self { id, due, missed: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Lane {
    /// Being handled.
    busy: Option<String>,
    /// In hand behind it, in order.
    waiting: VecDeque<(i64, String)>,
    /// Elsewhere, in order. What comes later waits for all of them: a follower that was sent away must
    /// not be passed either when the message that it followed is done.
    held: Vec<Held>,
}

impl Lane {
    /// How long a message must stay away that comes after the first `place` of those held; `None` when
    /// it is its turn.
    fn wait(&mut self, now: Moment, place: usize) -> Option<Duration> {
        for held in self.held.iter_mut().take(place).filter(|held| held.due <= now) {
            held.missed.get_or_insert(now);
        }
        let given_up =
            |held: &Held| held.missed.is_some_and(|missed| missed.plus(HOLD_GRACE) <= now);
        let mut index = 0;
        self.held.retain(|held| {
            index += 1;
            index > place || !given_up(held)
        });
        let dropped = index - self.held.len();
        let first = self.held.first().filter(|_| place > dropped)?;
        Some(now.until(first.due).max(FOLLOWER_DELAY))
    }
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
        let known = lane.held.iter().position(|held| held.id == id);
        let before = lane.held.len();
        if let Some(delay) = lane.wait(now, known.unwrap_or(before)) {
            let held = Held::until(id.to_owned(), now.plus(delay));
            match lane.held.iter_mut().find(|held| held.id == id) {
                Some(mine) => *mine = held,
                None => lane.held.push(held),
            }
            return Arrival::GiveBack(delay);
        }
        lane.held.retain(|held| held.id != id);
        if lane.busy.is_some() {
            lane.waiting.push_back((tag, id.to_owned()));
            return Arrival::Follow;
        }
        lane.busy = Some(id.to_owned());
        Arrival::Start
    }

    /// Message `id` of `key`, which had been started, has met its fate.
    pub fn tell(&mut self, now: Moment, key: &str, id: &str, fate: Fate) -> Vec<Next> {
        let Some(lane) = self.lanes.get_mut(lane_of(key, id)) else { return Vec::new() };
        lane.busy = None;
        let mut next = Vec::new();
        match fate {
            Fate::Left => {
                if let Some((tag, id)) = lane.waiting.pop_front() {
                    lane.busy = Some(id);
                    return vec![Next::Start(tag)];
                }
            }
            Fate::Parked => {
                next.extend(lane.waiting.drain(..).map(|(tag, _)| Next::Park(tag)));
            }
            Fate::Returns(after) => {
                let (due, delay) = (now.plus(after), after.max(FOLLOWER_DELAY));
                let mut held = vec![Held::until(id.to_owned(), due)];
                for (tag, id) in lane.waiting.drain(..) {
                    next.push(Next::GiveBack(tag, delay));
                    held.push(Held::until(id, now.plus(delay)));
                }
                lane.held.splice(0..0, held);
            }
        }
        self.forget(now, key, id);
        next
    }

    /// Message `id`, which was to be given back, comes back after `after`.
    pub fn away(&mut self, now: Moment, key: &str, id: &str, after: Duration) {
        let lane = self.lanes.get_mut(lane_of(key, id));
        let held = lane.and_then(|lane| lane.held.iter_mut().find(|held| held.id == id));
        if let Some(held) = held {
            *held = Held::until(id.to_owned(), now.plus(after));
        }
    }

    /// Message `id`, which was to be given back, does not come back: it is in other hands, or waits in
    /// the database.
    pub fn gone(&mut self, now: Moment, key: &str, id: &str) {
        if let Some(lane) = self.lanes.get_mut(lane_of(key, id)) {
            lane.held.retain(|held| held.id != id);
            self.forget(now, key, id);
        }
    }

    /// Everything in hand has been given back. What waits elsewhere is still waited for, and what was in
    /// hand before it comes before it.
    pub fn let_go(&mut self) {
        self.lanes.retain(|_, lane| {
            let waiting = std::mem::take(&mut lane.waiting).into_iter().map(|(_, id)| id);
            let in_hand = lane.busy.take().into_iter().chain(waiting);
            if !lane.held.is_empty() {
                let back: Vec<Held> = in_hand.map(|id| Held::until(id, Moment::ORIGIN)).collect();
                lane.held.splice(0..0, back);
            }
            !lane.held.is_empty()
        });
    }

    /// Keys that are in hand or held.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.lanes.len()
    }

    /// Nothing is left to remember of the key, perhaps.
    fn forget(&mut self, now: Moment, key: &str, id: &str) {
        let idle =
            |lane: &Lane| lane.busy.is_none() && lane.waiting.is_empty() && lane.held.is_empty();
        if self.lanes.get(lane_of(key, id)).is_some_and(idle) {
            self.lanes.remove(lane_of(key, id));
            self.forget_expired(now);
        }
    }

    /// Holds whose message never came back here would stay for ever otherwise. Looking only when the
    /// lanes have doubled keeps the cost of a look in proportion, however many keys are held.
    fn forget_expired(&mut self, now: Moment) {
        if self.lanes.len() < self.sweep_at {
            return;
        }
        self.lanes.retain(|_, lane| {
            lane.busy.is_some() || lane.held.iter().any(|held| now < held.due.plus(HOLD_MAX))
        });
        self.sweep_at = (self.lanes.len() * 2).max(SWEEP_MIN);
    }
}

fn lane_of<'a>(key: &'a str, id: &'a str) -> &'a str {
    if key.is_empty() { id } else { key }
}
