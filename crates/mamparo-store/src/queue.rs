//! Queue rows of the embedded broker. The broker itself, its words and its loops live in
//! `mamparo-messaging`; here is only what SQL does.
//!
//! Safe for several processes on one file: a delivery is a lease (owner, epoch, expiry), and a
//! dead owner's messages come back when its lease runs out.

use std::collections::BTreeMap;
use std::time::Duration;

use mamparo_core::time::WallTime;

use crate::backend::QueueRows;
use crate::{Now, Store, StoreError, topic};

/// A message as it lies in a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueMessage {
    /// The message id, kept over all hops.
    pub id: String,
    /// The event type.
    pub kind: String,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// Key for ordering, the order's id say.
    pub key: String,
    /// All headers.
    pub headers: BTreeMap<String, String>,
    /// The body, untouched.
    pub body: Vec<u8>,
}

/// A message handed out under a lease.
#[derive(Debug, Clone)]
pub struct Leased {
    /// The row.
    pub row: i64,
    /// Grows with each hand-out; an acknowledgement of an older one changes nothing.
    pub epoch: i64,
    /// An earlier hand-out ran out, neither settled nor given back: its owner may have died of it.
    pub suspect: bool,
    /// The message.
    pub message: QueueMessage,
}

/// A queue's arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueueSpec {
    /// The queue's name.
    pub name: String,
    /// Messages leave after this long …
    pub message_ttl: Option<Duration>,
    /// … to this queue (dead-lettering by name; never to a shared exchange).
    pub dead_letter_to: Option<String>,
}

/// A message that lies in a queue, as shown to people.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The row.
    pub row: i64,
    /// When it came to this queue.
    pub since: WallTime,
    /// The message.
    pub message: QueueMessage,
}

/// Which messages an operation on a queue is about.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// At most this many, oldest first.
    pub max: u32,
    /// Only this event type.
    pub kind: Option<String>,
    /// Only these message ids; empty for all.
    pub ids: Vec<String>,
}

/// A message that somebody took out of a queue for good.
#[derive(Debug, Clone)]
pub struct Archived {
    /// When it came to its queue.
    pub since: WallTime,
    /// When it was discarded.
    pub archived: WallTime,
    /// Who did it.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// The message.
    pub message: QueueMessage,
}

/// The books of a queue, kept in the transactions of what they count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// The queue's name.
    pub queue: String,
    /// Messages that were published to it.
    pub published: u64,
    /// Messages that came from another queue.
    pub moved_in: u64,
    /// Messages that went to another queue.
    pub moved_out: u64,
    /// Messages that were acknowledged.
    pub acked: u64,
    /// Messages that were discarded into the archive.
    pub archived: u64,
    /// Messages that lie in it now.
    pub depth: u64,
}

impl Totals {
    /// Does everything that came in lie here or have left by a door? `false` means that messages
    /// were lost or doubled.
    #[must_use]
    pub const fn balanced(&self) -> bool {
        self.published + self.moved_in == self.moved_out + self.acked + self.archived + self.depth
    }
}

/// Declares a queue; doing it again with the same arguments changes nothing, with others it changes
/// them, also for the messages that lie in it.
///
/// # Errors
/// [`StoreError::QueueSpec`] for arguments that would lose messages or move them in a circle, else
/// what the database said.
pub async fn declare<DB: QueueRows>(store: &Store<DB>, spec: &QueueSpec) -> Result<(), StoreError> {
    let refuse = |why| Err(StoreError::QueueSpec { queue: spec.name.clone(), why });
    match &spec.dead_letter_to {
        _ if spec.name.is_empty() => return refuse("it has no name"),
        None if spec.message_ttl.is_some() => {
            return refuse("messages whose TTL is over need a queue to go to");
        }
        Some(to) if *to == spec.name => return refuse("it dead-letters to itself"),
        Some(_) | None => {}
    }
    let mut conn = store.write_connection("declare a queue").await?;
    DB::declare_queue(&mut conn, spec).await.map_err(StoreError::during("declare a queue"))
}

/// Binds `queue` to `exchange` for routing keys that match `pattern` (`*` one word, `#` any).
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn bind<DB: QueueRows>(
    store: &Store<DB>,
    exchange: &str,
    pattern: &str,
    queue: &str,
) -> Result<(), StoreError> {
    let failed = || StoreError::during("bind a queue");
    let mut tx = store.begin().await?;
    require_queue::<DB>(&mut tx, queue, "bind a queue").await?;
    DB::bind_queue(&mut tx, exchange, pattern, queue).await.map_err(failed())?;
    tx.commit().await.map_err(failed())
}

