//! Writes to the store at the address in its first argument until it is killed, and prints what it
//! has committed. The crash test kills it with SIGKILL and looks at what is left in the database.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use mamparo_core::time::WallTime;
use mamparo_store::outbox::{self, Event};
use mamparo_store::queue::{self, QueueMessage, QueueSpec};
use mamparo_store::{Backend, PostgresStore, SqliteStore, Store, StoreAddress, Transaction, inbox};

const NOW: WallTime = WallTime::from_unix_millis(0);
const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY)";
const EFFECT: &str = "INSERT INTO effects (id) VALUES ($1)";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("which store?")?;
    let mut out = std::io::stdout().lock();
    match StoreAddress::parse(&address)? {
        StoreAddress::Postgres(_) => {
            let store = PostgresStore::open(&address).await?;
            store.apply(EFFECTS).await?;
            for n in 0_u64.. {
                let id = n.to_string();
                let mut tx = rows(&store, &id).await?;
                sqlx::query(EFFECT).bind(&id).execute(&mut *tx).await?;
                store.commit(tx).await?;
                writeln!(out, "committed {id}")?;
                out.flush()?;
            }
        }
        StoreAddress::File(_) | StoreAddress::Memory => {
            let store = SqliteStore::open(&address).await?;
            store.apply(EFFECTS).await?;
            queue::declare(&store, &QueueSpec { name: "q".to_owned(), ..QueueSpec::default() })
                .await?;
            for n in 0_u64.. {
                let id = n.to_string();
                let mut tx = rows(&store, &id).await?;
                sqlx::query(EFFECT).bind(&id).execute(&mut *tx).await?;
                store.commit(tx).await?;
                writeln!(out, "committed {id}")?;
                messages(&store, n, &mut out).await?;
                out.flush()?;
            }
        }
    }
    Ok(())
}

/// Two of three rows that belong together; the effect is the caller's.
async fn rows<DB: Backend>(
    store: &Store<DB>,
    id: &str,
) -> Result<Transaction<'static, DB>, Box<dyn Error>> {
    let mut tx = store.begin().await?;
    inbox::insert(&mut tx, "writer", id, "written", NOW).await?;
    let event = Event { id: id.to_owned(), ..Event::new("written", "key", Vec::new()) };
    outbox::enqueue(&mut tx, &event, NOW).await?;
    Ok(tx)
}

async fn messages(store: &SqliteStore, n: u64, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    let message = QueueMessage {
        id: n.to_string(),
        kind: "written".to_owned(),
        exchange: String::new(),
        routing_key: "q".to_owned(),
        key: "key".to_owned(),
        headers: Default::default(),
        body: vec![7; 2_000],
    };
    queue::publish(store, "", "q", &message, NOW).await?;
    writeln!(out, "published {n}")?;
    if n % 3 == 2 {
        let lease = Duration::from_secs(60);
        for leased in queue::lease(store, "q", "writer", 2, lease, NOW).await? {
            if queue::ack(store, leased.row, leased.epoch).await? {
                writeln!(out, "acked {}", leased.message.id)?;
            }
        }
    }
    Ok(())
}
