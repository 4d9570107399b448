//! Idempotency keys: which of several requests with one key may do the work.
//!
//! The rules are those of the draft *The Idempotency-Key HTTP Header Field* (-07): the same key with
//! another payload is an error (422), a key whose first request still runs is a conflict (409), and
//! a finished one gets the first answer again, success or not. Beyond the draft, a claim is a lease
//! with an epoch: when its owner dies, the next request takes over with a higher epoch, and the old
//! owner, should it come back, can change nothing.

use std::fmt;
use std::time::Duration;

use crate::limits::IDEMPOTENCY_KEY_BYTES_MAX;
use crate::table::{Row, Table};
use crate::time::WallTime;

/// What is known of a key, as kept in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The payload that the key stands for, hashed by the caller.
    pub fingerprint: String,
    /// Grows with each grant; fences off an owner whose lease ran out. Starts at 1.
    pub epoch: i64,
    /// After this the key is forgotten and stands for nothing.
    pub keep_until: WallTime,
    /// How far the work has come.
    pub phase: Phase,
}

/// How far the work of a key has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Somebody does it right now, and may until the lease ends.
    Running {
        /// From this time on another request may take over.
        lease_until: WallTime,
    },
    /// The owner gave it back: nothing was done.
    Released,
    /// It is done and its answer is kept.
    Completed,
}

/// Why a request may do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GrantReason {
    /// The key was never seen, or so long ago that it is forgotten.
    Fresh,
    /// An earlier owner gave it back.
    Released,
    /// An earlier owner's lease ran out: it died, and what it did may be half done outside this
    /// database.
    LeaseExpired,
}

/// May this request do the work?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Yes: keep `record` and do it.
    Grant {
        /// The row to keep.
        record: Record,
        /// Why it was granted.
        reason: GrantReason,
    },
    /// Not now: another request holds the key (409).
    InProgress {
        /// When its lease ends.
        until: WallTime,
    },
    /// It is done: answer as before.
    Replay,
    /// The key stands for another payload (422).
    Mismatch,
}

/// What an owner reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// The work is done and its answer is to be kept.
    Complete,
    /// Nothing was done; the next request may try.
    Release,
}

/// A report that does not fit the record; nothing changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Another request took the key over, or it was forgotten.
    Fenced,
    /// The answer is kept already.
    AlreadyCompleted,
    /// The owner itself gave the key back before.
    AlreadyReleased,
}

/// States of the transition table: [`Phase`] without its data, and the absence of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// No record.
    Absent,
    /// [`Phase::Running`].
    Running,
    /// [`Phase::Released`].
    Released,
    /// [`Phase::Completed`].
    Completed,
}

/// Events of the transition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A request with the same payload, in time.
    Claim,
    /// A request with the same payload after the running owner's lease.
    ClaimAfterLease,
    /// A request with another payload.
    ClaimOtherPayload,
    /// Any request after the retention.
    ClaimAfterRetention,
    /// The current owner's [`Report::Complete`].
    Complete,
    /// The current owner's [`Report::Release`].
    Release,
}

/// Every transition of a key.
pub const TABLE: Table<State, Event> = Table {
    name: "idempotency key",
    rows: &[
        row(State::Absent, Event::Claim, State::Running, "granted"),
        row(State::Running, Event::Claim, State::Running, "in progress (409)"),
        row(State::Running, Event::ClaimAfterLease, State::Running, "granted, epoch + 1"),
        row(State::Running, Event::ClaimOtherPayload, State::Running, "mismatch (422)"),
        row(State::Running, Event::ClaimAfterRetention, State::Running, "granted, epoch + 1"),
        row(State::Running, Event::Complete, State::Completed, "the answer is kept"),
        row(State::Running, Event::Release, State::Released, "nothing was done"),
        row(State::Released, Event::Claim, State::Running, "granted, epoch + 1"),
        row(State::Released, Event::ClaimOtherPayload, State::Released, "mismatch (422)"),
        row(State::Released, Event::ClaimAfterRetention, State::Running, "granted, epoch + 1"),
        row(State::Completed, Event::Claim, State::Completed, "replayed"),
        row(State::Completed, Event::ClaimOtherPayload, State::Completed, "mismatch (422)"),
        row(State::Completed, Event::ClaimAfterRetention, State::Running, "granted, epoch + 1"),
    ],
};