/// A queue's arguments as they were declared last; `None` when there is no such queue.
///
/// # Errors
/// What the database said.
pub async fn spec<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
) -> Result<Option<QueueSpec>, StoreError> {
    let mut conn = store.read_connection("read a queue").await?;
    DB::queue_spec(&mut conn, queue).await.map_err(StoreError::during("read a queue"))
}

/// The (pattern, queue) pairs that are bound to `exchange`.
///
/// # Errors
/// What the database said.
pub async fn bindings<DB: QueueRows>(
    store: &Store<DB>,
    exchange: &str,
) -> Result<Vec<(String, String)>, StoreError> {
    let mut conn = store.read_connection("list bindings").await?;
    DB::bindings(&mut conn, exchange).await.map_err(StoreError::during("list bindings"))
}

/// Publishes to every bound queue, or to the one named by the routing key when `exchange` is empty,
/// in one transaction. How many queues took it; 0 means it went nowhere.
///
/// # Errors
/// What the database said.
pub async fn publish<DB: QueueRows>(
    store: &Store<DB>,
    exchange: &str,
    routing_key: &str,
    message: &QueueMessage,
    now: WallTime,
) -> Result<u32, StoreError> {
    let failed = || StoreError::during("publish a message");
    let mut tx = store.begin().await?;
    let mut queues = if exchange.is_empty() {
        let declared = DB::has_queue(&mut tx, routing_key).await.map_err(failed())?;
        if declared { vec![routing_key.to_owned()] } else { Vec::new() }
    } else {
        let bindings = DB::bindings(&mut tx, exchange).await.map_err(failed())?;
        let matching = bindings.into_iter().filter(|(to, _)| topic::matches(to, routing_key));
        matching.map(|(_, queue)| queue).collect()
    };
    // Two matching bindings of one queue are one copy.
    queues.sort_unstable();
    queues.dedup();
    for queue in &queues {
        DB::insert_message(&mut tx, queue, message, now).await.map_err(failed())?;
    }
    tx.commit().await.map_err(failed())?;
    Ok(u32::try_from(queues.len()).unwrap_or(u32::MAX))
}

/// Leases up to `max` visible messages, oldest first; messages whose TTL is over are moved first.
/// `owner` must be unique to the consumer's process, not to the host.
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn lease<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    owner: &str,
    max: u32,
    lease: Duration,
    now: impl Now,
) -> Result<Vec<Leased>, StoreError> {
    let failed = || StoreError::during("lease messages");
    if !has_work(store, queue, now.now()).await? {
        return Ok(Vec::new());
    }
    let mut tx = store.begin().await?;
    let now = now.now();
    let sources = DB::expired_sources(&mut tx, queue, now).await.map_err(failed())?;
    for (from, ttl) in sources {
        DB::move_expired(&mut tx, &from, ttl, queue, now).await.map_err(failed())?;
    }
    let until = now.plus(lease);
    let leased = DB::lease_messages(&mut tx, queue, owner, max, until, now).await;
    let leased = leased.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(leased)
}

/// Looking first keeps an idle consumer from taking the write lock at each poll.
async fn has_work<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    now: WallTime,
) -> Result<bool, StoreError> {
    let failed = || StoreError::during("look for messages");
    let mut conn = store.read_connection("look for messages").await?;
    if DB::has_visible(&mut conn, queue, now).await.map_err(failed())? {
        return Ok(true);
    }
    if !DB::expired_sources(&mut conn, queue, now).await.map_err(failed())?.is_empty() {
        return Ok(true);
    }
    require_queue::<DB>(&mut conn, queue, "look for messages").await?;
    Ok(false)
}

/// Renews all leases of `owner`; how many.
///
/// # Errors
/// What the database said.
pub async fn renew<DB: QueueRows>(
    store: &Store<DB>,
    owner: &str,
    lease: Duration,
    now: impl Now,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("renew leases").await?;
    let until = now.now().plus(lease);
    DB::renew_leases(&mut conn, owner, until).await.map_err(StoreError::during("renew leases"))
}

/// Removes a message for good. `false` when the lease was not ours any more (nothing changed).
///
/// # Errors
/// What the database said.
pub async fn ack<DB: QueueRows>(
    store: &Store<DB>,
    row: i64,
    epoch: i64,
) -> Result<bool, StoreError> {
    let failed = || StoreError::during("acknowledge a message");
    let mut tx = store.begin().await?;
    let acked = DB::ack_message(&mut tx, row, epoch).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(acked)
}

