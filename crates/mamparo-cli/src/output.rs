//! What people and programs get to read.

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// 0: everything is as it should be.
    Clean,
    /// 1: something was found, or left undone.
    Findings,
    /// 2: the input can't be used; nothing was changed.
    Unusable,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Clean => Self::SUCCESS,
            Exit::Findings => Self::from(1),
            Exit::Unusable => Self::from(2),
        }
    }
}

/// Words for people, on stderr. There is nowhere to report to when that fails.
pub(crate) fn say(words: &str) {
    let _ = writeln!(std::io::stderr(), "{words}");
}

/// Data, on stdout. `false` when it could not be written; a reader that has seen enough
/// (`| head`) is no failure.
pub(crate) fn data(text: &str) -> bool {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => true,
        Err(error) => {
            say(&format!("error: failed to write the output: {error}"));
            false
        }
    }
}

/// Data as JSON, on stdout.
pub(crate) fn json(value: &impl Serialize) -> Exit {
    match serde_json::to_string_pretty(value) {
        Ok(text) if data(&format!("{text}\n")) => Exit::Clean,
        Ok(_) => Exit::Findings,
        Err(error) => {
            say(&format!("error: failed to write JSON: {error}"));
            Exit::Findings
        }
    }
}

/// An error and its causes, as the end of a sentence that begins with "failed to".
pub(crate) fn failure(error: &dyn std::error::Error) -> String {
    let mut text = format!("error: failed to {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// A table with aligned columns. Cells are made safe for a terminal and cut at 60 characters.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cut(&safe(cell), 60)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(head.get(column).map(|head| head.len())).max().unwrap_or(0)
    };
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.enumerate().map(|(n, cell)| format!("{cell:<0$}", width(n))).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut head.iter().copied());
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Text from a message must not move the cursor or recolour the terminal.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['…']).collect()
}

/// May we change something? `yes` was given, or a person at a terminal answers so.
pub(crate) fn allowed(question: &str, yes: bool) -> Result<bool, &'static str> {
    if yes {
        return Ok(true);
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err("give --yes to do it without being asked");
    }
    say(&format!("{question} [y/N]"));
    Ok(affirmed(&mut stdin.lock()))
}

/// Only a clear yes is one.
fn affirmed(input: &mut dyn BufRead) -> bool {
    let mut answer = String::new();
    let read = input.read_line(&mut answer).is_ok();
    read && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, expected) in
            [("y\n", true), ("YES\n", true), ("\n", false), ("", false), ("no\n", false)]
        {
            assert_eq!(affirmed(&mut answer.as_bytes()), expected, "{answer:?}");
        }
    }

    #[test]
    fn cells_are_cut_and_cannot_steer_the_terminal() {
        let text = table(&["A", "B"], &[vec!["\u{1b}[31mred".to_owned(), "x".repeat(80)]]);
        assert!(!text.contains('\u{1b}') && text.contains('…'), "{text}");
    }
}
