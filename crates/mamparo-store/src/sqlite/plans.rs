//! What the statements of the hot paths cost: which rows SQLite reads for them.

use sqlx::{AssertSqlSafe, Row};

use super::{outbox, parked, queue};
use crate::SqliteStore;

async fn plan(sql: &str) -> String {
    let store = SqliteStore::open("sqlite::memory:").await.unwrap();
    let explain = format!("EXPLAIN QUERY PLAN {sql}");
    let rows = sqlx::query(AssertSqlSafe(explain)).fetch_all(store.reader()).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail") + "\n").collect()
}

/// A backlog of any size and shape: only what may leave is read, in the order it is read in, and an
/// idle relay looks at nothing but what is due.
#[tokio::test]
async fn a_relay_reads_only_ready_rows() {
    let plan_of_read = plan(outbox::READ).await;
    let ready = "SCAN row USING INDEX mamparo_outbox_ready";
    assert!(plan_of_read.contains(ready), "{plan_of_read}");
    assert!(plan_of_read.contains("INDEX mamparo_outbox_parked_key (key=? AND seq<?)"));
    assert!(!plan_of_read.contains("TEMP B-TREE FOR ORDER"), "{plan_of_read}");
    let plan_of_due = plan(outbox::HAS_REFUSED).await;
    assert!(
        plan_of_due.contains("USING INDEX mamparo_outbox_parked (parked_until<?)"),
        "{plan_of_due}"
    );
}

/// Other queues' messages cost nothing, and the first ones come without sorting.
#[tokio::test]
async fn a_consumer_reads_its_queue_from_the_front() {
    for sql in [queue::HAS_VISIBLE, queue::LEASE] {
        let plan = plan(sql).await;
        assert!(plan.contains("USING INDEX mamparo_messages_"), "{plan}");
        assert!(plan.contains("(queue=?)"), "{plan}");
        assert!(!plan.contains("SCAN mamparo") && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}

/// Of a key's messages only those before are looked at, and the first that blocks ends the look.
#[tokio::test]
async fn a_lease_finds_a_keys_earlier_messages_by_key() {
    let plan = plan(queue::LEASE).await;
    assert!(plan.contains("mamparo_messages_key (queue=? AND key=? AND seq<?)"), "{plan}");
}

/// However much waits behind keys that stay parked: only the first row of each is looked at.
#[tokio::test]
async fn a_consumer_reads_only_the_first_parked_row_of_each_key() {
    for sql in [parked::CLAIM, parked::NEXT, parked::IS_PARKED] {
        let plan = plan(sql).await;
        let (due, key) =
            ("INDEX mamparo_parked_due (consumer=?", "INDEX mamparo_parked_key (consumer=?");
        assert!(plan.contains(due) || plan.contains(key), "{plan}");
        assert!(!plan.contains("SCAN mamparo") && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}
