//! The ground that a demo stands on, where that is a server: free before, and free again afterwards.

use std::str::FromStr;

use mamparo::messaging::letters::{Letters as _, Order, Place};
use mamparo::messaging::{AnyBroker, Broker, MessagingError, QueuePolicy};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

use super::DemoError;
use super::books::queues;
use super::engines::Engines;
use crate::db;
use crate::shop::SERVICES;

/// Letters that are removed at once.
const BATCH: u32 = 100;

/// A verdict counts everything that it finds, so nobody else's books may be there.
pub(super) async fn must_be_free(engines: &Engines) -> Result<(), DemoError> {
    let occupied = |what| Err(DemoError::Occupied { what });
    if let Some(shop) = &engines.store {
        db::make(shop).await?;
        let mut conn = PgConnectOptions::from_str(shop)?.connect().await?;
        let there = schemas(&mut conn).await?;
        conn.close().await?;
        if !there.is_empty() {
            return occupied(format!(
                "the database has a shop already (schemas {}); give another, or drop them",
                there.join(", ")
            ));
        }
    }
    if let Some(address) = &engines.broker {
        let broker = AnyBroker::open_existing(address).await?;
        let found = full(&broker).await?;
        broker.close().await;
        if let Some((queue, depth)) = found {
            return occupied(format!(
                "{depth} messages lie in {queue}; give another virtual host, or empty it"
            ));
        }
    }
    Ok(())
}

/// Removes what a demo has left: the services' schemas, and the letters in their queues.
pub(super) async fn clear(engines: &Engines) -> Result<(), DemoError> {
    if let Some(shop) = &engines.store {
        let mut conn = PgConnectOptions::from_str(shop)?.connect().await?;
        for schema in schemas(&mut conn).await? {
            // The name is one of the shop's own services.
            let drop = format!("DROP SCHEMA {schema} CASCADE");
            sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut conn).await?;
        }
        conn.close().await?;
    }
    if let Some(address) = &engines.broker {
        let broker = AnyBroker::open_existing(address).await?;
        for queue in queues()? {
            empty(&broker, &queue).await?;
        }
        broker.close().await;
    }
    Ok(())
}

/// The services' schemas that there are.
async fn schemas(conn: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    let services: Vec<String> = SERVICES.map(str::to_owned).into();
    let query = "SELECT nspname::text FROM pg_namespace WHERE nspname = ANY($1) ORDER BY 1";
    sqlx::query_scalar(query).bind(services).fetch_all(conn).await
}

/// A queue of the shop that holds something.
async fn full(broker: &AnyBroker) -> Result<Option<(String, u64)>, DemoError> {
    for queue in names(&queues()?, broker) {
        match broker.depth(&queue).await {
            Ok(0) | Err(MessagingError::UnknownQueue { .. }) => {}
            Ok(depth) => return Ok(Some((queue, depth))),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn names(queues: &[QueuePolicy], broker: &AnyBroker) -> Vec<String> {
    let topologies = queues.iter().map(|queue| queue.topology(&broker.capabilities()));
    topologies.flat_map(|topology| topology.queues).map(|queue| queue.name).collect()
}

/// Removes the dead letters of a queue.
async fn empty(broker: &AnyBroker, queue: &QueuePolicy) -> Result<(), DemoError> {
    let mut letters = broker.letters(&queue.queue, Place::Dead).await?;
    loop {
        let found = letters.fetch(BATCH).await?;
        if found.is_empty() {
            return Ok(letters.close().await?);
        }
        let gone = |letter| Order { letter, copy: None, archive: None };
        let orders: Vec<Order<'_>> = found.iter().map(gone).collect();
        letters.settle(&orders).await?;
    }
}
