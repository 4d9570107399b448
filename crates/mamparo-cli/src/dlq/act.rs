//! Changes: asked for, carried out in view, and told of.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::selection::End;
use mamparo_core::time::Moment;
use mamparo_messaging::dlq::{Outcome, Pace, Progress, Task, Verb, Witness};
use mamparo_store::{PostgresStore, SqliteStore, StoreAddress};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::args::{Consent, PaceArgs, Signing, Which};
use super::open::{self, Opened, Trouble};
use super::view::{json, missing, tell};
use crate::actor::actor as signature;
use crate::output::{Exit, allowed, data, failure, safe, say};

/// How often progress is told: on a terminal, and where each telling is a line of a log.
const TOLD_EVERY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is to be done.
#[derive(Debug)]
pub(super) enum Deed {
    Replay,
    Discard,
    Undo,
    Edit { body: Option<Vec<u8>>, headers: Vec<(String, String)> },
}

impl Deed {
    /// The command, the question's first word, and what was done.
    const fn words(&self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Replay => ("replay", "Replay", "replayed"),
            Self::Discard => ("discard", "Discard", "discarded"),
            Self::Undo => ("undo", "Bring back", "brought back"),
            Self::Edit { .. } => ("edit", "Edit and send", "edited and sent"),
        }
    }
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'o> {
    queue: &'o str,
    verb: &'static str,
    /// Ids of a dry run: what would be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<Vec<&'o str>>,
    done: &'o [String],
    left: Vec<&'o str>,
    back: &'o [String],
    untouched: usize,
    end: &'static str,
}

pub(super) async fn run(
    deed: Deed,
    which: &Which,
    consent: &Consent,
    signing: &Signing,
    pace: PaceArgs,
) -> Result<Exit, Trouble> {
    let (verb, ..) = deed.words();
    let actor = signature(signing.actor.clone());
    let unsigned = actor.trim().is_empty() || signing.reason.trim().is_empty();
    if matches!(deed, Deed::Discard) && unsigned {
        let words = "discard: --actor and --reason must not be empty";
        return Err(Trouble::Input(words.to_owned()));
    }
    let sends = matches!(deed, Deed::Replay | Deed::Edit { .. });
    if sends && which.broker.is_none() {
        return Err(Trouble::Input(format!("{verb}: give --broker too, to send by")));
    }
    let witness = witness(&pace).await?;
    let opened = match deed {
        Deed::Undo => open::discarded(which).await?,
        Deed::Replay | Deed::Discard | Deed::Edit { .. } => open::dead(which).await?,
    };
    let absent = missing(which, &opened);
    if let Some(exit) = refused(&deed, &opened, consent, which, &absent) {
        opened.close().await?;
        let clean = exit == Exit::Clean && absent.is_empty();
        return Ok(if clean || exit != Exit::Clean { exit } else { Exit::Findings });
    }
    let words = deed.words();
    let verb = match deed {
        Deed::Replay => Verb::Replay,
        Deed::Discard => Verb::Discard,
        Deed::Undo => Verb::Undo,
        Deed::Edit { body, headers } => Verb::Edit { body, headers },
    };
    let PaceArgs { rate, canary, stop_after, .. } = pace;
    let pace = Pace { rate, canary, stop_after, ..Pace::default() };
    let task = Task { verb, actor, reason: signing.reason.clone(), pace };
    carry_out(opened, &task, witness.as_deref(), which, words, &absent).await
}

/// Whose inbox says that a canary was handled.
async fn witness(pace: &PaceArgs) -> Result<Option<Box<dyn Witness>>, Trouble> {
    let Some(address) = &pace.inbox else { return Ok(None) };
    Ok(Some(match StoreAddress::parse(address)? {
        StoreAddress::Postgres(_) => Box::new(PostgresStore::open_existing(address).await?),
        StoreAddress::File(_) | StoreAddress::Memory => {
            Box::new(SqliteStore::open_existing(address).await?)
        }
    }))
}

