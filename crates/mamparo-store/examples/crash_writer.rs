//! Writes to the store at the address in its first argument until it is killed, and prints what it
//! has committed. The crash test kills it with SIGKILL and looks at what is left in the file.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use mamparo_core::time::WallTime;
use mamparo_store::SqliteStore;
use mamparo_store::inbox;
use mamparo_store::outbox::{self, Event};
use mamparo_store::queue::{self, QueueMessage, QueueSpec};

const NOW: WallTime = WallTime::from_unix_millis(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("which store?")?;
    let store = SqliteStore::open(&address).await?;
    store.apply("CREATE TABLE IF NOT EXISTS effects (id TEXT PRIMARY KEY)").await?;
    queue::declare(&store, &QueueSpec { name: "q".to_owned(), ..QueueSpec::default() }).await?;
    let mut out = std::io::stdout().lock();
    for n in 0_u64.. {
        let id = n.to_string();
        // Three rows that belong together.
        let mut tx = store.begin().await?;
        inbox::insert(&mut tx, "writer", &id, "written", NOW).await?;
        sqlx::query("INSERT INTO effects (id) VALUES (?)").bind(&id).execute(&mut *tx).await?;
        let event = Event { id: id.clone(), ..Event::new("written", "key", Vec::new()) };
        outbox::enqueue(&mut tx, &event, NOW).await?;
        store.commit(tx).await?;
        writeln!(out, "committed {id}")?;

        let message = QueueMessage {
            id: id.clone(),
            kind: "written".to_owned(),
            exchange: String::new(),
            routing_key: "q".to_owned(),
            key: "key".to_owned(),
            headers: event.headers,
            body: vec![7; 2_000],
        };
        queue::publish(&store, "", "q", &message, NOW).await?;
        writeln!(out, "published {id}")?;
        if n % 3 == 2 {
            let lease = Duration::from_secs(60);
            for leased in queue::lease(&store, "q", "writer", 2, lease, NOW).await? {
                if queue::ack(&store, leased.row, leased.epoch).await? {
                    writeln!(out, "acked {}", leased.message.id)?;
                }
            }
        }
        out.flush()?;
    }
    Ok(())
}
