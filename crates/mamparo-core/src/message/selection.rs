//! Which dead letters an operation is about, and how a batch of them is worked off.
//!
//! The selection is frozen before anything moves: each id is touched at most once in a batch, so
//! poison that comes back while the batch runs is not moved again. A batch may begin with a canary
//! of one, keep to a rate, and stop at the n-th failure. What a stopped batch had not come to lies
//! where it lay.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use super::failed::Group;
use crate::time::{Moment, WallTime};

/// Which failed messages, all conditions together. The default is all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sift {
    /// Only these ids; empty for all.
    pub ids: Vec<String>,
    /// Only this event type: the message's type, never its routing key, which is rewritten on the way.
    pub kind: Option<String>,
    /// Only messages about this key.
    pub key: Option<String>,
    /// Only those that failed before this time.
    pub before: Option<WallTime>,
    /// Only those that failed at this time or later.
    pub since: Option<WallTime>,
    /// Only those whose error holds this text, whatever its case.
    pub error: Option<String>,
    /// Only those of this group.
    pub group: Option<Group>,
}

/// What a [`Sift`] looks at.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'m> {
    /// The message's id.
    pub id: &'m str,
    /// Its event type.
    pub kind: &'m str,
    /// Its key.
    pub key: &'m str,
    /// When it failed for the last time.
    pub failed: WallTime,
    /// Why it was given up, a slug.
    pub reason: &'m str,
    /// What the last failure said.
    pub error: &'m str,
}

impl Sift {
    /// Is the message one of those that are meant?
    #[must_use]
    pub fn takes(&self, it: &Sample<'_>) -> bool {
        let named = self.ids.is_empty() || self.ids.iter().any(|id| id == it.id);
        let alike = |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|w| w == is);
        let within = |text: &String| it.error.to_lowercase().contains(&text.to_lowercase());
        named
            && alike(&self.kind, it.kind)
            && alike(&self.key, it.key)
            && self.before.is_none_or(|before| it.failed < before)
            && self.since.is_none_or(|since| it.failed >= since)
            && self.error.as_ref().is_none_or(within)
            && self.group.is_none_or(|group| group == Group::of(it.reason, it.error))
    }
}

/// How a batch is worked off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Messages a second; `None` for as fast as it goes. A tenth of a second's worth may go at once.
    pub rate: Option<NonZeroU32>,
    /// The first message must be handled within this long before a second one goes. `None`: no canary.
    pub canary: Option<Duration>,
    /// Stop when so many have failed: were refused on their way, or came back. `None`: never.
    pub stop_after: Option<NonZeroU32>,
    /// Most messages on their way at once. Default 500.
    pub window: NonZeroU32,
}

impl Default for Pace {
    fn default() -> Self {
        let window = NonZeroU32::MIN.saturating_add(499);
        Self { rate: None, canary: None, stop_after: None, window }
    }
}

/// What became of a message that was sent on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is where it should be.
    Done,
    /// It was gone, or in somebody's hand, when it was its turn. No failure.
    Gone,
    /// It could not be moved, and lies where it lay.
    Refused,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Send these, in order, and tell of each.
    Send(Range<usize>),
    /// Nothing may go before this.
    Wait(Moment),
    /// Find out what became of the canary, this one, and ask again; at the latest at this time.
    Watch(usize, Moment),
    /// There is nothing more to do.
    End(End),
}

/// How a batch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Every message had its turn.
    Finished,
    /// The n-th failure was reached.
    Stopped,
    /// The canary was refused or came back.
    CanaryFailed,
    /// Nobody could say within its time that the canary was handled.
    CanaryUnknown,
    /// Somebody wanted it to stop.
    Interrupted,
}

/// The numbers of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Sent and arrived.
    pub done: u32,
    /// Gone before their turn.
    pub gone: u32,
    /// Refused on their way.
    pub refused: u32,
    /// Arrived, failed, and came back.
    pub back: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Canary,
    Watching(usize, Moment),
    Flowing,
    Over(End),
}

/// A batch over a frozen selection.
#[derive(Debug, Clone)]
pub struct Batch {
    pace: Pace,
    /// Places in the selection, the first of each id only.
    turns: Vec<usize>,
    places: HashMap<String, usize>,
    next: usize,
    due: Moment,
    phase: Phase,
    arrived: HashSet<usize>,
    returned: HashSet<usize>,
    tally: Tally,
}

