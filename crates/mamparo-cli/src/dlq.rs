//! `mamparo dlq`: the on-call's commonest task.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use mamparo_core::message::headers;
use mamparo_core::message::selection::Sift;
use mamparo_core::message::topology::DLQ_SUFFIX;
use mamparo_messaging::any::AnyLetters;
use mamparo_messaging::broker::Stored;
use mamparo_messaging::dlq::{self, Choice, Outcome, Task};
use mamparo_messaging::{AnyBroker, MessagingError};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::actor::actor as signature;
use crate::output::{Exit, allowed, data, failure, json, safe, say, table};

type Selected = dlq::Selected<AnyLetters>;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List dead letters, oldest first.
    List(Which),
    /// Show dead letters with all headers and their body.
    Show(Which),
    /// Put dead letters back into their queue; attempts start over.
    Replay {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        consent: Consent,
        /// Who does it. Default: the user's name.
        #[arg(long, value_name = "NAME")]
        actor: Option<String>,
        /// Why, for whoever sees the message next.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
    },
    /// Throw dead letters away; an archived copy stays.
    Discard {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        consent: Consent,
        /// Who does it. Default: the user's name.
        #[arg(long, value_name = "NAME")]
        actor: Option<String>,
        /// Why. Required.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The broker: sqlite:PATH (embedded).
    #[arg(long, value_name = "URL")]
    broker: String,
    /// The main queue's name, orders.saga say; its dead-letter queue is implied.
    #[arg(long, value_name = "QUEUE")]
    queue: String,
    /// At most this many, oldest first.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    max: u32,
    /// Only this event type.
    #[arg(long, value_name = "TYPE")]
    filter_event: Option<String>,
    /// Only this message; may be given several times.
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Do it without being asked.
    #[arg(long)]
    yes: bool,
}

/// A dead letter as JSON shows it.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'m>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Details<'m> {
    exchange: &'m str,
    routing_key: &'m str,
    headers: &'m BTreeMap<String, String>,
    /// The body when it is JSON, else as text (other bytes replaced).
    body: serde_json::Value,
    body_bytes: usize,
}

#[derive(Debug, Serialize)]
struct Listing<'m> {
    queue: &'m str,
    total: u64,
    messages: Vec<Letter<'m>>,
}

#[derive(Debug, Serialize)]
struct Report<'o> {
    queue: &'o str,
    verb: &'static str,
    done: &'o [String],
    left: &'o [String],
}

/// Runs one verb.
pub(crate) async fn run(verb: Verb) -> Exit {
    let (Verb::List(which)
    | Verb::Show(which)
    | Verb::Replay { which, .. }
    | Verb::Discard { which, .. }) = &verb;
    if which.ids.len() > which.max as usize {
        say(&format!("error: failed to choose: {} ids and --max {}", which.ids.len(), which.max));
        return Exit::Unusable;
    }
    let mut selected = match choose(which).await {
        Ok(chosen) => chosen,
        Err(error) => {
            say(&failure(&error));
            hint_for(&error);
            return Exit::Unusable;
        }
    };
    let missing = missing(which, &selected);
    for id in &missing {
        say(&format!("not found: no dead letter of {} has the id {id}", selected.queue));
    }
    match &verb {
        Verb::List(which) => list(which, &selected),
        Verb::Show(which) => show(which, &selected, &missing),
        Verb::Replay { which, consent, actor, reason } => {
            let Some(exit) = refused("replay", "Replay", &selected, consent) else {
                let actor = signature(actor.clone());
                let task = Task::new(dlq::Verb::Replay, &actor, reason);
                let done = carry_out(&mut selected, &task).await;
                return report(which, &selected, "replay", done, &missing);
            };
            worst(exit, &missing)
        }
        Verb::Discard { which, consent, actor, reason } => {
            let actor = signature(actor.clone());
            if actor.trim().is_empty() || reason.trim().is_empty() {
                say("error: failed to discard: --actor and --reason must not be empty");
                return Exit::Unusable;
            }
            let Some(exit) = refused("discard", "Discard", &selected, consent) else {
                let task = Task::new(dlq::Verb::Discard, &actor, reason);
                let done = carry_out(&mut selected, &task).await;
                return report(which, &selected, "discard", done, &missing);
            };
            worst(exit, &missing)
        }
    }
}

async fn choose(which: &Which) -> Result<Selected, MessagingError> {
    let broker = AnyBroker::open_existing(&which.broker).await?;
    // Whoever copies the name from a dashboard copies the suffix too.
    let queue = which.queue.strip_suffix(DLQ_SUFFIX).unwrap_or(&which.queue);
    let (kind, ids) = (which.filter_event.clone(), which.ids.clone());
    let sift = Sift { kind, ids, ..Sift::default() };
    dlq::select(&broker, queue, &Choice { max: which.max, sift }).await
}

async fn carry_out(selected: &mut Selected, task: &Task) -> Result<Outcome, MessagingError> {
    let outcome = dlq::carry_out(selected, task, None, &CancellationToken::new(), |_| ()).await?;
    match outcome.error {
        Some(error) => Err(error),
        None => Ok(outcome),
    }
}

fn hint_for(error: &MessagingError) {
    if let MessagingError::NoFile { .. } | MessagingError::Store { operation: "open broker", .. } =
        error
    {
        say("hint: the embedded broker's file is named in mamparo.toml, key service.broker");
    }
}

/// Ids that were asked for and are not there.
fn missing(which: &Which, selected: &Selected) -> Vec<String> {
    let there = |id: &&String| selected.messages.iter().any(|stored| stored.message.id == **id);
    which.ids.iter().filter(|id| !there(id)).cloned().collect()
}

