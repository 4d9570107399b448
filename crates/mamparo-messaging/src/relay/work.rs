//! The work of a relay: publishes in flight, and beside them at most one look at the outbox, one report
//! and one heartbeat or piece of housekeeping at a time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_core::message::relay::{Decision, Published};
use mamparo_core::message::shards::SHARDS;
use mamparo_core::message::window::{Landing, Window};
use mamparo_core::time::{Moment, WallTime};
use mamparo_store::outbox::{
    Claimed, Confirmed, Held, OutboxStats, Parked, Recorded, RelaySession, Report, Tenure,
};
use mamparo_store::{Backend, Clock, OutboxSignal, StoreError};
use tokio_util::sync::CancellationToken;

use super::ears::Wakes;
use super::{RelayOptions, RelaySummary, answered};
use crate::{Broker, Confirm, Message, MessagingError, observe};

/// How often the gauges are refreshed.
const GAUGES: Duration = Duration::from_secs(15);

/// How often history is forgotten, and rows are freed that wait behind nothing.
const HOUSEKEEPING: Duration = Duration::from_secs(60);

/// How long an outcome may wait for company before it is recorded. A report is a commit of its own, and
/// what is recorded late is only published twice if the relay dies within that time.
const LINGER: Duration = Duration::from_millis(5);

/// Least time between two looks that find little, so that a stream of single commits is not answered
/// with a query for each.
const LOOK_GAP: Duration = Duration::from_millis(1);

/// While the ears are proven, polls come so many times more seldom.
const PROVEN_FACTOR: u32 = 10;

/// Waits between tries when the store itself fails: base 100 ms, factor 2, cap 5 s.
const STORE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), 2.0, Duration::from_secs(5));

type Op<DB> = Pin<Box<dyn Future<Output = Done<DB>> + Send>>;
type Flights = FuturesUnordered<Pin<Box<dyn Future<Output = Flight> + Send>>>;

/// What an operation on the store came back with.
enum Done<DB: Backend> {
    Looked { generation: u64, rows: Result<Vec<Claimed>, MessagingError> },
    Recorded { report: Report, changed: Result<Recorded, MessagingError> },
    Beat { began: Moment, beat: Result<(Tenure, Clock<DB>), MessagingError> },
    Woken(Result<Option<WallTime>, MessagingError>),
    Gauged(Result<(OutboxStats, Option<Duration>), MessagingError>),
    Kept(Result<bool, MessagingError>),
    Given(Vec<Held>, Result<(), MessagingError>),
}

/// A row at the broker.
struct Job {
    held: Held,
    claimed: Claimed,
}

/// A row after its publish.
struct Flight {
    row: i64,
    held: Held,
    /// Tries made, this one included.
    tries: u32,
    message: Message,
    confirm: Confirm,
}

/// When what is due next.
struct Due {
    beat: Moment,
    look: Moment,
    /// Not before this, whoever calls.
    look_from: Moment,
    record: Moment,
    refused: Moment,
    gauges: Moment,
    house: Moment,
    /// Nothing before this: the store failed.
    retry: Moment,
}

pub(super) struct Work<'w, B, DB: Backend> {
    session: Arc<RelaySession<DB>>,
    broker: B,
    options: RelayOptions,
    signal: OutboxSignal,
    wakes: &'w Wakes,
    window: Window<Job>,
    /// What the last heartbeat came back with.
    tenure: Option<Tenure>,
    /// The database's; known from the first heartbeat on.
    clock: Option<Clock<DB>>,
    held: BTreeMap<u16, i64>,
    surplus: Vec<u16>,
    lease_ends: Moment,
    report: Report,
    /// Recorded while a look was under way: known until it is back.
    settled: Vec<i64>,
    ops: FuturesUnordered<Op<DB>>,
    flights: Flights,
    looking: bool,
    /// The last look left shards out, for which there was no room.
    crowded: bool,
    recording: bool,
    keeping: bool,
    due: Due,
    failures: u32,
    wait: Duration,
    summary: RelaySummary,
}

