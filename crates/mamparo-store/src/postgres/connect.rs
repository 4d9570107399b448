//! Opening a database, also when several processes open it for the first time together.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Postgres};

use super::schema;
use crate::address::PostgresUrl;
use crate::backend::{Lane, Migrated, Pools};
use crate::{StoreError, StoreOptions};

/// A connection that was idle for so long is asked whether it is still good before it is handed out.
/// Asking at each acquire would cost every transaction a round trip.
const ASK_AFTER_IDLE: Duration = Duration::from_secs(1);

/// The same for relays and background work, whose idle questions come seldom enough for each of them to
/// be preceded by another one. What fails there is asked again in any case.
const BACKGROUND_ASK_AFTER_IDLE: Duration = Duration::from_secs(60);

/// A relay reads, reports, announces and keeps house; at most so many at a time.
const RELAY_CONNECTIONS: u32 = 4;

/// A relay's statements have one good plan, by index and row by row. The table that they work on is
/// empty or full within seconds, so statistics, and plans that were made with them, are wrong half of
/// the time: pg-boss loses a factor of 46 that way.
const RELAY_PLANS: &str = "SET enable_seqscan = off; SET enable_hashjoin = off;
     SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// The pools of the database at `url`, migrated.
pub(super) async fn open(
    url: &PostgresUrl,
    create: bool,
    options: &StoreOptions,
) -> Result<Pools<Postgres>, StoreError> {
    let failed = |source| StoreError::Open { address: url.to_string(), source };
    let target = PgConnectOptions::from_str(url.secret()).map_err(failed)?;
    let target = target.application_name(&options.application_name);
    let connecting = async {
        let mut conn = target.connect().await?;
        let ours = create || is_ours(&mut conn).await?;
        sqlx::Result::Ok((conn, ours))
    };
    let (mut conn, ours) = tokio::time::timeout(options.connect_timeout, connecting)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(failed)?;
    if !ours {
        return Err(StoreError::Foreign { address: url.to_string() });
    }
    let migrated = migrate(&mut conn, url).await?;
    conn.close().await.map_err(failed)?;
    let lane = |pool: fn(PgPoolOptions, Duration) -> PgPoolOptions, connections, session, ask| {
        let suspects = Arc::<AtomicU32>::default();
        let places = places(connections, Arc::clone(&suspects), (session, ask), options);
        let pool = pool(places, options.acquire_timeout).connect_lazy_with(target.clone());
        Lane { writer: pool.clone(), reader: pool, suspects }
    };
    let limits = session(options);
    let plain = |places, _| places;
    let seldom = BACKGROUND_ASK_AFTER_IDLE;
    Ok(Pools {
        requests: lane(plain, options.connections, limits.clone(), ASK_AFTER_IDLE),
        background: lane(plain, options.background_connections, limits.clone(), seldom),
        relay: lane(asked_on_return, RELAY_CONNECTIONS, format!("{limits}; {RELAY_PLANS}"), seldom),
        migrated,
    })
}

/// Asks a connection that comes back whether it still answers within `limit`, and closes it if not. The
/// pool asks by itself, and waits for the answer for ever: a relay that has given up a silent server
/// four times would have no place left.
fn asked_on_return(places: PgPoolOptions, limit: Duration) -> PgPoolOptions {
    places.after_release(move |conn, _| {
        Box::pin(async move {
            let silent = |_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()));
            tokio::time::timeout(limit, conn.ping()).await.unwrap_or_else(silent).map(|()| true)
        })
    })
}

/// Has mamparo been here? Only looks, because the database may be somebody else's. Looks into the
/// schema where tables would be made: another one of the search path may be another service's.
async fn is_ours(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar(
        "SELECT to_regclass(format('%I.mamparo_schema', current_schema())) IS NOT NULL",
    )
    .fetch_one(conn)
    .await
}

fn places(
    connections: u32,
    suspects: Arc<AtomicU32>,
    (session, ask_after): (String, Duration),
    options: &StoreOptions,
) -> PgPoolOptions {
    PgPoolOptions::new()
        .max_connections(connections.max(1))
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .before_acquire(move |conn, meta| {
            let less = |count: u32| count.checked_sub(1);
            let suspect = suspects.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
            Box::pin(async move {
                if suspect {
                    return Ok(false);
                }
                if meta.idle_for < ask_after {
                    return Ok(true);
                }
                // An old primary answers pings for ever and refuses every write.
                Ok(sqlx::query_scalar("SELECT NOT pg_is_in_recovery()")
                    .fetch_one(conn)
                    .await
                    .unwrap_or(false))
            })
        })
        .after_connect(move |conn, _| {
            let session = session.clone();
            Box::pin(
                async move { sqlx::raw_sql(AssertSqlSafe(session)).execute(conn).await.map(drop) },
            )
        })
}

/// The limits of a session. Set by statement, not at start-up: poolers refuse start-up parameters
/// that they don't know. READ COMMITTED whatever the server's default is: an insert that finds
/// another one's row must wait and then see it, where a snapshot would fail.
fn session(options: &StoreOptions) -> String {
    let millis = |limit: Duration| limit.as_millis().clamp(1, i32::MAX as u128);
    format!(
        "SET statement_timeout = {}; SET lock_timeout = {};
         SET idle_in_transaction_session_timeout = {};
         SET default_transaction_isolation = 'read committed'",
        millis(options.statement_timeout),
        millis(options.lock_timeout),
        millis(options.idle_in_transaction_timeout),
    )
}

async fn migrate(conn: &mut PgConnection, url: &PostgresUrl) -> Result<Migrated, StoreError> {
    let failed = |source| StoreError::Open { address: url.to_string(), source };
    let mut tx = conn.begin().await.map_err(failed)?;
    let found = schema::migrate(&mut tx).await.map_err(failed)?;
    if found > schema::VERSION {
        return Err(StoreError::NewerSchema { found, known: schema::VERSION });
    }
    tx.commit().await.map_err(failed)?;
    Ok(Migrated { from: found, to: schema::VERSION })
}
