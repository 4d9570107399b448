//! `[dependencies.<name>]`

use std::time::Duration;

use mamparo_core::limits::{
    ATTEMPT_MIN_USABLE, ATTEMPTS_MAX, BULKHEAD_LIMIT_MAX, BULKHEAD_QUEUE_MAX, PROBES_MAX,
    WINDOW_CALLS_MAX,
};

use super::{LONGEST, SHORTEST, rate_limit};
use crate::reader::{Section, nearest_hint};
use crate::{
    BreakerRule, BreakerSection, BulkheadSection, DependencySection, Fallback, Located,
    RetrySection,
};

pub(super) fn read(
    name: Located<String>,
    mut section: Section<'_, '_>,
) -> Option<DependencySection> {
    let url = url(&mut section);
    if !section.has("attempt_timeout") {
        section.missing("attempt_timeout");
    }
    let shortest = ATTEMPT_MIN_USABLE.saturating_add(SHORTEST);
    let attempt_timeout = section.within("attempt_timeout", shortest..=LONGEST);
    let retry = section.table("retry").map(retry);
    let breaker = section.table("breaker").and_then(breaker);
    let bulkhead = section.table("bulkhead").map(bulkhead);
    let rate_limit = section.table("rate_limit").and_then(rate_limit);
    let fallback = fallback(&mut section);
    section.finish();
    Some(DependencySection {
        name,
        url: url?,
        attempt_timeout: attempt_timeout?,
        retry,
        breaker,
        bulkhead,
        rate_limit,
        fallback,
    })
}

fn url(section: &mut Section<'_, '_>) -> Option<Located<String>> {
    let url = section.require::<String>("url")?;
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    if host.is_some_and(|host| !host.is_empty() && !host.starts_with('/')) {
        return Some(url);
    }
    let hint = "write \"http://host:port\"".to_owned();
    section.complain("url", "is no http or https address", Some(hint));
    None
}

fn retry(mut section: Section<'_, '_>) -> RetrySection {
    let attempts = section.within_or("attempts", 1..=ATTEMPTS_MAX, 3);
    let base = section.within_or("base", Duration::ZERO..=LONGEST, Duration::from_millis(100));
    let factor = section.within_or("factor", 1.0..=100.0, 2.0);
    let cap = section.within_or("cap", Duration::ZERO..=LONGEST, Duration::from_secs(2));
    if *cap < *base {
        let key = if section.has("cap") { "cap" } else { "base" };
        section.complain(key, "the cap is below the base, so no wait ever grows", None);
    }
    section.finish();
    RetrySection { attempts, base, factor, cap }
}

fn breaker(mut section: Section<'_, '_>) -> Option<BreakerSection> {
    let failures = section.within("failures", 1..=WINDOW_CALLS_MAX);
    let failure_rate = section.within("failure_rate", f64::MIN_POSITIVE..=1.0);
    let min_calls = section.within("min_calls", 1..=WINDOW_CALLS_MAX);
    let window = section.within_or("window", SHORTEST..=LONGEST, Duration::from_secs(10));
    let open_for = section.within_or("open_for", SHORTEST..=LONGEST, Duration::from_secs(30));
    let probes = section.within_or("probes", 1..=PROBES_MAX, 1);
    let rated = section.has("failure_rate");
    if rated && section.has("failures") {
        let hint = "keep one: a number of failures, or a share of the calls".to_owned();
        section.complain(
            "failure_rate",
            "failures and failure_rate exclude each other",
            Some(hint),
        );
    }
    if !rated && section.has("min_calls") {
        let hint = "set failure_rate, or leave min_calls out".to_owned();
        section.complain("min_calls", "only counts with failure_rate", Some(hint));
    }
    section.finish();
    let rule = if rated {
        let min_calls = min_calls.unwrap_or(Located::nowhere(20));
        BreakerRule::Rate { failure_rate: failure_rate?, min_calls }
    } else {
        BreakerRule::Failures(failures.unwrap_or(Located::nowhere(5)))
    };
    Some(BreakerSection { rule, window, open_for, probes })
}

fn bulkhead(mut section: Section<'_, '_>) -> BulkheadSection {
    let limit = section.within_or("limit", 1..=BULKHEAD_LIMIT_MAX, 20);
    let queue = section.within_or("queue", 0..=BULKHEAD_QUEUE_MAX, 0);
    section.finish();
    BulkheadSection { limit, queue }
}

fn fallback(section: &mut Section<'_, '_>) -> Located<Fallback> {
    let Some(word) = section.get::<String>("fallback") else {
        return Located::nowhere(Fallback::None);
    };
    let known = [Fallback::None, Fallback::Stale, Fallback::Partial];
    match known.into_iter().find(|fallback| fallback.as_str() == word.value) {
        Some(fallback) => Located::at(word.line, fallback),
        None => {
            let hint = nearest_hint(&word, &known.map(Fallback::as_str));
            section.complain("fallback", &format!("{:?} is no fallback", word.value), hint);
            Located::nowhere(Fallback::None)
        }
    }
}
