//! A transaction that failed: may it run again, and when?
//!
//! The database's answer says three things apart: the transaction is undone and would go through
//! another time (a deadlock); the connection or the server is the trouble; or nobody knows whether
//! the commit happened. Only the first kind is repeated by itself. A commit whose answer was lost is
//! never repeated blindly: it may have happened, and then the repetition is a second effect.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::rng::Rng;

/// What an answer of the database means for whoever asked. Made from SQLSTATEs and SQLite's codes
/// by `mamparo-store`, which keeps the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Undone because of another transaction (deadlock, serialization failure): the whole of it may
    /// run again at once.
    RetryWhole,
    /// A lock was not to be had in time. Try again a little later, or do something else.
    LockBusy,
    /// The connection is gone or the server is starting, stopping or full. Connect again after a
    /// while; what was to be done is not to blame, so no attempt is counted.
    Reconnect,
    /// The answer to a commit was lost: it has happened or not. Look up a row of the transaction.
    OutcomeUnknown,
    /// The database only reads: a former primary after a failover, or a file without write access.
    /// Drop the pooled connections, because each of them says the same, and connect again.
    ReadOnly,
    /// The time that the statement had is over.
    Deadline,
    /// A prepared statement no longer fits the tables, or the pooler has lost it. Prepare it anew,
    /// once.
    Reprepare,
    /// A row with this key is there already: often the answer that was asked for, not a failure.
    Duplicate,
    /// Disk full, memory out, I/O error, corruption: take no more work and call somebody.
    StopIntake,
    /// Asking again gives the same answer: bad data, a violated constraint, a bug in the SQL.
    Permanent,
}

impl Class {
    /// Is the database away or out of order, and the work itself not to blame? A consumer pauses
    /// then and counts no attempt.
    #[must_use]
    pub const fn is_away(self) -> bool {
        match self {
            Self::LockBusy | Self::Reconnect | Self::ReadOnly | Self::StopIntake => true,
            Self::RetryWhole
            | Self::OutcomeUnknown
            | Self::Deadline
            | Self::Reprepare
            | Self::Duplicate
            | Self::Permanent => false,
        }
    }

    /// Is what was written to blame, so that the database goes on taking everything else?
    #[must_use]
    pub const fn blames_data(self) -> bool {
        match self {
            Self::Duplicate | Self::Permanent => true,
            Self::RetryWhole
            | Self::LockBusy
            | Self::Reconnect
            | Self::OutcomeUnknown
            | Self::ReadOnly
            | Self::Deadline
            | Self::Reprepare
            | Self::StopIntake => false,
        }
    }
}

/// How often a transaction is run again in process. Defaults: 3 attempts, waits of at most 50 ms and
/// 100 ms with full jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repeats {
    /// Attempts, the first included. Default 3.
    pub attempts: u32,
    /// Waits between them: base 50 ms, factor 2, cap 1 s, full jitter.
    pub backoff: Backoff,
}

impl Default for Repeats {
    fn default() -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), 2.0, Duration::from_secs(1));
        Self { attempts: 3, backoff }
    }
}

/// What follows a failed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run the whole of it again after a wait.
    Again {
        /// The wait.
        after: Duration,
    },
    /// Run the whole of it again at once on a connection without old prepared statements.
    AgainOnFresh,
    /// Tell the caller.
    GiveUp,
}

impl Repeats {
    /// What follows attempt `attempt` (counted from one), which failed with `class` and is undone?
    ///
    /// Deadlocks and serialization failures run again while attempts are left; a statement that must
    /// be prepared anew does so once, after the first attempt. All else is the caller's to decide.
    pub fn ask(&self, attempt: u32, class: Class, rng: &mut impl Rng) -> Decision {
        match class {
            Class::RetryWhole if attempt < self.attempts => {
                Decision::Again { after: self.backoff.delay(attempt, Duration::ZERO, rng) }
            }
            Class::Reprepare if attempt == 1 && self.attempts > 1 => Decision::AgainOnFresh,
            Class::RetryWhole
            | Class::Reprepare
            | Class::LockBusy
            | Class::Reconnect
            | Class::OutcomeUnknown
            | Class::ReadOnly
            | Class::Deadline
            | Class::Duplicate
            | Class::StopIntake
            | Class::Permanent => Decision::GiveUp,
        }
    }
}

/// Every class, for tables and their tests.
pub const CLASSES: [Class; 10] = [
    Class::RetryWhole,
    Class::LockBusy,
    Class::Reconnect,
    Class::OutcomeUnknown,
    Class::ReadOnly,
    Class::Deadline,
    Class::Reprepare,
    Class::Duplicate,
    Class::StopIntake,
    Class::Permanent,
];
