//! The relay on PostgreSQL: several processes, other transactions, dumps, poolers, kills.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{QUEUE, open_store, options, policy, spawn, until, until_within, within};
use mamparo_call::clock;
use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::message::relay::Policy;
use mamparo_messaging::broker::Filter;
use mamparo_messaging::{Broker as _, EmbeddedBroker, Relay, RelayOptions, RelaySummary, event};
use mamparo_store::{PostgresStore, StoreAddress, StoreOptions, outbox};
use mamparo_testkit::database::Database;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn quick() -> RelayOptions {
    let (base, cap) = (Duration::from_millis(10), Duration::from_millis(40));
    let backoff = Backoff { base, factor: 2.0, cap, jitter: Jitter::Equal };
    RelayOptions {
        poll: Duration::from_millis(50),
        lease: Duration::from_millis(900),
        policy: Policy { backoff, ..Policy::default() },
        ..RelayOptions::default()
    }
}

struct Running {
    cancel: CancellationToken,
    task: JoinHandle<RelaySummary>,
}

impl Running {
    async fn stop(self) -> RelaySummary {
        self.cancel.cancel();
        within(self.task).await.unwrap()
    }
}

fn start(store: &PostgresStore, broker: &EmbeddedBroker, options: RelayOptions) -> Running {
    let cancel = CancellationToken::new();
    let relay = Relay::new(store.clone(), broker.clone(), options);
    Running { task: spawn(relay.run(cancel.clone())), cancel }
}

async fn enqueue(store: &PostgresStore, key: &str) -> String {
    let event = event("order.changed", key, &serde_json::json!({ "key": key })).unwrap();
    let mut tx = store.begin().await.unwrap();
    outbox::enqueue(&mut tx, &event, clock::wall()).await.unwrap();
    store.commit(tx).await.unwrap();
    event.id
}

async fn pending(store: &PostgresStore) -> u64 {
    outbox::stats(store).await.unwrap().pending
}

/// What came to the queue, by key and in order; `first` leaves out what came before with the same id.
async fn published(broker: &EmbeddedBroker) -> BTreeMap<String, Vec<String>> {
    let filter = Filter { max: 100_000, ..Filter::default() };
    let (mut seen, mut keys) = (BTreeSet::new(), BTreeMap::<String, Vec<String>>::new());
    for stored in broker.browse(QUEUE, &filter).await.unwrap() {
        if seen.insert(stored.message.id.clone()) {
            keys.entry(stored.message.key).or_default().push(stored.message.id);
        }
    }
    keys
}

struct Site {
    folder: tempfile::TempDir,
    broker: EmbeddedBroker,
    database: Database,
}

async fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let broker = EmbeddedBroker::new(open_store(folder.path(), "broker.db").await, options());
    broker.declare(&policy()).await.unwrap();
    Site { folder, broker, database: Database::create() }
}

impl Site {
    async fn open(&self) -> PostgresStore {
        PostgresStore::open(&self.database.url()).await.unwrap()
    }
}

/// One shard fills its room while all others are empty: what is left of it goes on when room is made, not
/// with the next poll. The rows are there before the relay, whose store commits nothing.
#[tokio::test]
async fn a_shard_that_was_full_is_looked_at_when_its_rows_are_recorded() {
    let site = site().await;
    let store = site.open().await;
    for _ in 0..40 {
        enqueue(&store, "o-1").await;
    }
    let patient = RelayOptions { poll: Duration::from_secs(3_600), batch: 16, ..quick() };
    let relay = start(&site.open().await, &site.broker, patient);
    until("all published", async || pending(&store).await == 0).await;
    assert_eq!(relay.stop().await.confirmed, 40);
}

