//! The verdict: each effect exactly once, none lost, order per key kept. Read from the books alone.

use std::collections::HashMap;

use serde::Serialize;

use crate::books::Effect;

/// What the effects of one queue say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Verdict {
    /// Messages that were sent.
    pub sent: u64,
    /// Different messages that had their effect.
    pub applied: u64,
    /// Effects beyond the first of a message.
    pub doubled: u64,
    /// Effects that came after a later one of their key.
    pub overtaken: u64,
}

impl Verdict {
    /// Reads the effects of a queue in the order of their commits.
    #[must_use]
    pub fn read(sent: u64, effects: &[Effect]) -> Self {
        let mut seen: HashMap<&str, ()> = HashMap::new();
        let mut last: HashMap<&str, i64> = HashMap::new();
        let mut verdict = Self { sent, ..Self::default() };
        for effect in effects {
            if seen.insert(&effect.message, ()).is_some() {
                verdict.doubled += 1;
                continue;
            }
            verdict.applied += 1;
            let last = last.entry(&effect.key).or_insert(0);
            if effect.seq < *last {
                verdict.overtaken += 1;
            }
            *last = effect.seq.max(*last);
        }
        verdict
    }

    /// Messages without an effect.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.applied)
    }

    /// Is everything as promised? Order is promised to a queue with one consumer process only.
    #[must_use]
    pub const fn holds(&self, ordered: bool) -> bool {
        self.lost() == 0 && self.doubled == 0 && (!ordered || self.overtaken == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(rows: &[(&str, &str, i64)]) -> Vec<Effect> {
        let of = |&(message, key, seq): &(&str, &str, i64)| Effect {
            message: message.to_owned(),
            key: key.to_owned(),
            seq,
        };
        rows.iter().map(of).collect()
    }

    #[test]
    fn each_promise_can_be_found_broken() {
        let good = effects(&[("a1", "a", 1), ("b1", "b", 1), ("a2", "a", 2)]);
        assert!(Verdict::read(3, &good).holds(true));
        assert_eq!(Verdict::read(4, &good).lost(), 1);
        let twice = effects(&[("a1", "a", 1), ("a1", "a", 1)]);
        assert_eq!(Verdict::read(1, &twice).doubled, 1);
        assert!(!Verdict::read(1, &twice).holds(false));
        let overtaken = effects(&[("a2", "a", 2), ("a1", "a", 1), ("b1", "b", 1)]);
        assert_eq!(Verdict::read(3, &overtaken).overtaken, 1);
        assert!(Verdict::read(3, &overtaken).holds(false));
        assert!(!Verdict::read(3, &overtaken).holds(true));
    }
}
