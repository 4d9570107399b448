//! Every transition table of core is driven, row by row, by a test.

use super::source::Source;
use super::{Finding, line_of};

/// Tables in core without a test that asks which of their rows it left out.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let core = || sources.iter().filter(|s| s.path.starts_with("crates/mamparo-core/"));
    let mut found = Vec::new();
    for source in core().filter(|s| s.path.contains("/src/") && !s.path.ends_with("src/table.rs")) {
        for (name, line) in tables(source) {
            if !core().any(|other| drives(other, source, name)) {
                found.push(Finding {
                    file: source.path.clone(),
                    line,
                    what: format!("no test drives all rows of the table `{name}`"),
                    why: "a transition that no test takes is a guess".to_owned(),
                    way_out: format!(
                        "collect the rows a test drove, assert {name}.untested(&hits) is empty"
                    ),
                });
            }
        }
    }
    found
}

/// Name and line of each `const` or `static` of type `Table`.
fn tables(source: &Source) -> Vec<(&str, usize)> {
    let tables = source.code.match_indices("Table<").filter_map(|(at, _)| {
        let line = source.code[..at].rfind('\n').map_or(0, |end| end + 1);
        let (names, kind) = source.code[line..at].rsplit_once(':')?;
        let declares = names.contains("const ") || names.contains("static ");
        let name = names.trim_end_matches(':').split_whitespace().last()?;
        let of_type = kind.trim().is_empty() || names.ends_with(':');
        (declares && of_type).then_some((name, line_of(&source.code, at)))
    });
    tables.filter(|(_, line)| !source.is_test(*line)).collect()
}

/// Do tests in `other` ask `name`, the table of `source`, for what they left out? They stand in the
/// same file, or in one that is called after it or imports from it.
fn drives(other: &Source, source: &Source, name: &str) -> bool {
    let stem = source.path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
    let stem = stem.rsplit('/').next().unwrap_or(stem);
    let code: String = other.test_code().split_whitespace().collect();
    let imports = code.contains(&format!("{stem}::"));
    let near = other.path == source.path || other.path.contains(stem) || imports;
    near && code.contains(&format!("{name}.untested("))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_needs_a_test_that_asks_for_untested_rows() {
        let table = "pub const TABLE: Table<S, E> = Table { rows: &[] };\n";
        let test = "#[cfg(test)]\nmod tests {\n fn t() { assert!(TABLE\n .untested(&h).is_empty()); }\n}\n";
        let path = "crates/mamparo-core/src/call/breaker.rs";
        let alone = Source::new(path, table);
        assert_eq!(check(std::slice::from_ref(&alone)).len(), 1);
        assert_eq!(check(&[Source::new(path, &format!("{table}{test}"))]), []);
        let apart = Source::new("crates/mamparo-core/tests/breaker.rs", test);
        assert_eq!(check(&[alone.clone(), apart]), []);
        let imports = format!("use mamparo_core::call::breaker::TABLE;\n{test}");
        let called_otherwise = Source::new("crates/mamparo-core/tests/flow.rs", &imports);
        assert_eq!(check(&[alone.clone(), called_otherwise]), []);
        let of_another = Source::new("crates/mamparo-core/tests/bulkhead.rs", test);
        assert_eq!(check(&[alone, of_another]).len(), 1);
    }

    #[test]
    fn other_uses_of_the_type_are_no_tables() {
        let text = "fn f(table: &Table<S, E>) -> Table<S, E> { todo() }\n";
        assert_eq!(check(&[Source::new("crates/mamparo-core/src/a.rs", text)]), []);
    }
}
