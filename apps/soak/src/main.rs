//! `soak`: kills real processes at random and at every write, and counts what became of each message.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

use std::process::ExitCode;

fn main() -> ExitCode {
    match soak::cli::run() {
        Ok(lines) => {
            for line in &lines.words {
                println!("{line}");
            }
            if lines.holds { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("error: failed to soak: {error}");
            ExitCode::from(2)
        }
    }
}
