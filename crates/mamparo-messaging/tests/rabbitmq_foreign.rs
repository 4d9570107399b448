//! Messages of publishers that put bytes into properties which are no UTF-8. AMQP allows it, RabbitMQ
//! carries it, and the client library ends the connection over it.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod amqp;
mod common;

use std::time::Duration;

use amqp::Raw;
use common::{Running, Script, done, open_store, order, spawn, until, within};
use futures_util::StreamExt as _;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use lapin::{BasicProperties, ErrorKind};
use mamparo_core::message::headers;
use mamparo_messaging::broker::{Filter, Stored};
use mamparo_messaging::{
    Broker as _, Confirm, Consumer, Message, QueuePolicy, RabbitMqBroker, Sweeper, SweeperOptions,
};
use mamparo_store::failed::{self, Query};
use mamparo_testkit::leavings::Leavings;
use mamparo_testkit::servers::amqp_url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Stands in a property for bytes that are no UTF-8, as many of them.
const MARK: &[u8] = b"<mark>";
const WRONG: &[u8] = b"\xf1\xff\x80\xc3\xe1\xbf";

/// A publisher whose texts have [`WRONG`] wherever they say [`MARK`]: no client would write them.
async fn foreign() -> Raw {
    let url = amqp_url();
    let (before, place) = url.rsplit_once('@').unwrap();
    let (server, vhost) = place.split_once('/').unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut to_broker = TcpStream::connect(server).await.unwrap();
    spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let ((mut from_client, mut to_client), (mut from_broker, mut to_broker)) =
            (client.split(), to_broker.split());
        let up = async {
            let mut buffer = vec![0_u8; 64 * 1_024];
            while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                for at in 0..count.saturating_sub(MARK.len()) {
                    if buffer[at..].starts_with(MARK) {
                        buffer[at..at + MARK.len()].copy_from_slice(WRONG);
                    }
                }
                to_broker.write_all(&buffer[..count]).await.unwrap();
            }
        };
        tokio::join!(up, tokio::io::copy(&mut from_broker, &mut to_client)).1.ok();
    });
    Raw::connect(&format!("{before}@127.0.0.1:{port}/{vhost}")).await
}

fn named(id: &str, kind: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(id.into()).with_type(kind.into())
}

/// Publishes two that are no text to `queue`, among three of ours.
async fn publish(broker: &RabbitMqBroker, queue: &str) -> Vec<Message> {
    let raw = foreign().await;
    let ours: Vec<Message> = (0..3).map(|n| order("order.created", &format!("o-{n}"))).collect();
    let foreign = [named("f-1", "order <mark>"), named("id <mark>", "order.created")];
    for (n, message) in ours.iter().enumerate() {
        assert_eq!(broker.publish("", queue, message).await, Confirm::Confirmed);
        if let Some(properties) = foreign.get(n) {
            raw.publish("", queue, properties.clone()).await;
        }
    }
    ours
}

async fn dead(broker: &RabbitMqBroker, policy: &QueuePolicy) -> Vec<Stored> {
    broker.browse(&policy.dlq(), &Filter::default()).await.unwrap()
}

/// What the other tests are about: the message as it is, and the client library.
#[tokio::test]
async fn the_client_library_ends_the_connection_over_it() {
    let (raw, policy) = (Raw::connect(&amqp_url()).await, amqp::policy());
    let _leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    raw.declare(&policy.queue, FieldTable::default()).await;
    foreign().await.publish("", &policy.queue, named("f-1", "order <mark>")).await;
    let consume = raw.channel.basic_consume(
        policy.queue.as_str().into(),
        "raw".into(),
        BasicConsumeOptions::default(),
        FieldTable::default(),
    );
    let error = within(consume.await.unwrap().next()).await.unwrap().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ParsingError(_)), "{error:?}");
}

#[tokio::test]
async fn it_is_dead_lettered_with_a_reason_and_everybody_else_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path(), "orders.db").await;
    store.apply("CREATE TABLE effects (id TEXT, kind TEXT)").await.unwrap();
    let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
    let policy = QueuePolicy { handler_timeout: Duration::from_secs(20), ..amqp::policy() };
    let _leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    broker.declare(&policy).await.unwrap();
    let ours = publish(&broker, &policy.queue).await;

    let script = Script::new(|_, _| done());
    let consumer = Consumer::new(broker.clone(), store.clone(), policy.clone(), script.clone());
    let (handle, cancel) = (consumer.handle(), CancellationToken::new());
    let running = Running { handle, task: spawn(consumer.run(cancel.clone())), cancel };
    until("both are dead", async || broker.depth(&policy.dlq()).await.unwrap() == 2).await;
    until("the others are applied", async || {
        let rows = sqlx::query_scalar::<_, String>("SELECT id FROM effects ORDER BY rowid");
        let mut applied = rows.fetch_all(store.reader()).await.unwrap();
        applied.sort();
        let mut ids: Vec<String> = ours.iter().map(|message| message.id.clone()).collect();
        ids.sort();
        applied == ids
    })
    .await;
    let summary = within(running.stop()).await;
    assert_eq!((summary.done, summary.dead, summary.reconnects), (3, 2, 1), "{summary:?}");

    let letters = dead(&broker, &policy).await;
    let said = |letter: &Stored, name| letter.message.header(name).unwrap_or("").to_owned();
    for (letter, (id, kind)) in
        letters.iter().zip([("f-1", "order \0\u{7f}\0Ca?"), ("id \0\u{7f}\0Ca?", "order.created")])
    {
        assert_eq!((letter.message.id.as_str(), letter.message.kind.as_str()), (id, kind));
        assert_eq!(letter.message.body, b"{\"total\":1}", "as it was");
        assert_eq!(said(letter, headers::DEAD_REASON), "undecodable");
        assert!(said(letter, headers::LAST_ERROR).contains("no UTF-8"), "{letter:?}");
    }
    assert!(script.seen().iter().all(|message| ours.contains(message)), "no handler saw them");
}

#[tokio::test]
async fn among_dead_letters_it_is_seen_and_swept_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(folder.path(), "orders.db").await;
    let broker = RabbitMqBroker::connect(&amqp_url()).await.unwrap();
    let policy = amqp::policy();
    let _leavings = Leavings::on(&amqp_url()).queue(&policy.queue);
    broker.declare(&policy).await.unwrap();
    publish(&broker, &policy.dlq()).await;
    assert_eq!(dead(&broker, &policy).await.len(), 5);
    let sweeper = Sweeper::new(broker.clone(), &store, [&policy], SweeperOptions::default());
    let swept = sweeper.sweep(&policy.queue, policy.consumer()).await.unwrap();
    assert_eq!(swept, (5, 0));
    assert_eq!(failed::list(&store, &Query::default()).await.unwrap().len(), 5);
}
