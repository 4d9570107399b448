//! What the database's error codes mean for whoever asked: one table for each database.
//!
//! Sources: PostgreSQL 15 manual, appendix A; `sqlite3.h`, primary and extended result codes.

use std::error::Error;

use mamparo_core::message::transaction::Class;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::sqlite::SqliteError;

use crate::StoreError;

/// SQLSTATEs, the longest fitting entry first: five characters are a code, two are its class.
pub const SQLSTATES: &[(&str, Class, &str)] = &[
    ("40001", Class::RetryWhole, "serialization failure"),
    ("40P01", Class::RetryWhole, "deadlock"),
    ("40000", Class::RetryWhole, "transaction rollback"),
    ("40003", Class::OutcomeUnknown, "statement completion unknown"),
    ("08007", Class::OutcomeUnknown, "transaction resolution unknown"),
    ("55P03", Class::LockBusy, "lock not available, or lock_timeout"),
    ("55006", Class::LockBusy, "object in use"),
    ("57P01", Class::Reconnect, "admin shutdown, or our backend terminated"),
    ("57P02", Class::Reconnect, "crash shutdown"),
    ("57P03", Class::Reconnect, "cannot connect now: starting or stopping"),
    ("57P05", Class::Reconnect, "idle session timeout"),
    ("25P03", Class::Reconnect, "idle in transaction: the server has ended the session"),
    ("53300", Class::Reconnect, "too many connections"),
    ("25006", Class::ReadOnly, "read-only transaction: an old primary after a failover"),
    ("57014", Class::Deadline, "canceled, or statement_timeout"),
    ("25P04", Class::Deadline, "transaction_timeout"),
    ("26000", Class::Reprepare, "no such prepared statement: a pooler in between"),
    ("42P05", Class::Reprepare, "prepared statement exists: a pooler in between"),
    ("23505", Class::Duplicate, "unique violation"),
    ("XX001", Class::StopIntake, "data corrupted"),
    ("XX002", Class::StopIntake, "index corrupted"),
    ("08", Class::Reconnect, "connection exception"),
    ("53", Class::StopIntake, "disk full, out of memory"),
    ("58", Class::StopIntake, "I/O error"),
    ("22", Class::Permanent, "bad data"),
    ("23", Class::Permanent, "constraint violation"),
    ("42", Class::Permanent, "syntax error, access rule, unknown table"),
];

/// SQLite's result codes: extended ones first, then primary ones, which are the low byte.
pub const SQLITE_CODES: &[(i32, Class, &str)] = &[
    (517, Class::RetryWhole, "BUSY_SNAPSHOT: read, then somebody else wrote"),
    (1555, Class::Duplicate, "CONSTRAINT_PRIMARYKEY"),
    (2067, Class::Duplicate, "CONSTRAINT_UNIQUE"),
    (2579, Class::Duplicate, "CONSTRAINT_ROWID"),
    (5, Class::LockBusy, "BUSY: another process is writing"),
    (6, Class::LockBusy, "LOCKED: another connection of ours is writing"),
    (15, Class::LockBusy, "PROTOCOL: the WAL's locks are contended"),
    (8, Class::ReadOnly, "READONLY"),
    (9, Class::Deadline, "INTERRUPT"),
    (17, Class::Reprepare, "SCHEMA"),
    (7, Class::StopIntake, "NOMEM"),
    (10, Class::StopIntake, "IOERR"),
    (11, Class::StopIntake, "CORRUPT"),
    (13, Class::StopIntake, "FULL"),
    (14, Class::StopIntake, "CANTOPEN"),
    (26, Class::StopIntake, "NOTADB"),
    (19, Class::Permanent, "CONSTRAINT"),
    (1, Class::Permanent, "ERROR: bad SQL"),
];

/// PostgreSQL reports a statement whose result type has changed under it as "feature not
/// supported"; only the text tells it from features that really are not.
const CHANGED_PLAN: &str = "cached plan must not change result type";

