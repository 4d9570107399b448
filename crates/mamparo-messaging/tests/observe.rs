//! What dashboards see: exactly the metrics that the list names.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod amqp;
mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{QUEUE, Running, Script, Shop, Step, done, order, policy, shop, spawn, until};
use mamparo_call::clock;
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::{
    Answer, Broker as _, Housekeeper, METRICS, QueuePolicy, Relay, RelayOptions, dlq, event,
    housekeeper,
};
use mamparo_store::outbox;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;

async fn lose_a_publisher(prometheus: &PrometheusHandle) {
    let proxy = amqp::proxy::Proxy::start(&mamparo_testkit::servers::amqp_url()).await;
    let rabbit = mamparo_messaging::RabbitMqBroker::connect(&proxy.url).await.unwrap();
    until("connected", async || prometheus.render().contains("publisher_connected 1")).await;
    proxy.cut();
    until("cut", async || prometheus.render().contains("mamparo_publisher_losses_total")).await;
    drop(rabbit);
}

/// A second consumer, whose messages wait in the database.
async fn parks(shop: &Shop, script: &Script) -> Running {
    let policy = QueuePolicy {
        waiting_room: WaitingRoom::Parked,
        ..QueuePolicy::new("orders.parked", "team-orders")
    };
    let running = shop.consume(policy, script);
    running.handle.wait_for(|health| health.subscribed).await;
    running
}

/// One round of housekeeping.
async fn keep_house(shop: &Shop, prometheus: &PrometheusHandle) {
    let (kept, policy) = (CancellationToken::new(), housekeeper::Policy::default());
    let counted = async {
        let last = "housekeeping_failures_total{table=\"retries\"} 0";
        until("a round is over", async || prometheus.render().contains(last)).await;
        kept.cancel();
    };
    tokio::join!(Housekeeper::new(&shop.store, policy).run(kept.clone()), counted);
}

/// One is discarded by hand, and a stray is swept in.
async fn clear_dead_letters(shop: &Shop, prometheus: &PrometheusHandle) {
    let mut selected = dlq::select(&shop.broker, QUEUE, &dlq::Choice::default()).await.unwrap();
    let task = dlq::Task::new(dlq::Verb::Discard, "ana", "a test");
    let stop = CancellationToken::new();
    dlq::carry_out(&mut selected, &task, None, &stop, |_| ()).await.unwrap();
    let stray = order("order.created", "o-9");
    shop.broker.publish("", &format!("{QUEUE}.dlq"), &stray).await;
    let policy = QueuePolicy::new(QUEUE, "team");
    let options = mamparo_messaging::SweeperOptions::default();
    let sweeper =
        mamparo_messaging::Sweeper::new(shop.broker.clone(), &shop.store, [&policy], options);
    let (swept, rendered) = (CancellationToken::new(), || prometheus.render());
    let counted = async {
        until("swept", async || rendered().contains("mamparo_failed_groups")).await;
        swept.cancel();
    };
    tokio::join!(sweeper.run(swept.clone()), counted);
}

#[tokio::test]
async fn every_metric_is_listed_and_every_listed_one_is_real() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let prometheus = recorder.handle();
    // The test's runtime has one thread, so every task reports here.
    let _guard = metrics::set_default_local_recorder(&recorder);
    let shop = shop().await;
    let script = Script::new(|message, n| match (message.kind.as_str(), n) {
        ("order.poison", _) => Step::Prepare(Answer::dead("a bug")),
        ("order.slow", 1) => Step::Prepare(Answer::retry("503")),
        ("order.early", 1) => Step::Prepare(Answer::Unavailable {
            delay: Duration::ZERO,
            reason: "circuit-open".to_owned(),
        }),
        _ => done(),
    });
    let running = shop.consume(policy(), &script);
    running.handle.wait_for(|health| health.subscribed).await;
    let parking = parks(&shop, &script).await;
    let twice = order("order.created", "o-1");
    for message in [&twice, &twice, &order("order.poison", "o-2"), &order("order.slow", "o-3")] {
        shop.publish(message).await;
    }
    shop.publish(&order("order.early", "o-4")).await;
    let cancel = CancellationToken::new();
    let relay = Relay::new(shop.store.clone(), shop.broker.clone(), RelayOptions::default());
    let relay = spawn(relay.run(cancel.clone()));
    for kind in ["order.created", "nobody.wants"] {
        let mut tx = shop.store.begin().await.unwrap();
        outbox::enqueue(&mut tx, &event(kind, kind, &1).unwrap(), clock::wall()).await.unwrap();
        shop.store.commit(tx).await.unwrap();
    }
    until("one event waits", async || {
        let stats = outbox::stats(&shop.store).await.unwrap();
        (stats.pending, stats.parked) == (1, 1)
    })
    .await;
    until("one dead", async || shop.depth(".dlq").await == 1).await;
    shop.settled().await;
    clear_dead_letters(&shop, &prometheus).await;
    keep_house(&shop, &prometheus).await;
    shop.meddle("DELETE FROM mamparo_queues WHERE name = 'orders.saga'").await;
    until("lost", async || prometheus.render().contains("mamparo_consumer_reconnects_total")).await;
    shop.store.close().await;
    until("noticed", async || prometheus.render().contains("mamparo_relay_failures_total")).await;
    lose_a_publisher(&prometheus).await;
    cancel.cancel();
    relay.await.unwrap();
    running.stop().await;
    parking.stop().await;

    let text = prometheus.render();
    let names: BTreeSet<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .filter(|name| !name.is_empty())
        .collect();
    let listed: BTreeSet<&str> = METRICS.iter().map(|(name, _, _)| *name).collect();
    assert_eq!(names, listed);
    for outcome in ["done", "duplicate", "retried", "deferred", "dead"] {
        let line = format!("outcome=\"{outcome}\"");
        assert!(text.contains(&line), "{outcome}\n{text}");
    }
    for (name, labels, _) in METRICS {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(labels.iter().all(|label| line.contains(&format!("{label}=\""))), "{line}");
    }
}
