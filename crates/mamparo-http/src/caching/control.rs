//! `Cache-Control` of a dependency's answer (RFC 9111 §5.2.2, RFC 5861), as a shared cache obeys it.

use std::time::Duration;

use http::HeaderMap;
use http::header::CACHE_CONTROL;
use mamparo_call::cache::Keep;
use mamparo_core::call::fallback::Windows;

/// What an answer says about being remembered. Unknown directives are ignored.
///
/// Numbers are whole seconds, bare or quoted; one that can't be read counts as zero, so that a
/// mistake makes an answer stale sooner. Of a directive that stands twice the shorter time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheControl {
    /// `no-store`: must not be remembered.
    pub no_store: bool,
    /// `private`: is for one user; a cache that all callers share doesn't remember it.
    pub private: bool,
    /// `no-cache`: may be remembered and not be served without asking.
    pub no_cache: bool,
    /// `must-revalidate` or `proxy-revalidate`: may not be served stale.
    pub must_revalidate: bool,
    /// `max-age`: fresh for so long.
    pub max_age: Option<Duration>,
    /// `s-maxage`: the same for shared caches. It overrides `max-age` and forbids staleness.
    pub s_maxage: Option<Duration>,
    /// `stale-while-revalidate`: served stale for so long while it is fetched anew.
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error`: served stale for so long when fetching it anew fails.
    pub stale_if_error: Option<Duration>,
}

impl CacheControl {
    /// Reads all lines of the header. What is not text is as good as absent.
    #[must_use]
    pub fn read(headers: &HeaderMap) -> Self {
        let mut read = Self::default();
        let lines = headers.get_all(CACHE_CONTROL).iter().filter_map(|line| line.to_str().ok());
        for directive in lines.flat_map(directives) {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            read.take(name.trim(), unquoted(value.trim()));
        }
        read
    }

    fn take(&mut self, name: &str, value: &str) {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        self.no_store |= is("no-store");
        self.private |= is("private");
        self.no_cache |= is("no-cache");
        self.must_revalidate |= is("must-revalidate") || is("proxy-revalidate");
        for (known, time) in [
            ("max-age", &mut self.max_age),
            ("s-maxage", &mut self.s_maxage),
            ("stale-while-revalidate", &mut self.stale_while_revalidate),
            ("stale-if-error", &mut self.stale_if_error),
        ] {
            if is(known) {
                let read = seconds(value).unwrap_or_default();
                *time = Some(time.map_or(read, |before| before.min(read)));
            }
        }
    }

    /// For how long the answer is fresh, counted from its origin, where it says so.
    #[must_use]
    pub fn lifetime(&self) -> Option<Duration> {
        self.s_maxage.or(self.max_age)
    }

    /// How long the answer is remembered for what; where it says nothing, as `configured`.
    #[must_use]
    pub fn keep(&self, configured: Windows) -> Keep {
        if *self == Self::default() {
            return Keep::AsConfigured;
        }
        if self.no_store || self.private {
            return Keep::Never;
        }
        if self.no_cache {
            let fresh_for = Duration::ZERO;
            return Keep::For(Windows { fresh_for, must_revalidate: true, ..configured });
        }
        Keep::For(Windows {
            fresh_for: self.lifetime().unwrap_or(configured.fresh_for),
            while_revalidate: self.stale_while_revalidate.unwrap_or(configured.while_revalidate),
            if_error: self.stale_if_error.unwrap_or(configured.if_error),
            must_revalidate: self.must_revalidate
                || self.s_maxage.is_some()
                || configured.must_revalidate,
        })
    }
}

/// Whole, non-negative seconds; as many as there are where the number is too large to hold.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| Duration::from_secs(text.parse().unwrap_or(u64::MAX)))
}

fn unquoted(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

/// The parts between commas, except for commas in quotes: `private="a, no-store", max-age=1`.
fn directives(line: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    line.split(move |letter| {
        let ends = letter == ',' && !quoted;
        if letter == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && letter == '\\' && !escaped;
        ends
    })
    .map(str::trim)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const CONFIGURED: Windows = Windows {
        fresh_for: Duration::from_secs(1),
        while_revalidate: Duration::from_secs(2),
        if_error: Duration::from_secs(3),
        must_revalidate: false,
    };

    fn keep(lines: &[&str]) -> Keep {
        let lines = lines.iter().map(|line| (CACHE_CONTROL, HeaderValue::from_str(line).unwrap()));
        CacheControl::read(&lines.collect()).keep(CONFIGURED)
    }

    fn windows(fresh: u64, revalidate: u64, error: u64, must_revalidate: bool) -> Keep {
        Keep::For(Windows {
            fresh_for: Duration::from_secs(fresh),
            while_revalidate: Duration::from_secs(revalidate),
            if_error: Duration::from_secs(error),
            must_revalidate,
        })
    }

    #[test]
    fn directives_set_the_windows() {
        for (line, kept) in [
            ("", Keep::AsConfigured),
            ("public, immutable", Keep::AsConfigured),
            ("max-age=600", windows(600, 2, 3, false)),
            // RFC 5861's own examples.
            ("max-age=600, stale-while-revalidate=30", windows(600, 30, 3, false)),
            ("max-age=600, stale-if-error=1200", windows(600, 2, 1_200, false)),
            ("max-age=600, stale-if-error=0", windows(600, 2, 0, false)),
            ("Max-Age=\"600\" ,MUST-REVALIDATE", windows(600, 2, 3, true)),
            ("max-age=600, proxy-revalidate", windows(600, 2, 3, true)),
            ("max-age=600, s-maxage=60", windows(60, 2, 3, true)),
            ("no-cache, max-age=600", windows(0, 2, 3, true)),
            ("no-store, max-age=600", Keep::Never),
            ("private", Keep::Never),
            ("private=\"set-cookie, x\", max-age=1", Keep::Never),
            // A comma or a quote within quotes ends nothing.
            ("x=\"no-store, \\\", private\", max-age=5", windows(5, 2, 3, false)),
            // Twice: the shorter time. Unreadable: none.
            ("max-age=600, max-age=60", windows(60, 2, 3, false)),
            ("max-age=600, max-age=soon", windows(0, 2, 3, false)),
            ("max-age=-1", windows(0, 2, 3, false)),
            ("max-age=1.5", windows(0, 2, 3, false)),
            ("max-age", windows(0, 2, 3, false)),
            ("max-age=99999999999999999999999", windows(u64::MAX, 2, 3, false)),
        ] {
            assert_eq!(keep(&[line]), kept, "{line:?}");
        }
        assert_eq!(keep(&["max-age=5", "stale-if-error=9"]), windows(5, 2, 9, false));
        let strict = Windows { must_revalidate: true, ..CONFIGURED };
        let read = CacheControl { max_age: Some(Duration::ZERO), ..CacheControl::default() };
        let Keep::For(kept) = read.keep(strict) else { panic!("kept") };
        assert!(kept.must_revalidate, "an answer never loosens what is configured");
    }

    #[test]
    fn what_is_not_text_is_absent() {
        let value = HeaderValue::from_bytes(b"max-age=\xff").unwrap();
        let headers = [(CACHE_CONTROL, value)].into_iter().collect();
        assert_eq!(CacheControl::read(&headers), CacheControl::default());
    }
}
