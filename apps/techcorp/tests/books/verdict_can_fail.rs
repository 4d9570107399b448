//! Each check of the verdict, broken by one statement in a copy of real books.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use techcorp::demo::books::BOOKS;
use techcorp::demo::run::judge_again;

use super::common::{PLAIN, Post, Shop};

/// What is done to the books, and the checks that fail for it. No other may.
const BROKEN: &[(&str, &[&str])] = &[
    (
        "UPDATE orders.orders SET state = 'PENDING'
         WHERE id = (SELECT id FROM orders.orders WHERE reason = 'OUT_OF_STOCK')",
        &["every accepted order ends confirmed or cancelled"],
    ),
    // The money is right in the end, and the customer has seen it go twice.
    (
        "INSERT INTO psp.ledger (order_id, kind, cents, at_ms)
         SELECT l.order_id, k.column1, l.cents, l.at_ms FROM psp.ledger l,
                (VALUES ('CHARGE'), ('REFUND')) k WHERE l.id = (SELECT MIN(id) FROM psp.ledger)",
        &["no order is charged twice"],
    ),
    (
        "UPDATE psp.ledger SET cents = cents - 1 WHERE id = (SELECT MIN(id) FROM psp.ledger)",
        &["a confirmed order is paid in full"],
    ),
    (
        "UPDATE psp.ledger SET cents = cents + 1 WHERE id = (SELECT MIN(id) FROM psp.ledger)",
        &["a confirmed order is paid in full"],
    ),
    (
        "DELETE FROM psp.ledger WHERE id = (SELECT MIN(id) FROM psp.ledger)",
        &["a confirmed order is paid in full"],
    ),
    (
        "INSERT INTO psp.ledger (order_id, kind, cents, at_ms)
         SELECT id, 'CHARGE', 1, 0 FROM orders.orders WHERE reason = 'OUT_OF_STOCK'",
        &["a cancelled order keeps no money"],
    ),
    (
        "INSERT INTO psp.ledger (order_id, kind, cents, at_ms)
         SELECT id, 'REFUND', 1, 0 FROM orders.orders WHERE reason = 'OUT_OF_STOCK'",
        &["a cancelled order keeps no money"],
    ),
    (
        "INSERT INTO psp.ledger (order_id, kind, cents, at_ms) VALUES ('nobody', 'CHARGE', 1, 0)",
        &["no money without an order"],
    ),
    // The columns still add up: only the reservations show the leak.
    (
        "UPDATE inventory.stock SET free = free - 1, reserved = reserved + 1
         WHERE product_id = 'p-1'",
        &["reserved + free = initial, unit by unit"],
    ),
    (
        "INSERT INTO inventory.reservations
             (order_id, customer_id, lines, total_cents, state, reserved_ms)
         VALUES ('nobody', 'c-1', '[]', 0, 'SOLD', 0)",
        &["goods are held for confirmed orders only"],
    ),
    (
        "UPDATE inventory.reservations SET state = 'ACTIVE', lines = '[]'
         WHERE order_id = (SELECT id FROM orders.orders WHERE reason = 'PAYMENT_REJECTED')",
        &["goods are held for confirmed orders only"],
    ),
    // What the books of an order that was confirmed without its goods look like: none were ever
    // taken, they were taken for a time, or others were.
    (
        "UPDATE inventory.reservations SET state = 'ACTIVE'
         WHERE order_id = (SELECT MIN(id) FROM orders.orders WHERE state = 'CONFIRMED')",
        &["a confirmed order has its goods"],
    ),
    (
        "UPDATE orders.orders SET lines = replace(lines, ':2', ':1')
         WHERE id = (SELECT MIN(id) FROM orders.orders WHERE state = 'CONFIRMED')",
        &["a confirmed order has its goods"],
    ),
    (
        "DELETE FROM inventory.reservations
         WHERE order_id = (SELECT MIN(id) FROM orders.orders WHERE state = 'CONFIRMED')",
        &["reserved + free = initial, unit by unit", "a confirmed order has its goods"],
    ),
    (
        "DELETE FROM inventory.mamparo_inbox
         WHERE message_id = (SELECT MIN(message_id) FROM inventory.mamparo_inbox)",
        &["no event is lost"],
    ),
    (
        "DELETE FROM notifications.mamparo_inbox
         WHERE message_id = (SELECT MIN(message_id) FROM notifications.mamparo_inbox)",
        &["no event is lost"],
    ),
    (
        "INSERT INTO payments.mamparo_outbox (seq, shard, id, kind, key, enqueued_at, headers, body)
         SELECT seq, 0, id, kind, key, enqueued_at, '{}', '' FROM payments.mamparo_outbox_history
         ORDER BY seq LIMIT 1",
        &["no event is lost"],
    ),
    (
        "INSERT INTO orders.order_history (order_id, event, state, did, at_ms)
         SELECT order_id, event, state, did, at_ms FROM orders.order_history
         WHERE event = 'PaymentConfirmed' LIMIT 1",
        &["no event is applied twice"],
    ),
    (
        "DELETE FROM mail.delivered WHERE key = (SELECT MIN(key) FROM mail.delivered)",
        &["each customer hears once how it ended"],
    ),
    (
        "INSERT INTO mail.delivered (key, to_whom, subject, at_ms)
         SELECT id || '-confirmed', customer_id, '', 0 FROM orders.orders
         WHERE reason = 'OUT_OF_STOCK'",
        &["each customer hears once how it ended"],
    ),
    (
        "INSERT INTO broker.mamparo_messages
             (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
         VALUES ('orders.saga', 'x', 'stock.reserved', '', '', '', 0, 0, '{}', '')",
        &["queues are empty"],
    ),
    (
        "INSERT INTO payments.mamparo_parked
             (consumer, id, key, head, visible_at, attempts, since, kind, exchange, routing_key,
              history, headers, body)
         VALUES ('payments.orders', 'x', '', 1, 0, 1, 0, 'x', '', '', '[]', '{}', '')",
        &["queues are empty"],
    ),
    (
        "INSERT INTO payments.mamparo_failed
             (consumer, id, kind, exchange, routing_key, key, status, reason, error, error_group,
              attempts, failures, replays, first_failure, last_failure, host, version, headers, body)
         VALUES ('payments.orders', 'x', 'x', '', '', '', 'failed', '', '', '', 1, 1, 0, 0, 0, '',
                 '', '{}', '')",
        &["only poison is dead, each in its own queue's letters"],
    ),
    (
        "INSERT INTO broker.mamparo_messages
             (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
         VALUES ('orders.saga.retry', 'x', 'stock.reserved', '', '', '', 0, 0, '{}', '')",
        &["queues are empty"],
    ),
    (
        "INSERT INTO broker.mamparo_messages
             (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
         VALUES ('orders.saga.dlq', 'x', 'stock.reserved', '', '', '', 0, 0, '{}', '')",
        &["only poison is dead, each in its own queue's letters"],
    ),
    // Poison of another queue: it strayed.
    (
        "INSERT INTO broker.mamparo_messages
             (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
         VALUES ('orders.saga.dlq', 'poison/payments.orders.dlq/1', 'x', '', '', '', 0, 0, '{}', '')",
        &["only poison is dead, each in its own queue's letters"],
    ),
    // Poison that nobody says they sent.
    (
        "INSERT INTO broker.mamparo_messages
             (queue, id, kind, exchange, routing_key, key, since, visible_at, headers, body)
         VALUES ('orders.saga.dlq', 'poison/orders.saga.dlq/1', 'x', '', '', '', 0, 0, '{}', '')",
        &["all poison is dead"],
    ),
];

/// Closed books of a day on which orders were confirmed, declined and out of stock.
async fn a_day() -> Shop {
    let mut shop = Shop::open(&PLAIN, &[]).await;
    for n in 0..6 {
        shop.ordered(&Post::new(&format!("paid-{n}")).of(&format!("p-{}", n % 3 + 1), 2)).await;
    }
    shop.ordered(&Post::new("declined").of("p-dear", 1)).await;
    shop.ordered(&Post::new("short").of("p-scarce", 21)).await;
    let facts = shop.holds().await.facts;
    assert_eq!((facts.confirmed, facts.cancelled, facts.mails), (6, 2, 8));
    shop.staff.stop_all().await.unwrap();
    shop
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let file = entry.unwrap().path();
        std::fs::copy(&file, to.path().join(file.file_name().unwrap())).unwrap();
    }
    to
}

/// Runs one statement in the books, and asserts that it changed something.
async fn break_books(dir: &Path, statement: &'static str) {
    let first = SqliteConnectOptions::new().filename(dir.join("orders.db"));
    let mut books = first.connect().await.unwrap();
    for name in BOOKS {
        sqlx::query(AssertSqlSafe(format!("ATTACH DATABASE ? AS {name}")))
            .bind(dir.join(format!("{name}.db")).display().to_string())
            .execute(&mut books)
            .await
            .unwrap();
    }
    let done = sqlx::query(statement).execute(&mut books).await;
    let done = done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    assert!(done.rows_affected() > 0, "changes nothing: {statement}");
    books.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_fails_when_its_books_are_broken() {
    let shop = a_day().await;
    let whole = judge_again(shop.dir(), 0).await.unwrap();
    assert!(whole.holds(), "{whole:#?}");
    let mut failed = BTreeSet::new();
    for (statement, expected) in BROKEN {
        let books = copy(shop.dir());
        break_books(books.path(), statement).await;
        let verdict = judge_again(books.path(), 0).await.unwrap();
        let broken: Vec<&str> =
            verdict.checks.iter().filter(|check| !check.ok).map(|check| check.name).collect();
        assert_eq!(broken, *expected, "after {statement}");
        failed.extend(broken);
    }
    // Poison that was sent and is nowhere to be found.
    let missing = judge_again(shop.dir(), 1).await.unwrap();
    assert!(missing.checks.iter().any(|check| !check.ok && check.name == "all poison is dead"));
    let all: BTreeSet<&str> = whole.checks.iter().map(|check| check.name).collect();
    let never: Vec<_> = all.difference(&failed).collect();
    assert!(never.is_empty(), "no statement of this test makes these fail: {never:?}");
}
