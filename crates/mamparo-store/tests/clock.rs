//! One clock for all hosts.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use std::time::Duration;

use common::home::Home;
use mamparo_core::time::WallTime;
use mamparo_store::idempotency::{self, Claim};
use mamparo_store::{Clock, Store};

const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

#[expect(clippy::disallowed_methods, reason = "a test of clocks has to read one")]
fn right() -> WallTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    WallTime::from_unix_millis(i64::try_from(since.as_millis()).unwrap())
}

/// A host whose clock is an hour fast.
fn fast() -> WallTime {
    right().plus(HOUR)
}

/// A host whose clock is an hour slow.
fn slow() -> WallTime {
    right().minus(HOUR)
}

async fn claim<H: Home>(store: &Store<H::Db>, now: impl mamparo_store::Now) -> Claim {
    idempotency::claim(store, "ada", "k", "f", LEASE, 24 * HOUR, now).await.unwrap()
}

/// With its own clock, a host that is fast takes over what lives: two owners at once. With the
/// database's, both hosts agree however wrong their own clocks are.
#[tokio::test]
async fn leases_of_hosts_with_wrong_clocks_agree_by_the_databases_clock() {
    type Server = mamparo_testkit::database::Database;
    let (own, shared) = (Server::create(), Server::create());
    let store = own.store().await;
    assert!(matches!(claim::<Server>(&store, slow).await, Claim::Granted(_)));
    let stolen = claim::<Server>(&store, fast).await;
    assert!(matches!(stolen, Claim::Granted(_)), "by their own clocks: {stolen:?}");

    let hosts = [shared.store().await, shared.store().await];
    assert_eq!(hosts[0].time(slow()).since(slow()), Duration::ZERO, "not measured yet");
    let clocks: [Clock<sqlx::Postgres>; 2] =
        [hosts[0].clock(slow).await.unwrap(), hosts[1].clock(fast).await.unwrap()];
    assert!(matches!(claim::<Server>(&hosts[0], &clocks[0]).await, Claim::Granted(_)));
    let refused = claim::<Server>(&hosts[1], || hosts[1].time(fast())).await;
    assert!(matches!(refused, Claim::InProgress { .. }), "by the database's: {refused:?}");
    for clock in clocks {
        let off = clock.measure().await.unwrap();
        assert!(off.millis.unsigned_abs().abs_diff(3_600_000) < 2_000, "{off:?}");
        let apart = clock.now().since(right()).max(right().since(clock.now()));
        assert!(apart < Duration::from_secs(2), "{apart:?}");
    }
}

#[tokio::test]
async fn on_sqlite_it_is_the_machines_own() {
    let file = common::File::new();
    let clock = file.open().await.clock(fast).await.unwrap();
    assert_eq!(clock.measure().await.unwrap().millis, 0);
    assert!(clock.now() > right().plus(HOUR / 2));
}
