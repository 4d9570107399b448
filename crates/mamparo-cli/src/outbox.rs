//! `mamparo outbox`: events that have not left yet, and making refused ones leave now.

use clap::{Args, Subcommand};
use mamparo_store::outbox::{self, Listed, Wait};
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, StoreAddress, StoreError};
use serde::Serialize;

use crate::output::{Exit, allowed, data, failure, json, say, table};

/// Most rows that are looked through for refused ones.
const LOOK_MAX: u32 = 100_000;

/// What `mamparo outbox` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show events that are committed and not yet confirmed by the broker, oldest first.
    List(List),
    /// Make events leave now that the broker did not take and that wait for another try.
    Requeue(Requeue),
}

/// What `list` takes.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// The service's store: sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    store: String,
    /// Show at most this many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max: u32,
    /// Only those that wait: the broker did not take them, or one before them.
    #[arg(long)]
    waiting: bool,
    /// Print them as JSON, bodies left out.
    #[arg(long)]
    json: bool,
}

/// What `requeue` takes.
#[derive(Debug, Args)]
pub(crate) struct Requeue {
    /// The service's store: sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    store: String,
    /// This row, as `list` numbers it; may be given several times.
    #[arg(long, value_name = "N", required_unless_present = "all")]
    row: Vec<i64>,
    /// Every one that the broker did not take.
    #[arg(long, conflicts_with = "row")]
    all: bool,
    /// Do it without being asked.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    row: i64,
    shard: u16,
    id: String,
    kind: String,
    key: String,
    enqueued_ms: i64,
    tries: u32,
    state: &'static str,
    due_ms: Option<i64>,
    relay: Option<String>,
    error: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(verb: Verb) -> Exit {
    let url = match &verb {
        Verb::List(list) => &list.store,
        Verb::Requeue(requeue) => &requeue.store,
    };
    let done = match StoreAddress::parse(url) {
        Ok(StoreAddress::Postgres(_)) => match PostgresStore::open_existing(url).await {
            Ok(store) => carry_out(&store, &verb).await,
            Err(error) => Err(error),
        },
        Ok(StoreAddress::File(_) | StoreAddress::Memory) => {
            match SqliteStore::open_existing(url).await {
                Ok(store) => carry_out(&store, &verb).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    done.unwrap_or_else(|error| {
        say(&failure(&error));
        Exit::Unusable
    })
}

async fn carry_out<DB: Backend>(store: &Store<DB>, verb: &Verb) -> Result<Exit, StoreError> {
    let exit = match verb {
        Verb::List(list) => shown(store, list).await?,
        Verb::Requeue(requeue) => requeued(store, requeue).await?,
    };
    store.close().await;
    Ok(exit)
}

async fn shown<DB: Backend>(store: &Store<DB>, list: &List) -> Result<Exit, StoreError> {
    let looked = if list.waiting { LOOK_MAX } else { list.max };
    let mut rows = outbox::list(store, looked).await?;
    if list.waiting {
        rows.retain(|row| row.wait != Wait::Ready);
        rows.truncate(usize::try_from(list.max).unwrap_or(usize::MAX));
    }
    if list.json {
        return Ok(json(&rows.into_iter().map(line).collect::<Vec<_>>()));
    }
    let stats = outbox::stats(store).await?;
    let cells = |row: Listed| {
        let line = line(row);
        let due = line.due_ms.map(|due| due.to_string()).unwrap_or_default();
        let error = line.error.unwrap_or_default();
        let (row, tries) = (line.row.to_string(), line.tries.to_string());
        vec![row, line.state.to_owned(), line.kind, line.key, line.id, tries, due, error]
    };
    let cells: Vec<_> = rows.into_iter().map(cells).collect();
    let head = ["row", "state", "type", "key", "id", "tries", "due (ms)", "error"];
    if !data(&table(&head, &cells)) {
        return Ok(Exit::Findings);
    }
    let (pending, waiting, refused) = (stats.pending, stats.parked, stats.refused);
    say(&format!("{pending} pending, {waiting} of them wait, {refused} refused by the broker"));
    if refused > 0 {
        say("hint: mend the cause, then `mamparo outbox requeue --store URL --all` sends them now");
    }
    Ok(Exit::Clean)
}

fn line(listed: Listed) -> Shown {
    let (state, due_ms) = match listed.wait {
        Wait::Ready => ("ready", None),
        Wait::Until(due) => ("refused", Some(due.unix_millis())),
        Wait::Behind => ("behind", None),
    };
    Shown {
        row: listed.row,
        shard: listed.shard,
        id: listed.event.id,
        kind: listed.event.kind,
        key: listed.event.key,
        enqueued_ms: listed.enqueued.unix_millis(),
        tries: listed.tries,
        state,
        due_ms,
        relay: listed.owner,
        error: listed.error,
    }
}

async fn requeued<DB: Backend>(store: &Store<DB>, asked: &Requeue) -> Result<Exit, StoreError> {
    let mut rows = asked.row.clone();
    if asked.all {
        let listed = outbox::list(store, LOOK_MAX).await?;
        let refused = listed.iter().filter(|row| matches!(row.wait, Wait::Until(_)));
        rows = refused.map(|row| row.row).collect();
    }
    if rows.is_empty() {
        say("nothing waits for another try");
        return Ok(Exit::Clean);
    }
    match allowed(&format!("Send {} refused event(s) now?", rows.len()), asked.yes) {
        Ok(true) => {}
        Ok(false) => {
            say("nothing was changed");
            return Ok(Exit::Clean);
        }
        Err(hint) => {
            say("error: failed to requeue: nobody to ask");
            say(&format!("hint: {hint}"));
            return Ok(Exit::Unusable);
        }
    }
    let done = outbox::requeue(store, &rows).await?;
    if !data(&format!("{done}\n")) {
        return Ok(Exit::Findings);
    }
    let left = (rows.len() as u64).saturating_sub(done);
    if left > 0 {
        say(&format!("{left} of the rows do not wait for a try: left already, ready, or behind"));
        return Ok(Exit::Findings);
    }
    Ok(Exit::Clean)
}
