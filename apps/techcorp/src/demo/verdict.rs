//! The verdict: what the books say, invariant by invariant.
//!
//! Each check is a query that counts violations, so 0 is good and any other number says how bad
//! it is. Breaking a row by hand makes its check fail; the tests do just that to each.

use serde::Serialize;
use sqlx::SqliteConnection;

use super::books::{by_state, count};

/// An invariant that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What must hold.
    pub name: &'static str,
    /// Did it?
    pub ok: bool,
    /// How often it did not.
    pub violations: u64,
}

/// Counted facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// Orders in the books.
    pub accepted: u64,
    /// Paid and reserved.
    pub confirmed: u64,
    /// Given up, with a reason and without a trace.
    pub cancelled: u64,
    /// Of these, given up by the watchdog.
    pub timed_out: u64,
    /// Neither, after the drain.
    pub stuck: u64,
    /// Charges in the PSP's ledger.
    pub charges: u64,
    /// Refunds in the PSP's ledger.
    pub refunds: u64,
    /// Orders charged more than once.
    pub double_charges: u64,
    /// Units that are neither on the shelf nor reserved by an order that has a right to them.
    pub stock_leaks: u64,
    /// Events in all outboxes.
    pub events: u64,
    /// Events that a bound consumer has neither applied nor among its dead letters.
    pub events_lost: u64,
    /// Events applied more than once.
    pub events_applied_twice: u64,
    /// Deliveries that the inboxes recognised as repetitions.
    pub redeliveries: u64,
    /// Messages among the dead letters.
    pub dead_letters: u64,
    /// Mails handed over.
    pub mails: u64,
}

/// Facts and checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// What was counted.
    pub facts: Facts,
    /// What must hold.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// Does everything hold?
    #[must_use]
    pub fn holds(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }

    /// Adds a check whose violations were counted elsewhere.
    pub fn add(&mut self, name: &'static str, violations: u64) {
        self.checks.push(Check { name, ok: violations == 0, violations });
    }
}

const STUCK: &str =
    "SELECT COUNT(*) FROM orders.orders WHERE state NOT IN ('CONFIRMED', 'CANCELLED')";

const TIMED_OUT: &str = "SELECT COUNT(*) FROM orders.orders
     WHERE state = 'CANCELLED' AND reason IN ('STOCK_TIMEOUT', 'PAYMENT_TIMEOUT')";

const DOUBLE: &str = "SELECT COUNT(*) FROM (SELECT order_id FROM psp.ledger WHERE kind = 'CHARGE'
     GROUP BY order_id HAVING COUNT(*) > 1)";

const CONFIRMED_UNPAID: &str = "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CONFIRMED'
     AND o.total_cents <> COALESCE((SELECT SUM(CASE kind WHEN 'CHARGE' THEN cents ELSE -cents END)
                                    FROM psp.ledger l WHERE l.order_id = o.id), 0)";

const CANCELLED_CHARGED: &str = "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CANCELLED'
     AND 0 <> COALESCE((SELECT SUM(CASE kind WHEN 'CHARGE' THEN cents ELSE -cents END)
                        FROM psp.ledger l WHERE l.order_id = o.id), 0)";

const CHARGED_UNKNOWN: &str = "SELECT COUNT(*) FROM psp.ledger l
     WHERE NOT EXISTS (SELECT 1 FROM orders.orders o WHERE o.id = l.order_id)";

// The columns promise free + reserved = initial; here the promise is held against the reservations.
const STOCK_LEAK: &str = "WITH held AS (
         SELECT json_extract(line.value, '$.productId') AS product_id,
                SUM(json_extract(line.value, '$.quantity')) AS units
         FROM inventory.reservations r, json_each(r.lines) line
         WHERE r.state IN ('ACTIVE', 'SOLD') GROUP BY 1)
     SELECT COALESCE(SUM(ABS(s.initial - s.free - s.reserved)
                       + ABS(s.reserved - COALESCE(h.units, 0))), 0)
     FROM inventory.stock s LEFT JOIN held h ON h.product_id = s.product_id";

const RESERVED_WITHOUT_RIGHT: &str =
    "SELECT COUNT(*) FROM inventory.reservations r LEFT JOIN orders.orders o ON o.id = r.order_id
     WHERE r.state IN ('ACTIVE', 'SOLD') AND COALESCE(o.state, '') <> 'CONFIRMED'";

// A confirmed order holds what was ordered, for good: not less, not something else, not for a time.
const CONFIRMED_WITHOUT_GOODS: &str =
    "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CONFIRMED'
     AND NOT EXISTS (SELECT 1 FROM inventory.reservations r
                     WHERE r.order_id = o.id AND r.state = 'SOLD' AND r.lines = o.lines)";

const EVENTS: &str = "SELECT (SELECT COUNT(*) FROM orders.mamparo_outbox)
     + (SELECT COUNT(*) FROM inventory.mamparo_outbox)
     + (SELECT COUNT(*) FROM payments.mamparo_outbox)";

