//! Durations with their unit: `700ms`, `3s`, `10m`, `1h`.

use std::time::Duration;

/// Each unit with its length in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a whole number with its unit: `ms`, `s`, `m`, `h` or `d`.
///
/// # Errors
/// What is wrong, and how to write it instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    let Ok(count) = number.parse::<u64>() else {
        return Err(match number.parse::<f64>() {
            Ok(_) => "write a whole number in a smaller unit, for example \"1500ms\"".to_owned(),
            Err(_) => "write a whole number and its unit, for example \"700ms\"".to_owned(),
        });
    };
    if unit.is_empty() {
        return Err(format!("it needs a unit: \"{count}ms\", \"{count}s\" or \"{count}m\""));
    }
    let Some((_, millis)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err("the units are ms, s, m, h and d".to_owned());
    };
    match count.checked_mul(*millis) {
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => Err("it is longer than 500 million years".to_owned()),
    }
}

/// Shows a duration in the largest unit that keeps it whole; parts of a millisecond are dropped.
#[must_use]
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    // Days are read, but "24h" is what people say.
    let fitting = UNITS[..4].iter().rev().find(|(_, size)| millis.is_multiple_of((*size).into()));
    fitting.map_or_else(
        || format!("{millis}ms"),
        |(name, size)| format!("{}{name}", millis / u128::from(*size)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_their_unit() {
        for (text, millis) in
            [("700ms", 700), ("3s", 3_000), ("10m", 600_000), ("1h", 3_600_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(parse_duration("2 d"), Ok(Duration::from_secs(172_800)));
        assert_eq!(show_duration(Duration::from_millis(1_500)), "1500ms");
    }

    #[test]
    fn what_is_no_duration_says_how_to_write_one() {
        for (text, part) in [
            ("700", "\"700ms\", \"700s\""),
            ("1.5s", "1500ms"),
            ("", "700ms"),
            ("ms", "700ms"),
            ("-3s", "whole number"),
            ("3 parsecs", "ms, s, m, h and d"),
            ("99999999999999999999s", "whole number"),
            ("9999999999999999999d", "longer"),
        ] {
            let hint = parse_duration(text).unwrap_err();
            assert!(hint.contains(part), "{text}: {hint}");
        }
    }
}
