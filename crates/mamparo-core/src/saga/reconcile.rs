//! Two services compare what they believe, and one gives way.
//!
//! The net under the trapeze: it finds what the saga has let slip. Because it destroys (it gives
//! goods free), it wants positive evidence and has a cap: an empty or restored database on the
//! other side must not free the whole warehouse.

use std::time::Duration;

use crate::time::WallTime;

use super::order::OrderState;

/// What the owner of the truth says about a counterpart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// It is in this state.
    State(OrderState),
    /// The owner answered, in its own words, that it has never heard of it.
    Unknown,
    /// No answer, or one that proves nothing (a wrong route's 404, say).
    None,
}

/// How reconciliation works. Defaults: every hour, for reservations over 20 min old, giving up
/// when more than half of at least 10 looked at would be released for want of an order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reconciliation {
    /// Time between two runs. Default 1 h.
    pub every: Duration,
    /// Younger reservations are left to the saga. Default 20 min.
    pub older_than: Duration,
    /// Share of unknown orders above which the run holds. Default 0.5.
    pub unknown_share_max: f64,
    /// Below this many, the share says nothing. Default 10.
    pub unknown_share_from: u32,
}

impl Default for Reconciliation {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3_600),
            older_than: Duration::from_secs(1_200),
            unknown_share_max: 0.5,
            unknown_share_from: 10,
        }
    }
}

/// What to do about one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Both sides agree, or it is too young to tell.
    Keep,
    /// Give the goods free, and log the discrepancy as an error.
    Release,
    /// Something is wrong that releasing would not mend: log it as an error.
    Report,
}

impl Reconciliation {
    /// What about a reservation that was made at `reserved`?
    #[must_use]
    pub fn ask(&self, now: WallTime, reserved: WallTime, evidence: Evidence) -> Verdict {
        if now.since(reserved) < self.older_than {
            return Verdict::Keep;
        }
        match evidence {
            Evidence::State(OrderState::Confirmed) => Verdict::Keep,
            Evidence::State(OrderState::Cancelled) | Evidence::Unknown => Verdict::Release,
            // The watchdog should have ended it long ago; the goods are still spoken for.
            Evidence::State(OrderState::Pending | OrderState::StockReserved) => Verdict::Report,
            Evidence::None => Verdict::Keep,
        }
    }

    /// May a run that looked at `looked` reservations release `unknown` of them for want of an order?
    #[must_use]
    pub fn plausible(&self, looked: u32, unknown: u32) -> bool {
        looked < self.unknown_share_from
            || f64::from(unknown) <= self.unknown_share_max * f64::from(looked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lesson_r01_only_positive_evidence_releases() {
        let plan = Reconciliation::default();
        let reserved = WallTime::from_unix_millis(0);
        let later = reserved.plus(Duration::from_secs(1_200));
        for (evidence, verdict) in [
            (Evidence::State(OrderState::Confirmed), Verdict::Keep),
            (Evidence::State(OrderState::Cancelled), Verdict::Release),
            (Evidence::State(OrderState::Pending), Verdict::Report),
            (Evidence::State(OrderState::StockReserved), Verdict::Report),
            (Evidence::Unknown, Verdict::Release),
            (Evidence::None, Verdict::Keep),
        ] {
            assert_eq!(plan.ask(later, reserved, evidence), verdict, "{evidence:?}");
            let young = later.minus(Duration::from_millis(1));
            assert_eq!(plan.ask(young, reserved, evidence), Verdict::Keep, "{evidence:?}");
        }
    }

    #[test]
    fn lesson_r01_an_empty_database_on_the_other_side_frees_nothing() {
        let plan = Reconciliation::default();
        assert!(!plan.plausible(1_000, 1_000));
        assert!(!plan.plausible(10, 6));
        assert!(plan.plausible(10, 5));
        assert!(plan.plausible(9, 9));
    }
}
