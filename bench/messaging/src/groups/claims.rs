//! Claims of 100 due rows by one worker, and what the database's statistics do to them.

use std::process::Stdio;
use std::sync::Arc;

use tokio::process::Command;

use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::{Error, Result, postgres};

/// Rows that are due when the claims begin.
pub(super) const DUE: i64 = 100_000;
/// Claims of a round.
pub(super) const CLAIMS: usize = 200;

/// What the planner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statistics {
    /// Taken when the rows were there.
    Fresh,
    /// Never taken.
    Absent,
    /// Taken when every row was done, before these came due.
    Stale,
}

impl Statistics {
    pub(super) const ALL: [Self; 3] = [Self::Fresh, Self::Absent, Self::Stale];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Absent => "absent",
            Self::Stale => "stale",
        }
    }
}

const SCHEMA: &str = "
    CREATE TABLE jobs (
        id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state TEXT NOT NULL, due BIGINT NOT NULL,
        owner TEXT, until BIGINT, body BYTEA NOT NULL) WITH (autovacuum_enabled = off);
    CREATE INDEX jobs_due ON jobs (due, id) WHERE state = 'pending';";
const FILL: &str = "INSERT INTO jobs (state, due, body)
    SELECT $1, n, convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $2::bigint) n";
const SCRIPT: &str = "UPDATE jobs SET state = 'taken', owner = 'bench', until = 1000000
    WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE state = 'pending' AND due <= 1000000
    ORDER BY due, id LIMIT 100 FOR UPDATE SKIP LOCKED)) RETURNING id, body;\n";

/// The rows.
pub(crate) fn group() -> Group {
    let case = |statistics: Statistics| {
        let name = format!("claims.pgbench.{}", statistics.as_str());
        Case::new(name, move |bed| by_pgbench(bed, statistics))
    };
    Group::new("claims", Statistics::ALL.map(case).into())
}

async fn by_pgbench(bed: Arc<Bed>, statistics: Statistics) -> Result<Vec<Figure>> {
    let database = bed.database().await?;
    let client = postgres::connect(&database).await?;
    client.batch_execute(SCHEMA).await?;
    if statistics == Statistics::Stale {
        client.execute(FILL, &[&"done", &DUE]).await?;
        client.batch_execute("ANALYZE jobs").await?;
    }
    client.execute(FILL, &[&"pending", &DUE]).await?;
    if statistics == Statistics::Fresh {
        client.batch_execute("ANALYZE jobs").await?;
    }
    let script = std::env::temp_dir().join(fresh("claim"));
    std::fs::write(&script, SCRIPT)?;
    let run = Command::new(&bed.pgbench)
        .args(["-n", "-M", "prepared", "-c", "1", "-t", &CLAIMS.to_string(), "-f"])
        .arg(&script)
        .arg(&database)
        .stdin(Stdio::null())
        .output()
        .await;
    std::fs::remove_file(&script)?;
    let run = run?;
    let said = String::from_utf8_lossy(&run.stdout);
    let tps = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
    let Some(tps) = tps.filter(|_| run.status.success()) else {
        let said = String::from_utf8_lossy(&run.stderr);
        return Err(Error::from(format!("run pgbench: {}", said.trim())));
    };
    let value = tps.parse()?;
    bed.drop_database(&database).await?;
    Ok(vec![Figure { part: "", unit: "1/s", value }])
}
