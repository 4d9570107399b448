//! What a child process does: it writes, relays or consumes until its standard input ends, or until
//! somebody kills it. It knows nothing of the other children.

use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::message::topology::{Order, QueuePolicy, WaitingRoom};
use mamparo_messaging::{
    Answer, AnyBroker, Consumer, Handler, Message, Relay, RelayOptions, event,
};
use mamparo_store::{Store, Transaction, outbox};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::SoakError;
use crate::books::{Books, Effect};

/// What a message says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sent {
    /// The number within the key.
    pub seq: i64,
}

/// A child's part.
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum Role {
    /// Sends messages until every key has its number.
    Write {
        /// Names the run; the event type is this with `soak.` before it.
        #[arg(long)]
        run: String,
        /// First key.
        #[arg(long)]
        from: u32,
        /// Number of keys.
        #[arg(long)]
        keys: u32,
        /// Messages a key.
        #[arg(long)]
        each: i64,
    },
    /// Carries the outbox to the broker.
    Relay {
        /// How long a dead relay's share stays claimed, in milliseconds.
        #[arg(long)]
        lease_ms: u64,
    },
    /// Consumes a queue.
    Consume {
        /// The queue.
        #[arg(long)]
        queue: String,
        /// Names the run.
        #[arg(long)]
        run: String,
        /// Order per key holds whatever dies.
        #[arg(long)]
        strict: bool,
    },
}

/// The queue's rules: attempts wait for a second, so that a soak of minutes sees many of them. With
/// `strict` the order per key holds over deaths, too: what waits for another attempt does so in the
/// database, with everything of its key behind it.
#[must_use]
pub fn policy(queue: &str, run: &str, strict: bool) -> QueuePolicy {
    let mut policy = QueuePolicy::new(queue, "soak").bind(kind(run));
    if strict {
        policy.order = Order::Strict;
        policy.waiting_room = WaitingRoom::Parked;
    }
    policy.retry_delay = Duration::from_secs(1);
    policy.attempts = 20;
    policy
}

fn kind(run: &str) -> String {
    format!("soak.{run}")
}

/// Plays `role` until standard input ends, which it does when the parent is gone.
///
/// # Errors
/// When store or broker can't be opened, which a child that is restarted under fire meets often.
pub async fn play<DB: Books>(role: Role, store: &str, broker: &str) -> Result<(), SoakError> {
    let store = DB::open(store).await?;
    let stop = CancellationToken::new();
    let ended = stop.clone();
    let watch = async move {
        let mut rest = [0_u8; 64];
        while tokio::io::stdin().read(&mut rest).await.is_ok_and(|read| read > 0) {}
        ended.cancel();
    };
    let work = async {
        match role {
            Role::Write { run, from, keys, each } => {
                write(&store, &run, from..from + keys, each, &stop).await?;
                stop.cancelled().await;
            }
            Role::Relay { lease_ms } => {
                let broker = AnyBroker::open(broker).await?;
                let lease = Duration::from_millis(lease_ms);
                let options = RelayOptions { lease, ..RelayOptions::default() };
                Relay::new(store.background(), broker, options).run(stop.clone()).await;
            }
            Role::Consume { queue, run, strict } => {
                let broker = AnyBroker::open(broker).await?;
                let handler = Apply { queue: queue.clone() };
                let policy = policy(&queue, &run, strict);
                Consumer::new(broker, store.background(), policy, handler).run(stop.clone()).await;
            }
        }
        Ok::<(), SoakError>(())
    };
    tokio::select! {
        // The work first: it stops in order once the watch has told it to.
        biased;
        done = work => done,
        () = async { watch.await; std::future::pending::<()>().await } => Ok(()),
    }
}

async fn write<DB: Books>(
    store: &Store<DB>,
    run: &str,
    keys: std::ops::Range<u32>,
    each: i64,
    stop: &CancellationToken,
) -> Result<(), SoakError> {
    let mut tasks = JoinSet::new();
    for lane in 0..8_u32 {
        let mine: Vec<u32> = keys.clone().filter(|key| key % 8 == lane).collect();
        let (store, run, stop) = (store.clone(), run.to_owned(), stop.clone());
        #[expect(clippy::disallowed_methods, reason = "the set is read to its end below")]
        tasks.spawn(async move {
            let keys: Vec<String> = mine.iter().map(|key| format!("k-{key}")).collect();
            let mut sent = Vec::new();
            for key in &keys {
                sent.push(sent_before(&store, &run, key, &stop).await);
            }
            for seq in 1..=each {
                for (key, _) in keys.iter().zip(&sent).filter(|(_, sent)| **sent < seq) {
                    send_until_sent(&store, &run, key, seq, &stop).await;
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|error| SoakError::Task(error.to_string()))?;
    }
    Ok(())
}

/// The last number that a forerunner has sent for `key`. Asked until the books can be read.
async fn sent_before<DB: Books>(
    store: &Store<DB>,
    run: &str,
    key: &str,
    stop: &CancellationToken,
) -> i64 {
    while !stop.is_cancelled() {
        match DB::last_sent(store.reader(), run, key).await {
            Ok(last) => return last,
            Err(error) => {
                tracing::warn!(error = error.to_string(), "the books can't be read");
                crate::pause(50).await;
            }
        }
    }
    0
}

/// Sends one message. A commit whose answer was lost may have happened, so after every error the
/// books are asked before it is tried again.
async fn send_until_sent<DB: Books>(
    store: &Store<DB>,
    run: &str,
    key: &str,
    seq: i64,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        let Err(error) = send(store, run, key, seq).await else { return };
        tracing::warn!(error = error.to_string(), "a message was not sent");
        crate::pause(50).await;
        if sent_before(store, run, key, stop).await >= seq {
            return;
        }
    }
}

async fn send<DB: Books>(
    store: &Store<DB>,
    run: &str,
    key: &str,
    seq: i64,
) -> Result<(), SoakError> {
    let event = event(&kind(run), key, &Sent { seq })?;
    let mut tx = store.begin().await?;
    DB::sent(&mut tx, run, key, seq).await?;
    outbox::enqueue(&mut tx, &event, clock::wall()).await?;
    store.commit(tx).await?;
    Ok(())
}

#[derive(Debug)]
struct Apply {
    queue: String,
}

impl<DB: Books> Handler<DB> for Apply {
    type Facts = Sent;

    async fn prepare(&self, message: &Message) -> Result<Sent, Answer> {
        message.decode()
    }

    async fn apply(&self, message: &Message, sent: Sent, tx: &mut Transaction<'_, DB>) -> Answer {
        let (message, key) = (message.id.clone(), message.key.clone());
        let effect = Effect { message, key, seq: sent.seq };
        match DB::effect(tx, &self.queue, &effect).await {
            Ok(()) => Answer::Done,
            Err(error) => Answer::retry(error.to_string()),
        }
    }
}
