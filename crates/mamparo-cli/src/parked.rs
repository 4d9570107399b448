//! `mamparo parked`: messages that wait for another attempt in a service's own store, and what to do
//! about one that holds up others of its key.

use clap::{Args, Subcommand};
use mamparo_call::clock;
use mamparo_core::message::topology::consumer_of;
use mamparo_store::parked::{self, First, ParkedRow, Skip, Skipped};
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, StoreAddress, StoreError};
use serde::Serialize;

use crate::actor::actor;
use crate::output::{Exit, allowed, data, failure, json, say, table};

/// What `mamparo parked` does.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show what waits and why: of each key the message that goes next, and how many wait behind it.
    List(List),
    /// Let messages go now instead of when they are due. The order within a key stays.
    Release(Release),
    /// Give up the first message of a key: it becomes a failed message, those behind it go on.
    Skip(SkipOne),
}

#[derive(Debug, Args)]
struct Place {
    /// The service's store: sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE.
    #[arg(long, value_name = "URL")]
    store: String,
    /// The queue that the messages are from. May be left out where messages of only one wait.
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
}

/// What `list` takes.
#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    place: Place,
    /// Show at most this many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max: u32,
    /// Print them as JSON, bodies left out.
    #[arg(long)]
    json: bool,
}

/// What `release` takes.
#[derive(Debug, Args)]
pub(crate) struct Release {
    #[command(flatten)]
    place: Place,
    /// The message with this id.
    #[arg(long, required_unless_present_any = ["key", "all"])]
    id: Option<String>,
    /// All messages of this key.
    #[arg(long, conflicts_with = "id")]
    key: Option<String>,
    /// Every one of the queue.
    #[arg(long, conflicts_with_all = ["id", "key"])]
    all: bool,
    /// Do it without being asked.
    #[arg(long)]
    yes: bool,
}

/// What `skip` takes.
#[derive(Debug, Args)]
pub(crate) struct SkipOne {
    #[command(flatten)]
    place: Place,
    /// The message with this id; it must be the first of its key.
    #[arg(long, required_unless_present = "key")]
    id: Option<String>,
    /// The first message of this key.
    #[arg(long, conflicts_with = "id")]
    key: Option<String>,
    /// Why, for whoever finds it among the failed messages.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who does it. Default: the user's name.
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Do it without being asked.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Shown {
    queue: String,
    id: String,
    kind: String,
    key: String,
    attempts: u32,
    since_ms: i64,
    due_ms: i64,
    in_hand: bool,
    behind: u64,
    error: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(verb: Verb) -> Exit {
    let (Verb::List(List { place, .. })
    | Verb::Release(Release { place, .. })
    | Verb::Skip(SkipOne { place, .. })) = &verb;
    let url = &place.store;
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
        say("hint: the store's address is named in the service's configuration");
        Exit::Unusable
    })
}

async fn carry_out<DB: Backend>(store: &Store<DB>, verb: &Verb) -> Result<Exit, StoreError> {
    let exit = match verb {
        Verb::List(list) => shown(store, list).await?,
        Verb::Release(release) => released(store, release).await?,
        Verb::Skip(skip) => skipped(store, skip).await?,
    };
    store.close().await;
    Ok(exit)
}

/// The consumers that are meant: the named one, or all of which messages wait.
async fn consumers<DB: Backend>(
    store: &Store<DB>,
    place: &Place,
) -> Result<Vec<String>, StoreError> {
    match &place.queue {
        Some(queue) => Ok(vec![consumer_of(queue).to_owned()]),
        None => parked::consumers(store).await,
    }
}

/// The one consumer that is meant, or how the command ends.
async fn consumer<DB: Backend>(
    store: &Store<DB>,
    place: &Place,
) -> Result<Result<String, Exit>, StoreError> {
    let mut found = consumers(store, place).await?;
    Ok(match (found.pop(), found.is_empty()) {
        (Some(consumer), true) => Ok(consumer),
        (Some(last), false) => {
            found.push(last);
            say("error: failed to choose: messages of several queues wait");
            say(&format!("hint: give --queue, one of {}", found.join(", ")));
            Err(Exit::Unusable)
        }
        (None, _) => {
            say("nothing waits");
            Err(Exit::Findings)
        }
    })
}