impl Batch {
    /// A batch over these ids, in this order. An id that stands there twice has one turn.
    #[must_use]
    pub fn new<'i>(pace: Pace, ids: impl IntoIterator<Item = &'i str>, now: Moment) -> Self {
        let (mut turns, mut places) = (Vec::new(), HashMap::new());
        for (place, id) in ids.into_iter().enumerate() {
            places.entry(id.to_owned()).or_insert_with(|| {
                turns.push(place);
                place
            });
        }
        let phase = if pace.canary.is_some() { Phase::Canary } else { Phase::Flowing };
        let (arrived, returned) = (HashSet::new(), HashSet::new());
        let tally = Tally::default();
        Self { pace, turns, places, next: 0, due: now, phase, arrived, returned, tally }
    }

    /// The place in the selection of turn `turn`, as [`Step::Send`] numbers them.
    #[must_use]
    pub fn place(&self, turn: usize) -> Option<usize> {
        self.turns.get(turn).copied()
    }

    /// Turns that there are, and those that had theirs.
    #[must_use]
    pub fn progress(&self) -> (usize, usize) {
        (self.turns.len(), self.next)
    }

    /// The numbers so far.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// What next? Whatever was sent before has been told of.
    pub fn ask(&mut self, now: Moment) -> Step {
        match self.phase {
            Phase::Over(end) => return Step::End(end),
            Phase::Watching(_, until) if now >= until => return self.over(End::CanaryUnknown),
            Phase::Watching(turn, until) => return Step::Watch(turn, until),
            Phase::Canary | Phase::Flowing => {}
        }
        if self.next >= self.turns.len() {
            return self.over(End::Finished);
        }
        let mut room = self.pace.window.get();
        if self.phase == Phase::Canary {
            room = 1;
        }
        if let Some(stop) = self.pace.stop_after {
            // No more at once than may still fail: the n-th failure is the last.
            room = room.min(stop.get().saturating_sub(self.failures())).max(1);
        }
        if let Some(rate) = self.pace.rate {
            let interval = 1_000_000_000 / u64::from(rate.get());
            let burst = u64::from((rate.get() / 10).max(1));
            let saved = Moment::from_nanos(now.nanos().saturating_sub((burst - 1) * interval));
            self.due = self.due.max(saved);
            if self.due > now {
                return Step::Wait(self.due);
            }
            let may = (now.nanos() - self.due.nanos()) / interval.max(1) + 1;
            room = room.min(u32::try_from(may).unwrap_or(u32::MAX));
            room = room.min(u32::try_from(self.turns.len() - self.next).unwrap_or(u32::MAX));
            let spent = interval.saturating_mul(u64::from(room));
            self.due = self.due.plus(Duration::from_nanos(spent));
        }
        let first = self.next;
        self.next = self.turns.len().min(first + usize::try_from(room).unwrap_or(usize::MAX));
        Step::Send(first..self.next)
    }

    /// Turn `turn` was sent.
    pub fn tell(&mut self, now: Moment, turn: usize, sent: Sent) {
        match sent {
            Sent::Done => {
                self.tally.done += 1;
                self.arrived.extend(self.place(turn));
            }
            Sent::Gone => self.tally.gone += 1,
            Sent::Refused => self.tally.refused += 1,
        }
        if self.phase == Phase::Canary {
            self.phase = match (sent, self.pace.canary) {
                (Sent::Done, Some(limit)) => Phase::Watching(turn, now.plus(limit)),
                // The next one is as good a canary.
                (Sent::Gone, _) => Phase::Canary,
                (Sent::Done, None) => Phase::Flowing,
                (Sent::Refused, _) => Phase::Over(End::CanaryFailed),
            };
        }
        self.count_failures();
    }

    /// A message of this id came (back) to the dead letters. `true` when it was one of the batch
    /// that had its turn, and the first time that it came back.
    pub fn returned(&mut self, id: &str) -> bool {
        let Some(place) = self.places.get(id).copied() else { return false };
        if !self.arrived.contains(&place) || !self.returned.insert(place) {
            return false;
        }
        self.tally.back += 1;
        if let Phase::Watching(turn, _) = self.phase
            && self.place(turn) == Some(place)
        {
            self.phase = Phase::Over(End::CanaryFailed);
        }
        self.count_failures();
        true
    }

    /// The canary was handled.
    pub fn handled(&mut self) {
        if let Phase::Watching(..) = self.phase {
            self.phase = Phase::Flowing;
        }
    }

    /// Somebody wants it to stop. What is on its way is told of; nothing more is sent.
    pub fn interrupt(&mut self) {
        if !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(End::Interrupted);
        }
    }

    fn failures(&self) -> u32 {
        self.tally.refused.saturating_add(self.tally.back)
    }

    fn count_failures(&mut self) {
        let full = self.pace.stop_after.is_some_and(|stop| self.failures() >= stop.get());
        if full && !matches!(self.phase, Phase::Over(_)) {
            self.phase = Phase::Over(End::Stopped);
        }
    }

    fn over(&mut self, end: End) -> Step {
        self.phase = Phase::Over(end);
        Step::End(end)
    }
}
