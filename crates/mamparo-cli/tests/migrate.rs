//! `mamparo migrate`, the binary itself, on both databases.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::process::{Command, Stdio};

use mamparo_testkit::database::Database;

/// The exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mamparo"));
    let output = command.arg("migrate").args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_database_is_migrated_once_and_says_from_where_to_where() {
    let database = Database::create();
    let url = database.url().replace("postgres@", "postgres:s3cret@");
    let (code, out, err) = run(&["--store", &url, "--yes"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("version 0 -> 1") && !out.contains("s3cret"), "{out}");
    let (code, out, _) = run(&["--store", &url, "--yes"]);
    assert!(code == 0 && out.ends_with("version 1, up to date\n"), "{out}");
    let (code, out, _) = run(&["--store", &url, "--yes", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["from"], &report["to"]), (0, &1.into(), &1.into()));
}

#[test]
fn a_mistyped_path_makes_nothing_and_says_how_it_would() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let url = format!("sqlite:{}", path.display());
    let (code, out, err) = run(&["--store", &url, "--yes"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("no such file") && err.contains("hint: "), "{err}");
    assert!(!path.exists());
    let (code, out, _) = run(&["--store", &url, "--yes", "--create"]);
    assert!(code == 0 && out.contains("version 0 -> 2"), "{out}");
    let (code, _, err) = run(&["--store", &url]);
    assert!(code == 2 && err.contains("--yes"), "nobody to ask: {err}");
    let (code, _, err) = run(&["--store", "mysql://ana:s3cret@db/x", "--yes"]);
    assert!(code == 2 && err.contains("postgres://") && !err.contains("s3cret"), "{err}");
}