impl<'w, B: Broker, DB: Backend> Work<'w, B, DB> {
    pub(super) fn new(
        session: Arc<RelaySession<DB>>,
        broker: B,
        options: RelayOptions,
        signal: OutboxSignal,
        wakes: &'w Wakes,
    ) -> Self {
        let (now, never) = (Moment::ORIGIN, Moment::FAR_FUTURE);
        let due = Due {
            beat: now,
            look: never,
            look_from: now,
            record: never,
            refused: never,
            gauges: now,
            house: now,
            retry: now,
        };
        Self {
            window: Window::new(options.batch as usize),
            session,
            broker,
            options,
            signal,
            wakes,
            clock: None,
            held: BTreeMap::new(),
            surplus: Vec::new(),
            tenure: None,
            lease_ends: now,
            report: Report::default(),
            settled: Vec::new(),
            ops: FuturesUnordered::new(),
            flights: FuturesUnordered::new(),
            looking: false,
            crowded: false,
            recording: false,
            keeping: false,
            due,
            failures: 0,
            wait: Duration::ZERO,
            summary: RelaySummary::default(),
        }
    }

    /// Works until `cancel`, then ends what it began.
    pub(super) async fn run(&mut self, cancel: &CancellationToken) -> RelaySummary {
        while !cancel.is_cancelled() {
            let now = clock::now();
            self.publish(now);
            self.begin(now);
            let next = self.next(now);
            tokio::select! {
                () = cancel.cancelled() => {}
                Some(flight) = self.flights.next() => self.landed(flight),
                Some(done) = self.ops.next() => self.done(done),
                () = self.signal.wait() => self.due.look = Moment::ORIGIN,
                () = self.wakes.rows.notified() => self.due.look = Moment::ORIGIN,
                () = clock::sleep_until(next) => {}
            }
            self.land_more();
        }
        self.stop().await;
        self.summary
    }

    /// Waits for what is in flight, records it and gives the shards back.
    async fn stop(&mut self) {
        while let Some(flight) = self.flights.next().await {
            self.landed(flight);
        }
        while let Some(done) = self.ops.next().await {
            // A report that failed is in the next one; looks bring rows that nobody starts any more.
            self.done(done);
        }
        let failures = self.failures;
        while self.waiting() > 0 && self.failures == failures {
            let op = self.record();
            let done = op.await;
            self.done(done);
        }
        let leave = self.session.leave();
        if let Err(error) = answered(&self.session, "give the outbox back", leave).await {
            // The leases end by themselves.
            observe::relay_failed(&error, 0);
        }
    }

    /// Starts what may start, as long as the lease lasts.
    fn publish(&mut self, now: Moment) {
        while now < self.lease_ends {
            let Some((row, job)) = self.window.start() else { return };
            let (broker, exchange) = (self.broker.clone(), self.options.exchange.clone());
            self.flights.push(Box::pin(publish(broker, exchange, row, job)));
        }
    }

    /// Further answers that are there already, so that one turn of the loop serves them all.
    fn land_more(&mut self) {
        use futures_util::FutureExt as _;
        for _ in 0..self.options.batch {
            let Some(Some(flight)) = self.flights.next().now_or_never() else { return };
            self.landed(flight);
        }
    }

    /// Begins the operations that are due and not under way.
    fn begin(&mut self, now: Moment) {
        if now < self.due.retry {
            return;
        }
        if !self.keeping {
            self.keep(now);
        }
        if self.waiting() > 0 && !self.recording {
            let enough = self.waiting() >= self.options.batch as usize / 4;
            if enough || now >= self.due.record {
                let op = self.record();
                self.ops.push(op);
            }
        }
        if !self.looking && now >= self.due.look && now >= self.due.look_from {
            self.look(now);
        }
    }

    /// A heartbeat, or what can wait for it.
    fn keep(&mut self, now: Moment) {
        let session = Arc::clone(&self.session);
        let op: Op<DB> = if now >= self.due.beat {
            let (lease, clock) = (self.options.lease, self.clock.clone());
            let last = self.tenure.clone();
            Box::pin(async move {
                let beat = heartbeat(&session, clock, lease, last);
                let beat = answered(&session, "renew the relay's leases", beat).await;
                Done::Beat { began: now, beat }
            })
        } else if let Some(given) = self.idle_surplus() {
            Box::pin(async move {
                let result = session.give_back(&given);
                let result = answered(&session, "give shards back", result).await;
                Done::Given(given, result)
            })
        } else if now >= self.due.refused && !self.held.is_empty() {
            let (shards, wall) = (self.held.keys().copied().collect::<Vec<u16>>(), self.wall());
            Box::pin(async move {
                let next = session.wake_parked(&shards, wall);
                Done::Woken(answered(&session, "wake parked events", next).await)
            })
        } else if now >= self.due.gauges {
            Box::pin(async move {
                Done::Gauged(answered(&session, "count outbox rows", gauge(&session)).await)
            })
        } else if now >= self.due.house {
            let shards: Vec<u16> = self.held.keys().copied().collect();
            let (keep, clock) = (self.options.keep, self.clock.clone());
            Box::pin(async move {
                let kept = keep_house(&session, clock, &shards, keep);
                Done::Kept(answered(&session, "keep the outbox in order", kept).await)
            })
        } else {
            return;
        };
        self.keeping = true;
        self.ops.push(op);
    }

