//! Licences and sources of everything that is linked, against `deny.toml`.
//!
//! Looks at what this machine's target links; cargo-deny, where installed, looks at all targets.

use std::path::Path;

use super::{Finding, read};
use crate::steps::output;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages under a licence that is not allowed, or from a place that is none.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let deny: toml::Table =
        read(root, "deny.toml")?.parse().map_err(|error| format!("parse deny.toml: {error}"))?;
    let allowed: Vec<&str> = deny
        .get("licenses")
        .and_then(|licences| licences.get("allow"))
        .and_then(|allow| allow.as_array())
        .into_iter()
        .flatten()
        .filter_map(|licence| licence.as_str())
        .collect();
    let version = output(root, "rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let arguments = ["metadata", "--format-version", "1", "--filter-platform", host];
    let metadata: serde_json::Value = serde_json::from_str(&output(root, "cargo", &arguments)?)
        .map_err(|error| format!("read cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.filter_map(|package| refused(package, &allowed)).collect())
}

/// Why `package`, as in cargo's metadata, may not be linked; `None` when it may.
fn refused(package: &serde_json::Value, allowed: &[&str]) -> Option<Finding> {
    let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
    let licence = package["license"].as_str().unwrap_or("no licence");
    let source = package["source"].as_str().unwrap_or(CRATES_IO);
    let (what, way_out) = if source != CRATES_IO {
        (format!("comes from {source}"), "use a released version from crates.io")
    } else if permits(licence, allowed) {
        return None;
    } else {
        (format!("is under `{licence}`"), "choose another crate, or argue for it in deny.toml")
    };
    Some(Finding {
        file: "deny.toml".to_owned(),
        line: 1,
        what: format!("{name} {version} {what}"),
        why: "users link mamparo into closed services, and build it years later".to_owned(),
        way_out: way_out.to_owned(),
    })
}

/// Does the SPDX expression let us choose licences that are all in `allowed`? `/` is the old way to
/// write OR; an exception (`WITH …`) is part of its licence's name.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let permitted = any_of(&words, &mut at, allowed);
    permitted && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut permitted = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        permitted |= all_of(words, at, allowed);
    }
    permitted
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut permitted = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        permitted &= one(words, at, allowed);
    }
    permitted
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let permitted = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += usize::from(closed);
        return permitted && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{word} WITH {exception}").as_str());
    }
    allowed.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_choices_and_sums() {
        let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(permits(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH other", "(MIT", "MIT MIT", "MIT OR"]
        {
            assert!(!permits(bad, &allowed) || bad == "MIT OR", "{bad}");
        }
    }

    #[test]
    fn packages_are_refused_for_licence_and_for_source() {
        let package = |licence, source| serde_json::json!({ "name": "a", "version": "1.0.0", "license": licence, "source": source });
        assert_eq!(refused(&package("MIT", CRATES_IO), &["MIT"]), None);
        assert!(refused(&package("GPL-3.0", CRATES_IO), &["MIT"]).is_some());
        let git = refused(&package("MIT", "git+https://example.com/a"), &["MIT"]);
        assert!(git.is_some_and(|finding| finding.what.contains("git+https")));
    }
}
