//! Lengths of files and functions.

use super::source::{Source, closing_brace};
use super::{Finding, Report, line_of};

/// Lines of a file, tests included, that fail.
const FILE_MAX: usize = 700;
/// Lines of a file that are worth a note.
const FILE_NOTE: usize = 400;
/// Lines of a `lib.rs`, which is a map.
const LIB_MAX: usize = 120;
/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_MAX: usize = 70;

/// Functions that may be longer, and how long: (file, function, lines). A ratchet: a row only ever
/// gets a smaller number, and goes when the function fits.
const LONGER: &[(&str, &str, usize)] = &[];

/// Lengths of one file.
pub(super) fn check(source: &Source, report: &mut Report) {
    let lines = source.text.lines().count();
    let max = if source.path.ends_with("src/lib.rs") { LIB_MAX } else { FILE_MAX };
    if lines > max {
        report.findings.push(Finding {
            file: source.path.clone(),
            line: max + 1,
            what: format!("{lines} lines, at most {max}"),
            why: "a file is read in one sitting; a lib.rs is a map".to_owned(),
            way_out: "split by subject; tests move to tests/ or a tests.rs".to_owned(),
        });
    } else if lines > FILE_NOTE {
        report.notes.push(format!("{}: {lines} lines (from {FILE_NOTE} on, say why)", source.path));
    }
    for (name, line, length) in functions(&source.code) {
        if length > longest(LONGER, &source.path, name) {
            report.findings.push(Finding {
                file: source.path.clone(),
                line,
                what: format!("function `{name}` has {length} lines, at most {FUNCTION_MAX}"),
                why: "what does not fit a screen is not seen as a whole".to_owned(),
                way_out: "move what has a name of its own into a function of its own".to_owned(),
            });
        }
    }
}

/// Rows of the ratchet that no longer hold: the function fits, or is gone, or got shorter.
pub(super) fn check_ratchet(sources: &[Source]) -> Vec<Finding> {
    loose(LONGER, sources)
}

fn longest(rows: &[(&str, &str, usize)], path: &str, name: &str) -> usize {
    let row = rows.iter().find(|(file, function, _)| *file == path && *function == name);
    row.map_or(FUNCTION_MAX, |(_, _, lines)| *lines)
}

fn loose(rows: &[(&str, &str, usize)], sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, function, allowed) in rows {
        let source = sources.iter().find(|source| source.path == *file);
        let lengths = source.map(|source| functions(&source.code)).unwrap_or_default();
        let longest =
            lengths.iter().filter(|(n, ..)| n == function).map(|(.., length)| *length).max();
        if longest.is_none_or(|length| length < *allowed) {
            found.push(Finding {
                file: "xtask/src/tidy/size.rs".to_owned(),
                line: 1,
                what: format!(
                    "the row of {file} `{function}` allows {allowed} lines, it has {longest:?}"
                ),
                why: "a ratchet only turns one way".to_owned(),
                way_out: "lower the row's number, or remove the row".to_owned(),
            });
        }
    }
    found
}

/// Name, first line and length of each function in masked `code`. Counts braces: a function that a
/// macro writes is not seen.
fn functions(code: &str) -> Vec<(&str, usize, usize)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_') {
            continue;
        }
        let rest = code[at + 3..].trim_start();
        let length = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let Some(open) = body(code, at) else { continue };
        let (first, last) = (line_of(code, at), line_of(code, closing_brace(code, open)));
        if length > 0 {
            found.push((&rest[..length], first, last - first + 1));
        }
    }
    found
}

/// Where the body of the function at `at` opens; `None` without one, as in a trait. A `;` inside
/// brackets, as in `[u8; 4]`, does not end the signature.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(index),
            b';' | b'}' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(path: &str, text: &str) -> Report {
        let mut report = Report::default();
        check(&Source::new(path, text), &mut report);
        report
    }

    #[test]
    fn files_fail_at_their_limit_and_are_noted_before() {
        assert_eq!(report("crates/a/src/b.rs", &"\n".repeat(400)), Report::default());
        assert_eq!(report("crates/a/src/b.rs", &"\n".repeat(401)).notes.len(), 1);
        assert_eq!(report("crates/a/src/b.rs", &"\n".repeat(701)).findings[0].line, 701);
        assert_eq!(report("crates/a/src/lib.rs", &"\n".repeat(121)).findings.len(), 1);
    }

    #[test]
    fn functions_fail_above_seventy_lines() {
        let text = |inner| {
            format!("fn short() -> [u8; 4] {{\n}}\nfn f(\"{{\") {{\n{}}}\n", "x;\n".repeat(inner))
        };
        assert_eq!(report("a.rs", &text(68)), Report::default());
        let found = report("a.rs", &text(69)).findings;
        assert_eq!((found.len(), found[0].line), (1, 3));
        assert!(found[0].what.contains("`f` has 71 lines"), "{found:?}");
    }

    #[test]
    fn the_ratchet_lets_a_row_through_and_never_loosens() {
        let source = Source::new("a.rs", &format!("fn f() {{\n{}}}\n", "x;\n".repeat(98)));
        let row = |lines| [("a.rs", "f", lines)];
        assert_eq!(longest(&row(100), "a.rs", "f"), 100);
        assert_eq!(longest(&row(100), "b.rs", "f"), FUNCTION_MAX);
        assert_eq!(loose(&row(100), std::slice::from_ref(&source)), []);
        assert_eq!(loose(&row(120), std::slice::from_ref(&source)).len(), 1);
        assert_eq!(loose(&[("a.rs", "gone", 80)], &[source]).len(), 1);
    }
}
