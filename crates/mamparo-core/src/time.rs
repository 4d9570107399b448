//! Two kinds of time that never mix: [`Moment`] measures, [`WallTime`] is shown and stored.
//!
//! All arithmetic saturates. Clocks do step back (virtual machines, suspended hosts), and a policy
//! that panics on such a day protects nobody.

use std::fmt;
use std::time::Duration;

/// A point on a monotonic clock of this process, in nanoseconds from an arbitrary origin.
///
/// Moments of different processes can't be compared; send what is left of a deadline instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The earliest moment there is.
    pub const ORIGIN: Self = Self(0);
    /// Later than every moment a clock will show (584 years after the origin).
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The moment that lies `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment that lies `millis` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// The moment `after` later; [`Moment::FAR_FUTURE`] where that would overflow.
    #[must_use]
    #[inline]
    pub const fn plus(self, after: Duration) -> Self {
        Self(self.0.saturating_add(nanos_of(after)))
    }

    /// The moment `before` earlier; the origin where there is none.
    #[must_use]
    pub fn minus(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(nanos_of(before)))
    }

    /// How long after `earlier` this is; zero when the clock went back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How long it is until `later`; zero when that has passed.
    #[must_use]
    pub const fn until(self, later: Self) -> Duration {
        later.since(self)
    }
}

/// A point in calendar time: milliseconds since 1970-01-01T00:00:00Z.
///
/// For rows, headers and people. Never subtract one from a monotonic [`Moment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(i64);

impl WallTime {
    /// From milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_unix_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch, as stored in rows and headers.
    #[must_use]
    pub const fn unix_millis(self) -> i64 {
        self.0
    }

    /// The time `after` later, saturating.
    #[must_use]
    pub fn plus(self, after: Duration) -> Self {
        Self(self.0.saturating_add(millis_of(after)))
    }

    /// The time `before` earlier, saturating.
    #[must_use]
    pub fn minus(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(millis_of(before)))
    }

    /// How long after `earlier` this is; zero when the clock went back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// RFC 3339 in UTC with milliseconds, for example `2026-11-30T08:05:09.042Z`.
impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(86_400_000);
        let millis = self.0.rem_euclid(86_400_000);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute) = (millis / 3_600_000, millis / 60_000 % 60);
        let (second, milli) = (millis / 1_000 % 60, millis % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

/// Reads what [`WallTime`]'s `Display` writes, also without its fraction of a second.
impl std::str::FromStr for WallTime {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = "write a time as 2026-11-30T08:05:09Z";
        let (date, time) = text.strip_suffix('Z').and_then(|t| t.split_once('T')).ok_or(refused)?;
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let number = |text: &str, longest: usize| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= longest;
            digits.then(|| text.parse::<i64>().ok()).flatten().ok_or(refused)
        };
        let three = |text: &str, mark: char, longest: usize| {
            let mut parts = text.split(mark);
            let mut next = |longest| number(parts.next().unwrap_or("x"), longest);
            let read = (next(longest)?, next(2)?, next(2)?);
            if parts.next().is_none() { Ok(read) } else { Err(refused) }
        };
        let (year, month, day) = three(date, '-', 4)?;
        let (hour, minute, second) = three(time, ':', 2)?;
        let milli = number(&format!("{fraction:0<3}"), 9)?;
        let milli =
            if fraction.len() > 3 { number(fraction.get(..3).ok_or(refused)?, 3)? } else { milli };
        let days = days_from_civil(year, month, day);
        if civil_from_days(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
            return Err(refused);
        }
        Ok(Self(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1_000 + milli))
    }
}

/// The day number of a date: the way back from [`civil_from_days`].
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The proleptic Gregorian date of a day number counted from 1970-01-01.
///
/// Days are counted from 1 March of year 0, so that the leap day falls at the end of a year and
/// each 400-year era has the same 146 097 days.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// In 64 bits throughout: this is on the way of every call.
#[inline]
const fn nanos_of(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos() as u64)
}

fn millis_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A duration as people say it: `2h 5m`, `3m 20s`, `26s`, `1.25s`, `40ms`, `under 1ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readable(Duration);

impl Readable {
    /// What has passed: rounded down to what is shown.
    #[must_use]
    pub const fn new(passed: Duration) -> Self {
        Self(passed)
    }

    /// What is still to be waited: rounded up to what is shown, so that nobody comes back too early.
    #[must_use]
    pub fn wait(left: Duration) -> Self {
        let shown: u64 = match left.as_secs() {
            0..10 => 1_000_000,
            10..3_600 => 1_000_000_000,
            _ => 60_000_000_000,
        };
        let nanos = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        Self(Duration::from_nanos(nanos.checked_next_multiple_of(shown).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
            (0, 0, _) if self.0.is_zero() => write!(f, "0s"),
            (0, 0, 0..10) => match u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX) {
                0 => write!(f, "under 1ms"),
                millis => write!(f, "{:?}", Duration::from_millis(millis)),
            },
            (0, 0, seconds) => write!(f, "{seconds}s"),
            (0, minutes, seconds) => write!(f, "{minutes}m {seconds}s"),
            (hours, minutes, _) => write!(f, "{hours}h {minutes}m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_c35_a_clock_that_steps_back_saturates() {
        let later = Moment::from_millis(10);
        let earlier = Moment::from_millis(4);
        assert_eq!(earlier.since(later), Duration::ZERO);
        assert_eq!(later.since(earlier), Duration::from_millis(6));
        assert_eq!(Moment::ORIGIN.minus(Duration::MAX), Moment::ORIGIN);
        assert_eq!(later.plus(Duration::MAX), Moment::FAR_FUTURE);
        let wall = WallTime::from_unix_millis(5);
        assert_eq!(wall.since(wall.plus(Duration::from_secs(9))), Duration::ZERO);
        assert_eq!(wall.plus(Duration::MAX).unix_millis(), i64::MAX);
    }

    #[test]
    fn what_has_passed_is_rounded_down_and_what_is_left_up() {
        let nanos = Duration::from_nanos;
        for (duration, passed, left) in [
            (nanos(0), "0s", "0s"),
            (nanos(1), "under 1ms", "1ms"),
            (nanos(299_975_411), "299ms", "300ms"),
            (nanos(9_999_999_999), "9.999s", "10s"),
            (nanos(29_999_723_335), "29s", "30s"),
            (nanos(59_000_000_001), "59s", "1m 0s"),
            (nanos(7_499_000_000_000), "2h 4m", "2h 5m"),
            (Duration::MAX, "5124095576030431h 0m", "5124095h 34m"),
        ] {
            assert_eq!(Readable::new(duration).to_string(), passed);
            assert_eq!(Readable::wait(duration).to_string(), left);
        }
    }

    #[test]
    fn wall_time_is_shown_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_796_025_909_042, "2026-11-30T08:05:09.042Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(WallTime::from_unix_millis(millis).to_string(), text);
        }
    }
}
