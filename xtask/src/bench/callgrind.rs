//! Instructions per call, counted by valgrind's callgrind.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The function of the measuring program in which callgrind counts; each return writes one file.
const COUNTED: &str = "policies::instructions::counted";

/// Where the tool is to be had, for whoever lacks it.
const MISSING: &str = "count instructions: valgrind is not installed\n\
    hint: as root `apt-get install valgrind` (Debian, Ubuntu) or `dnf install valgrind` (Fedora); with \
    CI=true, root and apt-get the gate does it itself";

/// Makes sure that valgrind is there; nothing is skipped silently. CI's machine belongs to CI, so
/// there it is installed; a developer's does not, so there it is asked for.
pub(super) fn ensure(ci: bool) -> Result<(), String> {
    if is_installed() {
        return Ok(());
    }
    if ci {
        for arguments in [&["update"][..], &["install", "--yes", "valgrind"]] {
            let install = Command::new("apt-get").args(arguments).stdin(Stdio::null()).status();
            // Whether it worked shows below.
            install.ok();
        }
    }
    if is_installed() { Ok(()) } else { Err(MISSING.to_owned()) }
}

fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// Instructions per call of each row that `program instructions` runs, by name. `scratch` is a folder
/// for callgrind's files; what was in it is lost.
///
/// # Errors
/// When the program or valgrind failed, or a file is missing.
pub(super) fn count(program: &Path, scratch: &Path) -> Result<Vec<(String, f64)>, String> {
    let failed = |error: std::io::Error| format!("prepare {}: {error}", scratch.display());
    if scratch.exists() {
        fs::remove_dir_all(scratch).map_err(failed)?;
    }
    fs::create_dir_all(scratch).map_err(failed)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", scratch.join("dump").display()))
        .arg(program)
        .arg("instructions")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("run valgrind: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("count instructions: {}", said.trim()));
    }
    let rows: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("read the list of rows: {error}"))?;
    let read = |index: usize| {
        let file = scratch.join(format!("dump.{index}"));
        let text = fs::read_to_string(&file);
        text.map_err(|error| format!("read callgrind's file {index}: {error}"))
    };
    per_call(&rows, read)
}

/// Puts the dumps, in their order and counted from one, to the rows that they belong to.
fn per_call(
    rows: &Value,
    dump: impl Fn(usize) -> Result<String, String>,
) -> Result<Vec<(String, f64)>, String> {
    let field = |key: &str| {
        let number = rows[key].as_u64().map(|number| number as usize);
        number.ok_or_else(|| format!("read `{key}` of the list of rows: no number"))
    };
    let (short, long, repeats) = (field("short")?, field("long")?, field("repeats")?);
    let calls = long.saturating_sub(short).max(1) as f64;
    let mut next = 1..;
    let mut total = || {
        let index = next.next().unwrap_or(0);
        let text = dump(index)?;
        total_of(&text).ok_or_else(|| format!("read callgrind's file {index}: it has no total"))
    };
    let mut counted = Vec::new();
    for row in rows["cases"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default().to_owned();
        let short = total()?;
        let mut longs = (0..repeats).map(|_| total()).collect::<Result<Vec<_>, _>>()?;
        longs.sort_by(f64::total_cmp);
        let middle = longs.get(repeats / 2).copied().unwrap_or(f64::NAN);
        counted.push((name, (middle - short) / calls));
    }
    Ok(counted)
}

/// The line `totals: 20616` of a file of callgrind's.
fn total_of(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dumps_go_to_their_rows_and_the_runtime_falls_out() {
        let rows = json!({"short": 100, "long": 1100, "repeats": 3,
            "cases": [{"name": "a"}, {"name": "b"}]});
        // 816 for entering the runtime, 18 and 100 per call; one long loop of the second met a roll.
        let totals = [2_616, 20_616, 20_616, 20_616, 10_816, 110_816, 119_999, 110_816];
        let dump = |index: usize| {
            let total = totals.get(index - 1).ok_or("none")?;
            Ok(format!("events: Ir\n\ntotals: {total}\n"))
        };
        let counted = per_call(&rows, dump).expect("all dumps");
        assert_eq!(counted, [("a".to_owned(), 18.0), ("b".to_owned(), 100.0)]);
        assert!(per_call(&rows, |_| Ok("nothing".to_owned())).is_err());
        assert!(per_call(&json!({}), dump).is_err());
    }
}
