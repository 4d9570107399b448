//! What messages cost on RabbitMQ and PostgreSQL: ours beside loops written by hand, on the same
//! servers, in the same run.
//!
//! Started by `cargo xtask bench messaging`, which brings the servers. One JSON value on stdout, words
//! on stderr.

mod bed;
mod case;
mod clock;
mod groups;
mod postgres;
mod rabbit;
mod tasks;

use std::process::ExitCode;
use std::sync::Arc;

use mamparo_core::rng::SeededRng;
use serde_json::{Value, json};

use bed::{Bed, Scale};
use case::Rows;

/// What went wrong. Nobody but a person reads it.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

const USAGE: &str = "understand: say `messaging AMQP POSTGRES PGBENCH quick|full ROUNDS [GROUP…]`";
/// Of the order of the rows in a round.
const SEED: u64 = 0x006d_616d_7061_726f;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let done = runtime.map_err(Error::from).and_then(|runtime| {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        runtime.block_on(run(&arguments))
    });
    match done {
        Ok(value) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nerror: failed to {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(arguments: &[String]) -> Result<Value> {
    let [amqp, postgres, pgbench, scale, rounds, only @ ..] = arguments else {
        return Err(Error::from(USAGE));
    };
    let scale = match scale.as_str() {
        "quick" => Scale::Quick,
        "full" => Scale::Full,
        _ => return Err(Error::from(USAGE)),
    };
    let rounds: usize = rounds.parse().map_err(|_| Error::from(USAGE))?;
    let groups = groups::all();
    if let Some(unknown) = only.iter().find(|name| !groups.iter().any(|g| g.name == **name)) {
        let names: Vec<_> = groups.iter().map(|group| group.name).collect();
        return Err(format!("find the group {unknown}; there are {}", names.join(", ")).into());
    }
    let bed = Bed {
        amqp: amqp.clone(),
        postgres: postgres.trim_end_matches("/postgres").to_owned(),
        pgbench: pgbench.into(),
        scale,
    };
    let (bed, mut rows, mut rng) = (Arc::new(bed), Rows::default(), SeededRng::new(SEED));
    let durability = bed.durability().await?;
    for group in groups.iter().filter(|g| only.is_empty() || only.iter().any(|name| name == g.name))
    {
        rows.measure(&bed, group, rounds, &mut rng).await?;
    }
    Ok(json!({"rows": rows.json(), "durability": durability}))
}
