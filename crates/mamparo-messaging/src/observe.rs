//! The one room of messaging that speaks to metrics and the log, from what the machines answered.

use std::time::Duration;

use mamparo_core::message::capabilities::Capabilities;
use mamparo_core::message::closure::Closure;
use mamparo_core::message::headers;
use mamparo_core::message::housekeeping::Matter;
use mamparo_core::message::intake::Phase;
use mamparo_core::message::relay::{Alarm, Published};
use mamparo_core::message::topology::alarm::Returned;
use mamparo_core::message::waiting::Choice;
use mamparo_core::time::WallTime;
use mamparo_store::StoreError;
use mamparo_store::outbox::OutboxStats;

use crate::error::chain;
use crate::{Message, MessagingError};

/// Every metric of this crate: name, labels, meaning. Dashboards and alerts are made from it.
pub const METRICS: [(&str, &[&str], &str); 33] = [
    (
        "mamparo_messages_total",
        &["queue", "outcome"],
        "settled messages: done, duplicate, retried, deferred, dead, unconfirmed, stale",
    ),
    ("mamparo_queue_depth", &["queue"], "messages in a queue, those in hand included"),
    (
        "mamparo_retries_returned_total",
        &["queue"],
        "messages that came back from the broker's waiting room",
    ),
    (
        "mamparo_retry_late_seconds",
        &["queue"],
        "by how much the last of them came later than its delay and a margin; 0 in time",
    ),
    ("mamparo_consumer_phase", &["queue"], "0 flows, 1 probes, 2 pauses"),
    ("mamparo_consumer_subscribed", &["queue"], "1 while the consumer is subscribed"),
    ("mamparo_consumer_reconnects_total", &["queue"], "times that the broker or store was lost"),
    ("mamparo_consumer_room", &["queue", "room"], "1 for the waiting room that is used"),
    (
        "mamparo_consumer_last_delivery_seconds",
        &["queue"],
        "since the consumer last took a message; not there before the first",
    ),
    (
        "mamparo_consumer_last_settlement_seconds",
        &["queue"],
        "since a message last came to an end; not there before the first",
    ),
    (
        "mamparo_parked_messages",
        &["queue"],
        "messages that wait, by rows of the service's database",
    ),
    ("mamparo_parked_oldest_seconds", &["queue"], "age of the oldest of them"),
    ("mamparo_publisher_connected", &[], "1 while the publisher has its channel to the broker"),
    ("mamparo_publisher_blocked", &[], "1 while the broker takes no publishes: memory or disk"),
    ("mamparo_publisher_losses_total", &[], "times that the publisher lost connection or channel"),
    (
        "mamparo_relay_messages_total",
        &["exchange", "outcome"],
        "publishes of events: confirmed, returned, nacked, unknown, stray",
    ),
    ("mamparo_relay_failures_total", &[], "times that the relay's store failed"),
    ("mamparo_outbox_pending", &[], "events that wait for the broker"),
    ("mamparo_relay_shards", &[], "shards of 16 that this relay holds"),
    ("mamparo_relay_listening", &[], "1 while commits of other processes are heard"),
    (
        "mamparo_outbox_parked",
        &[],
        "of those, events that the broker did not take, or one before them",
    ),
    ("mamparo_outbox_parked_keys", &[], "events that the broker did not take, one for each key"),
    ("mamparo_outbox_oldest_seconds", &[], "age of the oldest waiting event"),
    ("mamparo_outbox_lag_seconds", &["shard"], "the same in each shard"),
    (
        "mamparo_outbox_oldest_snapshot_seconds",
        &[],
        "age of the oldest transaction of the database server; while it lasts dead rows stay",
    ),
    (
        "mamparo_dlq_operations_total",
        &["queue", "verb"],
        "failed messages that people replayed, edited, discarded or brought back",
    ),
    ("mamparo_failed_messages", &["queue", "reason"], "failed messages that wait for a person"),
    ("mamparo_failed_oldest_seconds", &["queue"], "age of the oldest of them"),
    ("mamparo_failed_groups", &["queue"], "different failures among them, counted up to 100"),
    ("mamparo_swept_total", &["queue"], "dead letters that came from the broker to the store"),
    ("mamparo_sweeper_left", &["queue"], "dead letters that the broker still holds"),
    ("mamparo_forgotten_total", &["table"], "rows that had served, deleted by housekeeping"),
    ("mamparo_housekeeping_failures_total", &["table"], "batches of housekeeping that failed"),
];

