//! What HTTP says about remembered answers, read from a dependency and told to the caller.
//!
//! [`Response::into_fetched`] takes age and windows from a dependency's answer, for a
//! [`StaleCache`](mamparo_call::cache::StaleCache); [`tell`] says in `Age` and `Cache-Status` how the
//! cache came by what it answers.
//!
//! ```no_run
//! # async fn example(
//! #     catalog: mamparo_http::HttpClient,
//! #     cache: mamparo_call::cache::StaleCache<String, mamparo_http::Response,
//! #         mamparo_call::CallError<mamparo_http::HttpError>>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use mamparo_core::call::fallback::Windows;
//!
//! let fetch = || async {
//!     let response = catalog.get("/v1/products").query("ids", "a,b").send().await?;
//!     Ok(response.into_fetched(Windows::default()))
//! };
//! let cached = cache.get(&"a,b".to_owned(), fetch).await?;
//! let mut headers = http::HeaderMap::new();
//! mamparo_http::caching::tell("bff", &cached.handling, &mut headers);
//! # Ok(()) }
//! ```

mod control;
mod status;
mod structured;

use std::time::Duration;

use http::header::{AGE, VARY};
use http::{HeaderMap, HeaderValue};
use mamparo_call::cache::{Fetched, Handling, Keep, Outcome};
use mamparo_core::call::fallback::Windows;

pub use control::CacheControl;
pub use status::{CacheStatus, Forward};

use crate::Response;

/// The age of an answer when it left its sender (RFC 9111 §5.1): whole seconds. Anything else counts
/// as absent, and that as zero.
#[must_use]
pub fn age(headers: &HeaderMap) -> Duration {
    let text = headers.get(AGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    control::seconds(text.trim()).unwrap_or_default()
}

/// Says in `Age` and `Cache-Status` how `cache` came by an answer.
///
/// `Age` is set on what was remembered, and on a dependency's answer that is itself a second old or
/// more. `Cache-Status` is appended to what `headers` already says of caches nearer to the origin.
pub fn tell(cache: &str, handling: &Handling, headers: &mut HeaderMap) {
    let remembered = match handling.outcome {
        Outcome::Hit | Outcome::Stale(_) => true,
        Outcome::Fetched { .. } => false,
    };
    let seconds = handling.age.as_secs();
    if remembered || seconds > 0 {
        headers.insert(AGE, HeaderValue::from(seconds));
    } else {
        headers.remove(AGE);
    }
    CacheStatus::of(cache, handling).append_to(headers);
}

impl Response {
    /// The answer with its age and with the windows that its `Cache-Control` gives it, and those of
    /// `configured` where it says nothing. One that varies by everything (`Vary: *`) is not kept. One
    /// that a cache on the way served stale, as its `Cache-Status` says, or an `Age` not below its own
    /// `max-age`, is stale here too.
    #[must_use]
    pub fn into_fetched(self, configured: Windows) -> Fetched<Self> {
        let varies =
            self.headers.get_all(VARY).iter().any(|value| value.as_bytes().contains(&b'*'));
        let (age, control) = (age(&self.headers), CacheControl::read(&self.headers));
        let keep = if varies { Keep::Never } else { control.keep(configured) };
        // Without an age it comes from the origin, whose word is fresh even where nobody may keep it.
        let outlived = control.lifetime().is_some_and(|lifetime| !age.is_zero() && age >= lifetime);
        let past_its_time =
            |s: &CacheStatus| s.is_hit() && s.ttl_seconds().is_some_and(|ttl| ttl < 0);
        let stale = outlived || CacheStatus::read(&self.headers).iter().any(past_its_time);
        Fetched { age, value: self, keep, stale }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::StatusCode;
    use mamparo_core::call::fallback::Reason;

    use super::*;
    use crate::headers::CACHE_STATUS;

    fn response(headers: &[(&'static str, &'static str)]) -> Response {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
        Response { status: StatusCode::OK, headers: headers.collect(), body: Bytes::new() }
    }

    #[test]
    fn an_answer_brings_age_and_windows() {
        let fetched = |headers: &[_]| response(headers).into_fetched(Windows::default());
        let plain = fetched(&[]);
        assert_eq!((plain.age, plain.keep), (Duration::ZERO, Keep::AsConfigured));
        let aged = fetched(&[("age", "30"), ("cache-control", "max-age=60")]);
        assert_eq!(aged.age, Duration::from_secs(30));
        let fresh_for = Duration::from_secs(60);
        assert_eq!(aged.keep, Keep::For(Windows { fresh_for, ..Windows::default() }));
        assert_eq!(fetched(&[("vary", "accept, *")]).keep, Keep::Never);
        assert_eq!(fetched(&[("vary", "accept")]).keep, Keep::AsConfigured);
        for (status, stale) in [
            ("catalog; hit; ttl=-3; detail=unavailable", true),
            ("catalog; hit; ttl=-3, gateway; fwd=miss", true),
            ("catalog; hit; ttl=3", false),
            ("catalog; fwd=stale; stored; ttl=-1", false),
            ("catalog; hit", false),
        ] {
            assert_eq!(fetched(&[("cache-status", status)]).stale, stale, "{status}");
        }
        for (control, age, stale) in [
            ("max-age=60", "59", false),
            ("max-age=60", "60", true),
            ("max-age=60, s-maxage=30", "59", true),
            ("max-age=60, s-maxage=90", "60", false),
            ("max-age=0", "0", false),
            ("max-age=0", "1", true),
            ("stale-if-error=60", "99", false),
        ] {
            let fetched = fetched(&[("cache-control", control), ("age", age)]);
            assert_eq!(fetched.stale, stale, "{control} {age}");
        }
        for nonsense in ["-1", "1.5", "", "soon", "1, 2"] {
            let headers = [(AGE, HeaderValue::from_static(nonsense))].into_iter().collect();
            assert_eq!(age(&headers), Duration::ZERO, "{nonsense:?}");
        }
    }

    #[test]
    fn what_a_cache_did_is_told_in_two_headers() {
        let handling = |outcome, age, ttl_seconds| Handling {
            outcome,
            age: Duration::from_millis(age),
            ttl_seconds,
        };
        let fetched =
            |had_stale, collapsed, stored| Outcome::Fetched { had_stale, collapsed, stored };
        for (handling, age, status) in [
            (handling(Outcome::Hit, 4_900, 5), Some("4"), "bff; hit; ttl=5"),
            (handling(Outcome::Hit, 0, 10), Some("0"), "bff; hit; ttl=10"),
            (
                handling(Outcome::Stale(Reason::NoAnswer), 40_200, -31),
                Some("40"),
                "bff; hit; ttl=-31; detail=no-answer",
            ),
            (handling(fetched(false, None, true), 100, 9), None, "bff; fwd=miss; stored; ttl=9"),
            (
                handling(fetched(true, Some(true), true), 30_100, 9),
                Some("30"),
                "bff; fwd=stale; collapsed; stored; ttl=9",
            ),
            (
                handling(fetched(false, Some(false), false), 100, 0),
                None,
                "bff; fwd=miss; collapsed=?0",
            ),
        ] {
            // What the dependency's own caches did stays in front; its `Age` is of another answer.
            let mut headers = response(&[("age", "77"), ("cache-status", "origin; hit")]).headers;
            tell("bff", &handling, &mut headers);
            assert_eq!(headers.get(AGE).map(HeaderValue::as_bytes), age.map(str::as_bytes));
            let told: Vec<_> = headers.get_all(CACHE_STATUS).iter().collect();
            assert_eq!(told, ["origin; hit", status]);
        }
    }
}
