//! Failed messages for people and programs to read.

use std::collections::BTreeMap;

use mamparo_core::message::failed::{Group, class};
use mamparo_core::time::WallTime;
use mamparo_messaging::address::BrokerAddress;
use mamparo_messaging::broker::Stored;
use mamparo_store::StoreAddress;
use mamparo_store::failed::{Entry, preview};
use serde::Serialize;

use super::args::Which;
use super::open::{Opened, Trouble};
use crate::output::{Exit, data, failure, safe, say, table};

/// A failed message as JSON shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Letter<'m> {
    id: &'m str,
    #[serde(rename = "type")]
    kind: &'m str,
    key: &'m str,
    since: String,
    attempts: u32,
    reason: &'m str,
    error: &'m str,
    group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'m>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'m> {
    exchange: &'m str,
    routing_key: &'m str,
    headers: &'m BTreeMap<String, String>,
    /// The body when it is JSON, else as a preview shows it.
    body: serde_json::Value,
    body_bytes: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Event {
    at: String,
    what: String,
    who: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Listing<'m> {
    queue: &'m str,
    total: u64,
    messages: Vec<Letter<'m>>,
}

/// Ids that were asked for and are not there.
pub(super) fn missing(which: &Which, opened: &Opened) -> Vec<String> {
    let there = |id: &&String| opened.messages().iter().any(|stored| stored.message.id == **id);
    let missing: Vec<String> = which.ids.iter().filter(|id| !there(id)).cloned().collect();
    let one = opened.noun().trim_end_matches('s');
    for id in &missing {
        say(&format!("not found: no {one} of {} has the id {id}", opened.queue()));
    }
    missing
}

pub(super) fn list(which: &Which, opened: &Opened) -> Exit {
    missing(which, opened);
    let (queue, total) = (opened.queue(), opened.total());
    if which.json {
        let messages = opened.messages().iter().map(|stored| letter(stored, queue)).collect();
        return json(&Listing { queue, total, messages });
    }
    let row = |stored: &Stored| {
        let Letter { id, kind, key, since, attempts, reason, error, .. } = letter(stored, queue);
        let cells = [id, kind, key, &since, &attempts.to_string(), reason, error];
        cells.map(str::to_owned).to_vec()
    };
    let rows: Vec<Vec<String>> = opened.messages().iter().map(row).collect();
    if !rows.is_empty() {
        let head = ["ID", "TYPE", "KEY", "DEAD SINCE", "ATTEMPTS", "REASON", "LAST ERROR"];
        if !data(&table(&head, &rows)) {
            return Exit::Findings;
        }
    }
    let shown = rows.len();
    say(&format!("{shown} of {total} {} of {queue}", opened.noun()));
    if shown > 0 {
        say(&format!("hint: mamparo dlq show {} --id ID", place(which, queue)));
    }
    Exit::Clean
}

pub(super) async fn show(which: &Which, opened: Opened) -> Exit {
    let shown = show_all(which, &opened).await;
    match opened.close().await {
        Ok(()) => shown,
        Err(trouble) => {
            tell(&trouble);
            Exit::Findings
        }
    }
}

async fn show_all(which: &Which, opened: &Opened) -> Exit {
    let exit = if missing(which, opened).is_empty() { Exit::Clean } else { Exit::Unusable };
    let (queue, mut letters, mut text) = (opened.queue(), Vec::new(), String::new());
    for stored in opened.messages() {
        let history = match opened.history(&stored.message.id).await {
            Ok(history) => history,
            Err(trouble) => {
                tell(&trouble);
                return Exit::Findings;
            }
        };
        if which.json {
            letters.push(detailed(stored, queue, history));
        } else {
            describe(&mut text, stored, &history);
        }
    }
    if which.json {
        let written = json(&Listing { queue, total: opened.total(), messages: letters });
        return if written == Exit::Clean { exit } else { written };
    }
    if !data(&text) {
        return Exit::Findings;
    }
    say(&format!("{} of {} {}", opened.messages().len(), opened.total(), opened.noun()));
    exit
}

fn describe(text: &mut String, stored: &Stored, history: &[Entry]) {
    let message = &stored.message;
    let mut line = |name: &str, value: &str| {
        text.push_str(&format!("{name:<12} {}\n", safe(value)));
    };
    line("id", &message.id);
    line("type", &message.kind);
    line("key", &message.key);
    line("dead since", &stored.since.to_string());
    let published = format!("{} {}", message.exchange, message.routing_key);
    line("published", published.trim_start());
    for (name, value) in &message.headers {
        line("header", &format!("{name}: {value}"));
    }
    for Entry { at, what, who, why } in history {
        line("history", &format!("{at} {what} {who}: {why}"));
    }
    line("body", &format!("{} bytes", message.body.len()));
    for part in preview(&message.body).lines() {
        text.push_str(&format!("    {}\n", safe(part)));
    }
    text.push('\n');
}

/// What is alike, the most first.
pub(super) fn groups(which: &Which, opened: &Opened) -> Exit {
    #[derive(Debug, Serialize)]
    struct Alike {
        group: String,
        messages: u32,
        first: String,
        last: String,
        reason: String,
        error: String,
    }
    let queue = opened.queue();
    let mut alike: BTreeMap<Group, (u32, WallTime, WallTime, &Stored)> = BTreeMap::new();
    for stored in opened.messages() {
        let (facts, failed) = (stored.facts(queue), stored.failed(queue));
        let group = Group::of(facts.reason, facts.error);
        let entry = alike.entry(group).or_insert((0, failed, failed, stored));
        *entry = (entry.0 + 1, entry.1.min(failed), entry.2.max(failed), entry.3);
    }
    let mut groups: Vec<Alike> = alike
        .into_iter()
        .map(|(group, (messages, first, last, stored))| Alike {
            group: group.to_string(),
            messages,
            first: first.to_string(),
            last: last.to_string(),
            reason: stored.facts(queue).reason.to_owned(),
            error: class(stored.facts(queue).error),
        })
        .collect();
    groups.sort_by_key(|alike| std::cmp::Reverse(alike.messages));
    if which.json {
        return json(&groups);
    }
    let cells = |it: &Alike| {
        let Alike { group, messages, first, last, reason, error } = it;
        let cells = [group, &messages.to_string(), first, last, reason, error];
        cells.map(String::clone).to_vec()
    };
    let rows: Vec<Vec<String>> = groups.iter().map(cells).collect();
    let head = ["GROUP", "MESSAGES", "FIRST", "LAST", "REASON", "ERROR"];
    if !rows.is_empty() && !data(&table(&head, &rows)) {
        return Exit::Findings;
    }
    let (shown, total, noun) = (opened.messages().len(), opened.total(), opened.noun());
    say(&format!("{} groups of {shown} of {total} {noun} of {queue}", rows.len()));
    if !rows.is_empty() {
        say(&format!("hint: mamparo dlq list {} --group GROUP", place(which, queue)));
    }
    Exit::Clean
}

/// The arguments that name the same messages again.
fn place(which: &Which, queue: &str) -> String {
    let named = [("--broker", &which.broker), ("--store", &which.store)];
    let named =
        named.iter().filter_map(|(flag, url)| Some((*flag, without_password(url.as_ref()?))));
    let mut text: String = named.map(|(flag, url)| format!("{flag} {url} ")).collect();
    text.push_str(&format!("--queue {queue}"));
    text
}

/// A hint must not put a password on the screen, wherever in the address it stands.
fn without_password(url: &str) -> String {
    match (StoreAddress::parse(url), BrokerAddress::parse(url)) {
        (Ok(address @ StoreAddress::Postgres(_)), _) => address.to_string(),
        (_, Ok(address @ BrokerAddress::Amqp(_))) => address.to_string(),
        _ => url.to_owned(),
    }
}

fn letter<'m>(stored: &'m Stored, queue: &str) -> Letter<'m> {
    let (message, facts) = (&stored.message, stored.facts(queue));
    Letter {
        id: &message.id,
        kind: &message.kind,
        key: &message.key,
        since: stored.since.to_string(),
        attempts: facts.attempts,
        reason: facts.reason,
        error: facts.error,
        group: Group::of(facts.reason, facts.error).to_string(),
        details: None,
    }
}

