//! What a server says about repeating its failed answer, beyond `Retry-After`.
//!
//! Two headers are read, and each can only take away: a server that says yes leaves the decision where
//! it was.
//!
//! | header | value | meaning |
//! |---|---|---|
//! | `grpc-retry-pushback-ms` (gRFC A6) | whole milliseconds | wait so long |
//! | | negative, or not to be read | do not repeat |
//! | `x-should-retry` (of several public APIs) | `false` | do not repeat |

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use mamparo_core::limits;

use crate::headers;

/// What the server wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushback {
    /// The request must not be sent again.
    Never,
    /// Not before this time has passed, at most [`limits::RETRY_AFTER_MAX`] (300 s).
    After(Duration),
}

impl Pushback {
    fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(one), Self::After(other)) => Self::After(one.max(other)),
            (Self::Never, _) | (_, Self::Never) => Self::Never,
        }
    }
}

/// What the answer's headers say; `None` when they say nothing about it.
pub(crate) fn parse(answer: &HeaderMap) -> Option<Pushback> {
    let says_no =
        |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"false");
    if answer.get_all(headers::SHOULD_RETRY).iter().any(says_no) {
        return Some(Pushback::Never);
    }
    let pushbacks = answer.get_all(headers::GRPC_RETRY_PUSHBACK_MS);
    // Of several, each has its say: a server and the proxies in front of it may all push back.
    pushbacks.iter().map(of_grpc).reduce(Pushback::stricter)
}

fn of_grpc(value: &HeaderValue) -> Pushback {
    let text = value.as_bytes().trim_ascii();
    // Digits alone, because a parser of numbers would take a plus sign, too.
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Pushback::Never;
    }
    let millis = text.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
    });
    Pushback::After(Duration::from_millis(millis).min(limits::RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: http::HeaderName, value: &[u8]) -> Option<Pushback> {
        let mut answer = HeaderMap::new();
        answer.insert(name, HeaderValue::from_bytes(value).unwrap());
        parse(&answer)
    }

    #[test]
    fn a_pushback_is_a_wait_or_else_a_no() {
        let after = |millis| Some(Pushback::After(Duration::from_millis(millis)));
        for (value, expected) in [
            (&b"0"[..], after(0)),
            (b"250", after(250)),
            (b" 250 ", after(250)),
            (b"300001", after(300_000)),
            (b"99999999999999999999999", after(300_000)),
            (b"-1", Some(Pushback::Never)),
            (b"-0", Some(Pushback::Never)),
            (b"+5", Some(Pushback::Never)),
            (b"1.5", Some(Pushback::Never)),
            (b"soon", Some(Pushback::Never)),
            (b"", Some(Pushback::Never)),
            (b"\xff", Some(Pushback::Never)),
        ] {
            assert_eq!(read(headers::GRPC_RETRY_PUSHBACK_MS, value), expected, "{value:?}");
        }
        assert_eq!(parse(&HeaderMap::new()), None);
    }

    #[test]
    fn only_a_plain_no_forbids_and_no_yes_permits() {
        for (value, expected) in [
            (&b"false"[..], Some(Pushback::Never)),
            (b" False ", Some(Pushback::Never)),
            (b"true", None),
            (b"0", None),
            (b"", None),
        ] {
            assert_eq!(read(headers::SHOULD_RETRY, value), expected, "{value:?}");
        }
        let twice = |name: &http::HeaderName, values: [&'static str; 2]| {
            let mut answer = HeaderMap::new();
            for value in values {
                answer.append(name, HeaderValue::from_static(value));
            }
            parse(&answer)
        };
        for values in [["true", "false"], ["false", "true"]] {
            assert_eq!(twice(&headers::SHOULD_RETRY, values), Some(Pushback::Never));
        }
        let pushback = |values| twice(&headers::GRPC_RETRY_PUSHBACK_MS, values);
        for values in [["5", "-1"], ["-1", "5"]] {
            assert_eq!(pushback(values), Some(Pushback::Never));
        }
        let longer = Some(Pushback::After(Duration::from_millis(7)));
        assert_eq!([pushback(["5", "7"]), pushback(["7", "5"])], [longer; 2]);
        let mut both = HeaderMap::new();
        both.insert(headers::SHOULD_RETRY, HeaderValue::from_static("false"));
        both.insert(headers::GRPC_RETRY_PUSHBACK_MS, HeaderValue::from_static("5"));
        assert_eq!(parse(&both), Some(Pushback::Never));
    }
}