    /// Shards beyond the fair share of which nothing is known here.
    fn idle_surplus(&self) -> Option<Vec<Held>> {
        let idle = self.surplus.iter().filter(|shard| self.window.in_shard(**shard) == 0);
        let held = idle.filter_map(|shard| {
            self.held.get(shard).map(|epoch| Held { shard: *shard, epoch: *epoch })
        });
        let held: Vec<_> = held.collect();
        (!held.is_empty()).then_some(held)
    }

    /// Looks for rows where there is room for them.
    fn look(&mut self, now: Moment) {
        let mine = self.held.keys().filter(|shard| !self.surplus.contains(shard));
        let mine: Vec<u16> = mine.copied().collect();
        let batch = self.options.batch as usize;
        let share = batch.div_ceil(mine.len().max(1));
        let room =
            |shard: &u16| (2 * share).saturating_sub(self.window.in_shard(*shard)).min(share);
        let rooms: Vec<(u16, u32)> = mine
            .iter()
            .map(|shard| (*shard, u32::try_from(room(shard)).unwrap_or(0)))
            .filter(|(_, room)| *room > 0)
            .collect();
        let total: usize = rooms.iter().map(|(_, room)| *room as usize).sum();
        // A look costs the same for one row as for a hundred; while there is enough to do it can wait.
        if rooms.is_empty() || (total < batch / 4 && self.window.flights() > batch / 4) {
            return;
        }
        self.due.look = now.plus(self.poll());
        self.crowded = rooms.len() < mine.len();
        self.looking = true;
        let (session, generation) = (Arc::clone(&self.session), self.window.generation());
        let known: Vec<i64> = self.window.known().collect();
        self.ops.push(Box::pin(async move {
            let rows = answered(&session, "read events", session.read(&rooms, &known)).await;
            Done::Looked { generation, rows }
        }));
    }

    /// The time in which rows are due.
    fn wall(&self) -> WallTime {
        self.clock.as_ref().map_or_else(clock::wall, Clock::now)
    }

    fn poll(&self) -> Duration {
        let proven = self.wakes.proven.load(Ordering::Relaxed);
        self.options.poll.saturating_mul(if proven { PROVEN_FACTOR } else { 1 })
    }

    /// Outcomes that wait to be recorded.
    fn waiting(&self) -> usize {
        self.report.confirmed.len() + self.report.parked.len() + self.report.behind.len()
    }

    fn record(&mut self) -> Op<DB> {
        self.recording = true;
        self.due.record = Moment::FAR_FUTURE;
        // Confirmed rows go first and alone: whatever keeps a refusal from being written down must not
        // keep them from it, or they would all be published again.
        let report = if self.report.confirmed.is_empty() {
            std::mem::take(&mut self.report)
        } else {
            let confirmed = std::mem::take(&mut self.report.confirmed);
            Report { confirmed, ..Report::default() }
        };
        let session = Arc::clone(&self.session);
        let history = (!self.options.keep.is_zero()).then(|| self.wall());
        Box::pin(async move {
            let changed = session.record(&report, history);
            let changed = answered(&session, "record what became of events", changed).await;
            Done::Recorded { report, changed }
        })
    }

    /// The next moment at which something is due that nothing else will wake us for.
    fn next(&self, now: Moment) -> Moment {
        let mut next = Moment::FAR_FUTURE;
        // Without a shard to look into, the next heartbeat decides.
        if !self.looking && self.held.len() > self.surplus.len() {
            next = next.min(self.due.look.max(self.due.look_from));
        }
        if !self.recording && self.waiting() > 0 {
            next = next.min(self.due.record);
        }
        if !self.keeping {
            next = next.min(self.due.beat).min(self.due.gauges).min(self.due.house);
            if !self.held.is_empty() {
                next = next.min(self.due.refused);
            }
        }
        // A look that has no room is due and yet not begun: what is in flight will make room.
        let soonest = if next <= now { now.plus(LOOK_GAP) } else { next };
        soonest.max(self.due.retry)
    }

