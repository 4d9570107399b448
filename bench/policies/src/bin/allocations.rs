//! Counts what a call allocates: `allocations` prints one JSON value.
//!
//! A program of its own, because the counting allocator would slow down the others.

use std::process::ExitCode;

use counting::{Count, Counting};
use policies::{cases, recorder};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls before counting: tables and lazy parts are filled by then.
const WARM_UP: u64 = 300;
/// Calls of the short and of the long loop; their difference is the calls alone.
const LOOPS: [u64; 2] = [100, 1_100];

fn main() -> ExitCode {
    match count() {
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

fn count() -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("start a runtime: {error}"))?;
    recorder::install()?;
    let mut rows = Vec::new();
    for case in cases::all() {
        runtime.block_on(case.check())?;
        runtime.block_on(case.run(WARM_UP));
        let [short, long] = LOOPS.map(|calls| {
            let before = Count::now();
            runtime.block_on(case.run(calls));
            Count::now().since(before)
        });
        let calls = (LOOPS[1] - LOOPS[0]) as f64;
        let per_call = |long: u64, short: u64| long.saturating_sub(short) as f64 / calls;
        rows.push(json!({
            "name": case.name,
            "allocations": per_call(long.allocations, short.allocations),
            "bytes": per_call(long.bytes, short.bytes),
        }));
    }
    Ok(json!({"cases": rows, "sizes": sizes()}))
}

/// Bytes that the policies of interest occupy, heap included.
fn sizes() -> Vec<Value> {
    let sized = |name: &str, make: fn() -> usize| {
        let before = Count::now();
        let inline = make();
        let heap = Count::now().since(before).bytes;
        json!({"name": name, "bytes": inline as u64 + heap})
    };
    cases::OBJECTS.iter().map(|(name, make)| sized(name, *make)).collect()
}
