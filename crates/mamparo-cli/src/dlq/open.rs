//! Opens what the arguments name: a broker's dead letters or a store's failed messages.

use mamparo_call::clock;
use mamparo_core::message::selection::Sift;
use mamparo_core::message::topology::{DLQ_SUFFIX, consumer_of};
use mamparo_messaging::any::AnyLetters;
use mamparo_messaging::broker::Stored;
use mamparo_messaging::dlq::{self, Choice, Outcome, Progress, Selected, Task, Witness};
use mamparo_messaging::letters::Place;
use mamparo_messaging::stored::StoreLetters;
use mamparo_messaging::{AnyBroker, MessagingError};
use mamparo_store::failed::{self, Entry};
use mamparo_store::{Postgres, PostgresStore, Sqlite, SqliteStore, StoreAddress, StoreError};

use tokio_util::sync::CancellationToken;

use super::args::Which;

/// Why nothing was done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Arguments that can't be meant, as the end of a sentence that begins with "failed to".
    Input(String),
    /// What the broker said.
    Messaging(Box<MessagingError>),
    /// What the store said.
    Store(Box<StoreError>),
}

impl From<MessagingError> for Trouble {
    fn from(error: MessagingError) -> Self {
        Self::Messaging(Box::new(error))
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(Box::new(error))
    }
}

impl Trouble {
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Messaging(error) => {
                let file = matches!(
                    **error,
                    MessagingError::NoFile { .. }
                        | MessagingError::Store { operation: "open broker", .. }
                );
                file.then_some(
                    "the embedded broker's file is named in mamparo.toml, key service.broker",
                )
            }
            Self::Store(_) => Some("the store's address is named in the service's configuration"),
            Self::Input(_) => None,
        }
    }
}

/// Chosen messages, wherever they lie.
#[derive(Debug)]
pub(super) enum Opened {
    Broker(Selected<AnyLetters>),
    Sqlite(Selected<StoreLetters<Sqlite, AnyBroker>>, SqliteStore),
    Postgres(Selected<StoreLetters<Postgres, AnyBroker>>, PostgresStore),
}

/// The same on whichever it is.
macro_rules! on {
    ($opened:expr, $selected:ident => $call:expr) => {
        match $opened {
            Opened::Broker($selected) => $call,
            Opened::Sqlite($selected, _) => $call,
            Opened::Postgres($selected, _) => $call,
        }
    };
}

impl Opened {
    pub(super) fn queue(&self) -> &str {
        on!(self, selected => &selected.queue)
    }

    pub(super) fn messages(&self) -> &[Stored] {
        on!(self, selected => &selected.messages)
    }

    pub(super) fn total(&self) -> u64 {
        on!(self, selected => selected.total)
    }

    /// `dead letters` of a broker, `failed messages` of a store.
    pub(super) const fn noun(&self) -> &'static str {
        match self {
            Self::Broker(_) => "dead letters",
            Self::Sqlite(..) | Self::Postgres(..) => "failed messages",
        }
    }

    /// What happened to a message, if it lies where that is written down.
    pub(super) async fn history(&self, id: &str) -> Result<Vec<Entry>, Trouble> {
        let consumer = consumer_of(self.queue());
        Ok(match self {
            Self::Broker(_) => Vec::new(),
            Self::Sqlite(_, store) => failed::history(store, consumer, id).await?,
            Self::Postgres(_, store) => failed::history(store, consumer, id).await?,
        })
    }

    pub(super) async fn carry_out(
        &mut self,
        task: &Task,
        witness: Option<&dyn Witness>,
        stop: &CancellationToken,
        progress: impl FnMut(Progress) + Send,
    ) -> Result<Outcome, Trouble> {
        let done = on!(self, selected => {
            dlq::carry_out(selected, task, witness, stop, progress).await
        });
        Ok(done?)
    }

    pub(super) async fn close(self) -> Result<(), Trouble> {
        on!(self, selected => selected.close().await?);
        Ok(())
    }
}

/// Chosen messages that failed.
pub(super) async fn dead(which: &Which) -> Result<Opened, Trouble> {
    open(which, Place::Dead).await
}

/// Chosen messages that people discarded.
pub(super) async fn discarded(which: &Which) -> Result<Opened, Trouble> {
    open(which, Place::Archive).await
}

async fn open(which: &Which, place: Place) -> Result<Opened, Trouble> {
    if which.ids.len() > usize::try_from(which.max).unwrap_or(usize::MAX) {
        let (ids, max) = (which.ids.len(), which.max);
        return Err(Trouble::Input(format!("choose: {ids} ids and --max {max}")));
    }
    let choice = Choice { max: which.max, sift: sift(which) };
    // Whoever copies the name from a dashboard copies the suffix too.
    let queue = which.queue.as_deref().map(|name| name.strip_suffix(DLQ_SUFFIX).unwrap_or(name));
    let broker = match &which.broker {
        Some(address) => Some(AnyBroker::open_existing(address).await?),
        None => None,
    };
    let Some(store) = &which.store else {
        let (Some(broker), Some(queue)) = (broker, queue) else {
            return Err(Trouble::Input("choose: give --broker and --queue, or --store".to_owned()));
        };
        let selected = match place {
            Place::Dead => dlq::select(&broker, queue, &choice).await?,
            Place::Archive => dlq::select_archived(&broker, queue, &choice).await?,
        };
        return Ok(Opened::Broker(selected));
    };
    match StoreAddress::parse(store)? {
        StoreAddress::Postgres(_) => {
            let store = PostgresStore::open_existing(store).await?;
            let selected = of_store(&store, broker, queue, place, &choice).await?;
            Ok(Opened::Postgres(selected, store))
        }
        StoreAddress::File(_) | StoreAddress::Memory => {
            let store = SqliteStore::open_existing(store).await?;
            let selected = of_store(&store, broker, queue, place, &choice).await?;
            Ok(Opened::Sqlite(selected, store))
        }
    }
}

async fn of_store<DB: mamparo_store::Backend>(
    store: &mamparo_store::Store<DB>,
    broker: Option<AnyBroker>,
    queue: Option<&str>,
    place: Place,
    choice: &Choice,
) -> Result<Selected<StoreLetters<DB, AnyBroker>>, Trouble> {
    let queue = match queue {
        Some(queue) => queue.to_owned(),
        None => only_consumer(store).await?,
    };
    let (sift, consumer) = (choice.sift.clone(), consumer_of(&queue));
    let letters = StoreLetters::open(store.clone(), broker, consumer, place, sift).await?;
    Ok(dlq::choose(letters, &queue, choice).await?)
}

/// The consumer that is meant when nobody named one.
async fn only_consumer<DB: mamparo_store::Backend>(
    store: &mamparo_store::Store<DB>,
) -> Result<String, Trouble> {
    let mut consumers: Vec<String> =
        failed::counts(store).await?.into_iter().map(|count| count.consumer).collect();
    consumers.dedup();
    match consumers.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Trouble::Input(
            "choose: the store has no failed messages; give --queue to look at discarded ones"
                .to_owned(),
        )),
        several => {
            let names = several.join(", ");
            Err(Trouble::Input(format!("choose: give --queue, one of {names}")))
        }
    }
}

/// All conditions of the arguments.
fn sift(which: &Which) -> Sift {
    let now = clock::wall();
    Sift {
        ids: which.ids.clone(),
        kind: which.filter_event.clone(),
        key: which.key.clone(),
        before: which.older_than.map(|age| now.minus(age)),
        since: which.newer_than.map(|age| now.minus(age)),
        error: which.error.clone(),
        group: which.group,
    }
}