    /// Decides on one published row.
    fn landed(&mut self, flight: Flight) {
        let (published, said) = match flight.confirm {
            Confirm::Confirmed => (Published::Confirmed, String::new()),
            Confirm::Returned => (Published::Returned, "no queue takes it".to_owned()),
            Confirm::Nacked(reason) => (Published::Nacked, reason),
            Confirm::Unknown(reason) => (Published::Unknown, reason),
        };
        let exchange = &self.options.exchange;
        if self.waiting() == 0 {
            self.due.record = clock::now().plus(LINGER);
        }
        let (row, held) = (flight.row, flight.held);
        match self.window.tell(row, published) {
            Landing::Void => observe::stray(exchange, &flight.message),
            Landing::Confirmed => {
                observe::relayed(exchange);
                self.report.confirmed.push(Confirmed { row, held });
            }
            Landing::Parked => {
                let (wall, rng) = (self.wall(), &mut clock::entropy());
                let decision = self.options.policy.tell(wall, flight.tries, published, rng);
                let Decision::Postpone { due, state: _, alarm } = decision else { return };
                let outcome =
                    observe::Refusal { published, said: &said, tries: flight.tries, alarm };
                observe::postponed(exchange, &flight.message, &outcome);
                self.summary.postponed = self.summary.postponed.saturating_add(1);
                self.report.parked.push(Parked { row, held, due, error: said });
            }
        }
    }

    fn done(&mut self, done: Done<DB>) {
        let error = match done {
            Done::Looked { generation, rows } => {
                self.looking = false;
                rows.map(|rows| self.looked(generation, rows)).err()
            }
            Done::Recorded { report, changed } => {
                self.recording = false;
                if self.waiting() > 0 {
                    self.due.record = Moment::ORIGIN;
                }
                self.recorded(report, changed).err()
            }
            Done::Beat { began, beat } => {
                self.keeping = false;
                beat.map(|(tenure, clock)| {
                    self.clock = Some(clock);
                    self.beat(began, tenure);
                })
                .err()
            }
            Done::Given(given, result) => {
                self.keeping = false;
                // Whether it worked or not: they are worked on no more.
                for held in &given {
                    self.held.remove(&held.shard);
                }
                self.surplus.retain(|shard| !given.iter().any(|held| held.shard == *shard));
                result.err()
            }
            Done::Woken(next) => {
                self.keeping = false;
                next.map(|next| self.woken(next)).err()
            }
            Done::Gauged(gauged) => {
                self.keeping = false;
                self.due.gauges = clock::now().plus(GAUGES);
                let wall = self.wall();
                gauged.map(|(stats, snapshot)| observe::outbox(&stats, snapshot, wall)).err()
            }
            Done::Kept(more) => {
                self.keeping = false;
                // A full batch means that there is more: forgetting must keep up with what comes in.
                let pause = if matches!(more, Ok(true)) { Duration::ZERO } else { HOUSEKEEPING };
                self.due.house = clock::now().plus(pause);
                more.err()
            }
        };
        self.note(error);
    }

    /// After a failure nothing is asked for a while; the first success ends that.
    fn note(&mut self, error: Option<MessagingError>) {
        let Some(error) = error else {
            self.failures = 0;
            return;
        };
        self.failures = self.failures.saturating_add(1);
        observe::relay_failed(&error, self.failures);
        self.wait = STORE_BACKOFF.delay(self.failures, self.wait, &mut clock::entropy());
        self.due.retry = clock::now().plus(self.wait);
        self.due.look = Moment::ORIGIN;
    }

    fn looked(&mut self, generation: u64, rows: Vec<Claimed>) {
        let found = rows.len();
        if generation == self.window.generation() {
            for claimed in rows {
                // Not of a shard that is being given back: the next holder publishes it.
                let mine = self.held.get(&claimed.shard);
                let Some(epoch) = mine.filter(|_| !self.surplus.contains(&claimed.shard)) else {
                    continue;
                };
                let held = Held { shard: claimed.shard, epoch: *epoch };
                if claimed.behind {
                    if self.waiting() == 0 {
                        self.due.record = clock::now().plus(LINGER);
                    }
                    self.report.behind.push(Confirmed { row: claimed.row, held });
                    continue;
                }
                let (row, shard, key) = (claimed.row, claimed.shard, claimed.event.key.clone());
                self.window.offer(row, shard, &key, Job { held, claimed });
            }
        }
        self.make_room();
        // Where there was something there may be more.
        if found > 0 {
            self.due.look = Moment::ORIGIN;
            let little = found < self.options.batch as usize / 10;
            let gap = if little { LOOK_GAP } else { Duration::ZERO };
            self.due.look_from = clock::now().plus(gap);
        }
    }

