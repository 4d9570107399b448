//! Measures the policies: `policies time|instructions|one|names`. Data on stdout, words on stderr.
//!
//! Started by `cargo xtask bench`; each subcommand prints one JSON value.

use std::process::ExitCode;
use std::time::Duration;

use policies::case::Case;
use policies::time::{self, WAYS};
use policies::{cases, instructions, recorder};
use serde_json::{Value, json};

/// Length of one cell of a round.
const CELL: Duration = Duration::from_millis(3);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: failed to {error}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[&str]) -> Result<Value, String> {
    recorder::install()?;
    let cases = cases::all();
    match words {
        ["names"] => Ok(names(&cases)),
        ["instructions"] => count(&cases),
        ["one", name, calls] => count_one(&cases, name, calls),
        ["time", rounds] => {
            let rounds = rounds.parse();
            take_times(&cases, rounds.map_err(|_| "read the number of rounds".to_owned())?)
        }
        _ => {
            Err("understand: say `names`, `instructions`, `one NAME CALLS` or `time ROUNDS`"
                .to_owned())
        }
    }
}

fn names(cases: &[Case]) -> Value {
    cases.iter().map(|case| json!({"name": case.name, "owner": case.owner.as_str()})).collect()
}

/// Makes the calls that callgrind counts, and says what the dumps will hold in their order.
fn count(cases: &[Case]) -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("start a runtime: {error}"))?;
    instructions::run(&runtime, cases)?;
    Ok(json!({
        "short": instructions::SHORT,
        "long": instructions::LONG,
        "repeats": instructions::REPEATS,
        "cases": names(cases),
    }))
}

/// Makes calls of one row alone, for a look at where its instructions go.
fn count_one(cases: &[Case], name: &str, calls: &str) -> Result<Value, String> {
    let case = cases.iter().find(|case| case.name == name);
    let case = case.ok_or_else(|| format!("find a row called {name}"))?;
    let calls = calls.parse().map_err(|_| "read the number of calls".to_owned())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("start a runtime: {error}"))?;
    runtime.block_on(case.run(instructions::WARM_UP));
    instructions::counted(&runtime, case, calls);
    Ok(json!({"name": case.name, "calls": calls}))
}

fn take_times(cases: &[Case], rounds: usize) -> Result<Value, String> {
    let say = |round| eprint!("\rround {} of {rounds} ", round + 1);
    let seed = 0x006d_616d_7061_726f;
    let times = time::measure(cases, rounds, CELL, seed, say)?;
    eprintln!();
    let rows = cases.iter().zip(&times.calls).map(|(case, ways)| {
        let mut row = json!({"name": case.name, "owner": case.owner.as_str()});
        for (way, rounds) in WAYS.iter().zip(ways) {
            row[way.as_str()] = json!(rounds);
        }
        row
    });
    let rows = rows.collect::<Value>();
    Ok(json!({"cases": rows, "loopback": times.loopback, "disturbed": times.disturbed}))
}
