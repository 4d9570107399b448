//! What a relay does with the outbox: lease shards, read their rows, record what became of them.

use std::time::Duration;

use mamparo_core::message::shards::{self, Plan, SHARDS};
use mamparo_core::time::WallTime;
use sqlx::pool::PoolConnection;

use super::{Claimed, OutboxStats};
use crate::{Backend, Clock, Now, Store, StoreError};

/// Most rows behind a parked one that may go when that is confirmed; the last of them frees the next
/// ones. More would keep a report of a long-parked key busy for seconds.
pub(crate) const FREED_MAX: i64 = 500;

/// Most refused rows that become ready at once.
pub(crate) const WOKEN_MAX: i64 = 1_000;

/// A shard that a relay holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its number.
    pub shard: u16,
    /// The tenure: another one, even of the same relay, has another number.
    pub epoch: i64,
}

/// What a relay holds after a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tenure {
    /// The shards, by number.
    pub held: Vec<Held>,
    /// Of those, the ones beyond the fair share: to be given back once nothing of them is in flight.
    pub surplus: Vec<u16>,
    /// Of those, the ones that were taken just now.
    pub taken: Vec<u16>,
    /// The owners' names of all relays that are alive, this one included, in their order.
    pub relays: Vec<String>,
}

/// Names a row in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confirmed {
    /// The row.
    pub row: i64,
    /// Its shard, and the tenure that it was read under.
    pub held: Held,
}

/// A row that the broker did not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// The row.
    pub row: i64,
    /// Its shard, and the tenure that it was read under.
    pub held: Held,
    /// When it goes again; its key waits until then.
    pub due: WallTime,
    /// What the broker said, for people.
    pub error: String,
}

/// What became of rows.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The broker has them.
    pub confirmed: Vec<Confirmed>,
    /// The broker did not take them.
    pub parked: Vec<Parked>,
    /// They were read and must wait: a row of their key before them does.
    pub behind: Vec<Confirmed>,
}

/// A relay's hold on an outbox. Cheap; connections are taken when they are needed.
#[derive(Debug)]
pub struct RelaySession<DB: Backend> {
    store: Store<DB>,
    owner: String,
}

/// What a report changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recorded {
    /// Rows that left the outbox.
    pub confirmed: u64,
    /// Rows that wait now.
    pub waiting: u64,
}

impl<DB: Backend> RelaySession<DB> {
    /// A session of a relay of its own: two sessions never share a lease.
    #[must_use]
    pub fn new(store: &Store<DB>) -> Self {
        Self { store: store.relay_lane(), owner: uuid::Uuid::now_v7().to_string() }
    }