    fn recorded(
        &mut self,
        report: Report,
        changed: Result<Recorded, MessagingError>,
    ) -> Result<(), MessagingError> {
        let Report { confirmed, parked, behind } = report;
        match changed {
            Ok(changed) => {
                self.summary.confirmed += changed.confirmed;
                if let Some(due) = parked.iter().map(|row| row.due).min() {
                    self.refused_by(due);
                }
                let rows = confirmed.iter().map(|row| row.row);
                self.settled.extend(rows.chain(parked.iter().map(|row| row.row)));
                if !self.looking {
                    self.make_room();
                }
                Ok(())
            }
            Err(error) => {
                self.report.confirmed.extend(confirmed);
                self.report.parked.extend(parked);
                self.report.behind.extend(behind);
                self.due.record = Moment::ORIGIN;
                Err(error)
            }
        }
    }

    /// Recorded rows leave the window. A look that left full shards out says nothing about them, however
    /// little it found elsewhere.
    fn make_room(&mut self) {
        let settled = std::mem::take(&mut self.settled);
        if self.crowded && !settled.is_empty() {
            self.due.look = Moment::ORIGIN;
        }
        self.window.recorded(&settled);
    }

    fn refused_by(&mut self, due: WallTime) {
        let after = due.since(self.wall());
        self.due.refused = self.due.refused.min(clock::now().plus(after));
    }

    fn woken(&mut self, next: Option<WallTime>) {
        // What woke must be looked for.
        self.due.look = Moment::ORIGIN;
        self.due.refused = Moment::FAR_FUTURE;
        if let Some(next) = next {
            self.refused_by(next);
        }
    }

    /// Takes over what the heartbeat came back with.
    fn beat(&mut self, began: Moment, tenure: Tenure) {
        let held: BTreeMap<u16, i64> =
            tenure.held.iter().map(|held| (held.shard, held.epoch)).collect();
        for (shard, epoch) in &self.held {
            if held.get(shard) != Some(epoch) {
                self.window.lose(*shard);
            }
        }
        let lease = self.options.lease;
        self.lease_ends = began.plus(lease);
        // Whoever holds less than its share waits for others to give, and should not wait long.
        let short = held.len() < usize::from(SHARDS) / tenure.relays.len().max(1);
        self.due.beat = began.plus(lease / if short { 10 } else { 3 });
        if !tenure.taken.is_empty() {
            self.due.look = Moment::ORIGIN;
            self.due.refused = Moment::ORIGIN;
            self.due.house = Moment::ORIGIN;
        }
        observe::shards(held.len());
        self.wakes.alone.store(held.len() == usize::from(SHARDS), Ordering::Relaxed);
        (self.held, self.surplus) = (held, tenure.surplus.clone());
        self.tenure = Some(tenure);
    }
}

async fn publish<B: Broker>(broker: B, exchange: String, row: i64, job: Job) -> Flight {
    let Job { held, claimed } = job;
    let message = Message::from_event(claimed.event, &exchange);
    let confirm = broker.publish(&exchange, &message.routing_key, &message).await;
    Flight { row, held, tries: claimed.tries.saturating_add(1), message, confirm }
}

async fn gauge<DB: Backend>(
    session: &RelaySession<DB>,
) -> Result<(OutboxStats, Option<Duration>), StoreError> {
    Ok((session.stats().await?, session.oldest_snapshot().await?))
}

async fn heartbeat<DB: Backend>(
    session: &RelaySession<DB>,
    clock: Option<Clock<DB>>,
    lease: Duration,
    last: Option<Tenure>,
) -> Result<(Tenure, Clock<DB>), StoreError> {
    let clock = match clock {
        Some(clock) => clock,
        None => session.clock(clock::wall).await?,
    };
    if let Some(last) = last
        && session.renew(lease, &clock, &last).await?
    {
        return Ok((Tenure { taken: Vec::new(), ..last }, clock));
    }
    let tenure = session.heartbeat(lease, &clock).await?;
    Ok((tenure, clock))
}

async fn keep_house<DB: Backend>(
    session: &RelaySession<DB>,
    clock: Option<Clock<DB>>,
    shards: &[u16],
    keep: Duration,
) -> Result<bool, StoreError> {
    let now = match clock {
        Some(clock) => {
            clock.measure().await?;
            clock.now()
        }
        None => clock::wall(),
    };
    session.mend(shards).await?;
    session.forget(now.minus(keep), now).await
}

#[cfg(test)]
mod tests;
