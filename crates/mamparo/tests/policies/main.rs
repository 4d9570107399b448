//! The pages in `docs/policies`: all on one template, their diagrams and defaults made from the code.
//!
//! What stands between `<!-- made by the code: NAME -->` and `<!-- end -->` is compared with what
//! the code says. After a change, `UPDATE_PAGES=1 cargo test -p mamparo --test policies` writes it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on stops")]

mod blocks;
mod layers;

use std::fs;
use std::path::{Path, PathBuf};

/// What every page has, in this order, between its title and its end.
const TEMPLATE: [&str; 6] = [
    "## When",
    "## Use",
    "## How it decides",
    "## Defaults",
    "## Events and metrics",
    "## Anti-patterns",
];

/// Pages that explain no policy of their own.
const NO_POLICY: [&str; 2] = ["README.md", "events.md"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies")
}

fn pages() -> Vec<(String, String)> {
    let mut pages: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect();
    pages.sort();
    pages
}

#[test]
fn every_page_follows_the_template() {
    for (name, text) in pages().iter().filter(|(name, _)| !NO_POLICY.contains(&name.as_str())) {
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, TEMPLATE, "{name}");
        let about: String =
            text.lines().skip(1).take_while(|line| !line.starts_with("##")).collect();
        assert!(about.trim().len() > 100, "{name} says what it is about");
        assert!(text.contains("\n```rust\n"), "{name} shows code that compiles");
    }
}

#[test]
fn the_index_names_every_page_and_every_page_is_compiled() {
    let compiled = include_str!("../../src/lib.rs");
    let all = pages();
    let (_, index) = all.iter().find(|(name, _)| name == "README.md").unwrap();
    for (name, _) in all.iter().filter(|(name, _)| name != "README.md") {
        assert!(index.contains(&format!("({name})")), "README.md has no link to {name}");
        assert!(compiled.contains(&format!("docs/policies/{name}")), "{name} is not compiled");
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whoever runs it says that the pages be written")]
fn diagrams_and_defaults_are_what_the_code_says() {
    let update = std::env::var_os("UPDATE_PAGES").is_some();
    let mut used = Vec::new();
    for (name, text) in pages() {
        let made = fill(&name, &text, &mut used);
        if update && made != text {
            fs::write(folder().join(&name), &made).unwrap();
        } else {
            assert_eq!(text, made, "run UPDATE_PAGES=1 cargo test -p mamparo --test policies");
        }
    }
    for (block, _) in blocks::all() {
        assert!(used.contains(&block), "no page shows the block {block}");
    }
}

/// The page with every made part as the code makes it now.
fn fill(page: &str, text: &str, used: &mut Vec<&'static str>) -> String {
    let mut made = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<!-- made by the code: ") {
        let (name, after) = after.split_once(" -->\n").unwrap();
        let (_, after) = after.split_once("<!-- end -->").unwrap();
        let blocks = blocks::all();
        let found = blocks.into_iter().find(|(block, _)| *block == name);
        let (block, content) = found.unwrap_or_else(|| panic!("{page}: there is no block {name}"));
        used.push(block);
        made.push_str(&format!("{before}<!-- made by the code: {name} -->\n{content}<!-- end -->"));
        rest = after;
    }
    made + rest
}

#[test]
fn three_layers_without_budgets_make_27_calls_of_one_and_with_them_a_third_more() {
    use mamparo::core::call::retry_budget::RetryBudgetConfig;
    let budget = |ratio| Some(RetryBudgetConfig { ratio, ..RetryBudgetConfig::default() });
    assert_eq!(layers::amplification(None), 27.0);
    assert!(layers::amplification(budget(0.1)) <= 1.34, "1.1³, and the reserve of 20 a layer");
    assert!(layers::amplification(budget(0.2)) <= 1.74, "1.2³, and the reserve of 20 a layer");
}