async fn carry_out(
    mut opened: Opened,
    task: &Task,
    witness: Option<&dyn Witness>,
    which: &Which,
    words: (&'static str, &'static str, &'static str),
    absent: &[String],
) -> Result<Exit, Trouble> {
    let stop = CancellationToken::new();
    let mut teller = Teller::new(words.2);
    let done = {
        let running = opened.carry_out(task, witness, &stop, |progress| teller.tell(progress));
        tokio::pin!(running);
        tokio::select! {
            done = &mut running => done,
            _ = tokio::signal::ctrl_c() => {
                say("stopping after what is on its way; what was not touched stays in its place");
                stop.cancel();
                running.await
            }
        }
    };
    teller.end();
    let exit = done.map(|outcome| report(&opened, &outcome, which, words, absent));
    let closed = opened.close().await;
    match (exit, closed) {
        (Ok(exit), Ok(())) => Ok(exit),
        // What was done has been told; letting go happens by itself when the connection ends.
        (Ok(_), Err(trouble)) => {
            tell(&trouble);
            Ok(Exit::Findings)
        }
        (Err(trouble), _) => Err(trouble),
    }
}

/// Asks before a change. `None` when it may be made, else how the command ends without it.
fn refused(
    deed: &Deed,
    opened: &Opened,
    consent: &Consent,
    which: &Which,
    absent: &[String],
) -> Option<Exit> {
    let (verb, asks, _) = deed.words();
    let (count, queue, total) = (opened.messages().len(), opened.queue(), opened.total());
    let noun = if matches!(deed, Deed::Undo) { "discarded messages" } else { opened.noun() };
    let left: Vec<&str> = absent.iter().map(String::as_str).collect();
    let mut told = Report { queue, verb, left, end: "finished", ..Report::default() };
    if count == 0 {
        let exit = if which.json { json(&told) } else { Exit::Clean };
        say(&format!("nothing to {verb} in {queue}"));
        return Some(exit);
    }
    if consent.dry_run {
        let ids = opened.messages().iter().map(|stored| stored.message.id.as_str());
        let written = if which.json {
            (told.end, told.untouched, told.chosen) = ("dry-run", count, Some(ids.collect()));
            json(&told) == Exit::Clean
        } else {
            data(&ids.map(|id| safe(id) + "\n").collect::<String>())
        };
        say(&format!("would {verb} {count} of {total} {noun} of {queue}; nothing was changed"));
        return Some(if written { Exit::Clean } else { Exit::Findings });
    }
    match allowed(&format!("{asks} {count} of {total} {noun} of {queue}?"), consent.yes) {
        Ok(true) => None,
        Ok(false) => {
            say("nothing was changed");
            Some(Exit::Clean)
        }
        Err(hint) => {
            say(&format!("error: failed to {verb} {count} {noun} of {queue}: nobody to ask"));
            say(&format!("hint: {hint}, or --dry-run to see what would be done"));
            Some(Exit::Unusable)
        }
    }
}

fn report(
    opened: &Opened,
    outcome: &Outcome,
    which: &Which,
    (verb, _, past): (&'static str, &'static str, &'static str),
    absent: &[String],
) -> Exit {
    let (count, queue) = (opened.messages().len(), opened.queue());
    let Outcome { done, left, back, untouched, .. } = outcome;
    let written = if which.json {
        let left =
            left.iter().map(|left| left.id.as_str()).chain(absent.iter().map(String::as_str));
        let (left, end) = (left.collect(), end_slug(outcome));
        let untouched = *untouched;
        let chosen = None;
        json(&Report { queue, verb, chosen, done, left, back, untouched, end }) == Exit::Clean
    } else {
        let lines: Vec<String> = done.iter().map(|id| format!("{}\n", safe(id))).collect();
        data(&lines.concat())
    };
    let noun = if verb == "undo" { "discarded messages" } else { opened.noun() };
    say(&format!("{past} {} of {count} {noun} of {queue}", done.len()));
    for left in left {
        say(&format!("left: {}: {}", safe(&left.id), safe(&left.why)));
    }
    for id in back {
        say(&format!("failed again: {}", safe(id)));
    }
    if let Some(error) = &outcome.error {
        say(&failure(error));
        say("hint: list again to see what is left; messages stay in one queue or the other");
    } else if let Some(words) = stopped(outcome) {
        say(words);
    }
    if *untouched > 0 {
        say(&format!("{untouched} had no turn and stay in their place and order"));
    }
    let clean = written
        && left.is_empty()
        && back.is_empty()
        && absent.is_empty()
        && outcome.error.is_none()
        && outcome.end == End::Finished;
    if clean { Exit::Clean } else { Exit::Findings }
}

const fn stopped(outcome: &Outcome) -> Option<&'static str> {
    match outcome.end {
        End::Finished => None,
        End::Stopped => Some("stopped: as many have failed as --stop-after allows"),
        End::CanaryFailed => Some("stopped: the canary failed again; mend the cause first"),
        End::CanaryUnknown => Some(
            "stopped: nobody could say in time that the canary was handled\n\
             hint: give --inbox STORE, the consumer's own, or a longer --canary=LIMIT",
        ),
        End::Interrupted => Some("stopped as you asked"),
    }
}

const fn end_slug(outcome: &Outcome) -> &'static str {
    if outcome.error.is_some() {
        return "error";
    }
    match outcome.end {
        End::Finished => "finished",
        End::Stopped => "stopped",
        End::CanaryFailed => "canary-failed",
        End::CanaryUnknown => "canary-unknown",
        End::Interrupted => "interrupted",
    }
}

/// Tells progress on stderr: one line that changes on a terminal, now and then a line elsewhere.
struct Teller {
    past: &'static str,
    terminal: bool,
    next: Moment,
    told: bool,
}

impl Teller {
    fn new(past: &'static str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let every = if terminal { TOLD_EVERY.0 } else { TOLD_EVERY.1 };
        // What is over before the first telling needs none.
        Self { past, terminal, next: clock::now().plus(every), told: false }
    }

    fn tell(&mut self, progress: Progress) {
        let now = clock::now();
        if now < self.next {
            return;
        }
        self.next = now.plus(if self.terminal { TOLD_EVERY.0 } else { TOLD_EVERY.1 });
        let Progress { turns, tally, canary, .. } = progress;
        let failed = tally.refused + tally.back;
        let waits = if canary { ", waiting for the canary" } else { "" };
        let text = format!("{} {} of {turns}, {failed} failed{waits}", self.past, tally.done);
        if self.terminal {
            self.told = true;
            // There is nowhere to report to when that fails.
            let _ = write!(std::io::stderr(), "\r\u{1b}[K{text}");
        } else {
            say(&text);
        }
    }

    fn end(&self) {
        if self.told {
            say("");
        }
    }
}
