//! What every package's manifest says.

use std::path::Path;

use super::{Finding, files, read};

/// Keys of `[package]` that come from the workspace.
const INHERITED: &[&str] = &["version", "edition", "rust-version", "license", "publish"];

/// Manifests that go their own way.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let mut found = Vec::new();
    let folders = ["crates", "apps", "bench", "xtask"];
    for folder in folders.into_iter().filter(|folder| root.join(folder).is_dir()) {
        let mut manifests = files(root, folder, "Cargo.toml")?;
        // The benchmarks are a workspace of their own; its members inherit from it.
        manifests.retain(|file| file != "bench/Cargo.toml");
        for file in manifests {
            found.extend(check_manifest(&file, &read(root, &file)?)?);
        }
    }
    Ok(found)
}

fn check_manifest(file: &str, text: &str) -> Result<Vec<Finding>, String> {
    let manifest: toml::Table = text.parse().map_err(|error| format!("parse {file}: {error}"))?;
    let of = |table: &str, key: &str| manifest.get(table).and_then(|value| value.get(key)).cloned();
    let inherits = |table: &str, key: &str| {
        let value = of(table, key).and_then(|value| value.get("workspace").cloned());
        value.and_then(|value| value.as_bool()) == Some(true)
    };
    let finding = |needle: &str, what: String, why: &str, way_out: String| Finding {
        file: file.to_owned(),
        line: text.lines().position(|line| line.contains(needle)).map_or(1, |at| at + 1),
        what,
        why: why.to_owned(),
        way_out,
    };
    let mut found = Vec::new();
    if of("lints", "workspace").and_then(|value| value.as_bool()) != Some(true) {
        found.push(finding(
            "[lints",
            "does not inherit the workspace's lints".to_owned(),
            "one set of lints holds everywhere",
            "write `[lints]` with `workspace = true`".to_owned(),
        ));
    }
    for key in INHERITED.iter().filter(|key| !inherits("package", key)) {
        found.push(finding(
            &format!("{key} "),
            format!("`{key}` is not the workspace's"),
            "all crates are released together, under one version and one licence",
            format!("write `{key}.workspace = true`"),
        ));
    }
    let folder = file.trim_end_matches("/Cargo.toml").rsplit('/').next().unwrap_or_default();
    let name = of("package", "name").and_then(|name| name.as_str().map(str::to_owned));
    if name.as_deref() != Some(folder) {
        found.push(finding(
            "name ",
            format!("package {} lives in folder {folder}", name.unwrap_or_default()),
            "who knows the package finds the folder",
            "give both one name".to_owned(),
        ));
    }
    for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let names = manifest.get(table).and_then(|value| value.as_table());
        for name in names.into_iter().flat_map(|names| names.keys()) {
            if !inherits(table, name) {
                found.push(finding(
                    &format!("{name} "),
                    format!("the version of `{name}` is not the workspace's"),
                    "one version of each dependency, chosen in one place",
                    format!(
                        "add it to [workspace.dependencies] and write `{name}.workspace = true`"
                    ),
                ));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\nversion.workspace = true\nedition.workspace = true\n\
        rust-version.workspace = true\nlicense.workspace = true\npublish.workspace = true\n\
        [dependencies]\nserde = { workspace = true, features = [\"derive\"] }\n\
        [lints]\nworkspace = true\n";

    fn lines(text: &str) -> Vec<usize> {
        let found = check_manifest("crates/a/Cargo.toml", text).expect("a manifest");
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_rule_of_a_manifest_can_fail() {
        assert_eq!(lines(GOOD), [0; 0]);
        assert_eq!(lines(&GOOD.replace("[lints]\nworkspace = true\n", "")), [1]);
        assert_eq!(lines(&GOOD.replace("license.workspace = true", "license = \"MIT\"")), [6]);
        assert_eq!(lines(&GOOD.replace("name = \"a\"", "name = \"b\"")), [2]);
        assert_eq!(
            lines(&GOOD.replace("workspace = true, features", "version = \"1\", features")),
            [9]
        );
        assert!(check_manifest("crates/a/Cargo.toml", "[").is_err());
    }
}