    /// What the leases carry.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// How long to wait for an operation before its connection is given up: the server would have ended
    /// it, so a longer silence is that of a host that has vanished. Default 65 s.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.store.patience()
    }

    /// The database was silent for longer than that: the store's other idle connections are closed when
    /// their turn comes, because each of them would cost as long a wait.
    pub fn suspect_connections(&self) {
        self.store.suspect_connections();
    }

    /// The database's clock: leases and due times of several hosts must agree. `local` is the host's own.
    ///
    /// # Errors
    /// What the database said.
    pub async fn clock(&self, local: fn() -> WallTime) -> Result<Clock<DB>, StoreError> {
        self.store.clock(local).await
    }

    /// Says that this relay is alive until `now + lease`, renews its shards, and takes free ones up to
    /// its fair share. `now` should be
    /// [`RelaySession::clock`].
    ///
    /// # Errors
    /// What the database said.
    pub async fn heartbeat(&self, lease: Duration, now: impl Now) -> Result<Tenure, StoreError> {
        let failed = || StoreError::during("renew a relay's leases");
        let mut tx = self.store.begin().await?;
        let shards = DB::lock_shards(&mut tx).await.map_err(failed())?;
        // After the lock: whoever had to wait for it must not hand out a lease that is half over.
        let now = now.now();
        let until = now.plus(lease);
        DB::beat_relay(&mut tx, &self.owner, until, now).await.map_err(failed())?;
        let mut alive = DB::alive_relays(&mut tx, now).await.map_err(failed())?;
        alive.sort_unstable();
        let plan = shards::plan(&self.owner, &shards, &alive, now);
        DB::lease_shards(&mut tx, &self.owner, &plan, until).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        let epoch = |shard: u16| {
            let found = shards.iter().find(|row| row.shard == shard).map_or(0, |row| row.epoch);
            found + i64::from(plan.take.contains(&shard))
        };
        let mine = |shard: &u16| plan.renew.contains(shard) || plan.take.contains(shard);
        let held = (0..SHARDS).filter(mine).map(|shard| Held { shard, epoch: epoch(shard) });
        let held = held.collect();
        let Plan { take, surplus, .. } = plan;
        Ok(Tenure { held, surplus, taken: take, relays: alive })
    }

    /// The heartbeat of a relay for which nothing has changed since `tenure`: one statement where a
    /// [`heartbeat`](Self::heartbeat) is a transaction of four. `false` when something may have changed, and a
    /// heartbeat must find out what.
    ///
    /// `now` is read before any lock is waited for: such a wait makes the lease shorter, never longer.
    ///
    /// # Errors
    /// What the database said.
    pub async fn renew(
        &self,
        lease: Duration,
        now: impl Now,
        tenure: &Tenure,
    ) -> Result<bool, StoreError> {
        let Tenure { held, surplus, relays, .. } = tenure;
        if !surplus.is_empty() || !shards::is_fair(&self.owner, held.len(), relays) {
            return Ok(false);
        }
        let now = now.now();
        let mut conn = self.writer("renew a relay's leases").await?;
        let renewed = DB::renew_shards(&mut conn, &self.owner, tenure, now.plus(lease), now).await;
        renewed.map_err(StoreError::during("renew a relay's leases"))
    }

    /// Gives shards back, so that another relay need not wait for the end of their lease.
    ///
    /// # Errors
    /// What the database said.
    pub async fn give_back(&self, shards: &[Held]) -> Result<(), StoreError> {
        let mut conn = self.writer("give shards of the outbox back").await?;
        let given = DB::give_shards(&mut conn, &self.owner, shards).await;
        given.map_err(StoreError::during("give shards of the outbox back"))
    }

    /// Gives everything back: this relay is not alive any more.
    ///
    /// # Errors
    /// What the database said.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let failed = || StoreError::during("give the outbox back");
        let mut tx = self.store.begin().await?;
        DB::forget_relay(&mut tx, &self.owner).await.map_err(failed())?;
        tx.commit().await.map_err(failed())
    }

    /// Makes refused rows of these shards ready whose time has come. When the next one is due.
    ///
    /// # Errors
    /// What the database said.
    pub async fn wake_parked(
        &self,
        shards: &[u16],
        now: WallTime,
    ) -> Result<Option<WallTime>, StoreError> {
        let failed = || StoreError::during("wake parked events");
        let mut conn = self.reader("wake parked events").await?;
        // Looking first keeps an idle relay from taking the write lock.
        if DB::has_refused(&mut conn, shards, now).await.map_err(failed())? {
            drop(conn);
            conn = self.writer("wake parked events").await?;
            DB::wake_refused(&mut conn, shards, now).await.map_err(failed())?;
        }
        DB::next_refused(&mut conn, shards).await.map_err(failed())
    }

    /// Frees rows that wait behind nothing, because somebody deleted by hand what they waited for.
    /// How many.
    ///
    /// # Errors
    /// What the database said.
    pub async fn mend(&self, shards: &[u16]) -> Result<u64, StoreError> {
        let mut conn = self.writer("mend the outbox").await?;
        DB::free_orphans(&mut conn, shards).await.map_err(StoreError::during("mend the outbox"))
    }

    /// Reads rows that may leave, oldest first, of each shard at most its room and not the `known`
    /// ones. Rows that are [`behind`](Claimed::behind) a parked one come too: they are to be reported
    /// so. What is read is decided by the rows' state alone, so a transaction that commits late is
    /// found too.
    ///
    /// # Errors
    /// What the database said.
    pub async fn read(
        &self,
        rooms: &[(u16, u32)],
        known: &[i64],
    ) -> Result<Vec<Claimed>, StoreError> {
        let mut conn = self.reader("read outbox rows").await?;
        let read = DB::read_events(&mut conn, rooms, known).await;
        read.map_err(StoreError::during("read outbox rows"))
    }

    /// Records what became of rows, and how many that changed. Rows whose shard is held under another tenure
    /// by now are left alone: whoever holds it publishes them again, under the same id. `history` is
    /// the time to note for confirmed rows; `None` keeps nothing of them.
    ///
    /// # Errors
    /// What the database said; nothing is recorded then.
    pub async fn record(
        &self,
        report: &Report,
        history: Option<WallTime>,
    ) -> Result<Recorded, StoreError> {
        let failed = || StoreError::during("record what became of events");
        let Report { confirmed, parked, behind } = report;
        if parked.is_empty() && behind.is_empty() && DB::RECORDS_AT_ONCE {
            let mut conn = self.writer("record what became of events").await?;
            let done = DB::confirm_events(&mut conn, &self.owner, confirmed, history).await;
            return Ok(Recorded { confirmed: done.map_err(failed())?, waiting: 0 });
        }
        let mut done = Recorded::default();
        let mut tx = self.store.begin().await?;
        if !confirmed.is_empty() {
            let left = DB::confirm_events(&mut tx, &self.owner, confirmed, history).await;
            done.confirmed = left.map_err(failed())?;
        }
        if !parked.is_empty() {
            done.waiting += DB::park_events(&mut tx, &self.owner, parked).await.map_err(failed())?;
        }
        if !behind.is_empty() {
            done.waiting += DB::hold_events(&mut tx, &self.owner, behind).await.map_err(failed())?;
        }
        tx.commit().await.map_err(failed())?;
        Ok(done)
    }

    /// Forgets history before `before`, a batch at a time, and prepares room for what is to come. Is
    /// there more to forget?
    ///
    /// # Errors
    /// What the database said.
    pub async fn forget(&self, before: WallTime, now: WallTime) -> Result<bool, StoreError> {
        let failed = || StoreError::during("forget published events");
        let mut tx = self.store.begin().await?;
        let more = DB::forget_history(&mut tx, before, now).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(more)
    }

    /// What waits in the whole outbox.
    ///
    /// # Errors
    /// What the database said.
    pub async fn stats(&self) -> Result<OutboxStats, StoreError> {
        super::stats(&self.store).await
    }

    /// How long the oldest transaction has held back the clean-up of dead rows, this database's and
    /// others' on its server. `None` where nothing can, as on SQLite.
    ///
    /// # Errors
    /// What the database said.
    pub async fn oldest_snapshot(&self) -> Result<Option<Duration>, StoreError> {
        let mut conn = self.reader("ask for the oldest snapshot").await?;
        let oldest = DB::oldest_snapshot(&mut conn).await;
        oldest.map_err(StoreError::during("ask for the oldest snapshot"))
    }

    /// An ear of its own connection.
    ///
    /// # Errors
    /// What the database said.
    pub async fn listen(&self) -> Result<DB::Ear, StoreError> {
        DB::listen(self.store.reader()).await.map_err(StoreError::during("listen for commits"))
    }

    /// Tells the relays of other processes that there may be new rows; `word` is empty, or comes back
    /// as [`Heard::Word`](super::Heard::Word). Never within a user's transaction: PostgreSQL makes
    /// transactions that notify commit one after the other.
    ///
    /// # Errors
    /// What the database said.
    pub async fn announce(&self, word: &str) -> Result<(), StoreError> {
        let mut conn = self.writer("announce commits").await?;
        DB::announce(&mut conn, word).await.map_err(StoreError::during("announce commits"))
    }

    async fn reader(&self, operation: &'static str) -> Result<PoolConnection<DB>, StoreError> {
        self.store.read_connection(operation).await
    }

    async fn writer(&self, operation: &'static str) -> Result<PoolConnection<DB>, StoreError> {
        self.store.write_connection(operation).await
    }
}
