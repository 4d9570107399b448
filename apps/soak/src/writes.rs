//! A child is killed at its first write to a server, then in a new run at its second, and so on until
//! it gets through: once before the server has seen the write and once after. Each run ends with
//! children that nobody disturbs, and each effect must be there exactly once.
//!
//! Writes are counted on the wire, so this is for servers; SQLite's writes are met by the random
//! kills.

use std::path::Path;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_messaging::{AnyBroker, Broker as _};
use mamparo_store::outbox;
use serde::Serialize;

use crate::books::Books;
use crate::children::Actor;
use crate::engines::Engines;
use crate::roles;
use crate::verdict::Verdict;
use crate::wire::{Moment, Trap, Wire};
use crate::{SoakError, pause, say};

/// Keys and messages of a run: enough for batches and for followers of a key.
const KEYS: u32 = 3;
const EACH: i64 = 4;
/// A run that is not done after this long is stuck.
const LIMIT: Duration = Duration::from_secs(60);
/// A child that has done this many writes without an end never gets through.
const WRITES_MAX: u32 = 5_000;
/// How long a dead relay's share stays claimed: short, for there are hundreds of runs.
const LEASE_MS: u64 = 300;

/// Whose writes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Victim {
    /// The process that enqueues events.
    Writer,
    /// The relay.
    Relay,
    /// The consumer and its handler.
    Consumer,
}

/// Which wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// To the database.
    Store,
    /// To the broker.
    Broker,
}

/// One victim's runs on one wire.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The pair's name.
    pub pair: &'static str,
    /// Whose writes.
    pub victim: Victim,
    /// Which wire.
    pub line: Line,
    /// Before or after the server saw the write.
    pub moment: Moment,
    /// Runs, each with one death.
    pub deaths: u32,
}

/// Kills `victim` at each of its writes on `line`, `step` writes apart (1 for every one).
///
/// # Errors
/// [`SoakError::Broken`] with the write at which a promise was broken.
pub async fn each_write<DB: Books>(
    engines: &Engines,
    (victim, line, moment): (Victim, Line, Moment),
    step: u32,
    folder: &Path,
) -> Result<Option<Report>, SoakError> {
    let wire = match line {
        Line::Store => engines.store_wire(),
        Line::Broker => engines.broker_wire(),
    };
    let Some(wire) = wire else { return Ok(None) };
    let pair = engines.pair().name();
    let mut deaths = 0;
    let mut at = 1;
    while at < WRITES_MAX {
        let run = format!("w{}", uuid::Uuid::now_v7().simple());
        let died = one::<DB>(engines, (victim, line, moment), at, wire, &run, folder).await?;
        if !died {
            return Ok(Some(Report { pair, victim, line, moment, deaths }));
        }
        deaths += 1;
        say(&format!("{pair}: {victim:?} killed {moment:?} write {at} to the {line:?}"));
        at += step;
    }
    Err(SoakError::Broken(format!("{pair}: {victim:?} never gets through {line:?}")))
}

/// One run; did the victim die?
async fn one<DB: Books>(
    engines: &Engines,
    (victim, line, moment): (Victim, Line, Moment),
    at: u32,
    wire: &Wire,
    run: &str,
    folder: &Path,
) -> Result<bool, SoakError> {
    let (store, broker) =
        (DB::open(engines.store()).await?, AnyBroker::open(engines.broker()).await?);
    broker.declare(&roles::policy(run, run, true)).await?;
    let watched = match line {
        Line::Store => (wire.url(), engines.broker()),
        Line::Broker => (engines.store(), wire.url()),
    };
    let own = (engines.store(), engines.broker());
    let mut actors = Vec::new();
    for who in [Victim::Writer, Victim::Relay, Victim::Consumer] {
        let actor = start(who, run, if who == victim { watched } else { own }, folder)?;
        if who == victim {
            // It waits for nobody: the trap is set before it can have written much.
            let process = actor.id().ok_or(SoakError::Hangs("a child that has just started"))?;
            wire.set(Trap { at, moment, process });
        }
        actors.push((who, actor));
    }
    let total = u64::from(KEYS) * EACH.unsigned_abs();
    let mut died = false;
    let until = clock::now().plus(LIMIT);
    loop {
        if wire.sprung() && !died {
            died = true;
            for (who, actor) in actors.iter_mut().filter(|(who, _)| *who == victim) {
                actor.ended().await?;
                // Nobody disturbs the next one.
                *actor = start(*who, run, own, folder)?;
            }
        }
        let applied = DB::count_effects(store.reader(), run).await?.unsigned_abs();
        if applied == total && outbox::stats(&store).await?.pending == 0 {
            break;
        }
        if clock::now() > until {
            let what = format!("{applied} of {total} effects");
            return Err(broken((victim, line, moment), at, &what));
        }
        pause(20).await;
    }
    for (_, actor) in actors {
        actor.stop().await?;
    }
    let verdict = Verdict::read(total, &DB::effects(store.reader(), run).await?);
    let kept = verdict.holds(true);
    kept.then_some(died).ok_or_else(|| broken((victim, line, moment), at, &format!("{verdict:?}")))
}

/// A child for one part.
fn start(
    who: Victim,
    run: &str,
    (store, broker): (&str, &str),
    folder: &Path,
) -> Result<Actor, SoakError> {
    let (name, role) = match who {
        Victim::Writer => {
            ("writer", format!("write --run {run} --from 0 --keys {KEYS} --each {EACH}"))
        }
        Victim::Relay => ("relay", format!("relay --lease-ms {LEASE_MS}")),
        Victim::Consumer => ("consumer", format!("consume --queue {run} --run {run} --strict")),
    };
    let words = ["--store", store, "--broker", broker].into_iter();
    let words = words.chain(role.split_whitespace()).map(str::to_owned).collect();
    Actor::start(name, words, folder)
}

fn broken((victim, line, moment): (Victim, Line, Moment), at: u32, what: &str) -> SoakError {
    SoakError::Broken(format!("{victim:?} killed {moment:?} write {at} to the {line:?}: {what}"))
}
