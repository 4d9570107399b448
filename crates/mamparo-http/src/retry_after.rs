//! `Retry-After` (RFC 9110 §10.2.3), read leniently in form and strictly in meaning.

use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use mamparo_core::limits;
use mamparo_core::time::WallTime;

/// What the answer's `Retry-After` asks for, counted from its receipt at `now`.
///
/// Both forms are read: whole seconds, and the three HTTP-dates (IMF-fixdate, RFC 850, asctime).
/// A date is measured from the answer's own `Date` where there is one, so that a skewed clock
/// cancels out, else from `now`. A date in the past is zero; more than
/// [`limits::RETRY_AFTER_MAX`] (300 s) counts as that; negatives, fractions and garbage count as
/// absent.
#[must_use]
pub fn parse(headers: &HeaderMap, now: WallTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    // Digits first and finally: a lone number must never reach the date parser as a year.
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(limits::RETRY_AFTER_MAX));
    }
    let target = httpdate::parse_http_date(text).ok()?;
    let from = date(headers).unwrap_or_else(|| system_time(now));
    let wait = target.duration_since(from).unwrap_or(Duration::ZERO);
    Some(wait.min(limits::RETRY_AFTER_MAX))
}

/// The header value for `wait`, in whole seconds, rounded up and at least 1.
///
/// Rounding down would invite the caller a moment before it is welcome.
#[must_use]
pub fn value(wait: Duration) -> HeaderValue {
    HeaderValue::from(whole_seconds(wait))
}

/// `wait` in whole seconds, rounded up and at least 1.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()
}

fn system_time(wall: WallTime) -> SystemTime {
    let millis = u64::try_from(wall.unix_millis()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &[u8], date: Option<&'static str>) -> Option<Duration> {
        // 1994-11-06T08:49:37Z is the RFC's own example.
        let now = WallTime::from_unix_millis(784_111_777_000);
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_bytes(value).unwrap());
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_static(date));
        }
        parse(&headers, now)
    }

    #[test]
    fn policies_c34_retry_after_vectors() {
        let seconds = |count| Some(Duration::from_secs(count));
        for (value, expected) in [
            ("0", seconds(0)),
            ("7", seconds(7)),
            (" 7 ", seconds(7)),
            ("007", seconds(7)),
            ("300", seconds(300)),
            ("301", seconds(300)),
            // Lone numbers that look like years stay seconds.
            ("2026", seconds(300)),
            ("94", seconds(94)),
            // Nineteen digits and more than a u64 holds.
            ("9223372036854775807", seconds(300)),
            ("99999999999999999999999", seconds(300)),
            ("-1", None),
            ("-0", None),
            ("+5", None),
            ("1.5", None),
            ("5s", None),
            ("1e3", None),
            ("0x10", None),
            ("", None),
            ("soon", None),
            ("5, 7", None),
            // The three date forms, ten seconds ahead.
            ("Sun, 06 Nov 1994 08:49:47 GMT", seconds(10)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", seconds(10)),
            ("Sun Nov  6 08:49:47 1994", seconds(10)),
            // The past is zero, the far future the cap.
            ("Sun, 06 Nov 1994 08:49:27 GMT", seconds(0)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", seconds(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", seconds(300)),
            ("Sun, 31 Feb 1994 08:49:47 GMT", None),
            ("1994-11-06T08:49:47Z", None),
        ] {
            assert_eq!(read(value.as_bytes(), None), expected, "{value:?}");
        }
        assert_eq!(read(b"\xff", None), None);
        assert_eq!(parse(&HeaderMap::new(), WallTime::default()), None);
    }

    #[test]
    fn a_skewed_clock_cancels_out_against_the_answers_date() {
        let an_hour_off = Some("Sun, 06 Nov 1994 09:49:37 GMT");
        let wait = read(b"Sun, 06 Nov 1994 09:49:40 GMT", an_hour_off);
        assert_eq!(wait, Some(Duration::from_secs(3)));
        let nonsense = read(b"Sun, 06 Nov 1994 08:49:40 GMT", Some("yesterday"));
        assert_eq!(nonsense, Some(Duration::from_secs(3)));
    }

    #[test]
    fn the_value_is_rounded_up_and_never_zero() {
        for (millis, expected) in [(0, "1"), (1, "1"), (1_000, "1"), (1_001, "2"), (29_400, "30")] {
            assert_eq!(value(Duration::from_millis(millis)), expected);
        }
        whole_seconds(Duration::MAX);
    }
}