/// One store each, as four hosts would have. The reference's parallel delivery breaks the order; here a
/// key has one relay at a time, through all changes of hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c20_four_relays_keep_the_order_of_each_key() {
    let site = site().await;
    let store = site.open().await;
    let mut sent = BTreeMap::<String, Vec<String>>::new();
    let mut relays = Vec::new();
    for n in 0..240 {
        let key = format!("o-{}", n % 12);
        sent.entry(key.clone()).or_default().push(enqueue(&store, &key).await);
        if n % 40 == 0 && relays.len() < 4 {
            relays.push(start(&site.open().await, &site.broker, quick()));
        }
        if n == 200 {
            relays.remove(0).stop().await;
        }
    }
    until("all published", async || pending(&store).await == 0).await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(published(&site.broker).await, sent);
    let held = "SELECT count(*) FROM mamparo_outbox_shards WHERE owner IS NOT NULL";
    let held: i64 = sqlx::query_scalar(held).fetch_one(store.reader()).await.unwrap();
    assert_eq!(held, 0, "whoever stops gives back");
}

/// The transaction of another key idles, and so does one of another database: neither delays a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c19_idle_transactions_delay_nothing() {
    let site = site().await;
    let store = site.open().await;
    let elsewhere = Database::create();
    let other = PostgresStore::open(&elsewhere.url()).await.unwrap();
    let (mut here, mut there) = (store.begin().await.unwrap(), other.begin().await.unwrap());
    for tx in [&mut here, &mut there] {
        let event = event("order.changed", "idle", &1).unwrap();
        outbox::enqueue(tx, &event, clock::wall()).await.unwrap();
    }
    // The watermill way: rows below the oldest running transaction only.
    let fenced = "SELECT count(*) FROM mamparo_outbox
         WHERE xmin::text::bigint < pg_snapshot_xmin(pg_current_snapshot())::text::bigint";
    let relay = start(&store, &site.broker, quick());
    let id = enqueue(&store, "o-1").await;
    until("published", async || published(&site.broker).await.contains_key("o-1")).await;
    assert_eq!(published(&site.broker).await["o-1"], [id]);
    relay.stop().await;
    enqueue(&store, "o-2").await;
    let seen: i64 = sqlx::query_scalar(fenced).fetch_one(store.reader()).await.unwrap();
    assert_eq!(seen, 0, "a fence by transaction number withholds the row");
    here.rollback().await.unwrap();
    there.rollback().await.unwrap();
}

/// Transaction numbers start anew in a fresh cluster; nothing of ours is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c18_a_dump_restored_into_a_fresh_cluster_keeps_delivering() {
    let site = site().await;
    let store = site.open().await;
    let relay = start(&store, &site.broker, quick());
    let mut sent = vec![enqueue(&store, "o-1").await];
    until("published", async || pending(&store).await == 0).await;
    relay.stop().await;
    sent.push(enqueue(&store, "o-1").await);
    store.close().await;
    let durability = mamparo_testkit::servers::Durability::Fast;
    let fresh = mamparo_testkit::servers::Postgres::start(durability).unwrap();
    let target = fresh.url_of("postgres");
    let copied = Command::new("sh")
        .arg("-c")
        .arg("pg_dump --no-owner \"$1\" | psql --quiet --set ON_ERROR_STOP=1 \"$2\" > /dev/null")
        .args(["sh", &site.database.url(), &target])
        .status()
        .unwrap();
    assert!(copied.success());
    let restored = PostgresStore::open(&target).await.unwrap();
    let relay = start(&restored, &site.broker, quick());
    sent.push(enqueue(&restored, "o-1").await);
    until("published", async || pending(&restored).await == 0).await;
    relay.stop().await;
    assert_eq!(published(&site.broker).await["o-1"], sent);
    restored.close().await;
}

/// Dropped without a goodbye at ever later points of their work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_c21_a_relay_that_is_dropped_anywhere_loses_nothing() {
    let site = site().await;
    let store = site.open().await;
    let mut sent = BTreeMap::<String, Vec<String>>::new();
    for n in 0..60 {
        let key = format!("o-{}", n % 5);
        sent.entry(key.clone()).or_default().push(enqueue(&store, &key).await);
    }
    let few = RelayOptions { batch: 7, lease: Duration::from_millis(300), ..quick() };
    for micros in [0, 500, 2_000, 5_000, 9_000, 14_000, 20_000, 30_000, 45_000] {
        let end = clock::instant_of(clock::now().plus(Duration::from_micros(micros)));
        let relay = Relay::new(store.clone(), site.broker.clone(), few.clone());
        let _ = tokio::time::timeout_at(end, relay.run(CancellationToken::new())).await;
    }
    let relay = start(&store, &site.broker, few);
    until("all published", async || pending(&store).await == 0).await;
    relay.stop().await;
    assert_eq!(published(&site.broker).await, sent, "each at least once; copies share their id");
}