const fn row(from: State, on: Event, to: State, why: &'static str) -> Row<State, Event> {
    Row { from, on, to, why }
}

/// May a request with `fingerprint` do the work of a key with this `record`?
///
/// The checks run from "stands for something else" to "is free". The fingerprint comes before the
/// lease: a key whose owner died still stands for that owner's payload.
#[must_use]
pub fn ask(
    now: WallTime,
    record: Option<&Record>,
    fingerprint: &str,
    lease: Duration,
    retention: Duration,
) -> Decision {
    let grant = |epoch: i64, reason| Decision::Grant {
        record: Record {
            fingerprint: fingerprint.to_owned(),
            epoch,
            keep_until: now.plus(retention.max(lease)),
            phase: Phase::Running { lease_until: now.plus(lease) },
        },
        reason,
    };
    let Some(record) = record else { return grant(1, GrantReason::Fresh) };
    // The epoch outlives the retention, so that an owner from before it stays fenced off.
    let next = record.epoch.saturating_add(1);
    match event_of_claim(now, record, fingerprint) {
        Event::ClaimOtherPayload => Decision::Mismatch,
        Event::ClaimAfterRetention => grant(next, GrantReason::Fresh),
        Event::ClaimAfterLease => grant(next, GrantReason::LeaseExpired),
        Event::Claim | Event::Complete | Event::Release => match record.phase {
            Phase::Running { lease_until } => Decision::InProgress { until: lease_until },
            Phase::Released => grant(next, GrantReason::Released),
            Phase::Completed => Decision::Replay,
        },
    }
}

/// Which event of the table a claim is.
#[must_use]
pub fn event_of_claim(now: WallTime, record: &Record, fingerprint: &str) -> Event {
    if now >= record.keep_until {
        return Event::ClaimAfterRetention;
    }
    if record.fingerprint != fingerprint {
        return Event::ClaimOtherPayload;
    }
    match record.phase {
        Phase::Running { lease_until } if now >= lease_until => Event::ClaimAfterLease,
        Phase::Running { .. } | Phase::Released | Phase::Completed => Event::Claim,
    }
}

/// Takes the report of the owner with `epoch` and answers with the record to keep.
///
/// An owner whose lease ran out but whom nobody replaced is still the owner: its work is as good as
/// ever, and refusing it would only do it twice.
///
/// # Errors
/// [`Unfit`] when the report comes from a former owner or for the second time.
pub fn tell(record: Option<&Record>, epoch: i64, report: Report) -> Result<Record, Unfit> {
    let Some(record) = record.filter(|record| record.epoch == epoch) else {
        return Err(Unfit::Fenced);
    };
    let phase = match (record.phase, report) {
        (Phase::Running { .. }, Report::Complete) => Phase::Completed,
        (Phase::Running { .. }, Report::Release) => Phase::Released,
        (Phase::Completed, Report::Complete | Report::Release) => {
            return Err(Unfit::AlreadyCompleted);
        }
        (Phase::Released, Report::Complete | Report::Release) => {
            return Err(Unfit::AlreadyReleased);
        }
    };
    Ok(Record { phase, ..record.clone() })
}

impl Record {
    /// The state of the transition table that this record is in.
    #[must_use]
    pub const fn state(&self) -> State {
        match self.phase {
            Phase::Running { .. } => State::Running,
            Phase::Released => State::Released,
            Phase::Completed => State::Completed,
        }
    }
}

/// A key as a client sent it: 1 to 255 bytes of printable ASCII.
///
/// ```
/// use mamparo_core::message::idempotency::IdempotencyKey;
///
/// let quoted = IdempotencyKey::parse("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"").unwrap();
/// let bare = IdempotencyKey::parse("8e03978e-40d5-43dd-bc93-6894a57f9324").unwrap();
/// assert_eq!(quoted, bare);
/// assert_eq!(bare.to_header(), "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

