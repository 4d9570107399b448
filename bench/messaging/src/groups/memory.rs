//! Memory while many messages pass: published, confirmed, delivered, handled, acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use mamparo_messaging::{Broker as _, Confirm, Consumer, RabbitMqBroker};
use tokio_util::sync::CancellationToken;

use super::ours::{self, Filled};
use super::publish;
use crate::bed::Bed;
use crate::case::{Case, Figure, Group};
use crate::rabbit::Kind;
use crate::{Result, clock, tasks};

const MESSAGES: usize = 1_000_000;
const WINDOW: usize = 500;
/// Messages that may lie in the queue: the broker's memory is not what is measured.
const AHEAD: usize = 5_000;

/// The rows.
pub(crate) fn group() -> Group {
    Group { name: "memory", once: true, cases: vec![Case::new("memory", pass)] }
}

async fn pass(bed: Arc<Bed>) -> Result<Vec<Figure>> {
    let count = bed.amount(MESSAGES);
    let filled = Filled::new(&bed, Kind::Quorum, 100, 0).await?;
    let (handler, progress) = ours::counting(count);
    let consumer = Consumer::plain(filled.broker.clone(), filled.policy.clone(), handler);
    let cancel = CancellationToken::new();
    let running = tasks::begin(consumer.run(cancel.clone()));
    let publisher = RabbitMqBroker::connect(&bed.amqp).await?;
    let mut sizes = Vec::new();
    let marks = [count / 20, count / 2, count];
    for at in (0..count).step_by(WINDOW) {
        let queue = &filled.policy.queue;
        let publish = |number| {
            let publisher = &publisher;
            async move { publisher.publish("", queue, &publish::message(number, queue)).await }
        };
        for confirm in join_all((at..count.min(at + WINDOW)).map(publish)).await {
            if confirm != Confirm::Confirmed {
                return Err(format!("publish: {confirm:?}").into());
            }
        }
        let sent = count.min(at + WINDOW);
        while sent.saturating_sub(count - progress.left.load(Ordering::Acquire)) > AHEAD {
            clock::pause().await;
        }
        if marks.get(sizes.len()).is_some_and(|mark| sent >= *mark) {
            sizes.push(resident()?);
        }
    }
    progress.done.notified().await;
    cancel.cancel();
    running.end().await?;
    filled.remove(0).await?;
    publisher.close();
    let [start, middle, end] = sizes[..] else { return Err("too few messages to tell".into()) };
    let figure = |part, unit, value| Figure { part, unit, value };
    Ok(vec![
        figure(".start", "MB", start),
        figure(".middle", "MB", middle),
        figure(".end", "MB", end),
        figure(".growth", "x", end / middle),
    ])
}

/// Megabytes of this process in memory.
fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    Ok(kilobytes.parse::<f64>()? / 1024.0)
}
