//! `[queues."<name>"]`

use std::time::Duration;

use mamparo_core::limits::ATTEMPTS_MAX;
use mamparo_core::message::topology::{PREFETCH_MAX, RETRY_DELAY_MAX};

use super::{LONGEST, SHORTEST};
use crate::reader::Section;
use crate::{Located, QueueSection};

pub(super) fn read(name: Located<String>, mut section: Section<'_, '_>) -> Option<QueueSection> {
    let owner = owner(&mut section);
    let prefetch = section.within_or("prefetch", 1..=PREFETCH_MAX, 10);
    let attempts = section.within_or("attempts", 1..=ATTEMPTS_MAX, 5);
    let half_minute = Duration::from_secs(30);
    let retry_delay = section.within_or("retry_delay", SHORTEST..=RETRY_DELAY_MAX, half_minute);
    let handler_timeout = section.within_or("handler_timeout", SHORTEST..=LONGEST, half_minute);
    let runbook = section.require::<String>("runbook");
    let events = section.strings("events");
    section.finish();
    Some(QueueSection {
        name,
        owner: owner?,
        prefetch,
        attempts,
        retry_delay,
        handler_timeout,
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
