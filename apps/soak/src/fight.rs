//! The fight: messages flow through real processes while a scripted hand kills them, cuts their
//! wires and crashes their servers. When all have had their effect, the books are read.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::rng::{Rng as _, SeededRng};
use mamparo_core::time::Moment;
use mamparo_messaging::letters::{Letters, Place};
use mamparo_messaging::stored::StoreLetters;
use mamparo_messaging::{AnyBroker, Broker as _, dlq};
use mamparo_store::{Store, outbox};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::SoakError;
use crate::books::Books;
use crate::children::Actor;
use crate::engines::{Engines, Pair};
use crate::roles;
use crate::verdict::Verdict;

/// A queue with one consumer process, which promises order per key …
const ORDERED: &str = "soak.ordered";
/// … and one that two processes share, which does not.
const SHARED: &str = "soak.shared";
/// The run's name.
const RUN: &str = "fight";
/// Keys; each gets the same number of messages.
const KEYS: u32 = 64;
/// How long a dead relay's share stays claimed.
const LEASE_MS: u64 = 1_000;
/// Without a single new effect for this long the fight is lost.
const STUCK: Duration = Duration::from_secs(120);
/// How often the books are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What may be done to the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill(usize),
    CutStore,
    CutBroker,
    CrashStore,
    CrashBroker,
}

/// How a fight is fought.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Messages, rounded up to a multiple of the keys.
    pub messages: u32,
    /// Seeds the order and the times of the blows.
    pub seed: u64,
    /// Mean time between two blows.
    pub every: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The pair's name.
    pub pair: &'static str,
    /// The seed.
    pub seed: u64,
    /// The queue that one process consumes.
    pub ordered: Verdict,
    /// The queue that two processes consume.
    pub shared: Verdict,
    /// Processes killed.
    pub kills: u32,
    /// Times that every connection was cut.
    pub cuts: u32,
    /// Servers crashed and brought back.
    pub crashes: u32,
    /// Messages put back from the dead letters: those that were in hand in too many deaths.
    pub replayed: u64,
    /// Outbox rows left.
    pub outbox: u64,
    /// Messages left in queues.
    pub queued: u64,
    /// From the first message to the last effect.
    pub seconds: f64,
}

impl Report {
    /// Was every promise kept?
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.ordered.holds(true) && self.shared.holds(false) && self.outbox == 0 && self.queued == 0
    }
}

/// Fights on `pair` until every message has had its effect.
///
/// # Errors
/// When a server or a child can't be started, or nothing moves any more.
pub async fn fight<DB: Books>(
    pair: Pair,
    rules: Rules,
    folder: &Path,
) -> Result<Report, SoakError> {
    let mut engines = Engines::start(pair, folder).await?;
    let store = DB::open(engines.store()).await?;
    let broker = AnyBroker::open(engines.broker()).await?;
    broker.declare(&roles::policy(ORDERED, RUN, true)).await?;
    broker.declare(&roles::policy(SHARED, RUN, false)).await?;
    let each = rules.messages.div_ceil(KEYS);
    let total = u64::from(each) * u64::from(KEYS);
    let mut actors = cast(&engines, each, folder)?;
    let started = clock::now();
    let mut fight = Fight {
        rng: SeededRng::new(rules.seed),
        rules,
        blows: VecDeque::new(),
        next: started,
        report: Report {
            pair: pair.name(),
            seed: rules.seed,
            ordered: Verdict::default(),
            shared: Verdict::default(),
            kills: 0,
            cuts: 0,
            crashes: 0,
            replayed: 0,
            outbox: 0,
            queued: 0,
            seconds: 0.0,
        },
    };
    let mut progress = Progress { applied: 0, at: started };
    loop {
        fight.strike(&mut engines, &mut actors).await?;
        for actor in &mut actors {
            actor.revive()?;
        }
        let Ok(applied) = count::<DB>(&store).await else { continue };
        progress.shows(pair, applied, total, &fight.report)?;
        if applied == (total, total) {
            break;
        }
        if progress.rests() {
            fight.report.replayed += replay(&store, &broker).await?;
        }
        clock::sleep_until(clock::now().plus(LOOK)).await;
    }
    fight.report.seconds = started.until(clock::now()).as_secs_f64();
    settle(&store, &broker, &mut fight.report).await?;
    for actor in actors {
        actor.stop().await?;
    }
    let sent = total;
    let pool = store.reader();
    fight.report.ordered = Verdict::read(sent, &DB::effects(pool, ORDERED).await?);
    fight.report.shared = Verdict::read(sent, &DB::effects(pool, SHARED).await?);
    Ok(fight.report)
}

/// The children: one writer, two relays, one consumer of the ordered queue, two of the shared one.
fn cast(engines: &Engines, each: u32, folder: &Path) -> Result<Vec<Actor>, SoakError> {
    let (store, broker) = engines.for_children();
    let child = |name: &'static str, role: &str| {
        let words = role.split_whitespace().map(str::to_owned);
        let addresses = ["--store", store.as_str(), "--broker", broker.as_str()].map(str::to_owned);
        Actor::start(name, addresses.into_iter().chain(words).collect(), folder)
    };
    let write = format!("write --run {RUN} --from 0 --keys {KEYS} --each {each}");
    let relay = format!("relay --lease-ms {LEASE_MS}");
    let consume = |queue: &str| format!("consume --queue {queue} --run {RUN}");
    let strict = format!("{} --strict", consume(ORDERED));
    Ok(vec![
        child("writer", &write)?,
        child("relay-1", &relay)?,
        child("relay-2", &relay)?,
        child("ordered", &strict)?,
        child("shared-1", &consume(SHARED))?,
        child("shared-2", &consume(SHARED))?,
    ])
}

