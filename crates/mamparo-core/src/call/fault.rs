//! Faults on purpose: latency, errors, made-up values and panics for a share of the calls.
//!
//! A policy that never acted is a guess. Injected faults show in staging what timeouts, breakers and
//! fallbacks do, before a real one does (Basiri et al., "Chaos Engineering", IEEE Software 2016).
//! They stand innermost, where the transport would be, so that every policy takes them for real.
//!
//! What befalls a call depends on the seed and on the call's number or key, and on nothing else: a run
//! is replayed from its seed, and [`FaultConfig::decide`] says again what befell call 4711.

use std::time::Duration;

use crate::call::mistake::{Mistake, Mistakes};
use crate::limits::FAULT_LATENCY_MAX;
use crate::rng::{Rng, SeededRng};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Which faults befall which share of the calls. The default is switched off and injects nothing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultConfig {
    /// The switch. Shares without it do nothing, so that a policy file may keep them for the next
    /// game day. Never on in production. Default `false`.
    pub enabled: bool,
    /// The same seed makes the same decisions. Default 0.
    pub seed: u64,
    /// What a decision is drawn from. Default [`Draw::Call`].
    pub draw: Draw,
    /// Latency, drawn apart from the other faults: a slow call may fail besides. Default none.
    pub latency: Option<Latency>,
    /// Share of the calls that panic, from 0 to 1. Default 0.
    pub panic: f64,
    /// Share of the calls that end in an error instead of being made, from 0 to 1. Default 0.
    pub error: f64,
    /// Share of the calls that end with a made-up value instead of being made, from 0 to 1.
    /// Default 0. The three shares together are at most 1: a call ends in one way.
    pub outcome: f64,
}

/// What a decision is drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Draw {
    /// The call's number: each call is drawn anew.
    #[default]
    Call,
    /// The call's key: the same client always meets the same fault, and the others none. A call
    /// without a key is spared. A client that is hit at a share is hit at every larger one.
    Key,
}

/// Injected latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Share of the calls, from 0 to 1.
    pub share: f64,
    /// The shortest delay.
    pub least: Duration,
    /// The longest delay, at most 60 s ([`FAULT_LATENCY_MAX`]); delays are uniform in between.
    pub most: Duration,
}

/// How a call ends instead of being made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// With an error that looks like a real one; the host makes it.
    Error,
    /// With a value that the host makes up: a 200 with an empty list, say.
    Outcome,
    /// With a panic.
    Panic,
}

/// What befalls one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injection {
    /// The call's number or the hash of its key, which [`FaultConfig::decide`] takes.
    pub subject: u64,
    /// How long the call is held up first.
    pub delay: Option<Duration>,
    /// How it ends; `None` when it is made after the delay.
    pub instead: Option<Instead>,
}

impl FaultConfig {
    /// What befalls the call `subject`: its number, or [`key_hash`] of its key. `None` when nothing
    /// does, and always when the faults are switched off.
    #[must_use]
    pub fn decide(&self, subject: u64) -> Option<Injection> {
        if !self.enabled {
            return None;
        }
        // Both are mixed first: generators whose states are neighbours share most of their numbers.
        let mix = |n| SeededRng::new(n).next_u64();
        let mut rng = SeededRng::new(mix(self.seed) ^ mix(subject).rotate_left(32));
        let instead = self.instead(rng.unit());
        let delay = self.latency.filter(|latency| rng.chance(latency.share));
        let delay = delay.map(|latency| latency.draw(&mut rng));
        let befalls = delay.is_some() || instead.is_some();
        befalls.then_some(Injection { subject, delay, instead })
    }

    /// The values that can't be meant, under keys such as `faults.error`. Empty when it is sound.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        let ends = [
            ("faults.panic", self.panic),
            ("faults.error", self.error),
            ("faults.outcome", self.outcome),
        ];
        let latency = self.latency.map(|latency| ("faults.latency.share", latency.share));
        for (key, share) in ends.into_iter().chain(latency) {
            mistakes.unless((0.0..=1.0).contains(&share), key, || {
                format!("is {share}, must be from 0 to 1")
            });
        }
        let sum = self.panic + self.error + self.outcome;
        // Shares such as 0.6 + 0.3 + 0.1 don't add up to the last bit.
        mistakes.unless(sum.is_nan() || sum < 1.0 + 1e-9, "faults", || {
            format!("panic, error and outcome are {sum} together, at most 1")
        });
        if let Some(Latency { least, most, .. }) = self.latency {
            mistakes.unless(least <= most, "faults.latency.most", || {
                format!("is {most:?}, less than the least of {least:?}")
            });
            mistakes.unless(most <= FAULT_LATENCY_MAX, "faults.latency.most", || {
                format!("is {most:?}, must be at most {FAULT_LATENCY_MAX:?}")
            });
        }
        mistakes.into_vec()
    }

    /// Where on the line from 0 to 1 a call ends how: the shares lie side by side.
    fn instead(&self, drawn: f64) -> Option<Instead> {
        let mut end = 0.0;
        for (share, instead) in [
            (self.panic, Instead::Panic),
            (self.error, Instead::Error),
            (self.outcome, Instead::Outcome),
        ] {
            end += share;
            if drawn < end {
                return Some(instead);
            }
        }
        None
    }
}

impl Latency {
    fn draw(&self, rng: &mut impl Rng) -> Duration {
        let span = self.most.min(FAULT_LATENCY_MAX).saturating_sub(self.least);
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.least.min(FAULT_LATENCY_MAX).saturating_add(Duration::from_nanos(rng.up_to(span)))
    }
}

impl Instead {
    /// A short, stable word for metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Outcome => "outcome",
            Self::Panic => "panic",
        }
    }
}

/// The faults of one dependency: numbers the calls and decides for each.
#[derive(Debug)]
pub struct Faults {
    config: FaultConfig,
    calls: AtomicU64,
}

impl Faults {
    /// Begins at call 0.
    #[must_use]
    pub fn new(config: FaultConfig) -> Self {
        Self { config, calls: AtomicU64::new(0) }
    }

    /// The values.
    #[must_use]
    pub const fn config(&self) -> &FaultConfig {
        &self.config
    }

    /// What befalls this call; `key` is what stays the same for a client. Switched off, this reads
    /// one byte: no number is taken and nothing is drawn.
    #[inline]
    pub fn ask(&self, key: Option<&[u8]>) -> Option<Injection> {
        if !self.config.enabled {
            return None;
        }
        let subject = match self.config.draw {
            Draw::Call => self.calls.fetch_add(1, Ordering::Relaxed),
            Draw::Key => key_hash(key?),
        };
        self.config.decide(subject)
    }
}

/// The number that stands for a key: FNV-1a in 64 bits (Fowler, Noll, Vo), the same on every machine
/// and in every version, which the hashers of std don't promise.
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    crate::hash::fnv1a(key.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_lie_side_by_side_and_one_of_zero_has_no_room() {
        let config = FaultConfig { error: 0.5, outcome: 0.25, ..FaultConfig::default() };
        for (drawn, instead) in [
            (0.0, Some(Instead::Error)),
            (0.5_f64.next_down(), Some(Instead::Error)),
            (0.5, Some(Instead::Outcome)),
            (0.75, None),
        ] {
            assert_eq!(config.instead(drawn), instead, "{drawn}");
        }
        assert_eq!(FaultConfig::default().instead(0.0), None);
    }
}
