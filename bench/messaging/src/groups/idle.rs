//! What a service costs that has nothing to do.

use std::sync::Arc;
use std::time::Duration;

use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::{Consumer, QueuePolicy, RabbitMqBroker, Relay, RelayOptions};
use tokio_util::sync::CancellationToken;

use super::ours;
use crate::bed::{Bed, Scale, fresh};
use crate::case::{Case, Figure, Group};
use crate::{Error, Result, clock, postgres, rabbit, tasks};

/// Until everything has settled down and the server's counters are up to date.
const SETTLE: Duration = Duration::from_secs(12);
/// Ticks a second of the processor times in `/proc`; the same on every Linux since it has any.
const TICKS: f64 = 100.0;

/// The rows.
pub(crate) fn group() -> Group {
    Group { name: "idle", once: true, cases: vec![Case::new("idle", service)] }
}

/// A relay, a consumer that retries through the broker and one that retries through the database.
async fn service(bed: Arc<Bed>) -> Result<Vec<Figure>> {
    let length = match bed.scale {
        Scale::Quick => Duration::from_secs(15),
        Scale::Full => Duration::from_secs(40),
    };
    let (store, database) = ours::store(&bed, 10).await?;
    let broker = RabbitMqBroker::connect(&bed.amqp).await?;
    let cancel = CancellationToken::new();
    let (mut running, mut policies) = (Vec::new(), Vec::new());
    for waiting_room in [WaitingRoom::Tiers, WaitingRoom::Parked] {
        let mut policy = QueuePolicy::new(fresh("idle"), "bench").bind("idle.*");
        policy.waiting_room = waiting_room;
        let (handler, _) = ours::counting(1);
        let own = (broker.clone(), store.clone(), policy.clone());
        let consumer = Consumer::new(own.0, own.1, own.2, handler);
        let handle = consumer.handle();
        running.push(tasks::begin(consumer.run(cancel.clone())));
        if !handle.wait_for(|health| health.subscribed).await {
            return Err(Error::from("a consumer ended early"));
        }
        policies.push(policy);
    }
    let relay = Relay::new(store.background(), broker.clone(), RelayOptions::default());
    let relay = tasks::begin(relay.run(cancel.clone()));
    let watching = postgres::connect(&bed.address_of("postgres")).await?;
    clock::rest(SETTLE).await;
    let (ticks, queries) = (ticks()?, transactions(&watching, &database).await?);
    let start = clock::now();
    clock::rest(length).await;
    let took = start.elapsed().as_secs_f64();
    let cpu = (self::ticks()? - ticks) / TICKS / took * 100.0;
    let queries = (transactions(&watching, &database).await? - queries) as f64 / took;
    cancel.cancel();
    for consumer in running {
        consumer.end().await?;
    }
    relay.end().await?;
    remove(&bed, &policies).await?;
    broker.close();
    store.close().await;
    bed.drop_database(&database).await?;
    Ok(vec![
        Figure { part: ".cpu", unit: "%", value: cpu },
        Figure { part: ".queries", unit: "1/s", value: queries },
    ])
}

async fn remove(bed: &Bed, policies: &[QueuePolicy]) -> Result<()> {
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = connection.create_channel().await?;
    for policy in policies {
        let mut queues = vec![policy.queue.clone(), policy.dlq()];
        queues.extend(policy.waits().into_iter().map(|wait| wait.queue));
        for queue in queues {
            // Deleting what is not there is no error.
            rabbit::delete(&channel, &queue).await?;
        }
    }
    rabbit::close(&connection).await
}

/// Transactions that were run in a database, one a query where nobody begins one.
async fn transactions(client: &postgres::Connected, database: &str) -> Result<i64> {
    let name = database.rsplit('/').next().unwrap_or_default();
    let sum = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1";
    Ok(client.query_one(sum, &[&name]).await?.get(0))
}

/// Processor time of this process so far, of all threads, kernel included.
fn ticks() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may hold anything; user and system time are the 14th and 15th field.
    let rest = text.rsplit(')').next().unwrap_or_default();
    let fields = rest.split_whitespace().skip(11).take(2);
    fields.map(|field| Ok(field.parse::<f64>()?)).sum()
}
