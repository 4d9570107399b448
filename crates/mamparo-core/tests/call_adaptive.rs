//! The adaptive limit: its bounds, and the edges where such limits go wrong.

use std::time::Duration;

use mamparo_core::call::adaptive::{
    AdaptiveConfig, AdaptiveLimit, Algorithm, Event, Phase, Sample,
};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const ALGORITHMS: [Algorithm; 3] =
    [Algorithm::Aimd, Algorithm::Vegas, Algorithm::Gradient2 { tolerance: 1.5 }];

/// A limit and the time of those who feed it.
struct Fed {
    limit: AdaptiveLimit,
    now: Moment,
}

impl Fed {
    fn new(algorithm: Algorithm, initial: u32) -> Self {
        let config = AdaptiveConfig { algorithm, initial, ..AdaptiveConfig::default() };
        Self { limit: AdaptiveLimit::new(config), now: Moment::ORIGIN }
    }

    fn limit(&self) -> u32 {
        self.limit.limit()
    }

    /// For `millis`, a call ends each millisecond.
    fn calls(&mut self, millis: u64, call: impl Fn(u32) -> Sample) {
        for _ in 0..millis {
            self.now = self.now.plus(Duration::from_millis(1));
            self.limit.tell(self.now, call(self.limit()));
        }
    }

    /// For `millis`, calls of a dependency for `capacity` of them, which take 20 ms × `slowness` and use
    /// the whole limit.
    fn busy(&mut self, millis: u64, capacity: u32, slowness: f64) {
        self.calls(millis, |limit| {
            let queueing = f64::from(limit.max(capacity)) / f64::from(capacity);
            let took = Duration::from_millis(20).mul_f64(slowness * queueing);
            Sample { took, in_flight: limit, dropped: false }
        });
    }
}

const fn dropped(in_flight: u32) -> Sample {
    Sample { took: Duration::from_millis(20), in_flight, dropped: true }
}

#[test]
fn defaults_are_what_the_docs_say() {
    let config = AdaptiveConfig::default();
    assert_eq!(config.to_string(), "Gradient2 (tolerance 1.5) from 4 to 200, at first 20");
    assert_eq!(config.mistakes(), []);
    assert_eq!(AdaptiveLimit::new(config).limit(), 20);
}