fn detailed<'m>(stored: &'m Stored, queue: &str, history: Vec<Entry>) -> Letter<'m> {
    let message = &stored.message;
    let event = |entry: Entry| {
        let Entry { at, what, who, why } = entry;
        Event { at: at.to_string(), what, who, why }
    };
    let details = Details {
        exchange: &message.exchange,
        routing_key: &message.routing_key,
        headers: &message.headers,
        body: serde_json::from_slice(&message.body)
            .unwrap_or_else(|_| preview(&message.body).into()),
        body_bytes: message.body.len(),
        history: history.into_iter().map(event).collect(),
    };
    Letter { details: Some(details), ..letter(stored, queue) }
}

pub(super) fn tell(trouble: &Trouble) {
    match trouble {
        Trouble::Input(words) => say(&format!("error: failed to {words}")),
        Trouble::Messaging(error) => say(&failure(error.as_ref())),
        Trouble::Store(error) => say(&failure(error.as_ref())),
    }
}

pub(super) fn json(value: &impl Serialize) -> Exit {
    match serde_json::to_string_pretty(value) {
        Ok(text) if data(&format!("{text}\n")) => Exit::Clean,
        Ok(_) => Exit::Findings,
        Err(error) => {
            say(&format!("error: failed to write JSON: {error}"));
            Exit::Findings
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_has_no_password_wherever_in_the_address_it_stands() {
        for (url, shown) in [
            ("sqlite:a@b.db", "sqlite:a@b.db"),
            ("amqp://u:s3cret@mq/%2f", "amqp://…@mq/%2f"),
            ("amqp://mq/%2f", "amqp://mq/%2f"),
            ("postgres://u:s3cret@db/shop", "postgres://…@db/shop"),
            ("postgres://db/shop?user=u&password=s3cret", "postgres://db/shop?…"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
