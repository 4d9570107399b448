//! `Cache-Status` (RFC 9211): each cache on the way says how it handled the request.

use std::fmt;

use http::{HeaderMap, HeaderValue};
use mamparo_call::cache::{Handling, Outcome};

use super::structured::{self, Bare, Member};
use crate::headers::CACHE_STATUS;

/// What one cache did. The list of them begins with the cache nearest to the origin, so each cache
/// appends itself.
///
/// ```
/// use mamparo_http::caching::{CacheStatus, Forward};
///
/// let hit = CacheStatus::hit("bff").ttl(-412).key("GET /v1/products?ids=\"a\"");
/// assert_eq!(hit.to_string(), r#"bff; hit; ttl=-412; key="GET /v1/products?ids=\"a\"""#);
/// let miss = CacheStatus::forwarded("CDN of ours", Forward::UriMiss).fwd_status(200).stored();
/// assert_eq!(miss.to_string(), r#""CDN of ours"; fwd=uri-miss; fwd-status=200; stored"#);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStatus {
    cache: String,
    handled: Handled,
    ttl: Option<i64>,
    key: Option<String>,
    detail: Option<String>,
}

/// A request is answered by the cache or sent on, never both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handled {
    /// Neither is said: some caches only tell of themselves.
    Unsaid,
    Hit,
    Forwarded {
        why: Forward,
        status: Option<u16>,
        stored: bool,
        collapsed: Option<bool>,
    },
}

/// Why a cache sent a request on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forward {
    /// It was told not to handle such requests.
    Bypass,
    /// The method can't be answered from memory.
    Method,
    /// Nothing is remembered under the address.
    UriMiss,
    /// Nothing that is remembered under the address fits the request's headers.
    VaryMiss,
    /// Nothing fitting is remembered; it does not say more precisely why.
    Miss,
    /// What is remembered is fresh, and the request asked for more.
    Request,
    /// What is remembered is stale.
    Stale,
    /// What is remembered is only a part.
    Partial,
}

impl Forward {
    const ALL: [Self; 8] = [
        Self::Bypass,
        Self::Method,
        Self::UriMiss,
        Self::VaryMiss,
        Self::Miss,
        Self::Request,
        Self::Stale,
        Self::Partial,
    ];