/// Why a header value is no idempotency key. Positions count bytes from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// There is nothing in it.
    Empty,
    /// It is longer than [`IDEMPOTENCY_KEY_BYTES_MAX`].
    TooLong {
        /// How long it is.
        bytes: usize,
    },
    /// It begins with a quote and never ends with one.
    Unterminated,
    /// A backslash stands before something other than a quote or a backslash.
    Escape {
        /// Where the backslash stands.
        at: usize,
    },
    /// A byte that has no place there.
    Byte {
        /// Where it stands.
        at: usize,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the idempotency key is empty"),
            Self::TooLong { bytes } => write!(
                f,
                "the idempotency key has {bytes} bytes, at most {IDEMPOTENCY_KEY_BYTES_MAX} are allowed"
            ),
            Self::Unterminated => write!(f, "the idempotency key lacks its closing quote"),
            Self::Escape { at } => {
                write!(f, "the backslash at byte {at} of the idempotency key escapes nothing")
            }
            Self::Byte { at } => write!(f, "byte {at} has no place in an idempotency key"),
        }
    }
}

impl std::error::Error for KeyError {}

impl IdempotencyKey {
    /// Reads a header value: a Structured Field String (RFC 9651 §4.2.5), its parameters ignored, or,
    /// leniently, a bare token, which most clients send.
    ///
    /// # Errors
    /// [`KeyError`] says what is wrong and where.
    pub fn parse(value: &str) -> Result<Self, KeyError> {
        let trimmed = value.trim_matches([' ', '\t']);
        let offset = value.len() - value.trim_start_matches([' ', '\t']).len();
        let key = match trimmed.strip_prefix('"') {
            Some(rest) => quoted(rest, offset + 1)?,
            None => bare(trimmed, offset)?,
        };
        match key.len() {
            0 => Err(KeyError::Empty),
            bytes if bytes > IDEMPOTENCY_KEY_BYTES_MAX => Err(KeyError::TooLong { bytes }),
            _ => Ok(Self(key)),
        }
    }

    /// The key without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key as it is sent: a quoted Structured Field String.
    #[must_use]
    pub fn to_header(&self) -> String {
        format!("\"{}\"", self.0.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// The inside of a quoted string; `offset` is where `rest` begins in the header value.
fn quoted(rest: &str, offset: usize) -> Result<String, KeyError> {
    let mut key = String::new();
    let mut bytes = rest.bytes().enumerate();
    while let Some((index, byte)) = bytes.next() {
        match byte {
            b'"' => {
                return parameters(&rest.as_bytes()[index + 1..], offset + index + 1).map(|()| key);
            }
            b'\\' => match bytes.next() {
                Some((_, escaped @ (b'"' | b'\\'))) => key.push(char::from(escaped)),
                Some(_) | None => return Err(KeyError::Escape { at: offset + index }),
            },
            0x20..=0x7e => key.push(char::from(byte)),
            _ => return Err(KeyError::Byte { at: offset + index }),
        }
    }
    Err(KeyError::Unterminated)
}

/// What may follow the closing quote: nothing, or parameters, which mean nothing to us.
fn parameters(rest: &[u8], offset: usize) -> Result<(), KeyError> {
    match rest.iter().position(|byte| !matches!(byte, 0x20..=0x7e)) {
        Some(index) => Err(KeyError::Byte { at: offset + index }),
        None if rest.is_empty() || rest[0] == b';' => Ok(()),
        None => Err(KeyError::Byte { at: offset }),
    }
}

/// A bare key: visible ASCII without the characters that structure a field.
fn bare(value: &str, offset: usize) -> Result<String, KeyError> {
    let fits = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\');
    match value.as_bytes().iter().position(|byte| !fits(byte)) {
        Some(index) => Err(KeyError::Byte { at: offset + index }),
        None => Ok(value.to_owned()),
    }
}
