//! What the statements of the hot paths cost: the plans that PostgreSQL takes for them, with 100,000
//! rows in the tables.
//!
//! Each is asked for with the statistics of the empty table, and with those of the full one: a
//! queue's statistics are always of another hour.

use mamparo_testkit::database::Database;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::{idempotency, inbox};
use crate::PostgresStore;

/// 100,000 rows of three consumers and of 1,000 callers.
const FILL: &str = "
INSERT INTO mamparo_inbox (consumer, message_id, kind, applied_at)
    SELECT 'consumer-' || n % 3, 'message-' || n, 'order.created', n
    FROM generate_series(1, 100000) AS n;
INSERT INTO mamparo_attempts (consumer, message_id, owner, started_at, alive_until)
    SELECT 'consumer-' || n % 3, 'message-' || n, 'owner-' || n % 7, n, n
    FROM generate_series(1, 100000) AS n;
INSERT INTO mamparo_idempotency (caller, key, fingerprint, epoch, phase, keep_until)
    SELECT 'caller-' || n % 1000, 'key-' || n, 'f', 1, 'released', n
    FROM generate_series(1, 100000) AS n;
";

/// A statement, the values of its parameters, and the index that it has to use.
const HOT: &[(&str, &str, &str)] = &[
    (inbox::HAS, "'consumer-1', 'message-7'", "mamparo_inbox_pkey"),
    (inbox::COUNT_DUPLICATE, "'consumer-1', 'message-7'", "mamparo_inbox_pkey"),
    (inbox::FORGET, "5000::bigint, 100::bigint", "mamparo_inbox_applied"),
    (inbox::END, "'consumer-1', 'message-7', 'owner-0', 5::bigint", "mamparo_attempts_pkey"),
    (inbox::RENEW, "5::bigint, 'consumer-1', 'owner-0'", "mamparo_attempts_owner"),
    (idempotency::LOCK, "'caller-7', 'key-7'", "mamparo_idempotency_pkey"),
    (idempotency::LOAD, "'caller-7', 'key-7'", "mamparo_idempotency_pkey"),
    (idempotency::FORGET, "5000::bigint, 100::bigint", "mamparo_idempotency_keep"),
];

/// The plan with parameters unknown to the planner, which is what a prepared statement gets in the
/// long run.
async fn plan(conn: &mut PgConnection, sql: &str, values: &str) -> String {
    let run = async |conn: &mut PgConnection, sql: String| {
        sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap()
    };
    run(conn, format!("PREPARE hot AS {sql}")).await;
    let rows = run(conn, format!("EXPLAIN EXECUTE hot({values})")).await;
    run(conn, "DEALLOCATE hot".to_owned()).await;
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}

#[tokio::test]
async fn hot_statements_read_by_index_whatever_the_statistics_say() {
    let database = Database::create();
    PostgresStore::open(&database.url()).await.unwrap().close().await;
    let mut conn = PgConnection::connect(&database.url()).await.unwrap();
    for (statistics, step) in [("of nothing", FILL), ("of all rows", "ANALYZE")] {
        sqlx::raw_sql(step).execute(&mut conn).await.unwrap();
        for mode in ["force_generic_plan", "force_custom_plan"] {
            let set = format!("SET plan_cache_mode = {mode}");
            sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut conn).await.unwrap();
            for (sql, values, index) in HOT {
                let plan = plan(&mut conn, sql, values).await;
                assert!(plan.contains(index), "statistics {statistics}, {mode}: {plan}");
                assert!(!plan.contains("Seq Scan on mamparo"), "{statistics}, {mode}: {plan}");
            }
        }
    }
    conn.close().await.unwrap();
}
