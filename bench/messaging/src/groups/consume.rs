//! The success path of a consumer: deliver, handle (nothing), ack.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::BasicAckOptions;

use super::ours::{self, Filled, Handling};
use crate::bed::{Bed, fresh};
use crate::case::{Case, Figure, Group};
use crate::rabbit::{self, KINDS, Kind};
use crate::{Error, Result, clock};

const MESSAGES: usize = 30_000;
const PREFETCH: [u16; 2] = [10, 100];

/// How the loop written by hand acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Acks {
    /// One each, up to the prefetch in flight: what a consumer that handles concurrently can do.
    Together,
    /// One for half of the prefetch: for handlers that end in the order of delivery.
    Multiple,
}

/// The rows.
pub(crate) fn group() -> Group {
    let mut cases = Vec::new();
    for kind in KINDS {
        for prefetch in PREFETCH {
            let at = format!("{}.p{prefetch}", kind.as_str());
            cases.push(Case::new(format!("consume.lapin.together.{at}"), move |bed| {
                by_hand(bed, kind, prefetch, Acks::Together)
            }));
            cases.push(Case::new(format!("consume.lapin.multiple.{at}"), move |bed| {
                by_hand(bed, kind, prefetch, Acks::Multiple)
            }));
            cases.push(Case::new(format!("consume.ours.{at}"), move |bed| {
                ours(bed, kind, prefetch)
            }));
        }
    }
    Group::new("consume", cases)
}

async fn ours(bed: Arc<Bed>, kind: Kind, prefetch: u16) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let filled = Filled::new(&bed, kind, prefetch, count).await?;
    let (took, summary) = ours::consume(&filled, Handling::Nothing, count).await?;
    if summary.done != count as u64 {
        return Err(format!("{count} messages: {summary:?}").into());
    }
    filled.remove(0).await?;
    Ok(Figure::rate(count, took))
}

async fn by_hand(bed: Arc<Bed>, kind: Kind, prefetch: u16, acks: Acks) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let queue = fresh("consume");
    let connection = rabbit::connect(&bed.amqp).await?;
    let channel = rabbit::confirming(&connection).await?;
    rabbit::declare(&channel, &queue, kind).await?;
    rabbit::fill(&channel, &queue, count).await?;
    let own = rabbit::connect(&bed.amqp).await?;
    let taking = own.create_channel().await?;
    let deliveries = rabbit::consume(&taking, &queue, prefetch).await?;
    let took = match acks {
        Acks::Together => together(deliveries, count, prefetch).await?,
        Acks::Multiple => multiple(deliveries, count, prefetch).await?,
    };
    rabbit::close(&own).await?;
    rabbit::delete(&channel, &queue).await?;
    rabbit::close(&connection).await?;
    Ok(Figure::rate(count, took))
}

async fn together(
    mut deliveries: lapin::Consumer,
    count: usize,
    prefetch: u16,
) -> Result<std::time::Duration> {
    let mut first = None;
    let mut flights = FuturesUnordered::new();
    let mut taken = 0;
    while taken < count || !flights.is_empty() {
        tokio::select! {
            biased;
            Some(acked) = flights.next() => {
                let acked: std::result::Result<bool, lapin::Error> = acked;
                acked?;
            }
            Some(delivery) = deliveries.next(), if taken < count => {
                let delivery = delivery?;
                first.get_or_insert_with(clock::now);
                taken += 1;
                flights.push(async move { delivery.ack(BasicAckOptions::default()).await });
            }
            else => return Err(Error::from("the deliveries ended early")),
        }
        debug_assert!(flights.len() <= usize::from(prefetch));
    }
    first.map(|first| first.elapsed()).ok_or_else(|| Error::from("no message came"))
}

async fn multiple(
    mut deliveries: lapin::Consumer,
    count: usize,
    prefetch: u16,
) -> Result<std::time::Duration> {
    let each = usize::from(prefetch / 2).max(1);
    let mut first = None;
    for taken in 1..=count {
        let Some(delivery) = deliveries.next().await else {
            return Err(Error::from("the deliveries ended early"));
        };
        let delivery = delivery?;
        first.get_or_insert_with(clock::now);
        if taken % each == 0 || taken == count {
            delivery.ack(BasicAckOptions { multiple: true }).await?;
        }
    }
    first.map(|first| first.elapsed()).ok_or_else(|| Error::from("no message came"))
}