/// What a message's handling and the calls that it makes are logged under; at the level of errors,
/// so that warnings say which message they are about even where nothing less is logged.
pub(crate) fn handling(queue: &str, message: &Message) -> tracing::Span {
    let (kind, key) = (&message.kind, &message.key);
    let request_id = message.header(headers::REQUEST_ID);
    tracing::error_span!("message", queue, kind, key, request_id)
}

/// A message was settled: `outcome` is done, retried, deferred or dead.
pub(crate) fn settled(queue: &str, message: &Message, outcome: &'static str, reason: &str) {
    count(queue, outcome);
    let (id, kind, key) = (&message.id, &message.kind, &message.key);
    match outcome {
        "done" => tracing::debug!(queue, id, kind, key, "message done"),
        "retried" => {
            tracing::warn!(queue, id, kind, key, reason, "message waits for another attempt");
        }
        "dead" => tracing::error!(queue, id, kind, key, reason, "message dead-lettered"),
        _ => tracing::info!(queue, id, kind, key, reason, "message deferred"),
    }
}

/// The inbox knew the message: its effects stand already.
pub(crate) fn duplicate(queue: &str, message: &Message) {
    count(queue, "duplicate");
    let (id, kind) = (&message.id, &message.kind);
    tracing::info!(queue, id, kind, "message was applied before, acknowledged only");
}

/// A copy was not confirmed, so the original stays.
pub(crate) fn unconfirmed(queue: &str, message: &Message, why: &str) {
    count(queue, "unconfirmed");
    let id = &message.id;
    tracing::error!(queue, id, why, "copy not confirmed, the original stays where it was");
}

/// A message was settled after its hand-out was over.
pub(crate) fn stale(queue: &str, message: &Message) {
    count(queue, "stale");
    let id = &message.id;
    tracing::warn!(queue, id, "hand-out was over, settling it changed nothing");
}

/// The attempts header made no sense.
pub(crate) fn unreadable_attempts(queue: &str, message: &Message) {
    let id = &message.id;
    tracing::warn!(queue, id, "header x-attempts is unreadable, counted as 0");
}

/// The intake changed its phase.
pub(crate) fn phase(queue: &str, phase: Phase, reason: &str) {
    let (value, text) = match phase {
        Phase::Flowing => (0.0, "consumer flows again"),
        Phase::Probing => (1.0, "consumer lets one message through"),
        Phase::Paused => (2.0, "consumer pauses, nothing can be handled now"),
    };
    metrics::gauge!("mamparo_consumer_phase", "queue" => queue.to_owned()).set(value);
    tracing::warn!(queue, reason, "{text}");
}

/// The consumer is subscribed, or is not.
pub(crate) fn subscribed(queue: &str, yes: bool) {
    let gauge = metrics::gauge!("mamparo_consumer_subscribed", "queue" => queue.to_owned());
    gauge.set(f64::from(u8::from(yes)));
    tracing::info!(queue, subscribed = yes, "consumer");
}

/// How long ago the consumer took a message, and brought one to an end. A consumer that takes and
/// brings nothing to an end hangs; one that does neither, with a deep queue, is dead.
pub(crate) fn ages(queue: &str, taken: Option<Duration>, settled: Option<Duration>) {
    if let Some(age) = taken {
        metrics::gauge!("mamparo_consumer_last_delivery_seconds", "queue" => queue.to_owned())
            .set(age.as_secs_f64());
    }
    if let Some(age) = settled {
        metrics::gauge!("mamparo_consumer_last_settlement_seconds", "queue" => queue.to_owned())
            .set(age.as_secs_f64());
    }
}

