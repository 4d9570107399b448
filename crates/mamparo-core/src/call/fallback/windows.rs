//! For how long a remembered value may be served, and on which condition.

use std::time::Duration;

use crate::call::mistake::{Mistake, Mistakes};
use crate::limits::STALE_MAX;

/// The windows of a remembered value, one after the other (RFC 5861).
///
/// The default never serves without asking, and stands in for a day when the dependency fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// While it is younger than this, it is served without asking anybody. Default 0.
    pub fresh_for: Duration,
    /// For so long after that it is served at once while one caller fetches a newer one
    /// (`stale-while-revalidate`). Default 0. At most 7 days ([`STALE_MAX`]).
    pub while_revalidate: Duration,
    /// For so long after `fresh_for` it is served when the dependency fails (`stale-if-error`).
    /// Default 24 h. At most 7 days ([`STALE_MAX`]).
    pub if_error: Duration,
    /// Forbids both kinds of staleness (`must-revalidate`). Default `false`.
    pub must_revalidate: bool,
}

impl Default for Windows {
    fn default() -> Self {
        Self {
            fresh_for: Duration::ZERO,
            while_revalidate: Duration::ZERO,
            if_error: Duration::from_secs(24 * 60 * 60),
            must_revalidate: false,
        }
    }
}

/// What a remembered value is good for at its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Serve it.
    Fresh,
    /// Serve it, and let one caller fetch a newer one.
    Revalidate,
    /// Fetch a newer one; serve this one if that fails.
    IfError,
    /// Fetch a newer one; this one is good for nothing any more.
    Expired,
}

impl Windows {
    /// What a value is good for at `age`. Each window ends before its last moment: a value with
    /// `fresh_for` 0 is never fresh.
    #[must_use]
    pub fn standing(&self, age: Duration) -> Standing {
        if age < self.fresh_for {
            return Standing::Fresh;
        }
        let stale_for = age.saturating_sub(self.fresh_for);
        if self.must_revalidate {
            Standing::Expired
        } else if stale_for < self.while_revalidate.min(STALE_MAX) {
            Standing::Revalidate
        } else if stale_for < self.if_error.min(STALE_MAX) {
            Standing::IfError
        } else {
            Standing::Expired
        }
    }

    /// Does a value of this `age` stand in when the dependency has failed?
    #[must_use]
    pub fn stands_in(&self, age: Duration) -> bool {
        match self.standing(age) {
            Standing::Fresh | Standing::Revalidate | Standing::IfError => true,
            Standing::Expired => false,
        }
    }

    /// Whole seconds for which a value of this `age` stays fresh, rounded down; negative when it is
    /// stale, by the seconds since it was fresh, rounded away from zero (`ttl` of RFC 9211).
    #[must_use]
    pub fn ttl_seconds(&self, age: Duration) -> i64 {
        let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
        if let Some(left) = self.fresh_for.checked_sub(age).filter(|left| !left.is_zero()) {
            return whole(left.as_secs());
        }
        let stale_for = age.saturating_sub(self.fresh_for);
        let up = u64::from(stale_for.subsec_nanos() > 0);
        -whole(stale_for.as_secs().saturating_add(up))
    }

    /// The values that can't be meant, under keys such as `cache.stale_if_error`.
    #[must_use]
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut mistakes = Mistakes::new();
        for (key, window) in [
            ("cache.stale_while_revalidate", self.while_revalidate),
            ("cache.stale_if_error", self.if_error),
        ] {
            mistakes.unless(window <= STALE_MAX, key, || {
                format!("is {window:?}, must be at most {STALE_MAX:?}")
            });
        }
        mistakes.into_vec()
    }
}
