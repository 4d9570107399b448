//! Subjects that live in one room: SQL in the store, metrics in the observers.

use super::source::Source;
use super::{Finding, line_of};

/// Where SQL may stand. Tests are users and may have tables of their own.
const SQL_ROOMS: &[&str] = &["crates/mamparo-store/", "crates/mamparo-testkit/", "apps/"];

/// Calls that hand SQL to a database.
const SQL_CALLS: &[&str] = &["query", "query_as", "query_scalar", "query_with", "raw_sql"];

/// Beginnings of strings that are SQL, each with a word that must follow somewhere.
const SQL_STARTS: &[(&str, &str)] = &[
    ("SELECT ", " FROM "),
    ("INSERT ", " INTO "),
    ("UPDATE ", " SET "),
    ("DELETE ", " FROM "),
    ("CREATE ", " TABLE "),
    ("CREATE ", " INDEX "),
    ("ALTER ", " TABLE "),
    ("DROP ", " TABLE "),
    ("PRAGMA ", " "),
    ("BEGIN ", " IMMEDIATE"),
];

/// What speaks to the metrics registry. Not `metrics::` alone: a module may be called that.
const METRICS: &[&str] = &[
    "counter!",
    "gauge!",
    "histogram!",
    "describe_counter!",
    "describe_gauge!",
    "describe_histogram!",
    "use metrics::",
    "metrics::Counter",
    "metrics::Gauge",
    "metrics::Histogram",
    "metrics::set_global_recorder",
];

/// SQL and metrics of `source` that stand outside their rooms.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    // These rules name what they look for, and benchmarks bring a recorder of their own.
    if source.path.starts_with("xtask/") || source.path.starts_with("bench/") {
        return found;
    }
    if !SQL_ROOMS.iter().any(|room| source.path.starts_with(room)) {
        found.extend(sql_lines(source).into_iter().map(|line| Finding {
            file: source.path.clone(),
            line,
            what: "SQL outside of the store".to_owned(),
            why: "two places with SQL disagree about locks and where-clauses".to_owned(),
            way_out: "make it an operation of mamparo-store".to_owned(),
        }));
    }
    let name = source.path.rsplit('/').next().unwrap_or_default();
    if name != "observe.rs" && !source.path.contains("/telemetry") {
        found.extend(
            metric_lines(source).into_iter().map(|line| Finding {
                file: source.path.clone(),
                line,
                what: "metrics outside of observe.rs and telemetry".to_owned(),
                why: "metrics are reports of what the machines answered, written in one place"
                    .to_owned(),
                way_out: "return the change and report it in the crate's observe.rs".to_owned(),
            }),
        );
    }
    found.retain(|finding| !source.is_test(finding.line));
    found
}

fn sql_lines(source: &Source) -> Vec<usize> {
    let mut lines: Vec<usize> = SQL_CALLS
        .iter()
        .flat_map(|call| {
            let (path, generic) = (format!("sqlx::{call}"), format!("{call}::<"));
            [path, generic].map(|needle| Source::lines_with(&source.code, &needle)).concat()
        })
        .collect();
    for (start, then) in SQL_STARTS {
        lines.extend(source.strings.match_indices(start).filter_map(|(at, _)| {
            let line = source.strings[..at].rfind('\n').map_or(0, |end| end + 1);
            let begins = source.strings[line..at].trim().is_empty();
            let end = source.strings[at..].find("\n\n").map_or(source.strings.len(), |e| at + e);
            let follows = source.strings[at + start.len() - 1..end].contains(then);
            (begins && follows).then(|| line_of(&source.strings, at))
        }));
    }
    lines.sort_unstable();
    lines.dedup();
    lines
}

fn metric_lines(source: &Source) -> Vec<usize> {
    let found = METRICS.iter().flat_map(|needle| Source::lines_with(&source.code, needle));
    let mut lines: Vec<usize> = found.collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Source::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn sql_is_found_in_calls_and_in_strings_and_free_in_the_store() {
        let text = "fn f() {\n    sqlx::query(X);\n    g(\"SELECT a FROM b\");\n    \
            g(\n        \"UPDATE b\n         SET a = 1\");\n    query_as::<_, R>(x);\n}\n";
        assert_eq!(lines("crates/mamparo-http/src/f.rs", text), [2, 3, 5, 7]);
        assert_eq!(lines("crates/mamparo-store/src/f.rs", text), [0; 0]);
        assert_eq!(lines("crates/mamparo-http/tests/f.rs", text), [0; 0]);
        let words = "fn f() { g(\"cannot SELECT a FROM b\"); g(\"UPDATE me\"); parse_query(q); }\n";
        assert_eq!(lines("crates/mamparo-http/src/f.rs", words), [0; 0]);
    }

    #[test]
    fn metrics_belong_to_observers() {
        let text = "fn f() {\n    metrics::counter!(\"a\").increment(1);\n    gauge!(\"b\");\n}\n";
        assert_eq!(lines("crates/mamparo-call/src/f.rs", text), [2, 3]);
        assert_eq!(lines("crates/mamparo-call/src/observe.rs", text), [0; 0]);
        assert_eq!(lines("crates/mamparo-service/src/telemetry.rs", text), [0; 0]);
        assert_eq!(lines("crates/mamparo-call/src/f.rs", "use metrics::Counter;\n"), [1]);
        let own = "use crate::metrics;\nfn f() { metrics::total(x) }\n";
        assert_eq!(lines("crates/mamparo-call/src/f.rs", own), [0; 0]);
    }
}