/// Where a consumer's messages wait for another attempt.
pub(crate) fn room(queue: &str, choice: &Choice) {
    let room = choice.room.as_str();
    let labels = [("queue", queue.to_owned()), ("room", room.to_owned())];
    metrics::gauge!("mamparo_consumer_room", &labels).set(1.0);
    match &choice.why {
        Some(why) => tracing::warn!(queue, room, why, "waiting room, not the one of the policy"),
        None => tracing::info!(queue, room, "waiting room"),
    }
}

/// Messages in hand may wait for longer than the broker does.
pub(crate) fn crowded(queue: &str, last: Duration, timeout: Duration) {
    tracing::warn!(
        queue,
        ?last,
        ?timeout,
        "the last message in hand may wait for longer than the broker does: lower prefetch or \
         handler_timeout"
    );
}

/// The consumer does not begin.
pub(crate) fn impatient(queue: &str, words: &str) {
    tracing::error!(queue, words, "consumer does not begin");
}

/// The consumer lost its broker or its store and will come back.
pub(crate) fn disconnected(queue: &str, error: &MessagingError, tries: u32) {
    metrics::counter!("mamparo_consumer_reconnects_total", "queue" => queue.to_owned())
        .increment(1);
    tracing::warn!(queue, error = chain(error), tries, "consumer lost its broker, reconnecting");
}

/// A broker answered at `address`.
pub(crate) fn broker_found(address: &str, capabilities: &Capabilities) {
    let Capabilities { at_least_once, delayed_retry, delivery_limit_default, .. } = capabilities;
    tracing::info!(
        broker = address,
        at_least_once,
        delayed_retry,
        delivery_limit_default,
        "{capabilities}"
    );
}

/// The broker or the way to it ended a subscription.
pub(crate) fn subscription_ended(queue: &str, closure: &Closure) {
    tracing::warn!(queue, %closure, "subscription ended");
}

/// The publisher has its channel.
pub(crate) fn publisher_connected() {
    metrics::gauge!("mamparo_publisher_connected").set(1.0);
    tracing::info!("publisher connected");
}

/// The publisher lost its channel (`tries` 0) or its connection, and opens it again.
pub(crate) fn publisher_lost(closure: &Closure, tries: u32) {
    metrics::gauge!("mamparo_publisher_connected").set(0.0);
    metrics::gauge!("mamparo_publisher_blocked").set(0.0);
    metrics::counter!("mamparo_publisher_losses_total").increment(1);
    tracing::warn!(%closure, tries, "publisher lost its broker, opening again");
}

/// The broker takes no publishes, for this reason, or takes them again.
pub(crate) fn publisher_blocked(reason: Option<&str>) {
    metrics::gauge!("mamparo_publisher_blocked").set(if reason.is_some() { 1.0 } else { 0.0 });
    match reason {
        Some(reason) => tracing::error!(reason, "the broker takes no publishes, they wait"),
        None => tracing::info!("the broker takes publishes again"),
    }
}

/// A publish named an exchange that does not exist.
pub(crate) fn no_exchange(exchange: &str) {
    tracing::warn!(exchange, "there is no such exchange, publish returned");
}

/// An operation beside the main path failed; it will be tried again by itself.
pub(crate) fn aside(queue: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(queue, error = chain(error), "consumer");
}

/// How many messages wait, by the rows that the database has of them, and for how long the oldest does.
pub(crate) fn parked(queue: &str, rows: u64, age: Duration) {
    metrics::gauge!("mamparo_parked_messages", "queue" => queue.to_owned()).set(rows as f64);
    metrics::gauge!("mamparo_parked_oldest_seconds", "queue" => queue.to_owned())
        .set(age.as_secs_f64());
}

