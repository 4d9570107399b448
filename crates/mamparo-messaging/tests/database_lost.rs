//! The service's database goes away under a consumer and comes back: no attempt is counted, nothing
//! is dead-lettered, and the consumer goes on by itself.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod amqp;
mod common;
mod ground;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{until, until_within, within};
use ground::{Act, Ground, Keep};
use mamparo_core::message::headers;
use mamparo_core::message::intake::Phase;
use mamparo_core::message::topology::WaitingRoom;
use mamparo_messaging::{Answer, AnyBroker, Broker as _, Consumer, Handler, Message, QueuePolicy};
use mamparo_store::{Postgres, PostgresStore, Transaction};
use mamparo_testkit::servers::{Durability, Postgres as Server, amqp_url, postgres_url};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;

/// A handler's time that is over long before a pool stops waiting for a connection.
const SHORT: Duration = Duration::from_secs(1);

fn policy(room: WaitingRoom) -> QueuePolicy {
    QueuePolicy { attempts: 2, handler_timeout: SHORT, prefetch: 4, ..ground::policy(room) }
}

/// Statements of an operator, from another database of the server.
async fn administer(statements: &[String]) {
    let mut conn = PgConnection::connect(&postgres_url()).await.unwrap();
    for sql in statements {
        sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut conn).await.unwrap();
    }
    conn.close().await.unwrap();
}

fn cut_off(database: &str) -> String {
    let sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname";
    format!("{sessions} = '{database}'")
}

/// What every loss has in common. `down` is told before the loss and after the return, and handlers
/// then misjudge what they see: half of them give the message up for it.
async fn goes_on_by_itself(
    ground: Ground<Postgres>,
    away: impl AsyncFnOnce(),
    back: impl AsyncFnOnce(),
) {
    let down = Arc::new(AtomicBool::new(false));
    let misled = Arc::clone(&down);
    let script = Act::new(move |_, n| match (misled.load(Ordering::SeqCst), n % 4) {
        (false, _) | (true, 1 | 3) => Answer::Done,
        (true, 2) => Answer::dead("the query failed"),
        (true, _) => Answer::retry("the query failed"),
    });
    let running = ground.consume(&script);
    ground.publish(&ground.message("order.created", "o-0")).await;
    until("applied", async || ground.effects().await.len() == 1).await;

    down.store(true, Ordering::SeqCst);
    away().await;
    for key in ["o-1", "o-1", "o-2", "", ""] {
        ground.publish(&ground.message("order.created", key)).await;
    }
    let paused = running.handle.wait_for(|health| health.phase == Phase::Paused);
    assert!(within(paused).await);
    let health = running.handle.health();
    assert!(health.missing.is_some() && health.subscribed, "{health:?}");
    let before = script.seen().len();
    until_within(30, "it probes", async || script.seen().len() >= before + 2).await;

    // A handler that was misled is judged while the database is still away.
    down.store(false, Ordering::SeqCst);
    until("nothing is in hand", async || running.handle.health().in_hand == 0).await;
    back().await;
    let flows = running.handle.wait_for(|health| health.phase == Phase::Flowing);
    assert!(within(flows).await);
    until("all are applied", async || ground.effects().await.len() >= 6).await;
    ground.settled(&running).await;
    assert_eq!(ground.effects().await.len(), 6, "each once");
    assert_eq!(running.handle.health().missing, None);
    let consumer = ground.policy.consumer();
    let attempts = |m: &Message| headers::attempts(&m.headers, consumer).made;
    assert!(script.seen().iter().all(|message| attempts(message) == 0));
    assert_eq!(ground.dead().await, []);
    assert_eq!(ground.broker.depth(&ground.policy.dlq()).await.unwrap(), 0);
    let summary = running.stop().await;
    assert_eq!((summary.done, summary.retried, summary.dead), (6, 0, 0), "{summary:?}");
}

async fn a_database_that_lets_nobody_in(ground: Ground<Postgres>) {
    let name = ground.keep.database.as_ref().unwrap().name().to_owned();
    let allow = |yes: bool| format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {yes}");
    let away = [allow(false), cut_off(&name)];
    goes_on_by_itself(
        ground,
        async || administer(&away).await,
        async || {
            administer(&[allow(true)]).await;
        },
    )
    .await;
}

