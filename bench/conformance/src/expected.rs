//! What the peers are known to do, kept beside the cases, so that the table stays true.

use std::fmt::Write as _;

use crate::verdict::{Table, Verdict};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/expected.toml");

const HEAD: &str = "\
# What each policy does in the cases of `cargo xtask peers`: pass, limit (never promised), fault, n.a.
# Written by `cargo xtask peers --bless`; a difference fails, because then a published table is wrong.
";

/// What is wrong with `tables`, one line each. With `bless`, writes the file first.
///
/// # Errors
/// When the file can't be written or read.
pub(crate) fn compare(tables: &[Table], bless: bool) -> Result<Vec<String>, String> {
    if bless {
        std::fs::write(FILE, write(tables)).map_err(|error| format!("write {FILE}: {error}"))?;
    }
    let text = std::fs::read_to_string(FILE)
        .map_err(|error| format!("read {FILE}: {error}\nhint: --bless writes it"))?;
    let known: toml::Table = text.parse().map_err(|error| format!("parse {FILE}: {error}"))?;
    let mut findings = Vec::new();
    for (case, subject, verdict, ours) in entries(tables) {
        let known = known.get(case).and_then(|row| row.get(subject)).and_then(|word| word.as_str());
        if ours && matches!(verdict, Verdict::Fault(_)) {
            findings.push(format!("ours fails `{case}`: {verdict}"));
        } else if known != Some(verdict.word()) {
            let known = known.unwrap_or("nothing");
            findings.push(format!("`{case}`: {subject} was to be {known}, and is {verdict}"));
        }
    }
    Ok(findings)
}

fn write(tables: &[Table]) -> String {
    let mut text = HEAD.to_owned();
    for table in tables {
        for row in &table.rows {
            // A String takes whatever is written to it.
            write!(text, "\n[\"{}\"]\n", row.case).ok();
            for (subject, verdict) in table.subjects.iter().zip(&row.verdicts) {
                writeln!(text, "\"{subject}\" = \"{}\"", verdict.word()).ok();
            }
        }
    }
    text
}

fn entries(tables: &[Table]) -> impl Iterator<Item = (&str, &str, &Verdict, bool)> {
    tables.iter().flat_map(|table| {
        table.rows.iter().flat_map(move |row| {
            let columns = table.subjects.iter().zip(&row.verdicts).enumerate();
            columns
                .map(move |(column, (subject, verdict))| (row.case, *subject, verdict, column == 0))
        })
    })
}
