//! Header names, and the one way in which headers are copied to a retry, a dead letter or a replay.

use std::collections::BTreeMap;

use crate::time::WallTime;

/// A message's headers. Names are compared without regard to case.
pub type Headers = BTreeMap<String, String>;

/// Attempts that have ended without success, in this queue.
pub const ATTEMPTS: &str = "x-attempts";
/// The queue that [`ATTEMPTS`] counts for. A count for another queue is none of ours.
pub const ATTEMPTS_QUEUE: &str = "x-attempts-queue";
/// The id of the request that everything began with.
pub const REQUEST_ID: &str = "x-request-id";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state, passed on untouched.
pub const TRACESTATE: &str = "tracestate";
/// When a person put the message back, RFC 3339.
pub const REPLAYED: &str = "x-replayed";
/// Who put the message back.
pub const REPLAYED_BY: &str = "x-replayed-by";
/// Why the message was put back, if they said.
pub const REPLAY_REASON: &str = "x-replay-reason";
/// When the first attempt failed, RFC 3339.
pub const FIRST_FAILURE: &str = "x-first-failure";
/// When the last attempt failed, RFC 3339.
pub const LAST_FAILURE: &str = "x-last-failure";
/// The host that the last attempt failed on.
pub const FAILURE_HOST: &str = "x-failure-host";
/// The version of the program that the last attempt failed in.
pub const FAILURE_VERSION: &str = "x-failure-version";
/// What the last failed attempt said.
pub const LAST_ERROR: &str = "x-last-error";
/// Why the message was given up: `poison`, `undecodable`, `attempts-spent` or `crashes`.
pub const DEAD_REASON: &str = "x-dead-reason";
/// Not to be handled before this time, in milliseconds since the Unix epoch.
pub const NOT_BEFORE: &str = "x-not-before-ms";

/// Most bytes of an error text in a header; longer ones are cut. Brokers bound a frame of headers.
pub const ERROR_BYTES_MAX: usize = 1_024;

/// Headers that are never copied to another message, whatever their case.
///
/// `x-death` and its kin are the broker's own; copied, they made RabbitMQ before 4.0.1 drop the
/// message as a cycle. `user_id` closes the channel, `CC` and `BCC` deliver extra copies, and
/// `expiration` would let the message vanish from the queue it goes to.
pub const NEVER_COPIED: [&str; 14] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    "x-delivery-count",
    "x-acquired-count",
    "user_id",
    "user-id",
    "cc",
    "bcc",
    "expiration",
];

/// The value of `name`, whatever its case.
#[must_use]
pub fn get<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    let exact = headers.get(name);
    exact
        .or_else(|| headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v))
        .map(String::as_str)
}

/// What may travel on: everything but [`NEVER_COPIED`].
#[must_use]
pub fn carried(headers: &Headers) -> Headers {
    headers.iter().filter(|(name, _)| travels(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// May a header of this name travel on?
#[must_use]
pub fn travels(name: &str) -> bool {
    !NEVER_COPIED.iter().any(|banned| banned.eq_ignore_ascii_case(name))
}

/// Sets `name`, replacing a spelling of it in another case.
pub fn set(headers: &mut Headers, name: &str, value: impl Into<String>) {
    remove(headers, name);
    headers.insert(name.to_owned(), value.into());
}

/// Removes `name`, whatever its case.
pub fn remove(headers: &mut Headers, name: &str) {
    headers.retain(|key, _| !key.eq_ignore_ascii_case(name));
}

/// Attempts so far as the headers tell them, and a note when they could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    /// Attempts that ended without success; 0 when the header is missing or unreadable.
    pub made: u32,
    /// The header was there and made no sense.
    pub unreadable: bool,
}

/// Reads the attempts made in `queue`, trusting nothing: missing is 0, garbage is 0 with a note,
/// a count made for another queue is 0.
#[must_use]
pub fn attempts(headers: &Headers, queue: &str) -> Attempts {
    let foreign = get(headers, ATTEMPTS_QUEUE).is_some_and(|counted_for| counted_for != queue);
    match get(headers, ATTEMPTS) {
        Some(text) if !foreign => match text.trim().parse() {
            Ok(made) => Attempts { made, unreadable: false },
            Err(_) => Attempts { made: 0, unreadable: true },
        },
        _ => Attempts { made: 0, unreadable: false },
    }
}

/// The time before which the message is not to be handled, if it names a readable one.
#[must_use]
pub fn not_before(headers: &Headers) -> Option<WallTime> {
    get(headers, NOT_BEFORE)?.trim().parse().ok().map(WallTime::from_unix_millis)
}

/// The headers of a copy after a failed attempt in `queue`: one attempt more, the failure's
/// history, everything else as it was.
#[must_use]
pub fn after_failure(
    headers: &Headers,
    queue: &str,
    attempts: u32,
    error: &str,
    now: WallTime,
) -> Headers {
    let mut copy = carried(headers);
    set(&mut copy, ATTEMPTS, attempts.to_string());
    set(&mut copy, ATTEMPTS_QUEUE, queue);
    if get(&copy, FIRST_FAILURE).is_none() {
        set(&mut copy, FIRST_FAILURE, now.to_string());
    }
    set(&mut copy, LAST_FAILURE, now.to_string());
    set(&mut copy, LAST_ERROR, clean(error));
    remove(&mut copy, NOT_BEFORE);
    copy
}

/// Writes down where an attempt failed.
pub fn failed_at(headers: &mut Headers, host: &str, version: &str) {
    set(headers, FAILURE_HOST, clean(host));
    set(headers, FAILURE_VERSION, clean(version));
}

/// The headers of a message that `actor` puts back from the dead-letter queue, for a `reason` that
/// may be empty: attempts start over, the history and the trace stay.
#[must_use]
pub fn replayed(
    headers: &Headers,
    queue: &str,
    actor: &str,
    reason: &str,
    now: WallTime,
) -> Headers {
    let mut copy = carried(headers);
    set(&mut copy, ATTEMPTS, "0");
    set(&mut copy, ATTEMPTS_QUEUE, queue);
    set(&mut copy, REPLAYED, now.to_string());
    for (name, said) in [(REPLAYED_BY, clean(actor)), (REPLAY_REASON, clean(reason))] {
        remove(&mut copy, name);
        if !said.trim().is_empty() {
            set(&mut copy, name, said);
        }
    }
    remove(&mut copy, NOT_BEFORE);
    remove(&mut copy, DEAD_REASON);
    copy
}

/// One line of at most [`ERROR_BYTES_MAX`] bytes, without control characters.
pub(super) fn clean(error: &str) -> String {
    let mut text = String::new();
    for c in error.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if text.len() + c.len_utf8() > ERROR_BYTES_MAX {
            break;
        }
        text.push(c);
    }
    text
}
