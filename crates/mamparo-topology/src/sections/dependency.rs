//! `[dependencies.<name>]`

use mamparo_core::limits::{ATTEMPT_MIN_USABLE, DETACHED_MAX};

use super::policies::{adaptive, breaker, bulkhead, faults, hedge, retry, shed, throttle, word};
use super::{LONGEST, SHORTEST, rate_limit};
use crate::reader::Section;
use crate::{DependencySection, Fallback, Located};

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
    let adaptive = section.table("adaptive").map(adaptive);
    let hedge = section.table("hedge").map(hedge);
    let throttle = section.table("throttle").map(throttle);
    let shed = section.table("shed").map(shed);
    let observe_latency = section.within("observe_latency", SHORTEST..=LONGEST);
    let detached = section.within("detached", 1..=DETACHED_MAX);
    let rate_limit = section.table("rate_limit").and_then(rate_limit);
    let faults = section.table("faults").map(faults);
    let fallback = fallback(&mut section);
    section.finish();
    Some(DependencySection {
        name,
        url: url?,
        attempt_timeout: attempt_timeout?,
        retry,
        breaker,
        bulkhead,
        adaptive,
        hedge,
        throttle,
        shed,
        observe_latency,
        detached,
        rate_limit,
        faults,
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

fn fallback(section: &mut Section<'_, '_>) -> Located<Fallback> {
    let known = [Fallback::None, Fallback::Stale, Fallback::Partial].map(|f| (f.as_str(), f));
    word(section, "fallback", &known).unwrap_or(Located::nowhere(Fallback::None))
}
