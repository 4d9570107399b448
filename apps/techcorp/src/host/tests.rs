use http::StatusCode;
use mamparo::core::message::headers::Headers;
use mamparo::core::message::patience::Patience;
use mamparo::messaging::{Answer, Confirm, Message, event};
use mamparo::service::{Environment, telemetry};
use mamparo::store::{Sqlite, Transaction, retries};
use mamparo::topology;

use super::*;

/// A client of a dependency that nobody serves, with these faults in its file.
fn client(faults: &str) -> HttpClient {
    let text = format!(
        "[service]\nname = \"orders\"\nowner = \"team\"\n\
         [dependencies.catalog]\nurl = \"http://127.0.0.1:9\"\nattempt_timeout = \"700ms\"\n\
         faults = {{ {faults} }}\n"
    );
    let policy = topology::parse("orders.toml", &text).unwrap();
    client_of(policy.dependency("catalog").unwrap(), "orders").unwrap()
}

#[tokio::test]
async fn the_faults_of_the_file_befall_calls_once_they_are_switched_on() {
    for (enabled, sent) in [("", 1), ("enabled = false, ", 1), ("enabled = true, ", 0)] {
        let client = client(&format!("{enabled}error = 1.0"));
        let error = client.get("/v1/products").send().await.unwrap_err();
        assert_eq!(client.sent(), sent, "{enabled:?}");
        let status = error.cause().and_then(HttpError::status);
        let injected = (sent == 0).then_some(StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, injected, "{enabled:?}");
    }
}

/// Says of every message that the bank is away, until it is told that it is back.
#[derive(Debug, Clone)]
struct Bank(CancellationToken);

impl Handler<Sqlite> for Bank {
    type Facts = ();

    async fn prepare(&self, _: &Message) -> Result<(), Answer> {
        if self.0.is_cancelled() {
            return Ok(());
        }
        let (delay, reason) = (Duration::from_millis(20), "circuit open: bank".to_owned());
        Err(Answer::Unavailable { delay, reason })
    }

    async fn apply(&self, _: &Message, (): (), _: &mut Transaction<'_, Sqlite>) -> Answer {
        Answer::Done
    }
}

/// A service that consumes `payments.orders`, with its files in `folder`.
async fn open(folder: &std::path::Path) -> (Host, AnyBroker, Store<Sqlite>) {
    let place = |file: &str| format!("sqlite:{}", folder.join(file).display());
    let text = format!(
        "[service]\nname = \"payments\"\nowner = \"team\"\nlisten = \"127.0.0.1:0\"\n\
         request_budget = \"1s\"\nstore = {:?}\nbroker = {:?}\n\
         [queues.\"payments.orders\"]\nowner = \"team\"\nrunbook = \"docs/runbooks/dlq.md\"\n",
        place("payments.db"),
        place("broker.db"),
    );
    let quiet = Environment { log: "off".to_owned(), ..Environment::default() };
    let telemetry = telemetry::install(&quiet).unwrap();
    let policy = topology::parse("payments.toml", &text).unwrap();
    let host = Host::open(policy, telemetry).await.unwrap();
    let broker = host.broker().await.unwrap();
    let store = host.store::<Sqlite>("").await.unwrap();
    (host, broker, store)
}

/// Waits for `condition`, ten seconds at most.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn readiness_says_what_a_paused_consumer_waits_for_and_sends_nobody_away() {
    let folder = tempfile::tempdir().unwrap();
    let (host, broker, store) = open(folder.path()).await;
    let back = CancellationToken::new();
    host.consume("payments.orders", &broker, &store, Bank(back.clone())).await.unwrap();
    let address = host.listener.local_addr().unwrap();
    let service = host.serve(Router::new()).unwrap();
    let probe = async || {
        let answer = reqwest::get(format!("http://{address}/health/ready")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    until("ready", async || probe().await.0 == 200).await;
    let event = event("payment.due", "o-1", &1).unwrap();
    let message = Message::from_event(event, "events");
    assert_eq!(broker.publish("", "payments.orders", &message).await, Confirm::Confirmed);
    until("the pause is shown", async || {
        let (status, text) = probe().await;
        assert_eq!(status, 200, "{text}");
        text.contains("paused: circuit open: bank")
    })
    .await;
    back.cancel();
    until("and its end", async || !probe().await.1.contains("detail")).await;
    drop(service);
}

#[tokio::test]
async fn a_service_forgets_what_has_served_of_every_kind() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("payments.db").display());
    let store = <Sqlite as ShopDb>::open(&address).await.unwrap();
    let old = clock::wall().minus(Duration::from_secs(8 * 86_400));
    retries::keep(&store, "payments.orders", "m-1", &Headers::new(), 1, old).await.unwrap();
    let (host, _broker, store) = open(folder.path()).await;
    let left = async || retries::stats(&store, "payments.orders").await.unwrap().0;
    until("nothing is left", async || left().await == 0).await;
    drop(host);
}

#[test]
fn a_consumer_that_takes_nothing_says_why() {
    let well = ConsumerHealth {
        subscribed: true,
        stopped: false,
        room: WaitingRoom::Tiers,
        phase: Phase::Flowing,
        in_hand: 0,
        last_delivery: None,
        last_settlement: None,
        patience: Patience::Enough,
        error: None,
        missing: None,
    };
    let with = |change: fn(&mut ConsumerHealth)| {
        let mut health = well.clone();
        change(&mut health);
        Standing::of(&health)
    };
    assert_eq!(with(|_| ()), Standing::Flows);
    let paused = |why: &str| Standing::Paused(why.to_owned());
    let away = |why: &str| Standing::Away(why.to_owned());
    assert_eq!(
        with(|it| (it.phase, it.missing) = (Phase::Paused, Some("database: no".to_owned()))),
        paused("paused: database: no")
    );
    assert_eq!(
        with(|it| it.phase = Phase::Probing),
        paused("tries one message at a time: nothing can be handled now")
    );
    assert_eq!(with(|it| it.subscribed = false), away("not subscribed"));
    assert_eq!(
        with(|it| (it.subscribed, it.error) = (false, Some("connection refused".to_owned()))),
        away("connection refused")
    );
    assert_eq!(with(|it| it.stopped = true), away("the consumer has ended"));
}
