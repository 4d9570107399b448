//! One file a section: which keys there are, their types, ranges and defaults.

mod dependency;
mod policies;
mod queue;
mod route;
mod saga;
mod service;

pub use service::{check_broker, check_store};

use std::time::Duration;

use crate::reader::Section;
use crate::{PolicyFile, RateLimitSection, Settings};

/// The longest that any time in a policy may be. More is a typing mistake.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// The shortest time that is a time at all.
const SHORTEST: Duration = Duration::from_millis(1);

/// Reads the whole file. `None` when a part can't be read; the sink then knows why.
pub(crate) fn policy(mut root: Section<'_, '_>) -> Option<PolicyFile> {
    let service = match root.table("service") {
        Some(section) => service::read(section),
        None => {
            if !root.has("service") {
                root.missing("service");
            }
            None
        }
    };
    let dependencies = all(&mut root, "dependencies", dependency::read);
    let routes: Option<Vec<_>> = {
        // Each one is read before the first failure is looked at, so that all are reported.
        let read: Vec<_> = root.tables("routes").into_iter().map(route::read).collect();
        read.into_iter().collect()
    };
    let queues = all(&mut root, "queues", queue::read);
    let sagas = all(&mut root, "sagas", saga::read);
    let jobs = all(&mut root, "jobs", saga::read_job);
    let settings = root.table("settings").map_or_else(Settings::default, |section| Settings {
        file: section.sink.file.to_owned(),
        line: section.line(),
        entries: section.plain(),
    });
    let file = root.sink.file.to_owned();
    root.finish();
    Some(PolicyFile {
        file: file.clone(),
        service: service?,
        dependencies: dependencies?,
        routes: routes?,
        queues: queues?,
        sagas: sagas?,
        jobs: jobs?,
        settings: Settings { file, ..settings },
    })
}

/// All named tables under `key`; `None` when one of them can't be read.
fn all<'s, 't, T>(
    root: &mut Section<'s, 't>,
    key: &'static str,
    read: impl Fn(crate::Located<String>, Section<'s, 't>) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(group) = root.table(key) else { return Some(Vec::new()) };
    let read: Vec<_> =
        group.named().into_iter().map(|(name, section)| read(name, section)).collect();
    read.into_iter().collect()
}

/// `rate_limit = { requests = 300, per = "1m", burst = 50 }`, of a dependency or of a route.
fn rate_limit(mut section: Section<'_, '_>) -> Option<RateLimitSection> {
    for key in ["requests", "per"] {
        if !section.has(key) {
            section.missing(key);
        }
    }
    let requests = section.within("requests", 1..=1_000_000);
    let per = section.within("per", SHORTEST..=LONGEST);
    let burst = section.within("burst", 1..=1_000_000);
    section.finish();
    Some(RateLimitSection { requests: requests?, per: per?, burst })
}

/// The methods that a route or call can have.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// Checks `METHOD /path` and takes it apart.
fn method_and_path(text: &str) -> Result<(&str, &str), String> {
    let Some((method, path)) = text.split_once(' ') else {
        return Err(format!("{text:?} is not of the form \"METHOD /path\""));
    };
    if !METHODS.contains(&method) {
        return Err(format!("{method:?} is no method: {}", METHODS.join(", ")));
    }
    if !path.starts_with('/') || path.contains(char::is_whitespace) {
        return Err(format!("{path:?} is no path: it starts with / and has no spaces"));
    }
    Ok((method, path))
}
