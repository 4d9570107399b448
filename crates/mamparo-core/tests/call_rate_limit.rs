//! The rate limit: never more than its bound, in any stretch of time, from any number of threads.

use std::sync::Mutex;
use std::time::Duration;

use mamparo_core::call::rate_limit::{Answer, KeyedRateLimit, RateLimit, RateLimitConfig};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn allowed(answer: Answer) -> bool {
    matches!(answer, Answer::Allowed { .. })
}

#[test]
fn three_hundred_a_minute_then_it_names_the_time() {
    let mut limit = RateLimit::new(RateLimitConfig::new(300, MINUTE));
    assert_eq!(
        limit.ask(at(0)),
        Answer::Allowed { remaining: 299, full_after: Duration::from_millis(200) }
    );
    assert!((1..300).all(|_| allowed(limit.ask(at(0)))));
    let refused = Answer::NotUntil { retry_after: Duration::from_millis(200) };
    assert_eq!(limit.ask(at(0)), refused);
    assert_eq!(limit.ask(at(0)), refused, "a refusal costs nothing");
    assert!(!allowed(limit.ask(at(199))));
    assert!(allowed(limit.ask(at(200))));
    assert!(!allowed(limit.ask(at(200))));
}

#[test]
fn an_interval_that_does_not_divide_is_rounded_in_favour_of_the_limit() {
    let config = RateLimitConfig::new(3, Duration::from_nanos(10)).with_burst(1);
    let mut limit = RateLimit::new(config);
    let passed = (0..1_000).filter(|n| allowed(limit.ask(Moment::from_nanos(1_000 + n)))).count();
    // Every fourth nanosecond; every third would be 334, and 300 were promised, and a burst of 1.
    assert_eq!(passed, 250);
}

#[test]
fn policies_c38_eight_threads_admit_no_more_than_the_limit() {
    let limit = Mutex::new(RateLimit::new(RateLimitConfig::new(100, MINUTE)));
    let count = || (0..1_000).filter(|_| allowed(limit.lock().unwrap().ask(at(0)))).count();
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, 100);
}

#[test]
fn keys_do_not_disturb_each_other_and_memory_is_bounded() {
    let config = RateLimitConfig::new(2, MINUTE);
    let mut limit = KeyedRateLimit::new(config).with_keys_max(3);
    assert!(allowed(limit.ask(at(0), &"greedy")) && allowed(limit.ask(at(0), &"greedy")));
    assert!(!allowed(limit.ask(at(0), &"greedy")));
    for key in ["a", "b", "c", "d", "e"] {
        assert!(allowed(limit.ask(at(1), &key)));
        assert!(limit.keys() <= 3);
    }
    // The emptiest bucket is kept the longest: pushing others through does not refill it.
    assert!(!allowed(limit.ask(at(2), &"greedy")));
    // A minute later all are full again, and full ones are forgotten without a trace.
    assert!(allowed(limit.ask(at(120_000), &"new")));
    assert_eq!(limit.keys(), 1);
}

#[test]
fn policies_c35_a_clock_that_steps_back_only_refuses() {
    let mut limit = RateLimit::new(RateLimitConfig::new(1, MINUTE));
    assert!(allowed(limit.ask(at(0))));
    assert!(!allowed(limit.ask(Moment::ORIGIN)));
    assert!(allowed(limit.ask(at(60_000))));
}

proptest! {
    #[test]
    fn policies_c38_any_stretch_stays_under_its_bound(
        requests in 1_u32..20, burst in 1_u32..20,
        gaps in prop::collection::vec(0_u64..400, 1..200),
    ) {
        let config = RateLimitConfig::new(requests, Duration::from_secs(1)).with_burst(burst);
        let mut limit = RateLimit::new(config);
        let (mut now, mut passed) = (0_u64, Vec::new());
        for gap in gaps {
            now += gap;
            if allowed(limit.ask(at(now))) {
                passed.push(now);
            }
        }
        for (first, start) in passed.iter().enumerate() {
            for (last, end) in passed.iter().enumerate().skip(first) {
                let most = f64::from(burst) + (end - start) as f64 * f64::from(requests) / 1_000.0;
                prop_assert!((last - first + 1) as f64 <= most + 1e-6);
            }
        }
    }

    #[test]
    fn no_configuration_panics(requests: u32, burst: u32, per: u64, now: u64) {
        let config = RateLimitConfig::new(requests, Duration::from_nanos(per)).with_burst(burst);
        let mut limit = RateLimit::new(config);
        limit.ask(Moment::from_nanos(now));
        limit.ask(Moment::FAR_FUTURE);
        limit.ask(Moment::ORIGIN);
    }
}