const EVENTS_LOST: &str = "WITH sent AS (
         SELECT id, kind, confirmed_at FROM orders.mamparo_outbox
         UNION ALL SELECT id, kind, confirmed_at FROM inventory.mamparo_outbox
         UNION ALL SELECT id, kind, confirmed_at FROM payments.mamparo_outbox),
     applied AS (
         SELECT consumer, message_id FROM orders.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM inventory.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM payments.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM notifications.mamparo_inbox)
     SELECT (SELECT COUNT(*) FROM sent WHERE confirmed_at IS NULL)
          + (SELECT COUNT(*) FROM sent s JOIN broker.mamparo_bindings b ON b.pattern = s.kind
             WHERE NOT EXISTS (SELECT 1 FROM applied a
                               WHERE a.consumer = b.queue AND a.message_id = s.id)
               AND NOT EXISTS (SELECT 1 FROM broker.mamparo_messages m
                               WHERE m.queue = b.queue || '.dlq' AND m.id = s.id))";

// Each transaction that applies an event to an order writes one line of history, so more lines
// than inbox rows are events that were applied again. Stock, charges and mails have checks of
// their own that a second application would break.
const APPLIED_TWICE: &str = "SELECT ABS(
     (SELECT COUNT(*) FROM orders.order_history WHERE event NOT IN ('created', 'DeadlinePassed'))
   - (SELECT COUNT(*) FROM orders.mamparo_inbox WHERE consumer = 'orders.saga'))";

const MAILS_AMISS: &str = "SELECT COUNT(*) FROM orders.orders o
     WHERE o.state IN ('CONFIRMED', 'CANCELLED')
       AND 1 <> (SELECT COUNT(*) FROM mail.delivered m
                 WHERE m.key IN (o.id || '-confirmed', o.id || '-cancelled'))";

const REDELIVERIES: &str = "SELECT
     (SELECT COALESCE(SUM(duplicates), 0) FROM orders.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM inventory.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM payments.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM notifications.mamparo_inbox)";

const LEFT_IN_QUEUES: &str =
    "SELECT COUNT(*) FROM broker.mamparo_messages WHERE queue NOT LIKE '%.dlq'";

const DEAD: &str = "SELECT COUNT(*) FROM broker.mamparo_messages WHERE queue LIKE '%.dlq'";

// A poison message carries the name of the queue that it was sent to, so that one which strayed
// into another queue's dead letters is seen.
const DEAD_INNOCENT: &str = "SELECT COUNT(*) FROM broker.mamparo_messages
     WHERE queue LIKE '%.dlq' AND id NOT LIKE 'poison/' || queue || '/%'";

/// Counts everything. `poisoned` is how many malformed messages were sent on purpose.
///
/// # Errors
/// What the database said.
pub async fn judge(books: &mut SqliteConnection, poisoned: u64) -> Result<Verdict, sqlx::Error> {
    let states = by_state(books).await?;
    let facts = Facts {
        accepted: states.pending + states.reserved + states.confirmed + states.cancelled,
        confirmed: states.confirmed,
        cancelled: states.cancelled,
        timed_out: count(books, TIMED_OUT).await?,
        stuck: count(books, STUCK).await?,
        charges: count(books, "SELECT COUNT(*) FROM psp.ledger WHERE kind = 'CHARGE'").await?,
        refunds: count(books, "SELECT COUNT(*) FROM psp.ledger WHERE kind = 'REFUND'").await?,
        double_charges: count(books, DOUBLE).await?,
        stock_leaks: count(books, STOCK_LEAK).await?,
        events: count(books, EVENTS).await?,
        events_lost: count(books, EVENTS_LOST).await?,
        events_applied_twice: count(books, APPLIED_TWICE).await?,
        redeliveries: count(books, REDELIVERIES).await?,
        dead_letters: count(books, DEAD).await?,
        mails: count(books, "SELECT COUNT(*) FROM mail.delivered").await?,
    };
    let mut verdict = Verdict { facts: facts.clone(), checks: Vec::new() };
    verdict.add("every accepted order ends confirmed or cancelled", facts.stuck);
    verdict.add("no order is charged twice", facts.double_charges);
    verdict.add("a confirmed order is paid in full", count(books, CONFIRMED_UNPAID).await?);
    verdict.add("a cancelled order keeps no money", count(books, CANCELLED_CHARGED).await?);
    verdict.add("no money without an order", count(books, CHARGED_UNKNOWN).await?);
    verdict.add("reserved + free = initial, unit by unit", facts.stock_leaks);
    let unjust = count(books, RESERVED_WITHOUT_RIGHT).await?;
    verdict.add("goods are held for confirmed orders only", unjust);
    let empty = count(books, CONFIRMED_WITHOUT_GOODS).await?;
    verdict.add("a confirmed order has its goods", empty);
    verdict.add("no event is lost", facts.events_lost);
    verdict.add("no event is applied twice", facts.events_applied_twice);
    verdict.add("each customer hears once how it ended", count(books, MAILS_AMISS).await?);
    verdict.add("queues are empty", count(books, LEFT_IN_QUEUES).await?);
    let strayed = count(books, DEAD_INNOCENT).await?;
    verdict.add("only poison is dead, each in its own queue's letters", strayed);
    verdict.add("all poison is dead", facts.dead_letters.abs_diff(poisoned + strayed));
    Ok(verdict)
}
