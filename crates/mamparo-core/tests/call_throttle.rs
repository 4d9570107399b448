//! Throttling by the client: the formula, its window, and what it is for.

use std::time::Duration;

use mamparo_core::call::throttle::{Counts, Leave, Reply, Throttle, ThrottleConfig};
use mamparo_core::outcome::{Failure, Health, Kind, Repeat};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;
use proptest::prelude::*;

fn at(seconds: f64) -> Moment {
    Moment::from_nanos((seconds * 1e9) as u64)
}

fn told(throttle: &Throttle, now: Moment, accepted: u32, rejected: u32) {
    for _ in 0..accepted {
        throttle.tell(now, Reply::Accepted);
    }
    for _ in 0..rejected {
        throttle.tell(now, Reply::Rejected);
    }
}

/// The formula of the book, to the last digit.
fn plain() -> ThrottleConfig {
    ThrottleConfig { min_requests: 0, refuse_max: 1.0, ..ThrottleConfig::default() }
}

#[test]
fn the_share_is_the_one_of_the_book() {
    for (k, accepted, rejected, share) in [
        (2.0, 0, 0, 0.0),
        (2.0, 100, 0, 0.0),
        (2.0, 50, 50, 0.0),
        (2.0, 49, 51, 2.0 / 101.0),
        (2.0, 10, 90, 80.0 / 101.0),
        (2.0, 0, 100, 100.0 / 101.0),
        (2.0, 0, 1, 0.5),
        (1.1, 90, 10, 1.0 / 101.0),
        (1.0, 99, 1, 1.0 / 101.0),
    ] {
        let throttle = Throttle::new(ThrottleConfig { k, ..plain() });
        told(&throttle, at(0.0), accepted, rejected);
        let refused = throttle.refused(at(0.0));
        assert!(
            (refused - share).abs() < 1e-9,
            "{k} {accepted} {rejected}: {refused}, not {share}"
        );
    }
}

#[test]
fn few_requests_are_no_overload_and_some_always_go_out() {
    let throttle = Throttle::new(ThrottleConfig::default());
    told(&throttle, at(0.0), 0, 9);
    assert_eq!(throttle.refused(at(0.0)), 0.0);
    told(&throttle, at(0.0), 0, 1);
    assert!((throttle.refused(at(0.0)) - 0.9).abs() < 1e-9, "10 / 11, capped");
}

#[test]
fn what_says_nothing_is_not_counted_and_what_is_held_back_is() {
    let throttle = Throttle::new(plain());
    for _ in 0..100 {
        throttle.tell(at(0.0), Reply::Silent);
    }
    assert_eq!(throttle.counts(at(0.0)), Counts::default());
    told(&throttle, at(0.0), 0, 1_000);
    let mut rng = SeededRng::new(1);
    let asks = (0..1_000).map(|_| throttle.ask(at(0.0), &mut rng));
    let granted = asks.filter(|leave| *leave == Leave::Granted).count();
    assert!(granted < 5, "{granted} of 1 000 at 1 / 1 001 each");
    assert_eq!(throttle.counts(at(0.0)).requests, 2_000 - granted as u64);
    let refused = Leave::Throttled { retry_after: Duration::from_secs(10) };
    assert_eq!(throttle.ask(at(0.0), &mut rng), refused);
}

#[test]
fn policies_c14_local_refusals_are_no_replies() {
    let failure = |kind, health| Failure { kind, health, ..Failure::TRANSIENT };
    for (failure, reply) in [
        (Failure::TRANSIENT, Reply::Rejected),
        (Failure::UNKNOWN, Reply::Rejected),
        // 429: alive, and does not take it on.
        (failure(Kind::Transient, Health::Good), Reply::Rejected),
        (failure(Kind::Permanent, Health::Bad), Reply::Rejected),
        (Failure::PERMANENT, Reply::Accepted),
        (failure(Kind::Neutral, Health::Silent), Reply::Silent),
        (failure(Kind::Neutral, Health::Bad), Reply::Silent),
        (failure(Kind::Unknown, Health::Silent), Reply::Silent),
    ] {
        assert_eq!(Reply::of(&failure), reply, "{failure:?}");
        assert_eq!(Reply::of(&Failure { repeat: Repeat::Never, ..failure }), reply);
    }
}

#[test]
fn two_minutes_are_remembered_a_twelfth_is_forgotten_at_a_time() {
    let throttle = Throttle::new(plain());
    let requests = |seconds| throttle.counts(at(seconds)).requests;
    told(&throttle, at(0.0), 0, 5);
    told(&throttle, at(119.9), 0, 7);
    assert_eq!(requests(119.9), 12);
    assert_eq!(requests(120.0), 7);
    assert_eq!(requests(229.9), 7);
    assert_eq!(requests(230.0), 0);
    told(&throttle, at(1e9), 1, 0);
    assert_eq!(requests(1e9), 1);
}

#[test]
fn policies_c35_a_clock_that_steps_back_forgets_nothing_and_invents_nothing() {
    let throttle = Throttle::new(plain());
    told(&throttle, at(500.0), 3, 4);
    told(&throttle, at(495.0), 0, 1);
    assert_eq!(throttle.counts(at(495.0)), Counts { requests: 8, accepts: 3 });
    assert_eq!(throttle.counts(at(500.0)), Counts { requests: 8, accepts: 3 });
    told(&throttle, Moment::ORIGIN, 1, 0);
    told(&throttle, Moment::FAR_FUTURE, 1, 0);
    assert_eq!(throttle.counts(Moment::FAR_FUTURE), Counts { requests: 1, accepts: 1 });
}