/// Gives a message back to its place, to be handed out again from `visible` on.
/// `false` when the lease was not ours any more (nothing changed).
///
/// # Errors
/// What the database said.
pub async fn give_back<DB: QueueRows>(
    store: &Store<DB>,
    row: i64,
    epoch: i64,
    visible: WallTime,
) -> Result<bool, StoreError> {
    let mut conn = store.write_connection("give a message back").await?;
    let given = DB::release_message(&mut conn, row, epoch, visible).await;
    given.map_err(StoreError::during("give a message back"))
}

/// Gives back everything that `owner` holds; how many messages.
///
/// # Errors
/// What the database said.
pub async fn give_back_all<DB: QueueRows>(
    store: &Store<DB>,
    owner: &str,
) -> Result<u64, StoreError> {
    let mut conn = store.write_connection("give messages back").await?;
    let given = DB::release_messages(&mut conn, owner).await;
    given.map_err(StoreError::during("give messages back"))
}

/// How many messages lie in a queue, leased ones included.
///
/// # Errors
/// What the database said.
pub async fn depth<DB: QueueRows>(store: &Store<DB>, queue: &str) -> Result<u64, StoreError> {
    let mut conn = store.read_connection("count messages").await?;
    DB::count_messages(&mut conn, queue).await.map_err(StoreError::during("count messages"))
}

/// Messages in a queue, oldest first, without taking them.
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn list<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    selection: &Selection,
) -> Result<Vec<Listed>, StoreError> {
    let mut conn = store.read_connection("list messages").await?;
    require_queue::<DB>(&mut conn, queue, "list messages").await?;
    let listed = DB::list_messages(&mut conn, queue, selection).await;
    listed.map_err(StoreError::during("list messages"))
}

/// Moves one message to the end of another queue with new headers, atomically. `false` when it is
/// gone or leased.
///
/// # Errors
/// [`StoreError::UnknownQueue`], else what the database said.
pub async fn move_to<DB: QueueRows>(
    store: &Store<DB>,
    row: i64,
    to: &str,
    headers: &BTreeMap<String, String>,
    now: WallTime,
) -> Result<bool, StoreError> {
    let failed = || StoreError::during("move a message");
    let mut tx = store.begin().await?;
    require_queue::<DB>(&mut tx, to, "move a message").await?;
    let moved = DB::move_message(&mut tx, row, to, headers, now).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(moved)
}

/// Takes one message out of its queue into the archive, with who did it and why.
/// `false` when it is gone or leased.
///
/// # Errors
/// What the database said.
pub async fn discard<DB: QueueRows>(
    store: &Store<DB>,
    row: i64,
    actor: &str,
    reason: &str,
    now: WallTime,
) -> Result<bool, StoreError> {
    let failed = || StoreError::during("discard a message");
    let mut tx = store.begin().await?;
    let discarded = DB::archive_message(&mut tx, row, actor, reason, now).await;
    let discarded = discarded.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(discarded)
}

/// Up to `max` messages that were discarded from `queue`, oldest first.
///
/// # Errors
/// What the database said.
pub async fn archive<DB: QueueRows>(
    store: &Store<DB>,
    queue: &str,
    max: u32,
) -> Result<Vec<Archived>, StoreError> {
    let mut conn = store.read_connection("list the archive").await?;
    DB::list_archive(&mut conn, queue, max).await.map_err(StoreError::during("list the archive"))
}

/// The books of all declared queues, by name.
///
/// # Errors
/// What the database said.
pub async fn totals<DB: QueueRows>(store: &Store<DB>) -> Result<Vec<Totals>, StoreError> {
    let mut conn = store.read_connection("count queues").await?;
    DB::totals(&mut conn).await.map_err(StoreError::during("count queues"))
}

pub(crate) async fn require_queue<DB: QueueRows>(
    conn: &mut DB::Connection,
    queue: &str,
    operation: &'static str,
) -> Result<(), StoreError> {
    if DB::has_queue(conn, queue).await.map_err(StoreError::during(operation))? {
        return Ok(());
    }
    Err(StoreError::UnknownQueue { queue: queue.to_owned() })
}

/// The names of all queues, sorted. For tools that say which queues there are.
///
/// # Errors
/// What the database said.
pub async fn names<DB: QueueRows>(store: &Store<DB>) -> Result<Vec<String>, StoreError> {
    Ok(totals(store).await?.into_iter().map(|totals| totals.queue).collect())
}
