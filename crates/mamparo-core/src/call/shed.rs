//! Load shedding: under pressure the least important work is refused first, and early, while a refusal
//! is still cheap.
//!
//! The load is a share of capacity that the host measures (calls in flight over the limit, say). Each
//! level of [`Criticality`] begins to be refused at a load of its own: a growing part of it, until at the
//! end of a band all of it is. Work that can't end before its deadline is refused at any load.
//!
//! The load is not smoothed. Calls in flight are a sum over time already; a second delay behind them lets
//! ten times the usual load fill the last places before the shedder believes it, and then keeps it
//! refusing when they are free again.

mod criticality;
mod lot;
mod needs;

use std::time::Duration;

pub use criticality::Criticality;
pub use lot::Lot;
pub use needs::Needs;

use crate::call::mistake::{Mistake, Mistakes};
use crate::sync::atomic::{AtomicU8, Ordering};

/// When which level is refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShedConfig {
    /// The load at which refusals of a level begin, by [`Criticality::index`]; more than 0, and the more
    /// important the higher. Default 0.75, 0.82, 0.89, 0.97 and 1.0 of capacity, from best-effort to
    /// critical-plus: an eighth of the capacity is kept for what users see, with room for the load to
    /// swing a little, and the most important level is refused only when not even that is enough.
    pub begin: [f64; 5],
    /// How much further the load has to rise until all of a level is refused; more than 0. Default 0.05.
    pub band: f64,
    /// How much below `begin` the load has to fall until a level that is being refused is admitted
    /// again; 0 or more, less than the lowest `begin`. Default 0.02.
    pub hysteresis: f64,
    /// What the refused are told to wait: this, and up to as much again by their [`Lot`], so that they do
    /// not come back as one. Default 1 s.
    pub retry_after: Duration,
}

impl Default for ShedConfig {
    fn default() -> Self {
        Self {
            begin: [0.75, 0.82, 0.89, 0.97, 1.0],
            band: 0.05,
            hysteresis: 0.02,
            retry_after: Duration::from_secs(1),
        }
    }
}

impl ShedConfig {
    /// All mistakes. Empty when the settings are sound.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        let sound = self.begin.iter().all(|begin| begin.is_finite() && *begin > 0.0);
        mistakes.unless(sound && self.begin.is_sorted(), "shed.begin", || {
            format!("is {:?}, must be more than 0 and rise with the importance", self.begin)
        });
        mistakes.unless(self.band.is_finite() && self.band > 0.0, "shed.band", || {
            format!("is {}, must be more than 0", self.band)
        });
        let within = (0.0..self.begin[0]).contains(&self.hysteresis);
        mistakes.unless(within, "shed.hysteresis", || {
            let least = self.begin[0];
            format!("is {}, must be from 0 to less than {least}, the lowest begin", self.hysteresis)
        });
        mistakes.into_vec()
    }
}

/// What is known of a request that wants in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// How much it matters.
    pub criticality: Criticality,
    /// The present share of capacity in use, 0 when idle; more than 1 when some wait for their turn. What
    /// is no number counts as full.
    pub load: f64,
    /// What its caller still waits; `None` when nobody does.
    pub left: Option<Duration>,
    /// What such work needs at least, as [`Needs`] has observed it: it is refused only when next to none of
    /// its kind would be done in time. `None` when nobody knows.
    pub needs: Option<Duration>,
}

/// May the request come in?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Yes.
    Admitted,
    /// No: there is too much to do, and other work matters more.
    Overloaded {
        /// When to come back.
        retry_after: Duration,
    },
    /// No: it would not be done before its caller hangs up.
    TooLate,
}

/// An answer, and what the load has changed for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// May this request come in?
    pub entry: Entry,
    /// Set when levels have begun or ceased to be refused: one of the threads that saw it reports it.
    pub change: Option<Change>,
}

/// Other levels are refused than before, in part or whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The most important level that was being refused, with all below it; `None` when none was.
    pub from: Option<Criticality>,
    /// The same from now on.
    pub to: Option<Criticality>,
}

/// The load shedder of a service or dependency, shared by reference.
#[derive(Debug)]
pub struct Shed {
    config: ShedConfig,
    /// How many levels are being refused, counted from the least important.
    refusing: AtomicU8,
}

impl Shed {
    /// A shedder that refuses nothing yet.
    #[must_use]
    pub fn new(config: ShedConfig) -> Self {
        Self { config, refusing: AtomicU8::new(0) }
    }

    /// May `work` come in? `lot` decides who of a level is among the refused.
    pub fn ask(&self, work: Work, lot: Lot) -> Answer {
        if let (Some(left), Some(needs)) = (work.left, work.needs)
            && left < needs
        {
            return Answer { entry: Entry::TooLate, change: None };
        }
        let load = if work.load.is_nan() { 1.0 } else { work.load };
        let (refusing, change) = self.tell(load);
        let refused = lot.share() < self.share_refused(refusing, work.criticality, load);
        let entry = if refused {
            let wait = self.config.retry_after;
            Entry::Overloaded { retry_after: wait.saturating_add(wait.mul_f64(lot.spread())) }
        } else {
            Entry::Admitted
        };
        Answer { entry, change }
    }

    /// The most important level of which a part is being refused, with all below it; `None` when none is.
    #[must_use]
    pub fn refusing(&self) -> Option<Criticality> {
        last_of(self.refusing.load(Ordering::Relaxed))
    }

    /// The settings.
    #[must_use]
    pub const fn config(&self) -> &ShedConfig {
        &self.config
    }

    /// Takes note of the load, and answers with the number of levels that are refused at it.
    fn tell(&self, load: f64) -> (u8, Option<Change>) {
        let before = self.refusing.load(Ordering::Relaxed);
        let mut after = 0;
        for begin in self.config.begin {
            let threshold = if after < before { begin - self.config.hysteresis } else { begin };
            if load < threshold {
                break;
            }
            after += 1;
        }
        // Who changes nothing writes nothing. Of threads that disagree either may win, as both have seen
        // a load of just now.
        let changed = after != before
            && self
                .refusing
                .compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        let change = changed.then(|| Change { from: last_of(before), to: last_of(after) });
        (after, change)
    }

    fn share_refused(&self, refusing: u8, level: Criticality, load: f64) -> f64 {
        if level.index() >= usize::from(refusing) {
            return 0.0;
        }
        // The ramp starts where refusals end again, so that they end as a trickle, not as a step.
        let start = self.config.begin[level.index()] - self.config.hysteresis;
        ((load - start) / self.config.band).clamp(0.0, 1.0)
    }
}

fn last_of(refusing: u8) -> Option<Criticality> {
    Criticality::ALL.get(usize::from(refusing).checked_sub(1)?).copied()
}