/// Polling is an hour away: only the announcement of the other process can make this pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_another_process_wakes_the_relay() {
    let site = site().await;
    let (here, there) = (site.open().await, site.open().await);
    let patient = RelayOptions { poll: Duration::from_secs(3_600), ..quick() };
    let relay = start(&here, &site.broker, patient);
    let listens = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    until("the relay listens", async || {
        sqlx::query_scalar::<_, i64>(listens).fetch_one(there.reader()).await.unwrap() == 1
    })
    .await;
    let cancel = CancellationToken::new();
    let announcer =
        spawn(mamparo_messaging::relay::announce_commits(there.clone(), cancel.clone()));
    for n in 0..3 {
        let key = format!("o-{n}");
        enqueue(&there, &key).await;
        until("published", async || published(&site.broker).await.contains_key(&key)).await;
    }
    // The listener's connection is cut: it comes back, and what was missed meanwhile is found.
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND query LIKE 'LISTEN%'";
    sqlx::query(cut).execute(there.reader()).await.unwrap();
    enqueue(&there, "o-9").await;
    until("published", async || published(&site.broker).await.contains_key("o-9")).await;
    cancel.cancel();
    announcer.await.unwrap();
    relay.stop().await;
}

/// An ear keeps its connection for good. Were it one of the connections that relays work with, so many
/// relays in one process would leave none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_relays_of_one_store_all_work() {
    let site = site().await;
    let store = site.open().await;
    let relays: Vec<_> = (0..6).map(|_| start(&store, &site.broker, quick())).collect();
    let owners = "SELECT count(DISTINCT owner) FROM mamparo_outbox_shards";
    until("each has shards", async || {
        sqlx::query_scalar::<_, i64>(owners).fetch_one(store.reader()).await.unwrap() == 6
    })
    .await;
    let mut sent = BTreeMap::<String, Vec<String>>::new();
    for n in 0..48 {
        let key = format!("o-{}", n % 24);
        sent.entry(key.clone()).or_default().push(enqueue(&store, &key).await);
    }
    until("all published", async || pending(&store).await == 0).await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(published(&site.broker).await, sent);
}

/// A proxy to PostgreSQL that can fall silent: what is connected then hears nothing more, not even
/// an end, as when the server's host loses its power. New connections go through.
struct Silencer {
    silent: tokio::sync::watch::Sender<u64>,
    _connections: tokio::task::JoinSet<()>,
}

impl Silencer {
    async fn start(url: &str) -> (Self, String) {
        let start = url.rfind('@').unwrap() + 1;
        let end = start + url[start..].find('/').unwrap();
        let server = url[start..end].to_owned();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let through = format!("{}{}{}", &url[..start], listener.local_addr().unwrap(), &url[end..]);
        let silent = tokio::sync::watch::Sender::new(0);
        let (mut connections, silences) = (tokio::task::JoinSet::new(), silent.clone());
        #[expect(clippy::disallowed_methods, reason = "the set ends with the proxy")]
        connections.spawn(async move {
            let mut carried = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut upstream = tokio::net::TcpStream::connect(&server).await.unwrap();
                let mut silent = silences.subscribe();
                carried.spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => return,
                        _ = silent.changed() => {}
                    }
                    // Kept open on both sides.
                    std::future::pending::<()>().await;
                });
            }
        });
        (Self { silent, _connections: connections }, through)
    }
}

