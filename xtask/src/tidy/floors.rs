//! Core's modules only look downwards.

use super::Finding;
use super::line_of;
use super::source::Source;

const CORE: &str = "crates/mamparo-core/src/";

/// The floors of core, lowest first. A module uses what is below it, and itself; the lowest floor is
/// vocabulary whose words may use each other.
const FLOORS: &[&[&str]] = &[
    &["time", "rng", "limits", "table", "change", "sync", "hash"],
    &["outcome", "backoff", "keyed"],
    &["call"],
    &["message", "saga", "process"],
];

/// Uses of a module on the same or a higher floor, and modules without a floor. Reads
/// `crate::module` and `crate::{module, …}`.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let Some(path) = source.path.strip_prefix(CORE) else { return Vec::new() };
    let own = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    if own == "lib" {
        return Vec::new();
    }
    let finding = |line, what| Finding {
        file: source.path.clone(),
        line,
        what,
        why: "modules that import each other in a ring can only be understood all at once"
            .to_owned(),
        way_out: "move what both need to a lower floor (xtask/src/tidy/floors.rs)".to_owned(),
    };
    let Some(own_floor) = floor(own) else {
        return vec![finding(1, format!("the module `{own}` has no floor"))];
    };
    let mut found = if own == "sync" { Vec::new() } else { unchecked(source) };
    for (used, line) in uses(&source.code) {
        let fine = match floor(used) {
            Some(0) => true,
            Some(at) => at < own_floor || used == own,
            None => false,
        };
        if !fine && !source.is_test(line) {
            found.push(finding(line, format!("`{own}` uses `{used}`, which is not below it")));
        }
    }
    found
}

/// Atomics and locks that do not come from `crate::sync`, where the model checker takes them over.
fn unchecked(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices("std::sync::") {
        let rest = &source.code[at + "std::sync::".len()..];
        let named = &rest[..rest.find([';', '(', '<', '=']).unwrap_or(rest.len())];
        let words = named.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let line = line_of(&source.code, at);
        let shared = ["atomic", "Mutex", "MutexGuard", "RwLock", "Condvar"];
        if words.into_iter().any(|word| shared.contains(&word)) && !source.is_test(line) {
            found.push(Finding {
                file: source.path.clone(),
                line,
                what: "an atomic or a lock that does not come from `crate::sync`".to_owned(),
                why: "the model checker does not see it (docs/adr/0006)".to_owned(),
                way_out: "import it from `crate::sync`".to_owned(),
            });
        }
    }
    found
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

/// Modules that follow `crate::` in masked code, with their lines.
fn uses(code: &str) -> Vec<(&str, usize)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let (rest, line) = (&code[at + "crate::".len()..], line_of(code, at));
        let Some(group) = rest.strip_prefix('{') else {
            found.push((rest.split(|c| !is_name(c)).next().unwrap_or_default(), line));
            continue;
        };
        let mut depth = 0_usize;
        let mut fresh = true;
        for (index, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => fresh = true,
                c if fresh && is_name(c) => {
                    let name = group[index..].split(|c| !is_name(c)).next().unwrap_or_default();
                    found.push((name, line));
                    fresh = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(file: &str, text: &str) -> Vec<String> {
        let source = Source::new(&format!("{CORE}{file}"), text);
        check(&source).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn looking_down_and_at_oneself_is_fine() {
        let text = "use crate::{call::retry::Retry, outcome::{Kind, Sent}, time::Moment};\n";
        assert_eq!(whats("call/pipeline.rs", text), [""; 0]);
        assert_eq!(whats("time.rs", "use crate::limits::MAX;\n"), [""; 0]);
    }

    #[test]
    fn atomics_and_locks_come_from_the_room_that_can_be_checked() {
        for text in [
            "use std::sync::atomic::AtomicU64;\n",
            "use std::sync::{Arc, Mutex};\n",
            "fn f(x: &std::sync::Mutex<u8>) {}\n",
        ] {
            assert_eq!(whats("call/breaker.rs", text).len(), 1, "{text}");
            assert_eq!(whats("sync.rs", text), [""; 0]);
        }
        for text in ["use std::sync::Arc;\n", "use std::sync::PoisonError;\nstruct Mutex;\n"] {
            assert_eq!(whats("call/breaker.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn looking_up_or_sideways_is_found() {
        assert_eq!(whats("outcome.rs", "use crate::{time::Moment, call::retry};\n").len(), 1);
        assert_eq!(whats("message/relay.rs", "fn f(x: crate::saga::X) {}\n").len(), 1);
        assert_eq!(whats("backoff.rs", "use crate::outcome::Kind;\n").len(), 1);
        assert_eq!(whats("news/mod.rs", ""), ["the module `news` has no floor"]);
        let in_a_test = "#[cfg(test)]\nmod tests {\n    use crate::saga::X;\n}\n";
        assert_eq!(whats("message/relay.rs", in_a_test), [""; 0]);
    }
}