/// A message came back from the broker's waiting room.
pub(crate) fn returned(queue: &str, message: &Message, back: Returned) {
    metrics::counter!("mamparo_retries_returned_total", "queue" => queue.to_owned()).increment(1);
    let late = back.late.unwrap_or_default();
    metrics::gauge!("mamparo_retry_late_seconds", "queue" => queue.to_owned())
        .set(late.as_secs_f64());
    if back.late.is_some() {
        let (id, age) = (&message.id, back.age);
        tracing::warn!(queue, id, ?age, ?late, "came back late; see docs/runbooks/topology.md");
    }
}

/// How many messages lie in a queue.
pub(crate) fn depth(queue: &str, messages: u64) {
    metrics::gauge!("mamparo_queue_depth", "queue" => queue.to_owned()).set(messages as f64);
}

/// The relay published a row.
pub(crate) fn relayed(exchange: &str) {
    relay_count(exchange, "confirmed");
}

/// Why a row did not go out.
#[derive(Debug)]
pub(crate) struct Refusal<'a> {
    pub(crate) published: Published,
    pub(crate) said: &'a str,
    pub(crate) tries: u32,
    pub(crate) alarm: Alarm,
}

/// The relay could not publish a row; its key waits.
pub(crate) fn postponed(exchange: &str, message: &Message, refusal: &Refusal<'_>) {
    let outcome = match refusal.published {
        Published::Confirmed => "confirmed",
        Published::Returned => "returned",
        Published::Nacked => "nacked",
        Published::Unknown => "unknown",
    };
    relay_count(exchange, outcome);
    let (id, kind, key) = (&message.id, &message.kind, &message.key);
    let (said, tries) = (refusal.said, refusal.tries);
    match refusal.alarm {
        Alarm::Warn => {
            tracing::warn!(id, kind, key, outcome, said, tries, "event not published, waits");
        }
        Alarm::Error => {
            tracing::error!(
                id,
                kind,
                key,
                outcome,
                said,
                tries,
                "event not published again, waits"
            );
        }
    }
}

/// A publish ended after its shard had gone to another relay, which publishes the event again.
pub(crate) fn stray(exchange: &str, message: &Message) {
    relay_count(exchange, "stray");
    let (id, kind, key) = (&message.id, &message.kind, &message.key);
    tracing::warn!(id, kind, key, "published as its shard was lost, comes again with the same id");
}

/// How many shards the relay holds.
pub(crate) fn shards(held: usize) {
    metrics::gauge!("mamparo_relay_shards").set(held as f64);
}

/// The relay hears of other processes' commits, or does not and polls.
pub(crate) fn listening(yes: bool, why: &str) {
    metrics::gauge!("mamparo_relay_listening").set(f64::from(u8::from(yes)));
    if yes {
        tracing::info!(why, "relay listens");
    } else {
        tracing::warn!(why, "relay does not hear commits of other processes, polls for them");
    }
}

/// Something beside the relay's main path failed.
pub(crate) fn relay_aside(error: &MessagingError) {
    tracing::warn!(error = chain(error), "relay");
}

fn relay_count(exchange: &str, outcome: &'static str) {
    let labels = [("exchange", exchange.to_owned()), ("outcome", outcome.to_owned())];
    metrics::counter!("mamparo_relay_messages_total", &labels).increment(1);
}

/// The relay's store failed.
pub(crate) fn relay_failed(error: &MessagingError, tries: u32) {
    metrics::counter!("mamparo_relay_failures_total").increment(1);
    tracing::warn!(error = chain(error), tries, "relay lost its store, trying again");
}

