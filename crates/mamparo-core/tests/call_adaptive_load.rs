//! The adaptive limit in front of a dependency that gets ten times what it can do, in virtual time.

#[path = "support/server.rs"]
mod server;

use std::time::Duration;

use mamparo_core::call::adaptive::{AdaptiveConfig, Algorithm};
use server::{Server, World};

const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::Aimd, Algorithm::Vegas, Algorithm::Gradient2 { tolerance: 1.5 }];
const OVERLOAD: f64 = 10.0;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 20 calls at a time, 50 ms each; callers wait for half a second.
const SERVER: Server = Server {
    capacity: 20,
    service: Duration::from_millis(50),
    varies: false,
    refuses_after: Duration::MAX,
    timeout: Duration::from_millis(500),
};

fn world(algorithm: Algorithm, server: Server, seed: u64) -> World {
    let config = AdaptiveConfig { algorithm, initial: 10, ..AdaptiveConfig::default() };
    World::new(server, Ok(config), seed)
}

#[test]
fn under_ten_times_the_load_nine_tenths_of_the_capacity_are_answered_in_time() {
    for algorithm in ALGORITHMS {
        for (varies, refuses_after) in [(false, 20), (true, 20), (false, 9_999), (true, 9_999)] {
            let refuses_after = Duration::from_millis(refuses_after);
            let server = Server { varies, refuses_after, ..SERVER };
            let mut world = world(algorithm, server, 1);
            world.run(seconds(10), OVERLOAD);
            let report = world.run(seconds(20), OVERLOAD);
            assert!(report.goodput >= 0.9, "{algorithm}, {server:?}: {report:?}");
        }
    }
    // What the limit is worth: without one, every answer comes after its caller has gone.
    let mut unlimited = World::new(SERVER, Err(100_000), 1);
    unlimited.run(seconds(10), OVERLOAD);
    let report = unlimited.run(seconds(10), OVERLOAD);
    assert!(report.goodput < 0.1, "{report:?}");
}

#[test]
fn it_ends_between_four_fifths_and_three_times_the_capacity() {
    // AIMD needs refusals, the others see the queue.
    for (algorithm, refuses_after) in ALGORITHMS.into_iter().zip([10, 9_999, 9_999]) {
        for capacity in [10, 20, 50] {
            let refuses_after = Duration::from_millis(refuses_after);
            let server = Server { capacity, refuses_after, ..SERVER };
            let mut world = world(algorithm, server, 7);
            world.run(seconds(20), OVERLOAD);
            let limit = world.bulkhead.limit();
            let band = capacity * 4 / 5..=capacity * 3;
            assert!(band.contains(&limit), "{algorithm}: {limit} for a capacity of {capacity}");
        }
    }
}

#[test]
fn it_follows_a_dependency_that_loses_half_of_itself_and_gets_it_back() {
    for algorithm in ALGORITHMS {
        let server = Server { refuses_after: Duration::from_millis(30), ..SERVER };
        let mut world = world(algorithm, server, 3);
        let whole = world.run(seconds(20), OVERLOAD);
        world.server.capacity = 10;
        world.run(seconds(10), OVERLOAD);
        let half = world.run(seconds(20), OVERLOAD);
        assert!(half.goodput >= 0.9, "{algorithm}: {half:?} after {whole:?}");
        world.server.capacity = 20;
        world.run(seconds(10), OVERLOAD);
        let back = world.run(seconds(20), OVERLOAD);
        assert!(back.goodput >= 0.9, "{algorithm}: {back:?} after {half:?}");
    }
}

#[test]
fn a_light_load_is_not_refused() {
    for algorithm in ALGORITHMS {
        let mut world = world(algorithm, SERVER, 5);
        world.run(seconds(20), OVERLOAD);
        let report = world.run(seconds(60), 0.5);
        assert!(report.goodput > 0.48, "{algorithm}: {report:?}");
        assert_eq!(report.dropped, 0, "{algorithm}: {report:?}");
    }
}

#[test]
fn a_seed_replays_a_run() {
    let run = |seed| {
        let mut world = world(Algorithm::Vegas, Server { varies: true, ..SERVER }, seed);
        let report = world.run(seconds(5), OVERLOAD);
        (report.good, report.limits)
    };
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}
