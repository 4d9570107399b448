//! Publishing with confirms.

use std::sync::Arc;

use futures_util::future::try_join_all;

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
        }
    }
    Group::new("publish", cases)
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
