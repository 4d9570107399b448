//! The retry path of a consumer: deliver, fail, a copy into the waiting room, its confirm, ack.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use lapin::{BasicProperties, Channel};

use super::ours::{self, Filled, Handling};
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::rabbit::{self, KINDS, Kind};
use crate::{Error, Result, clock};

const MESSAGES: usize = 8_000;
const PREFETCH: [u16; 2] = [10, 100];

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for kind in KINDS {
        for prefetch in PREFETCH {
            let at = format!("{}.p{prefetch}", kind.as_str());
            cases.push(Case::new(format!("retry.lapin.{at}"), move |bed| {
                by_hand(bed, kind, prefetch)
            }));
            cases.push(Case::new(format!("retry.ours.{at}"), move |bed| ours(bed, kind, prefetch)));
        }
    }
    Group::new("retry", cases)
}

async fn ours(bed: Arc<Bed>, kind: Kind, prefetch: u16) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let filled = Filled::new(&bed, kind, prefetch, count).await?;
    let (took, summary) = ours::consume(&filled, Handling::Fails, count).await?;
    if summary.retried != count as u64 {
        return Err(format!("{count} messages: {summary:?}").into());
    }
    filled.remove(count).await?;
    Ok(Figure::rate(count, took))
}

async fn by_hand(bed: Arc<Bed>, kind: Kind, prefetch: u16) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let queue = fresh("retry");
    let waiting = format!("{queue}.retry");
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::declare(&channel, &queue, kind).await?;
    rabbit::declare_waiting(&channel, &waiting, &queue).await?;
    rabbit::fill(&channel, &queue, count).await?;
    let own = rabbit::connect(&bed.amqp).await?;
    let taking = own.create_channel().await?;
    let mut deliveries = rabbit::consume(&taking, &queue, prefetch).await?;
    let mut first = None;
    let mut flights = FuturesUnordered::new();
    let mut taken = 0;
    while taken < count || !flights.is_empty() {
        tokio::select! {
            biased;
            Some(failed) = flights.next() => { let failed: Result<()> = failed; failed? }
            Some(delivery) = deliveries.next(), if taken < count => {
                first.get_or_insert_with(clock::now);
                taken += 1;
                flights.push(put_off(&channel, &waiting, delivery?));
            }
            else => return Err(Error::from("the deliveries ended early")),
        }
    }
    let took = first.map(|first| first.elapsed());
    drop(flights);
    rabbit::close(&own).await?;
    rabbit::delete(&channel, &queue).await?;
    rabbit::delete(&channel, &waiting).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took.ok_or_else(|| Error::from("no message came"))?))
}

/// The copy is confirmed before the original is acknowledged.
async fn put_off(channel: &Channel, waiting: &str, delivery: Delivery) -> Result<()> {
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    let id = delivery.properties.message_id().clone().unwrap_or_default();
    let properties =
        BasicProperties::default().with_delivery_mode(2).with_message_id(id).with_headers(headers);
    let confirm = rabbit::publish(channel, "", waiting, &delivery.data, properties).await?;
    rabbit::confirmed(confirm).await?;
    delivery.ack(BasicAckOptions::default()).await?;
    Ok(())
}