/// As after a failover: connections that were opened meanwhile stay read-only for as long as they are
/// open, so coming back means to open others.
async fn a_database_that_only_reads(ground: Ground<Postgres>) {
    let name = ground.keep.database.as_ref().unwrap().name().to_owned();
    let reads = |yes| format!("ALTER DATABASE {name} SET default_transaction_read_only = {yes}");
    let away = [reads("on"), cut_off(&name)];
    goes_on_by_itself(
        ground,
        async || administer(&away).await,
        async || {
            administer(&[reads("off")]).await;
        },
    )
    .await;
}

/// Cuts its own connection off in its transaction, and makes an attempt of it.
struct Cut;

impl Handler<Postgres> for Cut {
    type Facts = ();

    async fn prepare(&self, _: &Message) -> Result<(), Answer> {
        Ok(())
    }

    async fn apply(&self, message: &Message, (): (), tx: &mut Transaction<'_, Postgres>) -> Answer {
        let insert = "INSERT INTO effects (id) VALUES ($1)";
        sqlx::query(insert).bind(&message.id).execute(&mut **tx).await.unwrap();
        let nth = sqlx::query_scalar::<_, i64>("SELECT nextval('hands')");
        if nth.fetch_one(&mut **tx).await.unwrap() > 3 {
            return Answer::Done;
        }
        let cut = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
        match cut.execute(&mut **tx).await {
            Ok(_) => Answer::Done,
            Err(_) => Answer::dead("a query failed"),
        }
    }
}

async fn a_connection_that_breaks_under_the_handler(ground: Ground<Postgres>) {
    // A sequence outlives the transactions that are cut off.
    ground.store.apply("CREATE SEQUENCE hands").await.unwrap();
    let (broker, store) = (ground.broker.clone(), ground.store.clone());
    let consumer = Consumer::new(broker, store, ground.policy.clone(), Cut);
    let cancel = CancellationToken::new();
    let task = common::spawn(consumer.run(cancel.clone()));
    ground.publish(&ground.message("order.created", "o-1")).await;
    until("applied", async || ground.effects().await.len() == 1).await;
    cancel.cancel();
    let summary = within(task).await.unwrap();
    assert_eq!((summary.done, summary.retried, summary.dead), (1, 0, 0), "{summary:?}");
}

async fn a_server_that_is_killed_and_starts_again(
    broker: AnyBroker,
    room: WaitingRoom,
    keep: Keep,
) -> (AnyBroker, QueuePolicy) {
    let server = Server::start(Durability::Fast).unwrap();
    let store = PostgresStore::open(&server.url()).await.unwrap();
    store.apply("CREATE TABLE effects (at BIGSERIAL, id TEXT)").await.unwrap();
    let policy = policy(room);
    let ground = Ground { broker: broker.clone(), store, policy: policy.clone(), keep };
    let server = std::cell::RefCell::new(server);
    goes_on_by_itself(
        ground.declared().await,
        async || server.borrow_mut().kill().unwrap(),
        async || server.borrow_mut().restart().unwrap(),
    )
    .await;
    (broker, policy)
}

/// A shared broker must not fill up with the queues of tests.
async fn clear(broker: &AnyBroker, policy: &QueuePolicy) {
    if matches!(broker, AnyBroker::RabbitMq(_)) {
        amqp::Raw::connect(&amqp_url()).await.clear(policy).await;
    }
}

macro_rules! suite {
    ($($place:ident: $broker:ident, $room:ident;)+) => {
        $(mod $place {
            use super::*;

            suite!(@tests $broker, $room,
                a_database_that_lets_nobody_in,
                a_database_that_only_reads,
                a_connection_that_breaks_under_the_handler,
            );

            #[tokio::test]
            async fn a_server_that_is_killed_and_starts_again() {
                let mut keep = Keep::default();
                let broker = ground::$broker(&mut keep).await;
                let room = WaitingRoom::$room;
                let (broker, policy) =
                    super::a_server_that_is_killed_and_starts_again(broker, room, keep).await;
                clear(&broker, &policy).await;
            }
        })+
    };
    (@tests $broker:ident, $room:ident, $($name:ident),+ $(,)?) => {
        $(#[tokio::test]
        async fn $name() {
            let mut keep = Keep::default();
            let broker = ground::$broker(&mut keep).await;
            let store = ground::postgres(&mut keep).await;
            let policy = policy(WaitingRoom::$room);
            let ground = Ground { broker, store, policy, keep }.declared().await;
            let (broker, policy) = (ground.broker.clone(), ground.policy.clone());
            super::$name(ground).await;
            clear(&broker, &policy).await;
        })+
    };
}

suite!(
    tiers_rabbitmq: rabbitmq, Tiers;
    parked_rabbitmq: rabbitmq, Parked;
    parked_embedded: embedded, Parked;
);