#[test]
fn every_mistake_is_named() {
    let keys = |min, max, initial, tolerance| {
        let algorithm = Algorithm::Gradient2 { tolerance };
        let config = AdaptiveConfig { algorithm, min, max, initial };
        config.mistakes().iter().map(|mistake| mistake.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(1, 100_000, 1, 1.0), [""; 0]);
    assert_eq!(
        keys(0, 0, 0, 0.9),
        ["adaptive.max", "adaptive.min", "adaptive.initial", "adaptive.tolerance"]
            .into_iter()
            .filter(|key| *key != "adaptive.initial")
            .collect::<Vec<_>>()
    );
    assert_eq!(keys(5, 4, 5, 1.5), ["adaptive.min"]);
    assert_eq!(keys(2, 4, 1, f64::NAN), ["adaptive.initial", "adaptive.tolerance"]);
    assert_eq!(keys(2, 100_001, 5, 10.1), ["adaptive.max", "adaptive.tolerance"]);
}

#[test]
fn it_halves_while_everything_is_dropped_and_recovers_afterwards() {
    for algorithm in ALGORITHMS {
        let mut fed = Fed::new(algorithm, 64);
        for halved in [32, 16, 8, 4, 4] {
            // 100 ms and the 20 ms of a call that began before the last lowering.
            fed.calls(130, dropped);
            assert_eq!(fed.limit(), halved, "{algorithm}");
        }
        fed.busy(20_000, 64, 1.0);
        assert!(fed.limit() >= 64, "{algorithm}: {}", fed.limit());
    }
}

#[test]
fn one_burst_of_drops_lowers_it_once() {
    for algorithm in ALGORITHMS {
        let mut fed = Fed::new(algorithm, 64);
        fed.calls(101, dropped);
        assert_eq!(fed.limit(), 32, "{algorithm}");
        // These time out much later, and began under the old limit.
        let before = fed.now;
        for _ in 0..500 {
            fed.now = fed.now.plus(Duration::from_millis(1));
            let took = fed.now.since(before).saturating_add(Duration::from_millis(50));
            fed.limit.tell(fed.now, Sample { took, in_flight: 64, dropped: true });
        }
        assert_eq!(fed.limit(), 32, "{algorithm}");
    }
}

/// The clock went back after drops: those that follow are no older for it.
#[test]
fn policies_c35_a_clock_that_steps_back_makes_no_drop_an_old_one() {
    for algorithm in ALGORITHMS {
        let mut fed = Fed::new(algorithm, 64);
        fed.now = Moment::from_millis(900_000);
        fed.calls(150, dropped);
        assert_eq!(fed.limit(), 32, "{algorithm}");
        fed.now = Moment::from_millis(5_000);
        fed.calls(150, dropped);
        assert_eq!(fed.limit(), 16, "{algorithm}");
    }
}

#[test]
fn few_drops_lower_it_little() {
    let mut fed = Fed::new(Algorithm::Aimd, 100);
    for number in 0..101 {
        fed.calls(1, |limit| Sample { dropped: number % 10 == 9, ..dropped(limit) });
    }
    assert_eq!(fed.limit(), 95);
    // One of a hundred and one: half a call less is the next whole one.
    let mut fed = Fed::new(Algorithm::Aimd, 100);
    for number in 0..101 {
        fed.calls(1, |limit| Sample { dropped: number == 50, ..dropped(limit) });
    }
    assert_eq!(fed.limit(), 99);
}

#[test]
fn policies_b19_at_its_maximum_it_stays_there() {
    for algorithm in ALGORITHMS {
        let mut fed = Fed::new(algorithm, 200);
        for _ in 0..120 {
            fed.busy(1_000, 1_000, 1.0);
            assert_eq!(fed.limit(), 200, "{algorithm} at {:?}", fed.now);
        }
    }
}

#[test]
fn policies_b19_a_standing_queue_never_becomes_the_normal() {
    for algorithm in [Algorithm::Vegas, Algorithm::Gradient2 { tolerance: 1.5 }] {
        let mut fed = Fed::new(algorithm, 20);
        let mut highest = 0;
        for second in 0..900 {
            fed.busy(1_000, 30, 1.0);
            if second > 60 {
                highest = highest.max(fed.limit());
            }
        }
        assert!((30..=75).contains(&highest), "{algorithm}: {highest} for a capacity of 30");
    }
}

#[test]
fn policies_b19_a_limit_that_is_not_used_does_not_grow() {
    for algorithm in ALGORITHMS {
        let mut fed = Fed::new(algorithm, 20);
        let call = |in_flight| {
            move |_| Sample { took: Duration::from_millis(20), in_flight, dropped: false }
        };
        fed.calls(60_000, call(9));
        assert_eq!(fed.limit(), 20, "{algorithm}");
        fed.calls(5_000, call(10));
        assert!(fed.limit() > 20, "{algorithm}: half is use");
    }
}

#[test]
fn a_dependency_that_is_slower_for_good_gets_its_limit_back() {
    for algorithm in [Algorithm::Vegas, Algorithm::Gradient2 { tolerance: 1.5 }] {
        let mut fed = Fed::new(algorithm, 20);
        fed.busy(5_000, 50, 1.0);
        fed.busy(10_000, 50, 4.0);
        assert!(fed.limit() < 50, "{algorithm} takes it for a queue: {}", fed.limit());
        fed.busy(60_000, 50, 4.0);
        assert!(fed.limit() >= 45, "{algorithm} has measured again: {}", fed.limit());
    }
}

/// It became slower while next to nothing was in flight, so no queue of ours was why: what it takes now is
/// the new base, without a probe.
#[test]
fn a_dependency_that_became_slower_while_it_was_idle_needs_no_probe() {
    for algorithm in [Algorithm::Vegas, Algorithm::Gradient2 { tolerance: 1.5 }] {
        let mut fed = Fed::new(algorithm, 20);
        fed.busy(5_000, 50, 1.0);
        let took = Duration::from_millis(80);
        fed.calls(60_000, |_| Sample { took, in_flight: 1, dropped: false });
        let before = fed.limit();
        for _ in 0..1_000 {
            fed.busy(10, 200, 4.0);
            assert_eq!(fed.limit.phase(), Phase::Seeking, "{algorithm}");
        }
        assert!(fed.limit() > before, "{algorithm}: {} after {before}", fed.limit());
    }
}

#[test]
fn it_says_when_it_probes() {
    let fed = Fed::new(Algorithm::Vegas, 20);
    assert_eq!(fed.limit.phase(), Phase::Draining);
    let mut fed = Fed::new(Algorithm::Vegas, 20);
    fed.busy(1_000, 50, 1.0);
    assert_eq!(fed.limit.phase(), Phase::Seeking);
}

#[test]
fn threads_that_meet_skip_a_sample_and_nothing_else() {
    let limit = AdaptiveLimit::new(AdaptiveConfig::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for millis in 0..20_000 {
                    let sample = Sample { dropped: false, ..dropped(limit.limit()) };
                    limit.tell(Moment::from_millis(millis), sample);
                    assert!((4..=200).contains(&limit.limit()));
                }
            });
        }
    });
    assert!(limit.limit() > 20);
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::Aimd),
        Just(Algorithm::Vegas),
        any::<f64>().prop_map(|tolerance| Algorithm::Gradient2 { tolerance }),
    ]
}

proptest! {
    #[test]
    fn the_bounds_hold_whatever_comes(
        algorithm in algorithms(), min: u32, max: u32, initial: u32,
        calls in prop::collection::vec((0_u64..200, any::<u64>(), 0_u8..40, any::<u32>(), 0_u8..4), 0..600),
    ) {
        let limit = AdaptiveLimit::new(AdaptiveConfig { algorithm, min, max, initial });
        let min = min.clamp(1, 100_000);
        let bounds = min..=max.clamp(min, 100_000);
        let mut now = Moment::from_millis(10_000);
        for (gap, nanos, shift, in_flight, kind) in calls {
            // Mostly forward, at times back.
            now = if kind == 0 && gap < 10 { now.minus(Duration::from_secs(gap)) }
                else { now.plus(Duration::from_millis(gap)) };
            let took = Duration::from_nanos(nanos >> shift);
            let before = limit.limit();
            let change = limit.tell(now, Sample { took, in_flight, dropped: kind == 1 });
            prop_assert!(bounds.contains(&limit.limit()), "{} in {bounds:?}", limit.limit());
            prop_assert_eq!(change.map(|change| (change.from, change.to)),
                (before != limit.limit()).then_some((before, limit.limit())));
            let least = if change.is_some_and(|change| change.why == Event::Stale) { 0 } else { before / 2 };
            prop_assert!(limit.limit() >= least, "never less than half but for a probe");
        }
    }
}
