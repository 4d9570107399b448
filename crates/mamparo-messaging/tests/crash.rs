//! Real process deaths: a message that kills its process is found, its neighbours are spared, and
//! nothing that was published is lost.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::path::Path;
use std::process::{Command, ExitStatus};

use common::{QUEUE, Script, Shop, done, open_store, options, order, policy, shop};
use mamparo_core::message::headers;
use mamparo_messaging::{Broker as _, EmbeddedBroker};

const CHILD: &str = "MAMPARO_TEST_CRASH_CHILD";

/// The child's part. In a run of the whole suite there is no folder, and nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_child() {
    #[expect(clippy::disallowed_methods, reason = "how the parent below hands over its folder")]
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let folder = Path::new(&folder);
    let broker = EmbeddedBroker::new(open_store(folder, "broker.db").await, options());
    let store = open_store(folder, "orders.db").await;
    let shop = Shop { folder: tempfile::tempdir().unwrap(), broker, store };
    let script = Script::new(|message, _| {
        if message.kind == "order.poison" {
            std::process::abort();
        }
        done()
    });
    let running = shop.consume(policy(), &script);
    shop.settled().await;
    running.stop().await;
}

fn run_child(folder: &Path) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "crash_child", "--nocapture"]).env(CHILD, folder);
    child.output().unwrap().status
}

#[tokio::test]
async fn messages_c08_lesson_t06_only_the_message_that_kills_processes_is_dead_lettered() {
    let shop = shop().await;
    shop.broker.declare(&policy()).await.unwrap();
    let mut innocent = Vec::new();
    for n in 0..12 {
        let kind = if n == 4 { "order.poison" } else { "order.created" };
        let message = order(kind, &format!("o-{n}"));
        shop.publish(&message).await;
        if n != 4 {
            innocent.push(message.id);
        }
    }
    let mut deaths = 0;
    while !run_child(shop.folder.path()).success() {
        deaths += 1;
        assert!(deaths <= 3, "the poison was never found out");
    }
    assert_eq!(deaths, 3);
    let mut effects = shop.effects().await;
    effects.sort_unstable();
    innocent.sort_unstable();
    assert_eq!(effects, innocent, "each innocent message was applied once");
    let dead = shop.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].message.kind, "order.poison");
    assert_eq!(dead[0].message.header(headers::DEAD_REASON), Some("crashes"));
    let totals = mamparo_store::queue::totals(shop.broker.store()).await.unwrap();
    assert!(totals.iter().all(mamparo_store::queue::Totals::balanced), "{totals:?}");
    assert_eq!(shop.broker.depth(QUEUE).await.unwrap(), 0);
}
