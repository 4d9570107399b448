//! What `mamparo dlq` can be asked.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mamparo_core::message::failed::Group;
use mamparo_topology::parse_duration;

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// List failed messages, oldest first.
    List(Which),
    /// Show failed messages with all headers, their body and their history.
    Show(Which),
    /// Count failed messages by what is alike in their errors.
    Groups(Which),
    /// Put failed messages back into their queue; attempts start over.
    Replay {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        consent: Consent,
        #[command(flatten)]
        signing: Signing,
        #[command(flatten)]
        pace: PaceArgs,
    },
    /// Send an edited copy of one failed message with an id of its own; the original is archived.
    Edit {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        changes: Changes,
        #[command(flatten)]
        consent: Consent,
        #[command(flatten)]
        signing: Signing,
        #[command(flatten)]
        pace: PaceArgs,
    },
    /// Throw failed messages away; an archived copy stays. Needs --reason.
    Discard {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        consent: Consent,
        #[command(flatten)]
        signing: Signing,
    },
    /// Bring discarded messages back among the failed ones, within seven days.
    Undo {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        consent: Consent,
        #[command(flatten)]
        signing: Signing,
    },
    /// Write failed messages as JSON lines, without loss (bodies that are no text in base64).
    Export {
        #[command(flatten)]
        which: Which,
        /// The file, which must not exist. Default: stdout.
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The broker: sqlite:PATH (embedded) or amqp://… (RabbitMQ).
    #[arg(long, value_name = "URL", required_unless_present = "store")]
    pub(super) broker: Option<String>,
    /// The service's store, sqlite:PATH or postgres://…: its failed messages instead of the broker's
    /// dead letters. Putting back then needs --broker too.
    #[arg(long, value_name = "URL")]
    pub(super) store: Option<String>,
    /// The main queue's name, orders.saga say; its dead-letter queue is implied. With --store it may
    /// be left out when the store has one.
    #[arg(long, value_name = "QUEUE", required_unless_present = "store")]
    pub(super) queue: Option<String>,
    /// At most this many, oldest first.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) max: u32,
    /// Only this event type.
    #[arg(long, value_name = "TYPE")]
    pub(super) filter_event: Option<String>,
    /// Only this message; may be given several times.
    #[arg(long = "id", value_name = "ID")]
    pub(super) ids: Vec<String>,
    /// Only messages about this key.
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Only those that failed longer ago than this: 2h, 3d.
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    pub(super) older_than: Option<Duration>,
    /// Only those that failed since then: 15m, 2h.
    #[arg(long, value_name = "AGE", value_parser = parse_duration)]
    pub(super) newer_than: Option<Duration>,
    /// Only those whose last error holds this text, in any case.
    #[arg(long, value_name = "TEXT")]
    pub(super) error: Option<String>,
    /// Only those of this group, as `dlq groups` names it.
    #[arg(long, value_name = "GROUP")]
    pub(super) group: Option<Group>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Consent {
    /// Do it without being asked.
    #[arg(long, conflicts_with = "dry_run")]
    pub(super) yes: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Signing {
    /// Who does it. Default: the user's name.
    #[arg(long, value_name = "NAME")]
    pub(super) actor: Option<String>,
    /// Why, for whoever sees the message next.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) reason: String,
}

#[derive(Debug, Args, Default)]
pub(crate) struct PaceArgs {
    /// At most so many a second: 10/s, 600/m. Default: as fast as it goes.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(super) rate: Option<NonZeroU32>,
    /// Send one first, and the rest when it was handled; wait for that up to so long [default: 30s].
    #[arg(
        long, value_name = "LIMIT", value_parser = parse_duration,
        num_args = 0..=1, default_missing_value = "30s", require_equals = true
    )]
    pub(super) canary: Option<Duration>,
    /// The store whose inbox says whether the canary was handled. RabbitMQ itself can't tell.
    #[arg(long, value_name = "URL", requires = "canary")]
    pub(super) inbox: Option<String>,
    /// Stop at the n-th failure: refused on its way, or come back.
    #[arg(long, value_name = "N")]
    pub(super) stop_after: Option<NonZeroU32>,
}

#[derive(Debug, Args)]
pub(crate) struct Changes {
    /// The copy's body; - for stdin. Default: the original's.
    #[arg(long, value_name = "FILE")]
    pub(super) body: Option<PathBuf>,
    /// A header of the copy, name=value; an empty value removes it. May be given several times.
    #[arg(long = "set-header", value_name = "NAME=VALUE", value_parser = header)]
    pub(super) headers: Vec<(String, String)>,
}

/// A rate in whole messages a second.
fn rate(text: &str) -> Result<NonZeroU32, String> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let count: u32 = number.trim().parse().map_err(|_| "write it as 10/s or 600/m".to_owned())?;
    let second = match unit.trim() {
        "s" => count,
        "m" if count.is_multiple_of(60) => count / 60,
        "m" => return Err("give a multiple of 60 a minute, or a rate a second".to_owned()),
        _ => return Err("the units are s and m: 10/s, 600/m".to_owned()),
    };
    NonZeroU32::new(second).ok_or_else(|| "it must be at least 1/s".to_owned())
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
    let name = name.trim();
    if name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("a header's name is one word".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_read_in_the_units_that_people_say() {
        for (text, expected) in [("10/s", 10), ("10", 10), ("600/m", 10), ("1/s", 1)] {
            assert_eq!(rate(text).map(NonZeroU32::get), Ok(expected), "{text}");
        }
        for wrong in ["", "0/s", "10/h", "ten", "61/m", "-1/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_header_is_a_name_and_a_value() {
        assert_eq!(header("tenant=a=b"), Ok(("tenant".to_owned(), "a=b".to_owned())));
        assert_eq!(header("tenant="), Ok(("tenant".to_owned(), String::new())));
        for wrong in ["tenant", "=x", "a b=c", ""] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
