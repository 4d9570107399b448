//! What failed messages have in common: the class of an error text, and the group it falls into.
//!
//! "order 17 timed out after 2003 ms" and "order 18 timed out after 1998 ms" are one failure to the
//! person who is woken by them. The class is the text without what differs from one occurrence to
//! the next; the group is a short stable name of reason and class, the same on every host and after
//! every restart.

use std::fmt;
use std::str::FromStr;

use super::headers::{self, Headers};
use super::topology::consumer_of;
use crate::time::WallTime;

/// Most bytes of a class. What tells errors apart stands at their beginning.
pub const CLASS_BYTES_MAX: usize = 240;

/// Hexadecimal digits from which a word counts as an id (a git hash has 7 or more, `deadbeef` 8).
const HEX_DIGITS_MIN: usize = 8;

/// Names failures of one reason and one class: 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(u64);

impl Group {
    /// The group of an error with this reason slug (`attempts-spent` say).
    ///
    /// FNV-1a over reason and class: it needs to be stable and short, not secret.
    #[must_use]
    pub fn of(reason: &str, error: &str) -> Self {
        let class = class(error);
        let bytes = reason.bytes().chain([0]).chain(class.bytes());
        Self(crate::hash::fnv1a(bytes))
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Group {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let read = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        read.map(Self).ok_or("a group is 16 hexadecimal digits, as dlq groups prints them")
    }
}

/// The error text without numbers, UUIDs and hexadecimal ids, on one line, cut at
/// [`CLASS_BYTES_MAX`] bytes. The class of a class is itself.
#[must_use]
pub fn class(error: &str) -> String {
    let mut out = String::new();
    let mut rest = error.trim_matches(blank);
    let mut in_word = false;
    while let Some(c) = rest.chars().next() {
        if out.len() >= CLASS_BYTES_MAX {
            break;
        }
        let (mark, taken) = if in_word { (None, 0) } else { id_at(rest) };
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if let Some(mark) = mark {
            out.push_str(mark);
            rest = &rest[taken..];
            in_word = true;
        } else if digits > 0 {
            out.push_str("<n>");
            rest = &rest[digits..];
            in_word = true;
        } else if blank(c) {
            rest = rest.trim_start_matches(blank);
            out.push(' ');
            in_word = false;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            in_word = c.is_alphanumeric();
        }
    }
    let cut = (0..=CLASS_BYTES_MAX.min(out.len())).rev().find(|at| out.is_char_boundary(*at));
    out.truncate(cut.unwrap_or(0));
    out.truncate(out.trim_end().len());
    out
}

fn blank(c: char) -> bool {
    c.is_whitespace() || c.is_control()
}

/// The id that a word begins with, and its bytes: a UUID, a `0x…`, or a long hexadecimal word.
fn id_at(text: &str) -> (Option<&'static str>, usize) {
    let bytes = text.as_bytes();
    let ends = |at: usize| !bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
    let hex =
        |from: usize| bytes.iter().skip(from).take_while(|byte| byte.is_ascii_hexdigit()).count();
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let uuid = bytes.len() >= 36
        && bytes
            .iter()
            .take(36)
            .enumerate()
            .all(|(at, byte)| if dash(at) { *byte == b'-' } else { byte.is_ascii_hexdigit() });
    if uuid && ends(36) {
        return (Some("<uuid>"), 36);
    }
    if text.starts_with("0x") && hex(2) > 0 && ends(2 + hex(2)) {
        return (Some("<hex>"), 2 + hex(2));
    }
    let length = hex(0);
    let counts = bytes.iter().take(length).any(u8::is_ascii_digit);
    let numbers_only = bytes.iter().take(length).all(u8::is_ascii_digit);
    if length >= HEX_DIGITS_MIN && counts && !numbers_only && ends(length) {
        return (Some("<hex>"), length);
    }
    (None, 0)
}

/// What a dead letter's headers say of its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'h> {
    /// Why it was given up, a slug. For a message that the broker itself gave up, its reason
    /// (`delivery-limit`, `expired`, `maxlen`, `rejected`); `unknown` when nothing says why.
    pub reason: &'h str,
    /// What the last failed attempt said; may be empty.
    pub error: &'h str,
    /// Attempts that were made.
    pub attempts: u32,
    /// When the first attempt failed.
    pub first: Option<WallTime>,
    /// When the last attempt failed.
    pub last: Option<WallTime>,
    /// The host of the last attempt; may be empty.
    pub host: &'h str,
    /// The version of the program that made it; may be empty.
    pub version: &'h str,
}

/// Reads a dead letter of `queue`, trusting nothing.
///
/// Broker death headers are read for the reason only, and never counted by: from RabbitMQ 3.13 on
/// their count stays at 1 when clients republish.
#[must_use]
pub fn facts<'h>(headers: &'h Headers, queue: &str) -> Facts<'h> {
    let text = |name| headers::get(headers, name).unwrap_or("");
    let time = |name| headers::get(headers, name).and_then(|text| text.trim().parse().ok());
    // All versions of a queue are one consumer, and attempts are counted under its name.
    let made = |name| headers::attempts(headers, name).made;
    Facts {
        reason: headers::get(headers, headers::DEAD_REASON)
            .or_else(|| broker_reason(headers, queue))
            .unwrap_or("unknown"),
        error: text(headers::LAST_ERROR),
        attempts: made(queue).max(made(consumer_of(queue))),
        first: time(headers::FIRST_FAILURE),
        last: time(headers::LAST_FAILURE),
        host: text(headers::FAILURE_HOST),
        version: text(headers::FAILURE_VERSION),
    }
}

/// Why the broker moved a message out of `queue`: the last death where the broker tells it, else
/// the first one, if that was in this queue (it may have been the end of a wait).
fn broker_reason<'h>(headers: &'h Headers, queue: &str) -> Option<&'h str> {
    let of = |which: &str| {
        let said = headers::get(headers, &format!("x-{which}-death-queue"))? == queue;
        said.then(|| headers::get(headers, &format!("x-{which}-death-reason"))).flatten()
    };
    let reason = of("last").or_else(|| of("first"))?;
    Some(if reason == "delivery_limit" { "delivery-limit" } else { reason })
}
