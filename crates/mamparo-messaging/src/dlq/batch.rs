//! Carries a batch out, step by step, as the machine in core decides.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::lineage::edited_id;
use mamparo_core::message::selection::{Batch, End, Sent, Step, Tally};
use mamparo_core::message::topology::consumer_of;
use mamparo_core::time::Moment;
use mamparo_store::{Backend, Store, inbox};
use tokio_util::sync::CancellationToken;

use super::{Left, Outcome, Selected, Task, Verb};
use crate::error::chain;
use crate::letters::{Letters, Settling};
use crate::{MessagingError, observe};

/// How often it is looked whether the canary was handled.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How far a batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Messages of the batch.
    pub turns: usize,
    /// Those that had their turn.
    pub had: usize,
    /// The numbers so far.
    pub tally: Tally,
    /// It waits for the canary's outcome.
    pub canary: bool,
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<bool, MessagingError>> + Send + 'a>>;

/// Somebody who knows whether a message was handled: the consumer's inbox. Without one, the place
/// that the letters lie in is asked.
pub trait Witness: Send + Sync {
    /// Was the message with this id handled?
    fn handled<'a>(&'a self, queue: &'a str, id: &'a str) -> Answer<'a>;
}

impl<DB: Backend> Witness for Store<DB> {
    fn handled<'a>(&'a self, queue: &'a str, id: &'a str) -> Answer<'a> {
        Box::pin(async move {
            // The inbox is the consumer's, whichever version of its queue the message went to. A name that
            // only looks like a version is the consumer's own.
            let mut names = vec![queue, consumer_of(queue)];
            names.dedup();
            for name in names {
                let found = inbox::contains(self, name, id).await;
                if found.map_err(MessagingError::store("look into the inbox"))? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

/// Carries `task` out on the selected letters, until it is done or `stop`. A stop waits for what is on
/// its way; everything else lies where it lay.
///
/// # Errors
/// [`MessagingError::Unsigned`] when a discard has no actor or reason; nothing is changed then. What
/// goes wrong later stands in the outcome, beside what was done before.
pub async fn carry_out<L: Letters>(
    selected: &mut Selected<L>,
    task: &Task,
    witness: Option<&dyn Witness>,
    stop: &CancellationToken,
    mut progress: impl FnMut(Progress) + Send,
) -> Result<Outcome, MessagingError> {
    task.check()?;
    let ids = selected.messages.iter().map(|stored| stored.message.id.as_str());
    let batch = Batch::new(task.pace, ids, clock::now());
    let mut run = Run { selected, task, witness, batch, outcome: Outcome::default() };
    let end = run.drive(stop, &mut progress).await;
    let Run { batch, mut outcome, .. } = run;
    let (turns, had) = batch.progress();
    outcome.untouched = turns - had;
    match end {
        Ok(end) => outcome.end = end,
        Err(error) => outcome.error = Some(error),
    }
    Ok(outcome)
}

impl Default for Outcome {
    fn default() -> Self {
        let (done, left, back) = (Vec::new(), Vec::new(), Vec::new());
        Self { done, left, back, untouched: 0, end: End::Interrupted, error: None }
    }
}

struct Run<'a, L> {
    selected: &'a mut Selected<L>,
    task: &'a Task,
    witness: Option<&'a dyn Witness>,
    batch: Batch,
    outcome: Outcome,
}

impl<L: Letters> Run<'_, L> {
    async fn drive(
        &mut self,
        stop: &CancellationToken,
        progress: &mut (impl FnMut(Progress) + Send),
    ) -> Result<End, MessagingError> {
        let looks = self.task.pace.canary.is_some() || self.task.pace.stop_after.is_some();
        loop {
            if stop.is_cancelled() {
                self.batch.interrupt();
            }
            let step = self.batch.ask(clock::now());
            self.report(&step, progress);
            match step {
                Step::Send(range) => {
                    self.send(range).await?;
                    if looks {
                        self.look_for_returns().await?;
                    }
                }
                Step::Wait(until) => sleep(until, stop).await,
                Step::Watch(turn, until) => {
                    self.look_for_returns().await?;
                    if self.handled(turn).await? {
                        // Whoever failed comes back before it is out of its queue, or as it is.
                        self.look_for_returns().await?;
                        self.batch.handled();
                    } else {
                        sleep(until.min(clock::now().plus(LOOK_EVERY)), stop).await;
                    }
                }
                Step::End(end) => return Ok(end),
            }
        }
    }

    fn report(&self, step: &Step, progress: &mut (impl FnMut(Progress) + Send)) {
        let ((turns, had), tally) = (self.batch.progress(), self.batch.tally());
        progress(Progress { turns, had, tally, canary: matches!(step, Step::Watch(..)) });
    }

    async fn send(&mut self, turns: Range<usize>) -> Result<(), MessagingError> {
        let Selected { queue, messages, letters, .. } = &mut *self.selected;
        let now = clock::wall();
        let (mut orders, mut sent, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for turn in turns {
            let Some(letter) = self.batch.place(turn).and_then(|place| messages.get(place)) else {
                continue;
            };
            match self.task.order(letter, queue, now) {
                Ok(order) => {
                    orders.push(order);
                    sent.push(turn);
                }
                Err(why) => refused.push((turn, &letter.message.id, why)),
            }
        }
        let settled =
            match letters.settle(&orders).await {
                Ok(settled) => Ok(settled),
                Err(error) => {
                    let why = format!("nobody knows whether it was moved: {}", chain(&error));
                    self.outcome.left.extend(orders.iter().map(|order| Left {
                        id: order.letter.message.id.clone(),
                        why: why.clone(),
                    }));
                    Err(error)
                }
            };
        for (turn, id, why) in refused {
            self.outcome.left.push(Left { id: id.clone(), why });
            self.batch.tell(clock::now(), turn, Sent::Refused);
        }
        for ((turn, order), settling) in sent.into_iter().zip(&orders).zip(settled?) {
            let id = order.letter.message.id.clone();
            let sent = match settling {
                Settling::Done => {
                    let Task { verb, actor, reason, .. } = self.task;
                    observe::operated(queue, verb.word(), &id, actor, reason);
                    self.outcome.done.push(id);
                    Sent::Done
                }
                Settling::Gone => {
                    let why = "it was gone or in somebody's hand".to_owned();
                    self.outcome.left.push(Left { id, why });
                    Sent::Gone
                }
                Settling::Refused(why) => {
                    self.outcome.left.push(Left { id, why });
                    Sent::Refused
                }
            };
            self.batch.tell(clock::now(), turn, sent);
        }
        Ok(())
    }

    async fn look_for_returns(&mut self) -> Result<(), MessagingError> {
        for id in self.selected.letters.arrivals().await? {
            let original = self.original_of(&id);
            if self.batch.returned(&original) {
                self.outcome.back.push(id);
            }
        }
        Ok(())
    }

    /// The id that a message had before this batch edited it.
    fn original_of(&self, id: &str) -> String {
        let edits = matches!(self.task.verb, Verb::Edit { .. });
        let mut messages = self.selected.messages.iter().map(|stored| &stored.message.id);
        let original = edits.then(|| messages.find(|from| edited_id(from) == id)).flatten();
        original.cloned().unwrap_or_else(|| id.to_owned())
    }

    async fn handled(&mut self, turn: usize) -> Result<bool, MessagingError> {
        let Selected { queue, messages, letters, .. } = &mut *self.selected;
        let canary = self.batch.place(turn).and_then(|place| messages.get(place));
        let Some(letter) = canary else { return Ok(false) };
        let id = match self.task.verb {
            Verb::Edit { .. } => edited_id(&letter.message.id),
            Verb::Replay | Verb::Discard | Verb::Undo => letter.message.id.clone(),
        };
        match self.witness {
            Some(witness) => witness.handled(queue, &id).await,
            None => Ok(letters.handled(queue, &id).await?.unwrap_or(false)),
        }
    }
}

async fn sleep(until: Moment, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = clock::sleep_until(until) => {}
    }
}
