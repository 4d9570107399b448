//! W3C Trace Context: reading, making and passing on `traceparent`.

use std::fmt;

use mamparo_call::clock;
use mamparo_core::rng::Rng;

/// A valid `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>).
///
/// ```
/// use mamparo_http::trace_context::Traceparent;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let parent = Traceparent::parse(text).expect("valid");
/// assert_eq!(parent.to_string(), text);
/// assert!(Traceparent::parse("00-zero-zero-01").is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl Traceparent {
    /// Reads a header value; `None` for anything that the standard calls invalid.
    ///
    /// Later versions than 00 are read by their first four fields, as the standard asks; version
    /// `ff`, zero ids, upper-case digits and a version 00 with more fields are invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)?;
        let trace_id = hex(fields.next()?, 32)?;
        let span_id = u64::try_from(hex(fields.next()?, 16)?).ok()?;
        let flags = u8::try_from(hex(fields.next()?, 2)?).ok()?;
        let more = fields.next().is_some();
        let valid = version != 0xff && trace_id != 0 && span_id != 0 && !(version == 0 && more);
        valid.then_some(Self { trace_id, span_id, flags })
    }

    /// The root of a new trace, not sampled: that is the tracing backend's decision.
    #[must_use]
    pub fn root() -> Self {
        // Two draws of entropy: one seeds 64 bits, and a trace id is worth 128.
        let (high, low) = (clock::entropy().next_u64(), clock::entropy().next_u64());
        let trace_id = (u128::from(high) << 64 | u128::from(low)).max(1);
        Self { trace_id, span_id: new_span_id(), flags: 0 }
    }

    /// A new span under the same trace; flags stay as the caller set them.
    #[must_use]
    pub fn child(self) -> Self {
        Self { span_id: new_span_id(), ..self }
    }

    /// The trace's id as 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn trace_id(self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

/// The header value, always as version 00.
impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

fn new_span_id() -> u64 {
    clock::entropy().next_u64().max(1)
}

/// Exactly `digits` lower-case hexadecimal digits; `from_str_radix` alone would take `+` and `A`.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let strict = text.len() == digits
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if strict { u128::from_str_radix(text, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_standard_calls_valid_is_read() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for (text, valid) in [
            (format!("00-{trace}-{span}-01"), true),
            (format!("01-{trace}-{span}-01-what-the-future-brings"), true),
            (format!("00-{trace}-{span}-01-more"), false),
            (format!("ff-{trace}-{span}-01"), false),
            (format!("00-{}-{span}-01", "0".repeat(32)), false),
            (format!("00-{trace}-{}-01", "0".repeat(16)), false),
            (format!("00-{}-{span}-01", trace.to_uppercase()), false),
            (format!("00-{trace}-+0f067aa0ba902b7-01"), false),
            (format!("00-{trace}-{span}"), false),
            (format!("00-{trace}-{span}-1"), false),
            (String::new(), false),
        ] {
            assert_eq!(Traceparent::parse(&text).is_some(), valid, "{text}");
        }
    }

    #[test]
    fn a_child_keeps_trace_and_flags_and_changes_the_span() {
        let parent = Traceparent::root();
        let (one, other) = (parent.child(), parent.child());
        assert_eq!(one.trace_id(), parent.trace_id());
        assert_eq!(one.flags, parent.flags);
        assert_ne!(one.span_id, parent.span_id);
        assert_ne!(one.span_id, other.span_id);
        assert_eq!(Traceparent::parse(&one.to_string()), Some(one));
    }
}