/// A host that vanishes says nothing, and what waits for its answer waits for ever. The relay's lease
/// would be renewed by other connections meanwhile, so nobody else would take over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_comes_back_from_a_server_that_has_fallen_silent() {
    let site = site().await;
    let direct = site.open().await;
    let (silencer, through) = Silencer::start(&site.database.url()).await;
    let limits = StoreOptions {
        statement_timeout: Duration::from_millis(300),
        acquire_timeout: Duration::from_millis(500),
        // The server may still have a heartbeat's transaction, and its locks.
        idle_in_transaction_timeout: Duration::from_millis(800),
        ..StoreOptions::default()
    };
    let through = StoreAddress::parse(&through).unwrap();
    let store = PostgresStore::open_with(&through, &limits).await.unwrap();
    let relay = start(&store, &site.broker, quick());
    for n in 0..3 {
        let key = format!("o-{n}");
        enqueue(&direct, &key).await;
        until_within(20, "published", async || published(&site.broker).await.contains_key(&key))
            .await;
        silencer.silent.send_modify(|silences| *silences += 1);
    }
    enqueue(&direct, "o-9").await;
    until_within(20, "published", async || published(&site.broker).await.contains_key("o-9")).await;
    until_within(20, "recorded", async || pending(&direct).await == 0).await;
    relay.stop().await;
}

const CHILD: &str = "MAMPARO_TEST_RELAY_CHILD";

/// The child's part: a relay until it is killed. In a run of the whole suite there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_child() {
    #[expect(clippy::disallowed_methods, reason = "how the parent below hands over its places")]
    let Some(places) = std::env::var_os(CHILD) else { return };
    let places = places.into_string().unwrap();
    let (folder, url) = places.split_once('|').unwrap();
    let folder = std::path::Path::new(folder);
    let broker = EmbeddedBroker::new(open_store(folder, "broker.db").await, options());
    let store = PostgresStore::open(url).await.unwrap();
    let few = RelayOptions { batch: 50, lease: Duration::from_millis(700), ..quick() };
    Relay::new(store, broker, few).run(CancellationToken::new()).await;
}

fn child(site: &Site) -> Child {
    let places = format!("{}|{}", site.folder.path().display(), site.database.url());
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "relay_child", "--nocapture"]).env(CHILD, places);
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Real processes, killed at random while 2,000 rows leave: nothing is lost, first deliveries keep each
/// key's order, the outbox drains. Takes some seconds, because a kill costs a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_are_killed_lose_nothing_and_keep_the_order() {
    use mamparo_core::rng::Rng as _;
    let site = site().await;
    let store = site.open().await;
    let seed = clock::entropy().next_u64();
    eprintln!("seed {seed}");
    let mut rng = mamparo_core::rng::SeededRng::new(seed);
    let mut sent = BTreeMap::<String, Vec<String>>::new();
    let mut kills = 0;
    let mut relays = vec![child(&site), child(&site)];
    for n in 0..2_000 {
        if n % 10 == 0 {
            let mut tx = store.begin().await.unwrap();
            for m in n..n + 10 {
                let key = format!("o-{}", m % 40);
                let event = event("order.changed", &key, &m).unwrap();
                outbox::enqueue(&mut tx, &event, clock::wall()).await.unwrap();
                sent.entry(key).or_default().push(event.id);
            }
            store.commit(tx).await.unwrap();
        }
        if rng.next_u64().is_multiple_of(300) {
            let victim = usize::try_from(rng.next_u64() % 2).unwrap();
            relays[victim].kill().unwrap();
            relays[victim].wait().unwrap();
            relays[victim] = child(&site);
            kills += 1;
            let pause = Duration::from_millis(rng.next_u64() % 150);
            clock::sleep_until(clock::now().plus(pause)).await;
        }
    }
    for victim in &mut relays {
        victim.kill().unwrap();
        victim.wait().unwrap();
        kills += 1;
    }
    let relay = start(&store, &site.broker, quick());
    until("all published", async || pending(&store).await == 0).await;
    relay.stop().await;
    assert!(kills >= 2);
    let got = published(&site.broker).await;
    assert_eq!(got, sent, "seed {seed}");
}