    /// The word of the standard.
    #[must_use]
    pub const fn token(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

impl CacheStatus {
    /// `cache` answered from memory.
    #[must_use]
    pub fn hit(cache: impl Into<String>) -> Self {
        Self::new(cache.into(), Handled::Hit)
    }

    /// `cache` sent the request on.
    #[must_use]
    pub fn forwarded(cache: impl Into<String>, why: Forward) -> Self {
        let handled = Handled::Forwarded { why, status: None, stored: false, collapsed: None };
        Self::new(cache.into(), handled)
    }

    /// What a [`StaleCache`](mamparo_call::cache::StaleCache) did. A stale answer because the
    /// dependency failed is a hit with a negative time to live, and the reason is its detail.
    #[must_use]
    pub fn of(cache: &str, handling: &Handling) -> Self {
        match handling.outcome {
            Outcome::Hit => Self::hit(cache).ttl(handling.ttl_seconds),
            Outcome::Stale(reason) => {
                Self::hit(cache).ttl(handling.ttl_seconds).detail(reason.slug())
            }
            Outcome::Fetched { had_stale, collapsed, stored } => {
                let why = if had_stale { Forward::Stale } else { Forward::Miss };
                let handled = Handled::Forwarded { why, status: None, stored, collapsed };
                let status = Self::new(cache.to_owned(), handled);
                if stored { status.ttl(handling.ttl_seconds) } else { status }
            }
        }
    }

    const fn new(cache: String, handled: Handled) -> Self {
        Self { cache, handled, ttl: None, key: None, detail: None }
    }

    /// The status of the answer to the request that was sent on. A hit has none.
    #[must_use]
    pub const fn fwd_status(mut self, code: u16) -> Self {
        if let Handled::Forwarded { status, .. } = &mut self.handled {
            *status = Some(code);
        }
        self
    }

    /// The answer to the request that was sent on is remembered. Of a hit nothing is.
    #[must_use]
    pub const fn stored(mut self) -> Self {
        if let Handled::Forwarded { stored, .. } = &mut self.handled {
            *stored = true;
        }
        self
    }

    /// Was it one request for several that wanted the same? `false`: it was tried and did not work.
    #[must_use]
    pub const fn collapsed(mut self, with_others: bool) -> Self {
        if let Handled::Forwarded { collapsed, .. } = &mut self.handled {
            *collapsed = Some(with_others);
        }
        self
    }

    /// Whole seconds for which the answer stays fresh; negative when it is stale.
    #[must_use]
    pub const fn ttl(mut self, seconds: i64) -> Self {
        self.ttl = Some(seconds);
        self
    }

    /// The key in the cache. Show none that tells of a caller.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What else there is to say.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The cache's name.
    #[must_use]
    pub fn cache(&self) -> &str {
        &self.cache
    }

    /// Did the cache answer from memory?
    #[must_use]
    pub fn is_hit(&self) -> bool {
        self.handled == Handled::Hit
    }

    /// Why it sent the request on; `None` when it did not, or does not say.
    #[must_use]
    pub const fn why_forwarded(&self) -> Option<Forward> {
        match self.handled {
            Handled::Forwarded { why, .. } => Some(why),
            Handled::Unsaid | Handled::Hit => None,
        }
    }

    /// Seconds for which it called the answer fresh.
    #[must_use]
    pub const fn ttl_seconds(&self) -> Option<i64> {
        self.ttl
    }

    /// Appends itself to what caches nearer to the origin have said. A header that breaks the
    /// standard's syntax is dropped: nobody could read ours behind it.
    pub fn append_to(&self, headers: &mut HeaderMap) {
        if members(headers).is_none() {
            headers.remove(CACHE_STATUS);
        }
        // The text is printable ASCII by construction.
        if let Ok(value) = HeaderValue::from_str(&self.to_string()) {
            headers.append(CACHE_STATUS, value);
        }
    }

    /// What the caches on the way say, the one nearest to the origin first. Empty when the header is
    /// absent or breaks the standard's syntax, which makes all of it void (RFC 9651 §4.2).
    #[must_use]
    pub fn read(headers: &HeaderMap) -> Vec<Self> {
        members(headers).unwrap_or_default().iter().map(Self::from_member).collect()
    }

    fn from_member(member: &Member) -> Self {
        let mut read = Self::new(member.name.clone(), Handled::Unsaid);
        let text = |name: &str| match member.param(name) {
            Some(Bare::Token(text) | Bare::String(text)) => Some(text.clone()),
            Some(Bare::Integer(_) | Bare::Boolean(_) | Bare::Other) | None => None,
        };
        let flag = |name: &str| match member.param(name) {
            Some(Bare::Boolean(flag)) => Some(*flag),
            Some(Bare::Integer(_) | Bare::Token(_) | Bare::String(_) | Bare::Other) | None => None,
        };
        let number = |name: &str| match member.param(name) {
            Some(Bare::Integer(number)) => Some(*number),
            Some(Bare::Boolean(_) | Bare::Token(_) | Bare::String(_) | Bare::Other) | None => None,
        };
        let forward = text("fwd");
        let why = Forward::ALL.into_iter().find(|why| forward.as_deref() == Some(why.token()));
        read.handled = match why {
            // One that claims both was not answered from memory alone.
            Some(why) => Handled::Forwarded {
                why,
                status: number("fwd-status").and_then(|code| u16::try_from(code).ok()),
                stored: flag("stored").unwrap_or(false),
                collapsed: flag("collapsed"),
            },
            None if flag("hit") == Some(true) => Handled::Hit,
            None => Handled::Unsaid,
        };
        (read.ttl, read.key, read.detail) = (number("ttl"), text("key"), text("detail"));
        read
    }
}

/// The members of the list; `None` when it breaks the syntax.
fn members(headers: &HeaderMap) -> Option<Vec<Member>> {
    let lines: Option<Vec<&str>> =
        headers.get_all(CACHE_STATUS).iter().map(|line| line.to_str().ok()).collect();
    structured::list(&lines?.join(","))
}

/// One member of the list, as a structured field.
impl fmt::Display for CacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&structured::token_or_string(&self.cache))?;
        match self.handled {
            Handled::Unsaid => {}
            Handled::Hit => f.write_str("; hit")?,
            Handled::Forwarded { why, status, stored, collapsed } => {
                write!(f, "; fwd={}", why.token())?;
                if let Some(status) = status {
                    write!(f, "; fwd-status={status}")?;
                }
                match collapsed {
                    Some(true) => f.write_str("; collapsed")?,
                    Some(false) => f.write_str("; collapsed=?0")?,
                    None => {}
                }
                if stored {
                    f.write_str("; stored")?;
                }
            }
        }
        if let Some(ttl) = self.ttl {
            write!(f, "; ttl={}", structured::integer(ttl))?;
        }
        if let Some(key) = &self.key {
            write!(f, "; key={}", structured::string(key))?;
        }
        if let Some(detail) = &self.detail {
            write!(f, "; detail={}", structured::token_or_string(detail))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
