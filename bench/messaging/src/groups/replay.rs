//! Dead letters of one type, chosen among others and put back into their queue: from the broker's
//! dead-letter queue, and from the failed messages of a service's database.

use std::sync::Arc;
use std::time::Duration;

use mamparo_call::clock::wall;
use mamparo_core::message::selection::Sift;
use mamparo_messaging::dlq::{self, Choice, Outcome, Task, Verb};
use mamparo_messaging::letters::{Letters, Place};
use mamparo_messaging::stored::StoreLetters;
use mamparo_messaging::{Broker as _, QueuePolicy, RabbitMqBroker};
use mamparo_store::PostgresStore;
use mamparo_store::failed::{self, Query, Status};
use mamparo_store::queue::QueueMessage;
use tokio_util::sync::CancellationToken;

use super::ours;
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::{Result, clock, rabbit};

/// Letters of the type that is put back, and as many of another one between them. The goal is a time
/// for this number, so a quick run takes no fewer.
const LETTERS: usize = 10_000;
const WANTED: &str = "order.created";
const OTHER: &str = "order.cancelled";

/// The rows.
pub(crate) fn group() -> Group {
    Group::new(
        "replay",
        vec![Case::new("replay.rabbitmq", rabbitmq), Case::new("replay.store", store)],
    )
}

fn choice() -> Choice {
    let sift = Sift { kind: Some(WANTED.to_owned()), ..Sift::default() };
    Choice { max: 2 * LETTERS as u32, sift }
}

fn kind(number: usize) -> &'static str {
    if number.is_multiple_of(2) { WANTED } else { OTHER }
}

async fn rabbitmq(bed: Arc<Bed>) -> Result<Vec<Figure>> {
    let broker = RabbitMqBroker::connect(&bed.amqp).await?;
    let policy = QueuePolicy::new(fresh("replay"), "bench");
    broker.declare(&policy).await?;
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::fill_kinds(&channel, &policy.dlq(), 2 * LETTERS, kind).await?;
    let start = clock::now();
    let selected = dlq::select(&broker, &policy.queue, &choice()).await?;
    let outcome = put_back(selected).await?;
    let took = start.elapsed();
    let depths = (
        rabbit::depth(&channel, &policy.queue).await?,
        rabbit::depth(&channel, &policy.dlq()).await?,
    );
    let whole = check(&outcome, depths);
    for queue in [policy.queue.clone(), policy.retry_queue(), policy.dlq()] {
        rabbit::delete(&channel, &queue).await?;
    }
    broker.close();
    rabbit::close(&connection).await?;
    whole.map(|()| seconds(took))
}

/// Puts back what was selected.
async fn put_back<L: Letters>(mut selected: dlq::Selected<L>) -> Result<Outcome> {
    let (task, stop) = (Task::new(Verb::Replay, "bench", ""), CancellationToken::new());
    let outcome = dlq::carry_out(&mut selected, &task, None, &stop, |_| {}).await?;
    selected.close().await?;
    Ok(outcome)
}

async fn store(bed: Arc<Bed>) -> Result<Vec<Figure>> {
    let broker = RabbitMqBroker::connect(&bed.amqp).await?;
    let policy = QueuePolicy::new(fresh("replay"), "bench");
    broker.declare(&policy).await?;
    let (store, database) = ours::store(&bed, 4).await?;
    give_up(&store, &policy.queue).await?;
    let start = clock::now();
    let Choice { sift, .. } = choice();
    let sender = Some(broker.clone());
    let letters =
        StoreLetters::open(store.clone(), sender, &policy.queue, Place::Dead, sift).await?;
    let selected = dlq::choose(letters, &policy.queue, &choice()).await?;
    let outcome = put_back(selected).await?;
    let took = start.elapsed();
    let failed = Query { status: Some(Status::Failed), ..Query::default() };
    let left = usize::try_from(failed::count(&store, &failed).await?)?;
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    let whole = check(&outcome, (rabbit::depth(&channel, &policy.queue).await?, left));
    for queue in [policy.queue.clone(), policy.retry_queue(), policy.dlq()] {
        rabbit::delete(&channel, &queue).await?;
    }
    broker.close();
    rabbit::close(&connection).await?;
    store.close().await;
    bed.drop_database(&database).await?;
    whole.map(|()| seconds(took))
}

/// As many failed messages as there are letters of both types, as consumers write them down.
async fn give_up(store: &PostgresStore, queue: &str) -> Result<()> {
    let numbers: Vec<usize> = (0..2 * LETTERS).collect();
    for numbers in numbers.chunks(500) {
        let mut tx = store.begin().await?;
        for number in numbers {
            let message = QueueMessage {
                id: format!("00000000-0000-7000-8000-{number:012x}"),
                kind: kind(*number).to_owned(),
                exchange: "events".to_owned(),
                routing_key: kind(*number).to_owned(),
                key: number.to_string(),
                headers: std::collections::BTreeMap::new(),
                body: rabbit::body(),
            };
            let failure = failed::Failure {
                consumer: queue,
                message: &message,
                reason: "attempts-spent",
                error: "the warehouse does not answer",
                first_failure: None,
                last_failure: None,
                attempts: 5,
                host: "bench",
                version: "",
            };
            failed::record(&mut tx, &failure, wall()).await?;
        }
        store.commit(tx).await?;
    }
    Ok(())
}

fn seconds(took: Duration) -> Vec<Figure> {
    vec![Figure { part: "", unit: "s", value: took.as_secs_f64() }]
}

/// A batch that is fast because it leaves half of them behind is no batch.
fn check(outcome: &Outcome, (back, left): (usize, usize)) -> Result<()> {
    let Outcome { done, left: kept, error, .. } = outcome;
    if (done.len(), back, left, error.is_some()) == (LETTERS, LETTERS, LETTERS, false) {
        return Ok(());
    }
    let (done, kept) = (done.len(), kept.len());
    Err(format!("{done} done, {kept} kept, {back} back, {left} left: {error:?}").into())
}
