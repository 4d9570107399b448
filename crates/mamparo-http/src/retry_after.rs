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
/// cancels out, else from `now`; a year of two digits lies at most 50 years ahead of that. A date in the past is zero; more than
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
    let from = date(headers, now).unwrap_or_else(|| system_time(now));
    let target = http_date(text, from)?;
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

fn date(headers: &HeaderMap, now: WallTime) -> Option<SystemTime> {
    http_date(headers.get(DATE)?.to_str().ok()?.trim(), system_time(now))
}

/// Any of the three forms of an HTTP-date (RFC 9110 §5.6.7), read at `now`.
fn http_date(text: &str, now: SystemTime) -> Option<SystemTime> {
    // A leap second is valid, and its own second is near enough.
    let text = text.replace(":60 ", ":59 ");
    match rfc850(&text, now) {
        Some(date) => Some(date),
        None => httpdate::parse_http_date(&text).ok(),
    }
}

/// The obsolete form, `Sunday, 06-Nov-94 08:49:37 GMT`. Its two digits mean the latest such year
/// that makes the date lie no more than 50 years ahead, whereas `httpdate` splits at 1970.
fn rfc850(text: &str, now: SystemTime) -> Option<SystemTime> {
    let (_weekday, rest) = text.split_once(", ")?;
    let mut parts = rest.splitn(3, '-');
    let (day, month, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (digits, time) = rest.split_once(' ')?;
    let two_digits = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let digits: u64 = digits.parse().ok().filter(|_| two_digits)?;
    let seconds =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let latest = 1970 + (seconds(now) + FIFTY_YEARS).as_secs() / YEAR.as_secs();
    let year = latest - (latest - digits) % 100;
    let date = |year: u64| {
        // The weekday was that of one century and is written down for no other: one of them fits.
        let weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
        weekdays.iter().find_map(|weekday| {
            httpdate::parse_http_date(&format!("{weekday}, {day} {month} {year:04} {time}")).ok()
        })
    };
    // The estimate of the latest year is a day or so off around New Year; the rule is not.
    [year + 100, year, year - 100]
        .into_iter()
        .filter_map(date)
        .find(|date| seconds(*date) <= seconds(now) + FIFTY_YEARS)
}

fn system_time(wall: WallTime) -> SystemTime {
    let millis = u64::try_from(wall.unix_millis()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// A mean year of the Gregorian calendar: 365.2425 days.
const YEAR: Duration = Duration::from_secs(31_556_952);
const FIFTY_YEARS: Duration = Duration::from_secs(50 * YEAR.as_secs());

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
            ("Sun, 06 Nov 1994 08:49:60 GMT", seconds(22)),
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
    fn policies_c34_two_digits_of_a_year_lie_at_most_fifty_years_ahead() {
        // 2026-11-30T00:00:00Z.
        let now = WallTime::from_unix_millis(1_795_996_800_000);
        let years = |text: &str| {
            let date = http_date(text, system_time(now))?;
            let since = date.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            Some(1970 + since.as_secs() / YEAR.as_secs())
        };
        for (text, expected) in [
            ("Monday, 30-Nov-26 00:00:05 GMT", Some(2026)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(1994)),
            // The split at 1970 would make these a past that has long gone by.
            ("Friday, 06-Nov-70 08:49:37 GMT", Some(2070)),
            ("Thursday, 05-Nov-76 08:49:37 GMT", Some(2076)),
            // A month more than fifty years ahead is the past instead.
            ("Friday, 31-Dec-76 08:49:37 GMT", Some(1976)),
            ("Sunday, 06-Nov-77 08:49:37 GMT", Some(1977)),
            ("Saturday, 01-Jan-00 12:00:00 GMT", Some(2000)),
            ("Monday, 31-Feb-26 00:00:05 GMT", None),
            ("Monday, 30-Nov-2026 00:00:05 GMT", None),
            ("Monday, 30-Nov-2x 00:00:05 GMT", None),
            // A parser of numbers would take it for the year 6.
            ("Monday, 30-Nov-+6 00:00:05 GMT", None),
            ("Monday, 30-Nov-26", None),
            ("-, --- ", None),
        ] {
            assert_eq!(years(text), expected, "{text}");
        }
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
