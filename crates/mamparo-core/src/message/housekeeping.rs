//! When rows that have served are forgotten, so that their tables stay small.
//!
//! A small batch at a time, with a pause after each: no lock is held for long, and what is forgotten
//! keeps up with what comes in (10,000 rows a second with the defaults). Once every table has said that
//! nothing is old enough any more, nobody is asked for an hour.

use std::time::Duration;

use crate::backoff::{Backoff, Jitter};
use crate::limits::FORGET_MAX;
use crate::rng::Rng;
use crate::time::Moment;

/// Rows of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matter {
    /// Messages that were applied: who comes again is known.
    Inbox,
    /// Idempotency keys whose answer is replayed no more.
    Keys,
    /// What is known of messages that wait in their broker's own queue, and never came back.
    Retries,
}

impl Matter {
    /// In metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Keys => "idempotency",
            Self::Retries => "retries",
        }
    }
}

/// All of them, in the order of a round.
pub const MATTERS: [Matter; 3] = [Matter::Inbox, Matter::Keys, Matter::Retries];

/// No message waits for longer than a day in a broker's queue, and no row that still serves may go.
const KEEP_MIN: Duration = Duration::from_secs(86_400);

/// For how long rows are kept, and how they are forgotten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// How long the inbox knows a message. One that comes again later is applied again, so it is longer
    /// than a message may lie in a queue. Default 7 days, at least one.
    pub inbox: Duration,
    /// How long an idempotency key stays beyond the time for which its answer is replayed: as long as that
    /// it fences off former owners. Default 1 day, at least one.
    pub keys: Duration,
    /// How long a row about a message in a broker's own waiting room stays as it is. Default 7 days, at least
    /// one.
    pub retries: Duration,
    /// How long nobody is asked once nothing is old enough any more. Default 1 h, at least a minute.
    pub every: Duration,
    /// Pause after each batch. Default 100 ms.
    pub pause: Duration,
    /// Most rows in one batch: 1 to 1,000, the default.
    pub batch: u32,
    /// Pauses after rounds in which something failed. Default: base 1 s, factor 2, cap 5 min, at least half
    /// of it.
    pub backoff: Backoff,
}

impl Default for Policy {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        let (base, cap) = (Duration::from_secs(1), Duration::from_secs(300));
        Self {
            inbox: 7 * day,
            keys: day,
            retries: 7 * day,
            every: Duration::from_secs(3_600),
            pause: Duration::from_millis(100),
            batch: FORGET_MAX,
            backoff: Backoff { jitter: Jitter::Equal, ..Backoff::new(base, 2.0, cap) },
        }
    }
}

impl Policy {
    /// For how long rows of `matter` are kept.
    #[must_use]
    pub fn keep(&self, matter: Matter) -> Duration {
        let keep = match matter {
            Matter::Inbox => self.inbox,
            Matter::Keys => self.keys,
            Matter::Retries => self.retries,
        };
        keep.max(KEEP_MIN)
    }

    /// Most rows in one batch.
    #[must_use]
    pub fn batch(&self) -> u32 {
        self.batch.clamp(1, FORGET_MAX)
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Forget a batch of these, then tell.
    Forget(Matter),
    /// Nothing before this moment.
    Wait(Moment),
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Housekeeping {
    policy: Policy,
    /// Whose turn it is.
    turn: usize,
    due: Moment,
    /// In this round: something was not the last batch; something failed.
    more: bool,
    failed: bool,
    /// Rounds in a row in which something failed.
    failures: u32,
    wait: Duration,
}

impl Housekeeping {
    /// It begins at once.
    #[must_use]
    pub const fn new(policy: Policy, now: Moment) -> Self {
        let (turn, failures, wait) = (0, 0, Duration::ZERO);
        Self { policy, turn, due: now, more: false, failed: false, failures, wait }
    }

    /// What is to be done?
    #[must_use]
    pub fn ask(&self, now: Moment) -> Step {
        match MATTERS.get(self.turn) {
            Some(matter) if self.due <= now => Step::Forget(*matter),
            Some(_) | None => Step::Wait(self.due),
        }
    }

    /// The batch that was asked for is over: so many rows are gone, or it has failed (`None`).
    pub fn tell(&mut self, now: Moment, forgotten: Option<u64>, rng: &mut impl Rng) {
        match forgotten {
            Some(rows) => self.more |= rows >= u64::from(self.policy.batch()),
            None => self.failed = true,
        }
        self.turn += 1;
        let pause = if self.turn < MATTERS.len() { self.policy.pause } else { self.end(rng) };
        self.due = now.plus(pause);
    }

    /// The round is over: how long until the next.
    fn end(&mut self, rng: &mut impl Rng) -> Duration {
        let (more, failed) = (self.more, self.failed);
        (self.turn, self.more, self.failed) = (0, false, false);
        if failed {
            self.failures = self.failures.saturating_add(1);
            self.wait = self.policy.backoff.delay(self.failures, self.wait, rng);
            return self.wait.max(self.policy.pause);
        }
        (self.failures, self.wait) = (0, Duration::ZERO);
        if more { self.policy.pause } else { self.policy.every.max(Duration::from_secs(60)) }
    }
}