/// What `error` means. Codes that are in no table are [`Class::Permanent`]: what is not known to
/// help is not repeated.
#[must_use]
pub fn class_of(error: &sqlx::Error) -> Class {
    use sqlx::Error as E;
    if let E::Database(database) = error {
        let code = database.code().unwrap_or_default();
        if database.try_downcast_ref::<SqliteError>().is_some() {
            return code.parse().map_or(Class::Permanent, sqlite);
        }
        let changed = code == "0A000" && database.message().contains(CHANGED_PLAN);
        if changed {
            return Class::Reprepare;
        }
        return if turned_away(&code, &**database) { Class::Reconnect } else { sqlstate(&code) };
    }
    // `BeginFailed`: the server did not open a transaction, as a pooler that lost its server does.
    let gone = matches!(
        error,
        E::Io(_)
            | E::Tls(_)
            | E::Protocol(_)
            | E::WorkerCrashed
            | E::PoolTimedOut
            | E::PoolClosed
            | E::BeginFailed
    );
    if gone { Class::Reconnect } else { Class::Permanent }
}

/// What the first error of a database in `error` or its causes means; `None` when there is none.
#[must_use]
pub fn class_within(error: &(dyn Error + 'static)) -> Option<Class> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<StoreError>() {
            return Some(error.class());
        }
        if let Some(error) = error.downcast_ref::<sqlx::Error>() {
            return Some(class_of(error));
        }
        next = error.source();
    }
    None
}

/// Does the server let nobody into this database at present (`ALLOW_CONNECTIONS false`)? It says so
/// by 55000, "object not in prerequisite state", which many a statement can say, too: a `currval`
/// before its `nextval`, say. Only the server's refusal of a connection is fatal.
fn turned_away(code: &str, error: &dyn DatabaseError) -> bool {
    let severity = error.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
    code == "55000" && matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic))
}

fn sqlstate(code: &str) -> Class {
    let found = SQLSTATES.iter().find(|(entry, ..)| code.starts_with(entry));
    found.map_or(Class::Permanent, |(_, class, _)| *class)
}

fn sqlite(code: i32) -> Class {
    let find = |code| SQLITE_CODES.iter().find(|(entry, ..)| *entry == code);
    find(code).or_else(|| find(code & 0xff)).map_or(Class::Permanent, |(_, class, _)| *class)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Research table E2, row by row, and what stands beside it.
    #[test]
    fn every_sqlstate_has_its_class() {
        for (codes, class) in [
            (&["40001", "40P01"][..], Class::RetryWhole),
            (&["55P03"], Class::LockBusy),
            (
                &["57P01", "57P02", "57P03", "08000", "08003", "08006", "08001", "53300"],
                Class::Reconnect,
            ),
            (&["08007", "40003"], Class::OutcomeUnknown),
            (&["25006"], Class::ReadOnly),
            (&["57014", "25P04"], Class::Deadline),
            (&["26000"], Class::Reprepare),
            (&["23505"], Class::Duplicate),
            (&["53100", "53200", "58030", "XX001", "XX002"], Class::StopIntake),
            (&["22001", "22021", "23502", "23503", "23514", "42601", "42P01"], Class::Permanent),
            (&["25P02", "28P01", "3D000", "0A000", "XX000", "P0001", ""], Class::Permanent),
        ] {
            for code in codes {
                assert_eq!(sqlstate(code), class, "{code}");
            }
        }
        for (index, (code, class, _)) in SQLSTATES.iter().enumerate() {
            assert_eq!(sqlstate(code), *class, "{code} stands behind a shorter entry");
            assert!(SQLSTATES[..index].iter().all(|(other, ..)| other != code), "{code} twice");
        }
    }

    #[test]
    fn every_sqlite_code_has_its_class() {
        for (code, class, _) in SQLITE_CODES {
            assert_eq!(sqlite(*code), *class, "{code}");
        }
        // Extended codes that are in no row of their own go with their primary one.
        for (code, class) in [
            (261, Class::LockBusy),
            (262, Class::LockBusy),
            (778, Class::StopIntake),
            (1032, Class::ReadOnly),
            (787, Class::Permanent),
            (275, Class::Permanent),
            (25, Class::Permanent),
        ] {
            assert_eq!(sqlite(code), class, "{code}");
        }
    }

    #[test]
    fn a_class_is_found_under_any_number_of_wrappings() {
        #[derive(Debug, thiserror::Error)]
        #[error("refund")]
        struct Refund(#[source] StoreError);
        let lost = StoreError::Database { operation: "x", source: sqlx::Error::PoolTimedOut };
        assert_eq!(class_within(&Refund(lost)), Some(Class::Reconnect));
        assert_eq!(class_within(&std::fmt::Error), None);
    }
}
