//! Documents that point at each other.

use std::path::Path;

use super::{Finding, files, line_of, read};

/// Where decisions are kept, and their list.
const DECISIONS: &str = "docs/adr";

/// Links that lead nowhere and decisions that no list names.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let mut found = Vec::new();
    for file in files(root, "", ".md")? {
        let text = read(root, &file)?;
        for (link, line) in links(&text) {
            if !target(root, &file, &link).exists() {
                found.push(Finding {
                    file: file.clone(),
                    line,
                    what: format!("the link `{link}` leads nowhere"),
                    why: "a reader who follows a dead link stops trusting the page".to_owned(),
                    way_out: "mend the link; it is relative to the file that holds it".to_owned(),
                });
            }
        }
    }
    if root.join(DECISIONS).is_dir() {
        let list = format!("{DECISIONS}/README.md");
        let text = read(root, &list)?;
        for file in files(root, DECISIONS, ".md")?.into_iter().filter(|file| *file != list) {
            let name = file.rsplit('/').next().unwrap_or_default();
            if !text.contains(&format!("({name})")) {
                found.push(Finding {
                    file: list.clone(),
                    line: 1,
                    what: format!("{name} is not listed"),
                    why: "a decision that nobody finds is taken again".to_owned(),
                    way_out: "add a line with a link to it".to_owned(),
                });
            }
        }
    }
    Ok(found)
}

/// Relative links of a Markdown text with their lines, fragments cut off. Fenced code and code spans
/// hold no links; links over two lines and reference links are not seen.
fn links(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut fenced = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let number = line_of(text, start);
        start += line.len();
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        // Every other piece between backticks is code.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
        for (at, _) in prose.match_indices("](") {
            let rest = &prose[at + 2..];
            let link = rest.split([')', ' ']).next().unwrap_or_default();
            let path = link.split('#').next().unwrap_or_default();
            let elsewhere = link.contains("://") || link.starts_with("mailto:");
            if !path.is_empty() && !elsewhere {
                found.push((path.to_owned(), number));
            }
        }
    }
    found
}

/// The file that `link` in `file` names; one that starts with `/` counts from the root.
fn target(root: &Path, file: &str, link: &str) -> std::path::PathBuf {
    match link.strip_prefix('/') {
        Some(from_root) => root.join(from_root),
        None => root.join(file).parent().unwrap_or(root).join(link),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_from_prose_only() {
        let text =
            "a [b](c.md#d) [e](https://f) [g](#h)\n```\n[i](j.md)\n```\n`[k](l.md)` [m](n/o.md)\n";
        assert_eq!(links(text), [("c.md".to_owned(), 1), ("n/o.md".to_owned(), 5)]);
    }

    #[test]
    fn dead_links_and_unlisted_decisions_are_found() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("docs/adr/README.md", "- [one](0001-one.md)\n- [up](../../there.md)\n");
        write("docs/adr/0001-one.md", "");
        write("there.md", "[root](/docs/adr/README.md)");
        assert_eq!(check(root.path()), Ok(Vec::new()));
        write("docs/adr/0002-two.md", "\n[gone](gone.md)\n");
        let found = check(root.path()).expect("readable files");
        let places: Vec<_> = found.iter().map(|f| (f.file.as_str(), f.line)).collect();
        assert_eq!(places, [("docs/adr/0002-two.md", 2), ("docs/adr/README.md", 1)]);
    }
}