#[test]
fn a_part_that_overflows_keeps_its_ratio() {
    let throttle = Throttle::new(plain());
    for _ in 0..600_000 {
        throttle.tell(at(0.0), Reply::Accepted);
        throttle.tell(at(0.0), Reply::Rejected);
        throttle.tell(at(0.0), Reply::Rejected);
        throttle.tell(at(0.0), Reply::Rejected);
    }
    let Counts { requests, accepts } = throttle.counts(at(0.0));
    assert!((500_000..1_100_000).contains(&requests), "{requests}");
    assert!((requests as f64 / accepts as f64 - 4.0).abs() < 0.001, "{requests} {accepts}");
}

#[test]
fn no_request_is_lost_between_threads() {
    let throttle = Throttle::new(plain());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| told(&throttle, at(55.0), 1_000, 500));
        }
    });
    assert_eq!(throttle.counts(at(55.0)), Counts { requests: 12_000, accepts: 8_000 });
}

/// A dependency that takes 100 a second, refuses what comes beyond, and is asked for 1 000.
fn sent_in_the_last_minute(throttle: &Throttle, from: f64, taken: u32, rng: &mut impl Rng) -> f64 {
    let mut sent = 0_u32;
    for second in 0..300 {
        let mut left = taken;
        for request in 0..1_000 {
            let now = at(from + f64::from(second) + f64::from(request) / 1_000.0);
            if throttle.ask(now, rng) != Leave::Granted {
                continue;
            }
            sent += u32::from(second >= 240);
            let reply = if left > 0 { Reply::Accepted } else { Reply::Rejected };
            left = left.saturating_sub(1);
            throttle.tell(now, reply);
        }
    }
    f64::from(sent) / 60.0
}

#[test]
fn what_goes_out_is_k_times_what_is_taken_and_recovery_is_noticed() {
    let mut rng = SeededRng::new(4);
    let throttle = Throttle::new(ThrottleConfig::default());
    let sent = sent_in_the_last_minute(&throttle, 0.0, 100, &mut rng);
    assert!((190.0..215.0).contains(&sent), "{sent}: twice the 100 that are taken");
    let dead = sent_in_the_last_minute(&throttle, 300.0, 0, &mut rng);
    assert!((90.0..115.0).contains(&dead), "{dead}: the tenth that always goes out");
    let well = sent_in_the_last_minute(&throttle, 600.0, u32::MAX, &mut rng);
    assert_eq!(well, 1_000.0, "all of it again");
}

#[test]
fn settings_that_can_not_be_meant_are_mistakes() {
    let keys = |config: ThrottleConfig| -> Vec<&str> {
        config.mistakes().iter().map(|mistake| mistake.key).collect()
    };
    let sound = ThrottleConfig::default();
    assert_eq!(keys(sound), [""; 0]);
    for k in [0.9, f64::NAN, f64::INFINITY] {
        assert_eq!(keys(ThrottleConfig { k, ..sound }), ["throttle.k"]);
    }
    let window = Duration::from_millis(11);
    assert_eq!(keys(ThrottleConfig { window, ..sound }), ["throttle.window"]);
    for refuse_max in [-0.1, 1.1, f64::NAN] {
        assert_eq!(keys(ThrottleConfig { refuse_max, ..sound }), ["throttle.refuse_max"]);
    }
}

proptest! {
    /// Equals a recount of what lies in the present part and the eleven before it.
    #[test]
    fn the_window_equals_a_recount(
        events in prop::collection::vec((0_u64..40_000, any::<bool>()), 1..300),
    ) {
        let throttle = Throttle::new(plain());
        let (mut millis, mut all) = (0, Vec::new());
        for (gap, accepted) in events {
            millis += gap;
            let now = Moment::from_millis(millis);
            throttle.tell(now, if accepted { Reply::Accepted } else { Reply::Rejected });
            all.push((millis / 10_000, accepted));
            let inside = all.iter().filter(|(part, _)| part + 12 > millis / 10_000);
            let requests = inside.clone().count() as u64;
            let accepts = inside.filter(|(_, accepted)| *accepted).count() as u64;
            prop_assert_eq!(throttle.counts(now), Counts { requests, accepts });
        }
    }

    #[test]
    fn no_settings_and_no_clock_panic(
        k: f64, nanos in prop_oneof![Just(0), 1_u64..100, any::<u64>()], min_requests: u32,
        refuse_max: f64,
        moments in prop::collection::vec(any::<u64>(), 1..20),
    ) {
        let window = Duration::from_nanos(nanos);
        let config = ThrottleConfig { k, window, min_requests, refuse_max };
        let throttle = Throttle::new(config);
        let mut rng = SeededRng::new(1);
        for now in moments.into_iter().chain([0, u64::MAX, 0]) {
            let now = Moment::from_nanos(now);
            throttle.ask(now, &mut rng);
            throttle.tell(now, Reply::Rejected);
            prop_assert!(!throttle.refused(now).is_nan());
        }
        let _ = config.mistakes();
    }
}
