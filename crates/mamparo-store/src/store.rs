//! A database, opened: its connections, transactions and wake-ups.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Pool, Postgres, SqlSafeStr, Sqlite};
use tokio::sync::watch;

use mamparo_core::limits::ATTEMPT_MIN_USABLE;
use mamparo_core::message::transaction::Class;
use mamparo_core::time::WallTime;

use crate::backend::{Lane, Migrated, Pools};
use crate::finish::ToItsEnd;
use crate::{Backend, StoreAddress, StoreError, StoreOptions};

/// A transaction of the user's on this store's database.
pub type Transaction<'c, DB> = sqlx::Transaction<'c, DB>;

/// The embedded default.
pub type SqliteStore = Store<Sqlite>;

/// A store that several hosts share.
pub type PostgresStore = Store<Postgres>;

/// A service's database. Cheap to clone; clones share their connections and their wake-ups.
///
/// On SQLite there is one writing connection, because SQLite has one writer: callers queue for it in
/// process, in order, instead of polling a locked file. On PostgreSQL there are two pools, one for
/// requests and one for background work. Never hold a transaction while waiting for anything but
/// the database.
///
/// A `sqlite::memory:` database has a single connection for reading too, so reading through
/// [`Store::reader`] while holding a transaction waits for that transaction. It is for tests.
#[derive(Debug)]
pub struct Store<DB: Backend> {
    /// Every connection, to close them.
    pools: Pools<DB>,
    /// The ones that this clone works with.
    lane: Lane<DB>,
    options: Arc<StoreOptions>,
    /// How long a begin whose caller is gone may go on.
    carries: Option<Duration>,
    /// How far the database's clock is ahead of the host's, as measured last.
    pub(crate) offset_millis: Arc<AtomicI64>,
    committed: Arc<watch::Sender<u64>>,
    opening: Arc<str>,
}

/// Wakes a relay when a transaction may have brought new outbox rows.
///
/// Only commits through [`Store::commit`] of this process are seen, so polling stays the truth and
/// the signal only shortens the wait.
#[derive(Debug, Clone)]
pub struct OutboxSignal {
    seen: watch::Receiver<u64>,
}

/// The time of an operation that hands out a lease: a value, or a function such as a clock.
///
/// A function is asked once the operation holds its lock, so that a lease that was waited for is
/// not handed out half spent, or run out altogether. Production code passes the clock; a value is
/// for callers that bring their own time.
pub trait Now: Send {
    /// The time, now.
    fn now(&self) -> WallTime;
}

impl Now for WallTime {
    fn now(&self) -> WallTime {
        *self
    }
}

impl<F: Fn() -> WallTime + Send> Now for F {
    fn now(&self) -> WallTime {
        self()
    }
}

/// How long a caller still waits: a duration, or a function that is asked when it matters.
pub trait Budget: Send + Sync {
    /// What is left, now.
    fn left(&self) -> Duration;
}

impl Budget for Duration {
    fn left(&self) -> Duration {
        *self
    }
}

impl<F: Fn() -> Duration + Send + Sync> Budget for F {
    fn left(&self) -> Duration {
        self()
    }
}