/// What waits in the outbox.
pub(crate) fn outbox(stats: &OutboxStats, snapshot: Option<Duration>, now: WallTime) {
    let age = |oldest: Option<WallTime>| {
        oldest.map_or(Duration::ZERO, |oldest| now.since(oldest)).as_secs_f64()
    };
    metrics::gauge!("mamparo_outbox_pending").set(stats.pending as f64);
    metrics::gauge!("mamparo_outbox_parked").set(stats.parked as f64);
    metrics::gauge!("mamparo_outbox_parked_keys").set(stats.refused as f64);
    metrics::gauge!("mamparo_outbox_oldest_seconds").set(age(stats.oldest));
    for (shard, oldest) in stats.oldest_in.iter().enumerate() {
        let gauge = metrics::gauge!("mamparo_outbox_lag_seconds", "shard" => shard.to_string());
        gauge.set(age(*oldest));
    }
    let snapshot = snapshot.unwrap_or_default().as_secs_f64();
    metrics::gauge!("mamparo_outbox_oldest_snapshot_seconds").set(snapshot);
}

/// A person moved or removed a dead letter.
pub(crate) fn operated(queue: &str, verb: &'static str, id: &str, actor: &str, reason: &str) {
    let labels = [("queue", queue.to_owned()), ("verb", verb.to_owned())];
    metrics::counter!("mamparo_dlq_operations_total", &labels).increment(1);
    tracing::warn!(queue, verb, id, actor, reason, "dead letter");
}

/// The sweeper brought dead letters in, and this many were left for its next cycle.
pub(crate) fn swept(queue: &str, swept: u64, left: u64) {
    metrics::gauge!("mamparo_sweeper_left", "queue" => queue.to_owned()).set(left as f64);
    metrics::counter!("mamparo_swept_total", "queue" => queue.to_owned()).increment(swept);
    if swept > 0 {
        tracing::warn!(queue, swept, left, "dead letters came from the broker to the store");
    }
}

/// The sweeper lost its broker or its store; it tries again.
pub(crate) fn sweeper_failed(queue: &str, error: &MessagingError) {
    tracing::warn!(queue, error = chain(error), "sweeper");
}

/// The database refused letters, which stay at the broker; the first of them, and what it said.
pub(crate) fn unwritable(queue: &str, letters: u64, id: &str, error: &StoreError) {
    let error = chain(error);
    tracing::error!(
        queue,
        letters,
        id,
        error,
        "dead letters can't be stored, the broker keeps them"
    );
}

/// Housekeeping deleted so many rows, or could not.
pub(crate) fn forgotten(matter: Matter, forgotten: &Result<u64, StoreError>) {
    let table = matter.as_str();
    let (rows, failures) = match forgotten {
        Ok(rows) => (*rows, 0),
        Err(error) => {
            tracing::warn!(table, error = chain(error), "housekeeping failed, tries again");
            (0, 1)
        }
    };
    metrics::counter!("mamparo_forgotten_total", "table" => table).increment(rows);
    // Also when it is none: an alert needs the zero before the one.
    metrics::counter!("mamparo_housekeeping_failures_total", "table" => table).increment(failures);
}

/// What waits for a person.
pub(crate) fn failed_messages(queue: &str, reason: &str, messages: u64) {
    let labels = [("queue", queue.to_owned()), ("reason", reason.to_owned())];
    metrics::gauge!("mamparo_failed_messages", &labels).set(messages as f64);
}

/// The oldest of them, and how many different failures they are.
pub(crate) fn failed_queue(queue: &str, oldest: std::time::Duration, groups: u64) {
    let gauge = metrics::gauge!("mamparo_failed_oldest_seconds", "queue" => queue.to_owned());
    gauge.set(oldest.as_secs_f64());
    metrics::gauge!("mamparo_failed_groups", "queue" => queue.to_owned()).set(groups as f64);
}

fn count(queue: &str, outcome: &'static str) {
    let labels = [("queue", queue.to_owned()), ("outcome", outcome.to_owned())];
    metrics::counter!("mamparo_messages_total", &labels).increment(1);
}
