//! How relays of several processes hear of each other's commits: shortly after, and never as the truth.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_core::backoff::Backoff;
use mamparo_store::outbox::{Ear, Heard, RelaySession};
use mamparo_store::{Backend, OutboxSignal, Store};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::answered;
use crate::{MessagingError, observe};

/// Least time between two announcements of one process. While one is on its way further commits join
/// the next, so a busy process sends few; a longer pause would be felt by every row.
const ANNOUNCE_GAP: Duration = Duration::from_millis(2);

/// How long a word to oneself may take to arrive.
const WORD_MAX: Duration = Duration::from_secs(1);

/// An ear that has heard nothing for so long is tried again with a word.
const DOUBT_AFTER: Duration = Duration::from_secs(60);

/// Waits before listening anew: base 100 ms, factor 2, cap 30 s.
const LISTEN_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), 2.0, Duration::from_secs(30));

/// What the ears of a relay tell its work, and the other way round.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    /// Somebody committed something.
    pub rows: Notify,
    /// Commits of other processes are heard: a word came back.
    pub proven: AtomicBool,
    /// This relay holds every shard: nobody else need be told.
    pub alone: AtomicBool,
}

/// Listens for ever, and says whether it works.
pub(super) async fn hear<DB: Backend>(session: &RelaySession<DB>, wakes: &Wakes) -> Infallible {
    let (mut failures, mut wait) = (0_u32, Duration::ZERO);
    loop {
        let why = match listen(session, wakes).await {
            Ok(Ended::Deaf) => {
                failures = failures.max(8);
                "a word to ourselves did not arrive in 1 s: does a pooler in transaction mode stand \
                 between? Give the relay a direct connection; until then it polls"
                    .to_owned()
            }
            Ok(Ended::Gap) => {
                failures = 0;
                "the connection was lost".to_owned()
            }
            Err(error) => crate::error::chain(&error),
        };
        wakes.proven.store(false, Ordering::Relaxed);
        failures = failures.saturating_add(1);
        observe::listening(false, &why);
        wait = LISTEN_BACKOFF.delay(failures, wait, &mut clock::entropy());
        clock::sleep_until(clock::now().plus(wait)).await;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Deaf,
    Gap,
}

async fn listen<DB: Backend>(
    session: &RelaySession<DB>,
    wakes: &Wakes,
) -> Result<Ended, MessagingError> {
    let mut ear = answered(session, "listen for commits", session.listen()).await?;
    if let Some(every) = DB::Ear::LOOK_EVERY {
        prove(wakes);
        loop {
            clock::sleep_until(clock::now().plus(every)).await;
            let heard = ear.hear().await.map_err(MessagingError::store("listen for commits"))?;
            if heard != Heard::Nothing {
                wakes.rows.notify_one();
            }
        }
    }
    loop {
        let word = uuid::Uuid::now_v7().to_string();
        let sent = answered(session, "send ourselves a word", session.announce(&word));
        if let Some(ended) = try_word(sent, &word, &mut ear, wakes).await? {
            return Ok(ended);
        }
        prove(wakes);
        while let Some(heard) = within(DOUBT_AFTER, &mut ear).await? {
            match heard {
                Heard::Rows => wakes.rows.notify_one(),
                Heard::Gap => return Ok(Ended::Gap),
                // Words are for whoever sent them.
                Heard::Nothing | Heard::Word(_) => {}
            }
        }
    }
}

/// Sends ourselves a word; `None` when it arrived.
async fn try_word(
    sent: impl Future<Output = Result<(), MessagingError>>,
    word: &str,
    ear: &mut impl Ear,
    wakes: &Wakes,
) -> Result<Option<Ended>, MessagingError> {
    sent.await?;
    let until = clock::now().plus(WORD_MAX);
    loop {
        let left = until.since(clock::now());
        match within(left, ear).await? {
            None => return Ok(Some(Ended::Deaf)),
            Some(Heard::Gap) => return Ok(Some(Ended::Gap)),
            Some(Heard::Word(heard)) if heard == word => return Ok(None),
            Some(Heard::Rows) => wakes.rows.notify_one(),
            Some(Heard::Nothing | Heard::Word(_)) => {}
        }
    }
}

async fn within(limit: Duration, ear: &mut impl Ear) -> Result<Option<Heard>, MessagingError> {
    let until = clock::instant_of(clock::now().plus(limit));
    match tokio::time::timeout_at(until, ear.hear()).await {
        Ok(heard) => heard.map(Some).map_err(MessagingError::store("listen for commits")),
        Err(_) => Ok(None),
    }
}

fn prove(wakes: &Wakes) {
    if !wakes.proven.swap(true, Ordering::Relaxed) {
        observe::listening(true, "commits of other processes are heard");
    }
    // What was committed while nobody listened was not heard.
    wakes.rows.notify_one();
}

/// Tells other processes' relays of this process's commits, for ever: outside the transactions that
/// committed, and several commits at once.
pub(super) async fn announce<DB: Backend>(
    session: &RelaySession<DB>,
    mut signal: OutboxSignal,
    wakes: &Wakes,
) -> Infallible {
    if DB::Ear::LOOK_EVERY.is_some() {
        return std::future::pending().await;
    }
    loop {
        signal.wait().await;
        if wakes.alone.load(Ordering::Relaxed) {
            continue;
        }
        if let Err(error) = answered(session, "announce commits", session.announce("")).await {
            observe::relay_aside(&error);
        }
        clock::sleep_until(clock::now().plus(ANNOUNCE_GAP)).await;
    }
}

/// For a process that writes events and runs no relay: tells the relays of other processes of its
/// commits until `cancel`. Without it they find the rows when they poll.
pub async fn announce_commits<DB: Backend>(store: Store<DB>, cancel: CancellationToken) {
    let (session, wakes) = (RelaySession::new(&store), Wakes::default());
    tokio::select! {
        () = cancel.cancelled() => {}
        never = announce(&session, store.outbox_signal(), &wakes) => match never {},
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "these are tests")]
mod tests {
    use mamparo_store::StoreError;

    use super::*;

    /// Hears what is written here, and then nothing for ever, as behind a pooler.
    #[derive(Debug)]
    struct Script(Vec<Heard>);

    impl Ear for Script {
        const LOOK_EVERY: Option<Duration> = None;

        async fn hear(&mut self) -> Result<Heard, StoreError> {
            match self.0.pop() {
                Some(heard) => Ok(heard),
                None => std::future::pending().await,
            }
        }
    }

    async fn word_to(heard: Vec<Heard>) -> Option<Ended> {
        let (mut ear, wakes) = (Script(heard), Wakes::default());
        try_word(async { Ok(()) }, "me", &mut ear, &wakes).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_ear_that_does_not_hear_our_own_word_within_a_second_is_deaf() {
        let began = clock::now();
        assert_eq!(
            word_to(vec![Heard::Word("another".into()), Heard::Rows]).await,
            Some(Ended::Deaf)
        );
        assert!(clock::now().since(began) <= Duration::from_millis(1_010));
        assert_eq!(word_to(vec![Heard::Word("me".into()), Heard::Rows]).await, None);
        assert_eq!(word_to(vec![Heard::Gap]).await, Some(Ended::Gap));
    }
}
