//! The same observable cases, put to ours and to the peers, as a table of who passes.
//!
//! `conformance` prints the table and holds it against `bench/conformance/expected.toml`: exit 1 when
//! ours fails anything, or when a peer does something else than the file says (a new version may have
//! mended it). `conformance --bless` writes the file.
//!
//! - [`verdict`]: what came of a case, and the tables of it.
//! - [`calls`]: the calls that cases make: counted, slow, hanging, panicking.
//! - [`breaker`], [`bulkhead`], [`retry`], [`limit`]: the cases, and the policies behind one face.
//!
//! The cases are the same code for all. Ours reads tokio's clock, so it runs on a paused one and a
//! wait of ten minutes takes no time; peers read the system's clock, so they wait for real, shortly.

mod breaker;
mod bulkhead;
mod calls;
mod expected;
mod limit;
mod retry;
mod verdict;

use std::process::ExitCode;

fn main() -> ExitCode {
    let bless = std::env::args().nth(1).is_some_and(|word| word == "--bless");
    // Cases panic on purpose; what counts is what the policies make of it.
    std::panic::set_hook(Box::new(|_| {}));
    let tables = [breaker::table(), bulkhead::table(), retry::table(), limit::table()];
    for table in &tables {
        println!("{table}");
    }
    match expected::compare(&tables, bless) {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            for line in findings {
                println!("{line}");
            }
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("error: failed to {error}");
            ExitCode::from(2)
        }
    }
}
