//! A relay's statements go by index whatever the statistics say: fresh, stale or none.

use mamparo_testkit::database::Database;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::outbox::{CONFIRM, READ};
use crate::PostgresStore;

/// The plan of a prepared statement, made for whatever arguments come.
async fn plan(conn: &mut PgConnection, name: &str, types: &str, sql: &str, args: &str) -> String {
    let prepare = format!("PREPARE {name} ({types}) AS {sql}");
    conn.execute(AssertSqlSafe(prepare)).await.unwrap();
    // BEGIN … ROLLBACK: EXPLAIN ANALYZE runs the statement.
    conn.execute("BEGIN").await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS) EXECUTE {name} ({args})");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *conn).await.unwrap();
    conn.execute("ROLLBACK").await.unwrap();
    let drop = format!("DEALLOCATE {name}");
    conn.execute(AssertSqlSafe(drop)).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}

fn array(numbers: impl Iterator<Item = i64>) -> String {
    format!("ARRAY[{}]::bigint[]", numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(", "))
}

const FILL: &str = "INSERT INTO mamparo_outbox (shard, id, kind, key, enqueued_at, headers, body)
     SELECT n % 16, n, 'order.created', n, 0, '{}', 'x' FROM generate_series(1, 100000) n";

/// 100,000 rows come due: analysed while the table was empty, or emptied of as many, never analysed, and analysed since.
#[tokio::test]
async fn a_relay_s_statements_go_by_index_whatever_the_statistics_say() {
    for statistics in ["stale", "emptied", "absent", "fresh"] {
        let database = Database::create();
        let store = PostgresStore::open(&database.url()).await.unwrap().relay_lane();
        store.apply("ALTER TABLE mamparo_outbox SET (autovacuum_enabled = off)").await.unwrap();
        let mut conn = store.write_connection("look at plans").await.unwrap();
        if statistics == "stale" {
            conn.execute("VACUUM ANALYZE mamparo_outbox").await.unwrap();
        }
        if statistics == "emptied" {
            // Pages without a row, which is where a planner believes least in those that come.
            conn.execute(FILL).await.unwrap();
            conn.execute("DELETE FROM mamparo_outbox").await.unwrap();
            conn.execute("ANALYZE mamparo_outbox").await.unwrap();
            conn.execute("ALTER TABLE mamparo_outbox ALTER seq RESTART").await.unwrap();
        }
        conn.execute(FILL).await.unwrap();
        if statistics == "fresh" {
            conn.execute("ANALYZE mamparo_outbox").await.unwrap();
        }
        let shards = array(0..16);
        let read = format!("{shards}, array_fill(32::bigint, ARRAY[16]), '{{}}'");
        let read = plan(&mut conn, "read", "bigint[], bigint[], bigint[]", READ, &read).await;
        let types = "text, bigint[], bigint[], bigint[], bigint, bigint, bigint, bigint[]";
        let held = "UPDATE mamparo_outbox_shards SET owner = 'me'";
        conn.execute(held).await.unwrap();
        let rows = array(50_000..50_500);
        let args = format!(
            "'me', {shards}, array_fill(0::bigint, ARRAY[16]), {rows}, 0, {}, 500, {}",
            crate::outbox::BEHIND,
            array((50_000..50_500).map(|n| n % 16)),
        );
        let confirm = plan(&mut conn, "confirm", types, CONFIRM, &args).await;
        for (name, plan) in [("read", &read), ("confirm", &confirm)] {
            let whole = |line: &&str| line.contains("Seq Scan on mamparo_outbox ");
            assert_eq!(plan.lines().find(whole), None, "{statistics}, {name}: {plan}");
            assert!(!plan.contains("Hash Join"), "{statistics}, {name}: {plan}");
            let all = |line: &&str| line.contains("rows=100000 ") || line.contains("rows=99500 ");
            assert_eq!(plan.lines().find(all), None, "{statistics}, {name}: {plan}");
        }
        let index = "Index Scan using mamparo_outbox_ready on mamparo_outbox ready";
        assert!(read.contains(index), "{statistics}: {read}");
        assert!(confirm.contains("using mamparo_outbox_ready"), "{statistics}: {confirm}");
        assert!(confirm.contains("rows=500"), "{statistics}: {confirm}");
    }
}
