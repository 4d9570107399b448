//! The verdict: what the books say, invariant by invariant.
//!
//! Each check is a query that counts violations, so 0 is good and any other number says how bad
//! it is. Breaking a row by hand makes its check fail; the tests do just that to each.

use std::collections::BTreeMap;

use serde::Serialize;

use super::DemoError;
use super::books::{Books, EVENTS_PENDING};
use crate::db::query;
use crate::events::Line;

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
     GROUP BY order_id HAVING COUNT(*) > 1) AS twice";

const CONFIRMED_UNPAID: &str = "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CONFIRMED'
     AND o.total_cents <> COALESCE((SELECT SUM(CASE kind WHEN 'CHARGE' THEN cents ELSE -cents END)
                                    FROM psp.ledger l WHERE l.order_id = o.id), 0)";

const CANCELLED_CHARGED: &str = "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CANCELLED'
     AND 0 <> COALESCE((SELECT SUM(CASE kind WHEN 'CHARGE' THEN cents ELSE -cents END)
                        FROM psp.ledger l WHERE l.order_id = o.id), 0)";

const CHARGED_UNKNOWN: &str = "SELECT COUNT(*) FROM psp.ledger l
     WHERE NOT EXISTS (SELECT 1 FROM orders.orders o WHERE o.id = l.order_id)";

const STOCK: &str = "SELECT product_id, initial - free - reserved, reserved FROM inventory.stock";

const HELD: &str = "SELECT lines FROM inventory.reservations WHERE state IN ('ACTIVE', 'SOLD')";

const RESERVED_WITHOUT_RIGHT: &str =
    "SELECT COUNT(*) FROM inventory.reservations r LEFT JOIN orders.orders o ON o.id = r.order_id
     WHERE r.state IN ('ACTIVE', 'SOLD') AND COALESCE(o.state, '') <> 'CONFIRMED'";

// A confirmed order holds what was ordered, for good: not less, not something else, not for a time.
const CONFIRMED_WITHOUT_GOODS: &str =
    "SELECT COUNT(*) FROM orders.orders o WHERE o.state = 'CONFIRMED'
     AND NOT EXISTS (SELECT 1 FROM inventory.reservations r
                     WHERE r.order_id = o.id AND r.state = 'SOLD' AND r.lines = o.lines)";

const EVENTS: &str = "SELECT (SELECT COUNT(*) FROM orders.mamparo_outbox)
     + (SELECT COUNT(*) FROM orders.mamparo_outbox_history)
     + (SELECT COUNT(*) FROM inventory.mamparo_outbox)
     + (SELECT COUNT(*) FROM inventory.mamparo_outbox_history)
     + (SELECT COUNT(*) FROM payments.mamparo_outbox)
     + (SELECT COUNT(*) FROM payments.mamparo_outbox_history)";

// Events of type $2 that the consumer $1 has not applied.
const UNAPPLIED: &str = "WITH sent AS (
         SELECT id, kind FROM orders.mamparo_outbox
         UNION ALL SELECT id, kind FROM orders.mamparo_outbox_history
         UNION ALL SELECT id, kind FROM inventory.mamparo_outbox
         UNION ALL SELECT id, kind FROM inventory.mamparo_outbox_history
         UNION ALL SELECT id, kind FROM payments.mamparo_outbox
         UNION ALL SELECT id, kind FROM payments.mamparo_outbox_history),
     applied AS (
         SELECT consumer, message_id FROM orders.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM inventory.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM payments.mamparo_inbox
         UNION ALL SELECT consumer, message_id FROM notifications.mamparo_inbox)
     SELECT s.id FROM sent s WHERE s.kind = $2
     AND NOT EXISTS (SELECT 1 FROM applied a WHERE a.consumer = $1 AND a.message_id = s.id)";

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

const REDELIVERIES: &str = "SELECT CAST(
     (SELECT COALESCE(SUM(duplicates), 0) FROM orders.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM inventory.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM payments.mamparo_inbox)
   + (SELECT COALESCE(SUM(duplicates), 0) FROM notifications.mamparo_inbox) AS BIGINT)";

