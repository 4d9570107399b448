//! What is done with each letter of a batch.

use std::time::Duration;

use mamparo_core::message::lineage::{self, EDITED_TO, Signed};
use mamparo_core::message::selection::Pace;
use mamparo_core::message::{headers, topology};
use mamparo_core::time::WallTime;
use mamparo_store::failed::UNDO_WINDOW;

use crate::broker::Stored;
use crate::letters::{Note, Order};
use crate::{Message, MessagingError};

/// Longest id in bytes that every broker takes.
const ID_BYTES_MAX: usize = 255;

/// What to do with chosen letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// Put them back into their queue: attempts start over, headers and trace stay, and it is said
    /// when, by whom and why.
    Replay,
    /// Take them out into the archive.
    Discard,
    /// Send an edited copy with an id of its own to the queue; the original goes to the archive.
    Edit {
        /// The copy's body; `None` for the original's.
        body: Option<Vec<u8>>,
        /// Headers to set; an empty value removes one.
        headers: Vec<(String, String)>,
    },
    /// Bring discarded messages back among the dead letters, within seven days.
    Undo,
}

impl Verb {
    /// As commands and metrics call it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Discard => "discard",
            Self::Edit { .. } => "edit",
            Self::Undo => "undo",
        }
    }
}

/// What to do, who does it, why, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What to do.
    pub verb: Verb,
    /// Who does it.
    pub actor: String,
    /// Why. Required to discard.
    pub reason: String,
    /// How the batch proceeds.
    pub pace: Pace,
}

impl Task {
    /// A task as fast as it goes.
    #[must_use]
    pub fn new(verb: Verb, actor: &str, reason: &str) -> Self {
        let (actor, reason) = (actor.to_owned(), reason.to_owned());
        Self { verb, actor, reason, pace: Pace::default() }
    }

    /// Nobody throws messages away without a name and a reason.
    pub(super) fn check(&self) -> Result<(), MessagingError> {
        if self.verb != Verb::Discard {
            return Ok(());
        }
        for (name, value) in [("actor", &self.actor), ("reason", &self.reason)] {
            if value.trim().is_empty() {
                return Err(MessagingError::Unsigned(name));
            }
        }
        Ok(())
    }

    /// The order for one letter of `queue`, or why there is none.
    pub(super) fn order<'a>(
        &self,
        letter: &'a Stored,
        queue: &str,
        now: WallTime,
    ) -> Result<Order<'a>, String> {
        let signed = Signed { actor: &self.actor, reason: &self.reason, now };
        let message = &letter.message;
        let note = |edited_to: Option<&str>| Note {
            actor: self.actor.clone(),
            reason: self.reason.clone(),
            headers: lineage::archived(&message.headers, edited_to, signed),
            edited_to: edited_to.map(str::to_owned),
        };
        let (copy, archive) = match &self.verb {
            Verb::Replay => {
                let headers = lineage::replayed(&message.headers, queue, signed);
                (Some((queue.to_owned(), message.with_headers(headers))), None)
            }
            Verb::Discard => (None, Some(note(None))),
            Verb::Edit { body, headers } => {
                let id = lineage::edited_id(&message.id);
                if id.len() > ID_BYTES_MAX {
                    return Err(format!("the copy's id would be longer than {ID_BYTES_MAX} bytes"));
                }
                let headers =
                    lineage::edited(&message.headers, &message.id, queue, headers, signed);
                let body = body.clone().unwrap_or_else(|| message.body.clone());
                let copy = Message { id: id.clone(), headers, body, ..message.clone() };
                (Some((queue.to_owned(), copy)), Some(note(Some(&id))))
            }
            Verb::Undo => {
                if let Some(to) = headers::get(&message.headers, EDITED_TO) {
                    return Err(format!("its edited copy {to} went its way"));
                }
                if now.since(letter.since) > UNDO_WINDOW {
                    return Err(format!("it was discarded over {} ago", days(UNDO_WINDOW)));
                }
                let back = message.with_headers(lineage::restored(&message.headers));
                (Some((topology::dlq(queue), back)), Some(note(None)))
            }
        };
        Ok(Order { letter, copy, archive })
    }
}

fn days(duration: Duration) -> String {
    format!("{} days", duration.as_secs() / 86_400)
}
