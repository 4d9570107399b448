//! Throttling by the client: what a dependency would refuse anyway is not sent.
//!
//! From *Site Reliability Engineering*, "Handling Overload" (Beyer and others, 2016): over the last two
//! minutes, with `requests` that were wanted and `accepts` that the dependency took on, a request is
//! refused here with the probability max(0, (requests − K × accepts) / (requests + 1)). While the
//! dependency takes all, nothing is refused; when it takes less than one of K, what goes out is K
//! times what it takes, so that it spends little on refusing and recovery is noticed.

mod tally;

use std::time::Duration;

use crate::call::mistake::{Mistake, Mistakes};
use crate::outcome::{Failure, Health, Kind};
use crate::rng::Rng;
use crate::time::Moment;
use tally::Tally;

pub use tally::Counts;

/// When requests are held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThrottleConfig {
    /// Requests that may go out for each that is accepted; at least 1. Less is harsher. Default 2.
    pub k: f64,
    /// How far back it looks; at least 12 ms, of which it forgets a twelfth at a time. Default 2 min.
    pub window: Duration,
    /// Fewest requests in the window before anything is held back. Default 10: one failure of one is no
    /// overload.
    pub min_requests: u32,
    /// Greatest share that is held back, `0.0..=1.0`. Default 0.9: the formula alone would leave a busy
    /// client one trial in two minutes, and it would learn of a recovery as late as that.
    pub refuse_max: f64,
}

impl Default for ThrottleConfig {
    fn default() -> Self {
        Self { k: 2.0, window: Duration::from_secs(120), min_requests: 10, refuse_max: 0.9 }
    }
}

impl ThrottleConfig {
    /// All mistakes. Empty when the settings are sound.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        mistakes.unless(self.k.is_finite() && self.k >= 1.0, "throttle.k", || {
            format!("is {}, must be at least 1: less would refuse what is accepted", self.k)
        });
        let least = Duration::from_millis(12);
        mistakes.unless(self.window >= least, "throttle.window", || {
            format!("is {:?}, must be at least {least:?}", self.window)
        });
        let share = (0.0..=1.0).contains(&self.refuse_max);
        mistakes.unless(share, "throttle.refuse_max", || {
            format!("is {}, must be from 0 to 1", self.refuse_max)
        });
        mistakes.into_vec()
    }
}

/// What became of a request that was sent, as far as the dependency's will to serve is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It was taken on, whatever the answer was (200, 404, 409).
    Accepted,
    /// It was turned away or not managed: 429, 503, a timeout, a refused connection.
    Rejected,
    /// It says nothing: cancelled by the caller, or refused by a policy of ours.
    Silent,
}

impl Reply {
    /// What a failed attempt says.
    #[must_use]
    pub const fn of(failure: &Failure) -> Self {
        match (failure.kind, failure.health) {
            (Kind::Neutral, _) | (_, Health::Silent) => Self::Silent,
            (_, Health::Bad) | (Kind::Transient, Health::Good) => Self::Rejected,
            (Kind::Permanent | Kind::Unknown, Health::Good) => Self::Accepted,
        }
    }
}

/// May the request go out?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Yes. Tell what became of it.
    Granted,
    /// No; reason code `throttled`.
    Throttled {
        /// When a part of the window will have been forgotten.
        retry_after: Duration,
    },
}

/// The throttle of one dependency, shared by reference.
#[derive(Debug)]
pub struct Throttle {
    config: ThrottleConfig,
    tally: Tally,
}

impl Throttle {
    /// A throttle that has seen no request yet.
    #[must_use]
    pub fn new(config: ThrottleConfig) -> Self {
        Self { config, tally: Tally::new(config.window) }
    }

    /// May a request go out? One that is refused counts as wanted: the more want in, the larger the share
    /// that stays out. Draws from `rng` only when some are refused.
    pub fn ask(&self, now: Moment, rng: &mut impl Rng) -> Leave {
        let refused = self.share_refused(self.tally.counts(now));
        if refused > 0.0 && rng.chance(refused) {
            self.tally.add(now, false);
            return Leave::Throttled { retry_after: self.tally.step() };
        }
        Leave::Granted
    }

    /// Tells what became of a request that was let out.
    pub fn tell(&self, now: Moment, reply: Reply) {
        match reply {
            Reply::Accepted => self.tally.add(now, true),
            Reply::Rejected => self.tally.add(now, false),
            Reply::Silent => {}
        }
    }

    /// What the window holds at `now`.
    #[must_use]
    pub fn counts(&self, now: Moment) -> Counts {
        self.tally.counts(now)
    }

    /// The share of requests that is refused at `now`, `0.0..=1.0`.
    #[must_use]
    pub fn refused(&self, now: Moment) -> f64 {
        self.share_refused(self.tally.counts(now))
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &ThrottleConfig {
        &self.config
    }

    fn share_refused(&self, Counts { requests, accepts }: Counts) -> f64 {
        if requests < u64::from(self.config.min_requests) {
            return 0.0;
        }
        let (requests, accepts) = (requests as f64, accepts as f64);
        let share = (requests - self.config.k * accepts) / (requests + 1.0);
        if share.is_nan() { 0.0 } else { share.max(0.0).min(self.config.refuse_max) }
    }
}
