//! Claims of 100 due rows by one worker, and what the database's statistics do to them.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock::wall;
use mamparo_core::time::WallTime;
use mamparo_store::outbox::{Confirmed, RelaySession, Report};
use mamparo_store::parked;
use tokio::process::Command;

use super::ours;
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::{Error, Result, clock, postgres};

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
    SELECT $1, n, convert_to(repeat('x', 1024), 'UTF8') FROM generate_series(1, $2::bigint) n";
const SCRIPT: &str = "UPDATE jobs SET state = 'taken', owner = 'bench', until = 1000000
    WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE state = 'pending' AND due <= 1000000
    ORDER BY due, id LIMIT 100 FOR UPDATE SKIP LOCKED)) RETURNING id, body;\n";

/// The rows.
pub(crate) fn group() -> Group {
    let case = |statistics: Statistics| {
        let name = format!("claims.pgbench.{}", statistics.as_str());
        Case::new(name, move |bed| by_pgbench(bed, statistics))
    };
    let ours = |statistics: Statistics| {
        let name = format!("claims.ours.{}", statistics.as_str());
        Case::new(name, move |bed| ours_parked(bed, statistics))
    };
    let relay = |statistics: Statistics| {
        let name = format!("claims.relay.{}", statistics.as_str());
        Case::new(name, move |bed| ours_outbox(bed, statistics))
    };
    let (case, ours, relay) =
        (Statistics::ALL.map(case), Statistics::ALL.map(ours), Statistics::ALL.map(relay));
    let cases = [case, ours, relay].into_iter().flatten();
    Group::new("claims", cases.collect())
}

/// Rows that wait for another attempt, of as many keys, all of them due.
const FILL_PARKED: &str = "INSERT INTO mamparo_parked (consumer, id, key, head, visible_at, attempts,
        since, kind, exchange, routing_key, history, headers, body)
    SELECT 'bench', n::text, n::text, true, n, 1, 1, 'order.created', 'events', 'order.created', '[]',
        '{}', convert_to(repeat('x', 1024), 'UTF8') FROM generate_series(1, $1::bigint) n";

/// Claims of messages that wait in the service's database.
async fn ours_parked(bed: Arc<Bed>, statistics: Statistics) -> Result<Vec<Figure>> {
    let (store, database) = ours::store(&bed, 10).await?;
    let client = postgres::connect(&database).await?;
    client.batch_execute("ALTER TABLE mamparo_parked SET (autovacuum_enabled = off)").await?;
    if statistics == Statistics::Stale {
        // Those that are done are gone.
        client.execute(FILL_PARKED, &[&DUE]).await?;
        client.batch_execute("DELETE FROM mamparo_parked; ANALYZE mamparo_parked").await?;
    }
    client.execute(FILL_PARKED, &[&DUE]).await?;
    if statistics == Statistics::Fresh {
        client.batch_execute("ANALYZE mamparo_parked").await?;
    }
    let now = WallTime::from_unix_millis(1_000_000);
    let lease = Duration::from_secs(30);
    let start = clock::now();
    for claim in 0..CLAIMS {
        let claimed = parked::claim(&store, "bench", "owner", 100, lease, now).await?;
        if claimed.len() != 100 {
            return Err(format!("claim {claim} took {} rows", claimed.len()).into());
        }
    }
    let took = start.elapsed();
    store.close().await;
    bed.drop_database(&database).await?;
    Ok(Figure::rate(CLAIMS, took))
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

/// Rows of ten shards in turn.
const FILL_OUTBOX: &str =
    "INSERT INTO mamparo_outbox (shard, id, kind, key, enqueued_at, headers, body)
    SELECT n % 10, n::text, 'order.created', n::text, n, '{}',
        convert_to(repeat('x', 1024), 'UTF8') FROM generate_series(1, $1::bigint) n";

/// What a relay does to the outbox for 100 rows: reads them under its lease, and reports them
/// confirmed, which takes them out.
async fn ours_outbox(bed: Arc<Bed>, statistics: Statistics) -> Result<Vec<Figure>> {
    let (store, database) = ours::store(&bed, 10).await?;
    let client = postgres::connect(&database).await?;
    client.batch_execute("ALTER TABLE mamparo_outbox SET (autovacuum_enabled = off)").await?;
    if statistics == Statistics::Stale {
        client.execute(FILL_OUTBOX, &[&DUE]).await?;
        client.batch_execute("DELETE FROM mamparo_outbox; ANALYZE mamparo_outbox").await?;
    }
    client.execute(FILL_OUTBOX, &[&DUE]).await?;
    if statistics == Statistics::Fresh {
        client.batch_execute("ANALYZE mamparo_outbox").await?;
    }
    let session = RelaySession::new(&store);
    let tenure = session.heartbeat(Duration::from_secs(600), wall).await?;
    let rooms: Vec<(u16, u32)> = (0..10).map(|shard| (shard, 10)).collect();
    let held = |shard: u16| tenure.held.iter().find(|held| held.shard == shard).copied();
    let start = clock::now();
    for claim in 0..CLAIMS {
        let rows = session.read(&rooms, &[]).await?;
        let confirmed =
            rows.iter().filter_map(|row| Some(Confirmed { row: row.row, held: held(row.shard)? }));
        let report = Report { confirmed: confirmed.collect(), ..Report::default() };
        let recorded = session.record(&report, None).await?;
        if (rows.len(), recorded.confirmed) != (100, 100) {
            return Err(format!("claim {claim}: {} rows, {recorded:?}", rows.len()).into());
        }
    }
    let took = start.elapsed();
    store.close().await;
    bed.drop_database(&database).await?;
    Ok(Figure::rate(CLAIMS, took))
}