async fn shown<DB: Backend>(store: &Store<DB>, list: &List) -> Result<Exit, StoreError> {
    let now = store.clock(clock::wall).await?.now();
    let (mut rows, mut total) = (Vec::new(), 0);
    for consumer in consumers(store, &list.place).await? {
        total += parked::stats(store, &consumer).await?.0;
        let left = usize::try_from(list.max).unwrap_or(usize::MAX).saturating_sub(rows.len());
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let first = parked::first(store, &consumer, 0, left).await?;
        rows.extend(first.into_iter().map(|first| line(&consumer, first)));
    }
    if list.json {
        return Ok(json(&rows));
    }
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let due = match (row.in_hand, row.due_ms - now.unix_millis()) {
                (true, _) => "in hand".to_owned(),
                (false, ..=0) => "now".to_owned(),
                (false, millis) => format!("in {}s", (millis + 999) / 1_000),
            };
            let error = row.error.clone().unwrap_or_default();
            let (attempts, behind) = (row.attempts.to_string(), row.behind.to_string());
            let Shown { queue, kind, key, id, .. } = row;
            let [queue, kind, key, id] = [queue, kind, key, id].map(Clone::clone);
            vec![queue, kind, key, id, attempts, due, behind, error]
        })
        .collect();
    let head = ["queue", "type", "key", "id", "attempts", "due", "behind", "last error"];
    if !data(&table(&head, &cells)) {
        return Ok(Exit::Findings);
    }
    say(&format!("{total} wait, {} of them shown, the others behind them or left out", rows.len()));
    if rows.iter().any(|row| row.behind > 0) {
        say(
            "hint: `mamparo parked release --key KEY` tries now; `skip --key KEY` lets the others pass",
        );
    }
    Ok(Exit::Clean)
}

fn line(consumer: &str, First { row, behind }: First) -> Shown {
    Shown {
        queue: consumer.to_owned(),
        error: row.last_error(),
        attempts: row.attempts,
        since_ms: row.since.unix_millis(),
        due_ms: row.due.unix_millis(),
        in_hand: row.in_hand,
        behind,
        id: row.message.id,
        kind: row.message.kind,
        key: row.message.key,
    }
}

/// Asks; how the command ends when the answer is no.
fn agreed(question: &str, verb: &str, yes: bool) -> Result<(), Exit> {
    match allowed(question, yes) {
        Ok(true) => Ok(()),
        Ok(false) => {
            say("nothing was changed");
            Err(Exit::Clean)
        }
        Err(hint) => {
            say(&format!("error: failed to {verb}: nobody to ask"));
            say(&format!("hint: {hint}"));
            Err(Exit::Unusable)
        }
    }
}

async fn released<DB: Backend>(store: &Store<DB>, asked: &Release) -> Result<Exit, StoreError> {
    let consumer = match consumer(store, &asked.place).await? {
        Ok(consumer) => consumer,
        Err(exit) => return Ok(exit),
    };
    let (id, key) = (asked.id.as_deref(), asked.key.as_deref());
    let what = match (id, key) {
        (Some(id), _) => format!("message {id}"),
        (None, Some(key)) => format!("all messages of key {key}"),
        (None, None) => "everything".to_owned(),
    };
    let question = format!("Let {what} of {consumer} go now?");
    if let Err(exit) = agreed(&question, "release", asked.yes) {
        return Ok(exit);
    }
    let now = store.clock(clock::wall).await?.now();
    let due = parked::make_due(store, &consumer, id, key, now).await?;
    if !data(&format!("{due}\n")) {
        return Ok(Exit::Findings);
    }
    if due == 0 {
        say("none of them waits for its time: not there, due already, or in a consumer's hand");
        return Ok(Exit::Findings);
    }
    match parked::find(store, &consumer, id, None).await? {
        Some(row) if id.is_some() && !row.first => {
            say("it is due now, and still goes behind an earlier one of its key");
            say(&format!("hint: `mamparo parked list --queue {consumer}` shows that one"));
            Ok(Exit::Findings)
        }
        _ => Ok(Exit::Clean),
    }
}

async fn skipped<DB: Backend>(store: &Store<DB>, asked: &SkipOne) -> Result<Exit, StoreError> {
    if asked.reason.trim().is_empty() {
        say("error: failed to skip: the reason is empty");
        say("hint: say in --reason why it may be passed over, for whoever finds it");
        return Ok(Exit::Unusable);
    }
    let consumer = match consumer(store, &asked.place).await? {
        Ok(consumer) => consumer,
        Err(exit) => return Ok(exit),
    };
    let (id, key) = (asked.id.as_deref(), asked.key.as_deref());
    let Some(row) = parked::find(store, &consumer, id, key).await? else {
        say(&format!("no such message of {consumer} waits"));
        return Ok(Exit::Findings);
    };
    let ParkedRow { message, attempts, .. } = &row;
    let question = format!(
        "Give up {} {} of key {:?} after {attempts} attempt(s)?",
        message.kind, message.id, message.key
    );
    if let Err(exit) = agreed(&question, "skip", asked.yes) {
        return Ok(exit);
    }
    let clock = store.clock(clock::wall).await?;
    let actor = actor(asked.actor.clone());
    let skip = Skip { actor: &actor, reason: &asked.reason };
    let (words, exit) = match parked::skip(store, &consumer, &message.id, skip, &clock).await? {
        Skipped::Moved => {
            if !data(&format!("{}\n", message.id)) {
                return Ok(Exit::Findings);
            }
            ("hint: it is kept: `mamparo dlq show --store URL --id ID`, `replay` sends it again", {
                Exit::Clean
            })
        }
        Skipped::NotFirst => {
            ("an earlier one of its key waits, that one goes first", Exit::Findings)
        }
        Skipped::InHand => {
            ("it is in a consumer's hand; ask again when that has ended", Exit::Findings)
        }
        Skipped::Gone => ("it does not wait any more", Exit::Findings),
    };
    say(words);
    Ok(exit)
}