impl<DB: Backend> Store<DB> {
    /// Opens (and creates the tables of, and migrates) the database at `address`, with the default
    /// [`StoreOptions`]: `sqlite:PATH` or `sqlite::memory:` for a [`SqliteStore`], `postgres://…` for
    /// a [`PostgresStore`]. An SQLite file is created, a PostgreSQL database must be there.
    ///
    /// Several processes may open one database, and may open it for the first time together.
    ///
    /// # Errors
    /// [`StoreError::Address`] for an address of another kind, [`StoreError::NewerSchema`] for a
    /// database that a newer mamparo migrated, else what the database said.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        Self::open_with(&StoreAddress::parse(address)?, &StoreOptions::default()).await
    }

    /// As [`Store::open`], with sizes and limits of one's own.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_with(
        address: &StoreAddress,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        let pools = DB::connect(address, true, options).await?;
        Ok(Self::of(pools, options.clone()))
    }

    /// Opens the database at `address`, which must exist: nothing is created, so that a mistyped
    /// path is an error and not an empty database. A database of somebody else is left untouched.
    ///
    /// # Errors
    /// [`StoreError::Missing`] when there is no such file, [`StoreError::Foreign`] when it is none of
    /// mamparo's, else as [`Store::open`].
    pub async fn open_existing(address: &str) -> Result<Self, StoreError> {
        let address = StoreAddress::parse(address)?;
        let options = StoreOptions::default();
        let pools = DB::connect(&address, false, &options).await?;
        Ok(Self::of(pools, options))
    }

    fn of(pools: Pools<DB>, options: StoreOptions) -> Self {
        let opening = uuid::Uuid::now_v7().to_string().into();
        let committed = Arc::new(watch::Sender::new(0));
        let options = Arc::new(options);
        let lane = pools.requests.clone();
        Self {
            lane,
            pools,
            options,
            carries: None,
            offset_millis: Arc::default(),
            committed,
            opening,
        }
    }

    /// The same store for background work: its transactions and statements use connections of
    /// their own, so that requests and relays don't starve each other. On SQLite the same ones.
    #[must_use]
    pub fn background(&self) -> Self {
        Self { lane: self.pools.background.clone(), ..self.clone() }
    }

    /// Begins a writing transaction (`BEGIN IMMEDIATE` on SQLite); waits its turn for the writer.
    ///
    /// Commit it with [`Store::commit`], so that a relay learns of new outbox rows at once.
    ///
    /// # Errors
    /// What the database said.
    pub async fn begin(&self) -> Result<Transaction<'static, DB>, StoreError> {
        self.begin_by(Cow::Borrowed(DB::BEGIN), "begin a transaction").await
    }

    /// Begins a writing transaction for a caller who does not wait for longer than `budget`.
    ///
    /// The wait for a connection ends with it, and on PostgreSQL each statement and each wait for a
    /// lock (`statement_timeout`, `lock_timeout`), set in the same round trip as the begin. What is
    /// left is asked again once the connection is there. On SQLite the wait for the writer ends with
    /// it; a statement there is as short as its work.
    ///
    /// # Errors
    /// [`StoreError::Deadline`] when the time is over before the transaction has begun, or too little
    /// of it is left to be worth beginning (10 ms or less), else what the database said.
    pub async fn begin_within(
        &self,
        budget: impl Budget,
    ) -> Result<Transaction<'static, DB>, StoreError> {
        let operation = "begin a transaction";
        let left = || {
            let left = budget.left();
            if left <= ATTEMPT_MIN_USABLE {
                return Err(StoreError::Deadline { operation });
            }
            Ok(left)
        };
        let options = &self.options;
        let begin = async {
            let conn = self.write_connection(operation).await?;
            let left = left()?.min(options.statement_timeout);
            let statements = DB::begin_within(left, options.lock_timeout);
            begin_on(conn, statements, operation, self.carries).await
        };
        let within = left()?;
        tokio::time::timeout(within, begin).await.unwrap_or(Err(StoreError::Deadline { operation }))
    }

    /// Longer than any operation of a few statements takes: its wait for a connection, and twice what a
    /// statement may run. Default 65 s.
    pub(crate) fn patience(&self) -> Duration {
        self.options.acquire_timeout + self.options.statement_timeout.saturating_mul(2)
    }

    /// The same store on the relays' connections.
    pub(crate) fn relay_lane(&self) -> Self {
        let carries = Some(self.options.acquire_timeout);
        Self { lane: self.pools.relay.clone(), carries, ..self.clone() }
    }

    /// Begins a transaction by these statements, which leave one open if they succeed and none if
    /// they fail.
    pub(crate) async fn begin_by(
        &self,
        statements: Cow<'static, str>,
        operation: &'static str,
    ) -> Result<Transaction<'static, DB>, StoreError> {
        let conn = self.write_connection(operation).await?;
        begin_on(conn, statements, operation, self.carries).await
    }

    /// Commits `tx` and wakes the relays of this process.
    ///
    /// On PostgreSQL it costs one round trip more than a bare commit: a transaction of which a
    /// statement has failed would be undone there, and the commit called a success.
    ///
    /// # Errors
    /// [`StoreError::CommitUnknown`] when the answer was lost: ask [`Store::has_committed`].
    /// [`StoreError::Aborted`] when a statement had failed before. Else what the database said.
    /// Nothing of the transaction is kept then, but for the unknown.
    pub async fn commit(&self, mut tx: Transaction<'_, DB>) -> Result<(), StoreError> {
        DB::ensure_whole(&mut tx).await?;
        tx.commit().await.map_err(StoreError::committing)?;
        self.wake();
        Ok(())
    }

    /// Wakes the relays of this process.
    pub(crate) fn wake(&self) {
        self.committed.send_modify(|commits| *commits = commits.wrapping_add(1));
    }

    /// What a relay waits for between polls. Each relay takes its own.
    #[must_use]
    pub fn outbox_signal(&self) -> OutboxSignal {
        OutboxSignal { seen: self.committed.subscribe() }
    }

    /// Runs statements that lay out the user's own tables, in one transaction. They must be
    /// repeatable (`CREATE TABLE IF NOT EXISTS …`) and leave tables that begin with `mamparo_` alone.
    /// `sql` is run as it is: never build it from what somebody sent.
    ///
    /// # Errors
    /// What the database said; nothing is changed then.
    pub async fn apply(&self, sql: &str) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        DB::run_script(&mut tx, sql).await.map_err(StoreError::during("apply the schema"))?;
        tx.commit().await.map_err(StoreError::during("apply the schema"))
    }

    /// Names this opening of the database. Clones share it; unlike a host or a process number it
    /// never comes again.
    #[must_use]
    pub fn opening(&self) -> &str {
        &self.opening
    }

    /// What this opening did to the schema of mamparo's tables.
    #[must_use]
    pub fn migrated(&self) -> Migrated {
        self.pools.migrated
    }

    /// Connections for reading only. On PostgreSQL nothing but good manners keeps anybody from
    /// writing through them.
    #[must_use]
    pub fn reader(&self) -> &Pool<DB> {
        &self.lane.reader
    }

    /// Is the database there? For readiness.
    ///
    /// # Errors
    /// What the database said.
    pub async fn ping(&self) -> Result<(), StoreError> {
        let mut conn = self.read_connection("ping the database").await?;
        DB::check(&mut conn).await.map_err(StoreError::during("ping the database"))
    }

    /// Is the database there, and does it take changes? An old primary after a failover answers a
    /// [`ping`](Self::ping) and refuses every change.
    ///
    /// # Errors
    /// What the database said.
    pub async fn ping_to_write(&self) -> Result<(), StoreError> {
        let operation = "ask the database whether it takes changes";
        let mut conn = self.read_connection(operation).await?;
        let checked = DB::check_writing(&mut conn).await.map_err(StoreError::during(operation));
        checked.inspect_err(|error| self.doubt(error.class()))
    }

    /// Closes all connections after their work.
    pub async fn close(&self) {
        for lane in [&self.pools.requests, &self.pools.background, &self.pools.relay] {
            lane.reader.close().await;
            lane.writer.close().await;
        }
    }

    /// For whoever runs transactions without [`Store::transact`]: takes note of what an error said.
    /// After [`Class::ReadOnly`] and [`Class::Reprepare`] every pooled connection is closed when its
    /// turn comes: one of them has shown that it is of no more use, and the others were opened like it.
    pub fn doubt(&self, class: Class) {
        if matches!(class, Class::ReadOnly | Class::Reprepare) {
            self.suspect_connections();
        }
    }

    /// Has every pooled connection closed when its turn comes.
    pub(crate) fn suspect_connections(&self) {
        for lane in [&self.pools.requests, &self.pools.background, &self.pools.relay] {
            lane.suspects.store(lane.writer.size(), Ordering::Relaxed);
        }
    }

    /// A writing connection, for operations of a single statement (a transaction by itself).
    pub(crate) async fn write_connection(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<DB>, StoreError> {
        self.lane.writer.acquire().await.map_err(StoreError::during(operation))
    }

    /// A reading connection.
    pub(crate) async fn read_connection(
        &self,
        operation: &'static str,
    ) -> Result<PoolConnection<DB>, StoreError> {
        self.lane.reader.acquire().await.map_err(StoreError::during(operation))
    }
}

/// Begins a transaction on a connection. May be dropped: what has begun by then is rolled back.
async fn begin_on<DB: Backend>(
    conn: PoolConnection<DB>,
    statements: Cow<'static, str>,
    operation: &'static str,
    carries: Option<Duration>,
) -> Result<Transaction<'static, DB>, StoreError> {
    let statements = AssertSqlSafe(statements.into_owned()).into_sql_str();
    let begun = ToItsEnd::new(Transaction::begin(conn, Some(statements)), carries).await;
    begun.map_err(StoreError::during(operation))
}

impl<DB: Backend> Clone for Store<DB> {
    fn clone(&self) -> Self {
        Self {
            pools: self.pools.clone(),
            lane: self.lane.clone(),
            options: Arc::clone(&self.options),
            carries: self.carries,
            offset_millis: Arc::clone(&self.offset_millis),
            committed: Arc::clone(&self.committed),
            opening: Arc::clone(&self.opening),
        }
    }
}

impl OutboxSignal {
    /// Waits until something was committed since the last call (or since this signal was taken).
    /// Waits for ever once the store is gone. May be dropped and called again.
    pub async fn wait(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
