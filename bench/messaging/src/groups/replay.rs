//! Dead letters of one type, chosen among others and put back into their queue.

use std::sync::Arc;
use std::time::Duration;

use mamparo_core::message::selection::Sift;
use mamparo_messaging::dlq::{self, Choice, Outcome, Task, Verb};
use mamparo_messaging::{Broker as _, QueuePolicy, RabbitMqBroker};
use tokio_util::sync::CancellationToken;

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
    Group::new("replay", vec![Case::new("replay.rabbitmq", rabbitmq)])
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
    let mut selected = dlq::select(&broker, &policy.queue, &choice()).await?;
    let (task, stop) = (Task::new(Verb::Replay, "bench", ""), CancellationToken::new());
    let outcome = dlq::carry_out(&mut selected, &task, None, &stop, |_| {}).await?;
    selected.close().await?;
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
