//! Which messages this consumer has applied lately.
//!
//! A copy that a publisher sent twice mostly comes within seconds. Who finds it here asks the inbox
//! before working for it; everybody else is spared that question, because the inbox row that is
//! inserted with the effects decides anyway.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, PoisonError};

/// So many ids are remembered, a few minutes' worth at a hundred messages a second: 400 kB.
const RECENT_MAX: usize = 16_384;

/// The ids, as hashes: a wrong hit costs one look into the inbox.
#[derive(Debug, Default)]
pub(super) struct Recent {
    seen: Mutex<(HashSet<u64>, VecDeque<u64>)>,
}

impl Recent {
    pub(super) fn contains(&self, id: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.0.contains(&hash(id))
    }

    pub(super) fn insert(&self, id: &str) {
        let hash = hash(id);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, order) = &mut *seen;
        if !known.insert(hash) {
            return;
        }
        order.push_back(hash);
        if order.len() > RECENT_MAX
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }
}

fn hash(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first() {
        let recent = Recent::default();
        for n in 0..=RECENT_MAX {
            recent.insert(&n.to_string());
            recent.insert(&n.to_string());
        }
        assert!(!recent.contains("0"));
        assert!(recent.contains("1") && recent.contains(&RECENT_MAX.to_string()));
        assert_eq!(recent.seen.lock().unwrap().1.len(), RECENT_MAX);
    }
}
