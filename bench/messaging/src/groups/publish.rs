//! Publishing with confirms.

use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use mamparo_messaging::{Broker as _, Confirm, Message, RabbitMqBroker};

use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::rabbit::{self, KINDS, Kind};
use crate::{Result, clock};

/// Publishes whose confirms are awaited together, and how many are made in all.
const WINDOWS: [(usize, usize); 3] = [(1, 2_000), (100, 10_000), (1_000, 20_000)];

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for kind in KINDS {
        for (window, count) in WINDOWS {
            let name = format!("publish.lapin.{}.per{window}", kind.as_str());
            cases.push(Case::new(name, move |bed| by_hand(bed, kind, window, count)));
            let name = format!("publish.ours.{}.per{window}", kind.as_str());
            cases.push(Case::new(name, move |bed| ours(bed, kind, window, count)));
        }
    }
    Group::new("publish", cases)
}

async fn ours(bed: Arc<Bed>, kind: Kind, window: usize, count: usize) -> Result<Vec<Figure>> {
    let count = bed.amount(count);
    let queue = fresh("publish");
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::declare(&channel, &queue, kind).await?;
    let broker = RabbitMqBroker::connect(&bed.amqp).await?;
    let start = clock::now();
    for at in (0..count).step_by(window) {
        let publish = |number: usize| {
            let (broker, queue) = (&broker, &queue);
            async move { broker.publish("", queue, &message(number, queue)).await }
        };
        for confirm in join_all((at..count.min(at + window)).map(publish)).await {
            if confirm != Confirm::Confirmed {
                return Err(format!("publish: {confirm:?}").into());
            }
        }
    }
    let took = start.elapsed();
    broker.close();
    rabbit::delete(&channel, &queue).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took))
}

/// The `number`th message for `queue`, as its publisher of ours makes it.
pub(super) fn message(number: usize, queue: &str) -> Message {
    let id = format!("00000000-0000-7000-8000-{number:012x}");
    Message {
        key: id.clone(),
        id,
        kind: "order.created".to_owned(),
        exchange: String::new(),
        routing_key: queue.to_owned(),
        headers: Default::default(),
        body: rabbit::body(),
    }
}

async fn by_hand(bed: Arc<Bed>, kind: Kind, window: usize, count: usize) -> Result<Vec<Figure>> {
    let count = bed.amount(count);
    let queue = fresh("publish");
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::declare(&channel, &queue, kind).await?;
    let payload = rabbit::body();
    let start = clock::now();
    let mut at = 0;
    while at < count {
        let end = count.min(at + window);
        let mut confirms = Vec::with_capacity(window);
        for number in at..end {
            let properties = rabbit::properties(number, "order.created");
            confirms.push(rabbit::publish(&channel, "", &queue, &payload, properties).await?);
        }
        try_join_all(confirms.into_iter().map(rabbit::confirmed)).await?;
        at = end;
    }
    let took = start.elapsed();
    rabbit::delete(&channel, &queue).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took))
}
