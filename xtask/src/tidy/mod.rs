//! The rules of the house, checked by reading the workspace's own text.
//!
//! Each rule is a row of a table or a small function; each finding says where, what, why and the way
//! out. The checks read text, not types: they see what is written, and say so where that has limits.

mod calls;
mod docs;
mod floors;
mod graph;
mod licences;
mod manifests;
mod rooms;
mod size;
mod source;
mod tables;

use std::fmt;
use std::path::{Path, PathBuf};

pub use source::{Source, load, mask};

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the root, with `/` between its parts.
    pub file: String,
    /// The line, counted from one.
    pub line: usize,
    /// What was found.
    pub what: String,
    /// Why that is a rule.
    pub why: String,
    /// What to do instead.
    pub way_out: String,
}

/// What a run has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Broken rules, by file and line; any of them fails the run.
    pub findings: Vec<Finding>,
    /// What deserves a look and breaks nothing.
    pub notes: Vec<String>,
    /// Rust files that were read.
    pub files: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for Finding { file, line, what, why, way_out } in &self.findings {
            writeln!(f, "{file}:{line}: {what}\n    why: {why}\n    hint: {way_out}")?;
        }
        writeln!(f, "tidy: {} files, {} findings", self.files, self.findings.len())
    }
}

/// The root of this workspace.
///
/// # Errors
/// When this package is no longer one folder below the root.
pub fn workspace_root() -> Result<PathBuf, String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().map(Path::to_path_buf).ok_or_else(|| "find the workspace root".to_owned())
}

/// Runs all checks on the workspace at `root`.
///
/// # Errors
/// When a file could not be read or cargo did not answer.
pub fn check(root: &Path) -> Result<Report, String> {
    let sources = source::load(root)?;
    let mut report = Report { files: sources.len(), ..Report::default() };
    for source in &sources {
        report.findings.extend(calls::check(source));
        report.findings.extend(rooms::check(source));
        report.findings.extend(floors::check(source));
        size::check(source, &mut report);
    }
    report.findings.extend(calls::check_rooms(&sources));
    report.findings.extend(size::check_ratchet(&sources));
    report.findings.extend(tables::check(&sources));
    report.findings.extend(manifests::check(root)?);
    report.findings.extend(docs::check(root)?);
    report.findings.extend(graph::check(root)?);
    report.findings.extend(licences::check(root)?);
    report.findings.sort();
    Ok(report)
}

/// Reads a file below `root`.
fn read(root: &Path, file: &str) -> Result<String, String> {
    std::fs::read_to_string(root.join(file)).map_err(|error| format!("read {file}: {error}"))
}

/// All files below `root/folder` that end in `ending`, sorted, relative to `root`. Build output,
/// dot folders and installed packages are left out.
fn files(root: &Path, folder: &str, ending: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let error = |error: std::io::Error| format!("read folder {folder}: {error}");
        for entry in std::fs::read_dir(root.join(&folder)).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" || name == "node_modules" {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if entry.file_type().map_err(error)?.is_dir() {
                folders.push(path);
            } else if path.ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The line, counted from one, on which byte `at` of `text` stands.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}