/// Units that are nowhere, or held by nobody. The columns promise free + reserved = initial; here the
/// promise is held against the reservations.
async fn stock_leaks(books: &Books) -> Result<u64, DemoError> {
    let mut held: BTreeMap<String, i64> = BTreeMap::new();
    for (lines,) in books.rows::<(String,)>(query(HELD)).await? {
        let lines: Vec<Line> =
            serde_json::from_str(&lines).map_err(|error| sqlx::Error::Decode(error.into()))?;
        for line in lines {
            *held.entry(line.product_id).or_default() += i64::from(line.quantity);
        }
    }
    let stock: Vec<(String, i64, i64)> = books.rows(query(STOCK)).await?;
    let leaks = stock.iter().map(|(product, missing, reserved)| {
        let held = held.get(product).copied().unwrap_or_default();
        missing.unsigned_abs() + (reserved - held).unsigned_abs()
    });
    Ok(leaks.sum())
}

/// Events that nobody will hear of any more: a consumer that wants them has neither applied them nor
/// got them among its dead letters; or they have not left yet, after the drain.
async fn events_lost(books: &Books, dead: &[(String, String)]) -> Result<u64, DemoError> {
    let mut lost = books.count(EVENTS_PENDING).await?;
    for queue in books.queues() {
        let dlq = queue.dlq();
        for kind in &queue.bindings {
            let unapplied = query(UNAPPLIED).bind(queue.consumer()).bind(kind);
            let unapplied: Vec<(String,)> = books.rows(unapplied).await?;
            let is_dead = |id: &String| dead.iter().any(|(at, dead)| *at == dlq && dead == id);
            lost += unapplied.iter().filter(|(id,)| !is_dead(id)).count() as u64;
        }
    }
    Ok(lost)
}

/// Counts everything. `poisoned` is how many malformed messages were sent on purpose.
///
/// # Errors
/// What database or broker said.
pub async fn judge(books: &Books, poisoned: u64) -> Result<Verdict, DemoError> {
    let states = books.by_state().await?;
    let dead = books.dead_letters().await?;
    // A poison message carries the name of the queue that it was sent to, so that one which strayed
    // into another queue's dead letters is seen.
    let innocent = |(queue, id): &&(String, String)| !id.starts_with(&format!("poison/{queue}/"));
    let strayed = dead.iter().filter(innocent).count() as u64;
    let facts = Facts {
        accepted: states.pending + states.reserved + states.confirmed + states.cancelled,
        confirmed: states.confirmed,
        cancelled: states.cancelled,
        timed_out: books.count(TIMED_OUT).await?,
        stuck: books.count(STUCK).await?,
        charges: books.count("SELECT COUNT(*) FROM psp.ledger WHERE kind = 'CHARGE'").await?,
        refunds: books.count("SELECT COUNT(*) FROM psp.ledger WHERE kind = 'REFUND'").await?,
        double_charges: books.count(DOUBLE).await?,
        stock_leaks: stock_leaks(books).await?,
        events: books.count(EVENTS).await?,
        events_lost: events_lost(books, &dead).await?,
        events_applied_twice: books.count(APPLIED_TWICE).await?,
        redeliveries: books.count(REDELIVERIES).await?,
        dead_letters: dead.len() as u64,
        mails: books.count("SELECT COUNT(*) FROM mail.delivered").await?,
    };
    let mut verdict = Verdict { facts: facts.clone(), checks: Vec::new() };
    verdict.add("every accepted order ends confirmed or cancelled", facts.stuck);
    verdict.add("no order is charged twice", facts.double_charges);
    verdict.add("a confirmed order is paid in full", books.count(CONFIRMED_UNPAID).await?);
    verdict.add("a cancelled order keeps no money", books.count(CANCELLED_CHARGED).await?);
    verdict.add("no money without an order", books.count(CHARGED_UNKNOWN).await?);
    verdict.add("reserved + free = initial, unit by unit", facts.stock_leaks);
    let unjust = books.count(RESERVED_WITHOUT_RIGHT).await?;
    verdict.add("goods are held for confirmed orders only", unjust);
    let empty = books.count(CONFIRMED_WITHOUT_GOODS).await?;
    verdict.add("a confirmed order has its goods", empty);
    verdict.add("no event is lost", facts.events_lost);
    verdict.add("no event is applied twice", facts.events_applied_twice);
    verdict.add("each customer hears once how it ended", books.count(MAILS_AMISS).await?);
    verdict.add("queues are empty", books.under_way().await?);
    verdict.add("only poison is dead, each in its own queue's letters", strayed);
    verdict.add("all poison is dead", facts.dead_letters.abs_diff(poisoned + strayed));
    Ok(verdict)
}