fn worst(exit: Exit, missing: &[String]) -> Exit {
    if exit == Exit::Clean && !missing.is_empty() { Exit::Findings } else { exit }
}

fn list(which: &Which, selected: &Selected) -> Exit {
    if which.json {
        return json(&listing(selected, false));
    }
    let row = |stored: &Stored| {
        let letter = letter(stored, &selected.queue, false);
        let Letter { id, kind, key, since, attempts, reason, error, details: _ } = letter;
        let cells = [id, kind, key, &since, &attempts.to_string(), reason, error];
        cells.map(str::to_owned).to_vec()
    };
    let rows: Vec<Vec<String>> = selected.messages.iter().map(row).collect();
    if !rows.is_empty() {
        let head = ["ID", "TYPE", "KEY", "DEAD SINCE", "ATTEMPTS", "REASON", "LAST ERROR"];
        if !data(&table(&head, &rows)) {
            return Exit::Findings;
        }
    }
    let (shown, total, queue) = (rows.len(), selected.total, &selected.queue);
    say(&format!("{shown} of {total} dead letters of {queue}"));
    if shown > 0 {
        let Which { broker, .. } = which;
        say(&format!("hint: mamparo dlq show --broker {broker} --queue {queue} --id ID"));
    }
    Exit::Clean
}

fn show(which: &Which, selected: &Selected, missing: &[String]) -> Exit {
    let exit = if missing.is_empty() { Exit::Clean } else { Exit::Unusable };
    if which.json {
        let written = json(&listing(selected, true));
        return if written == Exit::Clean { exit } else { written };
    }
    let mut text = String::new();
    for stored in &selected.messages {
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
        line("body", &format!("{} bytes", message.body.len()));
        for part in body_text(&message.body).lines() {
            text.push_str(&format!("    {}\n", safe(part)));
        }
        text.push('\n');
    }
    if !data(&text) {
        return Exit::Findings;
    }
    say(&format!("{} of {} dead letters", selected.messages.len(), selected.total));
    exit
}

/// Asks before a change. `None` when it may be made, else how the command ends without it.
fn refused(verb: &str, asks: &str, selected: &Selected, consent: &Consent) -> Option<Exit> {
    let (count, queue) = (selected.messages.len(), &selected.queue);
    if count == 0 {
        say(&format!("nothing to {verb} in {queue}"));
        return Some(Exit::Clean);
    }
    let question = format!("{asks} {count} of {} dead letters of {queue}?", selected.total);
    match allowed(&question, consent.yes) {
        Ok(true) => None,
        Ok(false) => {
            say("nothing was changed");
            Some(Exit::Clean)
        }
        Err(hint) => {
            say(&format!("error: failed to {verb} {count} dead letters of {queue}: nobody to ask"));
            say(&format!("hint: {hint}"));
            Some(Exit::Unusable)
        }
    }
}

fn report(
    which: &Which,
    selected: &Selected,
    verb: &'static str,
    done: Result<Outcome, MessagingError>,
    missing: &[String],
) -> Exit {
    let outcome = match done {
        Ok(outcome) => outcome,
        Err(error) => {
            say(&failure(&error));
            say("hint: list again to see what is left; messages stay in one queue or the other");
            return Exit::Findings;
        }
    };
    let (count, queue) = (selected.messages.len(), selected.queue.as_str());
    let written = if which.json {
        let mut left: Vec<String> = outcome.left.iter().map(|left| left.id.clone()).collect();
        left.extend(missing.iter().cloned());
        json(&Report { queue, verb, done: &outcome.done, left: &left }) == Exit::Clean
    } else {
        let lines: Vec<String> = outcome.done.iter().map(|id| format!("{}\n", safe(id))).collect();
        data(&lines.concat())
    };
    let past = if verb == "replay" { "replayed" } else { "discarded" };
    say(&format!("{past} {} of {count} dead letters of {queue}", outcome.done.len()));
    for left in &outcome.left {
        say(&format!("left: {}: {}", left.id, left.why));
    }
    let clean = written && outcome.left.is_empty() && missing.is_empty();
    if clean { Exit::Clean } else { Exit::Findings }
}

fn listing(selected: &Selected, details: bool) -> Listing<'_> {
    let letter = |stored| letter(stored, &selected.queue, details);
    Listing {
        queue: &selected.queue,
        total: selected.total,
        messages: selected.messages.iter().map(letter).collect(),
    }
}

fn letter<'m>(stored: &'m Stored, queue: &str, details: bool) -> Letter<'m> {
    let message = &stored.message;
    Letter {
        id: &message.id,
        kind: &message.kind,
        key: &message.key,
        since: stored.since.to_string(),
        attempts: headers::attempts(&message.headers, queue).made,
        reason: message.header(headers::DEAD_REASON).unwrap_or("unknown"),
        error: message.header(headers::LAST_ERROR).unwrap_or(""),
        details: details.then(|| Details {
            exchange: &message.exchange,
            routing_key: &message.routing_key,
            headers: &message.headers,
            body: serde_json::from_slice(&message.body)
                .unwrap_or_else(|_| String::from_utf8_lossy(&message.body).into()),
            body_bytes: message.body.len(),
        }),
    }
}

/// JSON with indentation, else the text as it is.
fn body_text(body: &[u8]) -> String {
    let parsed: Result<serde_json::Value, _> = serde_json::from_slice(body);
    parsed
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned())
}
