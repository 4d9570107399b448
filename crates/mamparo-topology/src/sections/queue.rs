//! `[queues."<name>"]`

use std::time::Duration;

use mamparo_core::limits::ATTEMPTS_MAX;
use mamparo_core::message::topology::{
    DELIVERY_LIMIT_MAX, MAX_LENGTH_MAX, Order, PREFETCH_MAX, QueuePolicy, QueueType,
    RETRY_DELAY_MAX, RETRY_TIERS_MAX, Refusal, VERSION_MAX, WaitingRoom,
};

use super::policies::word;
use super::{LONGEST, SHORTEST};
use crate::reader::Section;
use crate::{Located, QueueSection, show_duration};

pub(super) fn read(name: Located<String>, mut section: Section<'_, '_>) -> Option<QueueSection> {
    let defaults = QueuePolicy::new("", "");
    let owner = owner(&mut section);
    let prefetch = section.within_or("prefetch", 1..=PREFETCH_MAX, defaults.prefetch);
    let workers = section.within("workers", 1..=*prefetch);
    let attempts = section.within_or("attempts", 1..=ATTEMPTS_MAX, defaults.attempts);
    let retry_delay =
        section.within_or("retry_delay", SHORTEST..=RETRY_DELAY_MAX, defaults.retry_delay);
    let retry_tiers = tiers(&mut section);
    let rooms = [WaitingRoom::Tiers, WaitingRoom::Parked, WaitingRoom::Broker];
    let waiting_room = word(&mut section, "waiting_room", &rooms.map(|room| (room.as_str(), room)))
        .unwrap_or(Located::nowhere(defaults.waiting_room));
    let orders = [Order::Key, Order::None, Order::Strict];
    let order = word(&mut section, "order", &orders.map(|order| (order.as_str(), order)))
        .unwrap_or(Located::nowhere(defaults.order));
    let handler_timeout =
        section.within_or("handler_timeout", SHORTEST..=LONGEST, defaults.handler_timeout);
    let types = [QueueType::Quorum, QueueType::Classic];
    let queue_type = word(&mut section, "type", &types.map(|kind| (kind.as_str(), kind)))
        .unwrap_or(Located::nowhere(defaults.queue_type));
    let limits = *attempts..=DELIVERY_LIMIT_MAX;
    let delivery_limit = section.within_or("delivery_limit", limits, defaults.delivery_limit);
    let max_length = section.within_or("max_length", 1..=MAX_LENGTH_MAX, defaults.max_length);
    let version = section.within_or("version", 1..=VERSION_MAX, defaults.version);
    let runbook = section.require::<String>("runbook");
    let events = section.strings("events");
    refuse(&mut section);
    section.finish();
    Some(QueueSection {
        name,
        owner: owner?,
        prefetch,
        workers,
        attempts,
        retry_delay,
        retry_tiers,
        waiting_room,
        order,
        handler_timeout,
        queue_type,
        delivery_limit,
        max_length,
        version,
        runbook: runbook?,
        events,
    })
}

fn owner(section: &mut Section<'_, '_>) -> Option<Located<String>> {
    let owner = section.get::<String>("owner");
    let empty = owner.as_ref().is_some_and(|owner| owner.trim().is_empty());
    if empty || (!section.has("owner") && !section.sink.broken) {
        let hint = "name the team that answers for the dead letters".to_owned();
        section.complain("owner", "a queue needs an owner", Some(hint));
        return None;
    }
    owner
}

/// `retry_tiers = ["5s", "30s", "2m", "10m"]`; empty when it isn't set, or is wrong and reported.
fn tiers(section: &mut Section<'_, '_>) -> Vec<Located<Duration>> {
    const KEY: &str = "retry_tiers";
    let Some(raw) = section.raw(KEY) else { return Vec::new() };
    let path = section.path_of(KEY);
    let elements = section.elements(&path, raw);
    let tiers: Vec<Located<Duration>> =
        elements.iter().filter_map(|raw| section.typed(&path, raw)).collect();
    if tiers.len() < elements.len() || raw.get_ref().as_array().is_none() {
        return Vec::new();
    }
    let hint = || Some("write the shortest first: [\"5s\", \"30s\", \"2m\", \"10m\"]".to_owned());
    if tiers.is_empty() || tiers.len() > RETRY_TIERS_MAX {
        let message = format!("{} delays: from 1 to {RETRY_TIERS_MAX}", tiers.len());
        section.complain(KEY, &message, hint());
        return Vec::new();
    }
    for (n, tier) in tiers.iter().enumerate() {
        if !(SHORTEST..=RETRY_DELAY_MAX).contains(&tier.value) {
            let (tier, last) = (show_duration(tier.value), show_duration(RETRY_DELAY_MAX));
            section.complain(KEY, &format!("{tier} is out of range: from 1ms to {last}"), None);
            return Vec::new();
        }
        if n > 0 && tier.value <= tiers[n - 1].value {
            let (tier, last) = (show_duration(tier.value), show_duration(tiers[n - 1].value));
            section.complain(KEY, &format!("{tier} is not longer than {last} before it"), hint());
            return Vec::new();
        }
    }
    if section.has("retry_delay") {
        let hint = "with tiers, leave retry_delay out".to_owned();
        section.complain(KEY, "retry_delay and retry_tiers say the same thing twice", Some(hint));
    }
    tiers
}

/// What people know from elsewhere and will look for here, with the reason why it is not to be had.
fn refuse(section: &mut Section<'_, '_>) {
    let (exchange, receivers, queue) = (String::new(), Vec::new(), String::new());
    for (key, refusal) in [
        ("dead_letter_exchange", Refusal::SharedDeadLetters { exchange, receivers }),
        ("message_ttl", Refusal::TimePerMessage { queue }),
    ] {
        // Asked for only when it is there: it must not be suggested for a misspelt key.
        if section.has(key) {
            section.raw(key);
            let message = format!("refused: {}", refusal.why());
            section.complain(key, &message, Some(refusal.way_out().to_owned()));
        }
    }
}