struct Fight {
    rng: SeededRng,
    rules: Rules,
    blows: VecDeque<Blow>,
    next: Moment,
    report: Report,
}

impl Fight {
    /// Deals the next blow if it is time.
    async fn strike(
        &mut self,
        engines: &mut Engines,
        actors: &mut [Actor],
    ) -> Result<(), SoakError> {
        if clock::now() < self.next {
            return Ok(());
        }
        if self.blows.is_empty() {
            self.blows = self.shuffled(engines, actors.len());
        }
        match self.blows.pop_front() {
            Some(Blow::Kill(actor)) => {
                actors[actor].kill_and_restart().await?;
                self.report.kills += 1;
            }
            Some(Blow::CutStore) => {
                engines.store_wire().into_iter().for_each(crate::wire::Wire::cut);
                self.report.cuts += 1;
            }
            Some(Blow::CutBroker) => {
                engines.broker_wire().into_iter().for_each(crate::wire::Wire::cut);
                self.report.cuts += 1;
            }
            Some(Blow::CrashStore) => self.report.crashes += u32::from(engines.restart_store()?),
            Some(Blow::CrashBroker) => self.report.crashes += u32::from(engines.restart_broker()?),
            None => {}
        }
        // Half to one and a half times the mean, so that blows fall into every phase.
        let share = 50 + self.rng.up_to(100);
        self.next = clock::now().plus(self.rules.every.mul_f64(share as f64 / 100.0));
        Ok(())
    }

    /// A round of blows: each actor several times, each wire, each server once.
    fn shuffled(&mut self, engines: &Engines, actors: usize) -> VecDeque<Blow> {
        let mut blows: Vec<Blow> = (0..actors).cycle().take(actors * 3).map(Blow::Kill).collect();
        if engines.pair().on_postgres() {
            blows.extend([Blow::CutStore, Blow::CrashStore]);
        }
        if engines.pair().on_rabbitmq() {
            blows.extend([Blow::CutBroker, Blow::CrashBroker]);
        }
        for last in (1..blows.len()).rev() {
            let other = self.rng.up_to(last as u64);
            blows.swap(last, usize::try_from(other).unwrap_or(0));
        }
        blows.into()
    }
}

struct Progress {
    applied: u64,
    at: Moment,
}

impl Progress {
    fn shows(
        &mut self,
        pair: Pair,
        (ordered, shared): (u64, u64),
        total: u64,
        report: &Report,
    ) -> Result<(), SoakError> {
        let now = clock::now();
        if ordered + shared > self.applied {
            (self.applied, self.at) = (ordered + shared, now);
        } else if self.at.until(now) > STUCK {
            return Err(SoakError::Stuck { pair: pair.name(), ordered, shared, total });
        }
        let Report { kills, cuts, crashes, .. } = report;
        crate::say(&format!(
            "{}: {ordered} and {shared} of {total}; {kills} kills, {cuts} cuts, {crashes} crashes",
            pair.name()
        ));
        Ok(())
    }

    /// Nothing has moved for a while: what is missing may lie among the dead letters.
    fn rests(&self) -> bool {
        self.at.until(clock::now()) > Duration::from_secs(10)
    }
}

async fn count<DB: Books>(store: &Store<DB>) -> sqlx::Result<(u64, u64)> {
    let pool = store.reader();
    let (ordered, shared) =
        (DB::count_effects(pool, ORDERED).await?, DB::count_effects(pool, SHARED).await?);
    Ok((ordered.unsigned_abs(), shared.unsigned_abs()))
}

/// Waits until outbox and queues are empty; what is left when they do not come to rest.
async fn settle<DB: Books>(
    store: &Store<DB>,
    broker: &AnyBroker,
    report: &mut Report,
) -> Result<(), SoakError> {
    let until = clock::now().plus(STUCK);
    loop {
        report.outbox = outbox::stats(store).await?.pending;
        report.queued = 0;
        for queue in [ORDERED, SHARED] {
            report.queued += broker.depth(queue).await?;
        }
        if (report.outbox, report.queued) == (0, 0) || clock::now() > until {
            return Ok(());
        }
        clock::sleep_until(clock::now().plus(LOOK)).await;
    }
}

/// Puts every failed message back, as the on-call does after an outage: those of the shared queue lie
/// at the broker, those of the ordered one in the store.
async fn replay<DB: Books>(store: &Store<DB>, broker: &AnyBroker) -> Result<u64, SoakError> {
    let all = dlq::Choice { max: u32::MAX, ..dlq::Choice::default() };
    let at_broker = dlq::select(broker, SHARED, &all).await?;
    let (store, sift) = (store.clone(), all.sift.clone());
    let stored =
        StoreLetters::open(store, Some(broker.clone()), ORDERED, Place::Dead, sift).await?;
    let stored = dlq::choose(stored, ORDERED, &all).await?;
    Ok(put_back(at_broker).await? + put_back(stored).await?)
}

async fn put_back<L: Letters>(mut selected: dlq::Selected<L>) -> Result<u64, SoakError> {
    let task = dlq::Task::new(dlq::Verb::Replay, "soak", "the outage is over");
    let never = CancellationToken::new();
    let outcome = dlq::carry_out(&mut selected, &task, None, &never, |_| ()).await?;
    selected.close().await?;
    Ok(outcome.done.len() as u64)
}
