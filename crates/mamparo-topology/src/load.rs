//! From text to model.

use std::path::Path;

use toml::de::DeTable;

use crate::reader::{Section, Sink};
use crate::{PolicyFile, Problem, Problems, check, sections};

/// Parses the text of one file; `file` is the name that problems show.
///
/// # Errors
/// Every mistake of the file, in the order of its lines.
pub fn parse(file: &str, text: &str) -> Result<PolicyFile, Problems> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let sink = Sink::new(file, text, !errors.is_empty());
    for error in errors {
        let offset = error.span().map_or(0, |span| span.start);
        sink.report(offset, "", error.message(), None);
    }
    let root = Section::new(&sink, String::new(), table.get_ref(), 0);
    let policy = sections::policy(root);
    if let Some(policy) = &policy
        && !sink.broken
    {
        check::policy(policy, table.get_ref(), &sink);
    }
    let problems = sink.into_problems();
    match policy {
        Some(policy) => Problems::or(problems, policy),
        None => {
            // A section that could not be read has said why.
            debug_assert!(!problems.is_empty(), "a section was dropped without a word");
            let unread = Problem::of_file(file, "the file could not be read as a policy");
            Err(Problems::or(problems, ()).err().unwrap_or_else(|| unread.into()))
        }
    }
}

/// Reads and parses several files.
///
/// # Errors
/// Every mistake of every file, unreadable files included.
pub fn load(paths: &[impl AsRef<Path>]) -> Result<Vec<PolicyFile>, Problems> {
    let (mut policies, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        match load_one(path) {
            Ok(policy) => policies.push(policy),
            Err(found) => problems.extend(found),
        }
    }
    Problems::or(problems, policies)
}

/// Reads and parses one file.
///
/// # Errors
/// Every mistake of the file, or why it can't be read.
pub fn load_one(path: impl AsRef<Path>) -> Result<PolicyFile, Problems> {
    let name = path.as_ref().display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&name, &text),
        Err(error) => Err(Problem::of_file(name, format!("cannot read the file: {error}")).into()),
    }
}
