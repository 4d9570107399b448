//! What is overdue, and whether to act on it.
//!
//! Every state that is not final has a deadline, set on entry and stored with the row: a deadline
//! computed from "last updated" moves whenever anything touches the row. The watchdog only says
//! that a deadline has passed; the saga's own table decides what follows, under the same
//! compare-and-set as every other event. There is no second way to move a saga.

use std::time::Duration;

use crate::time::WallTime;

/// How the watchdog works. Defaults: every 60 s, at most 100 a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watchdog {
    /// Time between two cycles. Default 60 s.
    pub every: Duration,
    /// Most sagas that one cycle moves. Default 100. What is left over comes in the next cycle,
    /// which then starts at once.
    pub batch: u32,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), batch: 100 }
    }
}

/// What the watchdog knows of one saga.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suspect {
    /// When the saga has to have left its state; `None` in a final state.
    pub deadline: Option<WallTime>,
    /// Is there a message about this saga among the dead letters? Then a consumer's bug, and not
    /// the saga, may be what is late, and cancelling would turn it into a refund.
    pub failed_message: bool,
    /// How many sagas this cycle has moved already.
    pub moved: u32,
}

/// What to do about a suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its time has not come, or it is over anyway.
    Leave,
    /// Tell the saga that its deadline has passed.
    Expire,
    /// Overdue, but not for the watchdog to decide: report it to people.
    Hold,
    /// Overdue, and the cycle is full: the next one takes it.
    Later,
}

impl Watchdog {
    /// What about this saga?
    #[must_use]
    pub fn ask(&self, now: WallTime, suspect: &Suspect) -> Verdict {
        match suspect.deadline {
            None => Verdict::Leave,
            Some(deadline) if now < deadline => Verdict::Leave,
            Some(_) if suspect.failed_message => Verdict::Hold,
            Some(_) if suspect.moved >= self.batch => Verdict::Later,
            Some(_) => Verdict::Expire,
        }
    }

    /// How long until the next cycle, after one that moved `moved` sagas.
    #[must_use]
    pub fn pause(&self, moved: u32) -> Duration {
        if moved >= self.batch { Duration::ZERO } else { self.every }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: WallTime = WallTime::from_unix_millis(1_000_000);

    fn suspect(deadline: Option<WallTime>) -> Suspect {
        Suspect { deadline, failed_message: false, moved: 0 }
    }

    #[test]
    fn messages_c30_a_deadline_never_fires_early() {
        let watchdog = Watchdog::default();
        let before = WallTime::from_unix_millis(T.unix_millis() - 1);
        assert_eq!(watchdog.ask(before, &suspect(Some(T))), Verdict::Leave);
        assert_eq!(watchdog.ask(T, &suspect(Some(T))), Verdict::Expire);
        assert_eq!(watchdog.ask(T, &suspect(None)), Verdict::Leave);
    }

    #[test]
    fn lesson_w05_a_full_cycle_is_followed_at_once_by_the_next() {
        let watchdog = Watchdog::default();
        let full = Suspect { moved: 100, ..suspect(Some(T)) };
        assert_eq!(watchdog.ask(T, &full), Verdict::Later);
        assert_eq!(watchdog.pause(100), Duration::ZERO);
        assert_eq!(watchdog.pause(99), Duration::from_secs(60));
    }

    #[test]
    fn lesson_w13_a_dead_letter_of_the_saga_holds_the_watchdog_back() {
        let held = Suspect { failed_message: true, ..suspect(Some(T)) };
        assert_eq!(Watchdog::default().ask(T, &held), Verdict::Hold);
    }
}
