//! Failed messages in the hand of a tool, wherever they lie: a broker's dead-letter queue, its
//! archive, or the service's own database.

use std::future::Future;

use mamparo_core::message::failed::{Facts, facts};
use mamparo_core::message::headers::Headers;
use mamparo_core::message::selection::Sample;
use mamparo_core::time::WallTime;

use crate::broker::Stored;
use crate::{Message, MessagingError};

/// Where letters lie at a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The queue's dead letters.
    Dead,
    /// What people took out of them: discarded messages, and originals of edited ones.
    Archive,
}

/// What is to become of one letter. With neither a copy nor a note it is removed.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    /// The letter.
    pub letter: &'a Stored,
    /// A copy goes to the end of this queue, and is confirmed there before the letter leaves.
    pub copy: Option<(String, Message)>,
    /// The letter goes to the archive.
    pub archive: Option<Note>,
}

/// Why a letter goes to the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Who does it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// Its headers there.
    pub headers: Headers,
    /// The id of the edited copy that goes its way instead.
    pub edited_to: Option<String>,
}

/// What became of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settling {
    /// It was carried out.
    Done,
    /// The letter was gone, or in somebody's hand. Nothing was changed.
    Gone,
    /// It was not carried out, for this reason; the letter lies where it lay.
    Refused(String),
}

/// A session over the letters of one queue. What lies there when it is opened is all that it ever
/// offers. Nothing is changed but by [`settle`](Self::settle), also when a session is dropped or its process dies.
pub trait Letters: std::fmt::Debug + Send + 'static {
    /// How many letters there were when the session was opened.
    fn total(&self) -> u64;

    /// The next letters, oldest first, at most `max`, none of them twice. Empty when all were seen.
    fn fetch(
        &mut self,
        max: u32,
    ) -> impl Future<Output = Result<Vec<Stored>, MessagingError>> + Send;

    /// Ids of letters that came since the session was opened; each arrival is told once.
    fn arrivals(&mut self) -> impl Future<Output = Result<Vec<String>, MessagingError>> + Send;

    /// Carries orders out, copies in the order of the orders. One answer an order.
    fn settle(
        &mut self,
        orders: &[Order<'_>],
    ) -> impl Future<Output = Result<Vec<Settling>, MessagingError>> + Send;

    /// Is message `id`, which was sent to `queue`, out of that queue and of its waiting rooms?
    /// `None` when this place can't tell.
    fn handled(
        &mut self,
        queue: &str,
        id: &str,
    ) -> impl Future<Output = Result<Option<bool>, MessagingError>> + Send;

    /// Lets go of everything that was not settled: it lies where it lay, in its order.
    fn close(self) -> impl Future<Output = Result<(), MessagingError>> + Send;
}

impl Stored {
    /// What its headers say of its failure in `queue`.
    #[must_use]
    pub fn facts(&self, queue: &str) -> Facts<'_> {
        facts(&self.message.headers, queue)
    }

    /// When it failed for the last time, as far as that is known.
    #[must_use]
    pub fn failed(&self, queue: &str) -> WallTime {
        self.facts(queue).last.unwrap_or(self.since)
    }

    /// What a selection looks at.
    #[must_use]
    pub fn sample(&self, queue: &str) -> Sample<'_> {
        let Facts { reason, error, .. } = self.facts(queue);
        let Message { id, kind, key, .. } = &self.message;
        Sample { id, kind, key, failed: self.failed(queue), reason, error }
    }
}
