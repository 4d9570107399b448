//! The rate limit: never more than its bound, in any stretch of time, from any number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mamparo_core::call::rate_limit::{
    Answer, KeyedRateLimit, MoreThanBurst, RateLimit, RateLimitConfig,
};
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
    let limit = RateLimit::new(RateLimitConfig::new(300, MINUTE));
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
    let limit = RateLimit::new(config);
    let passed = (0..1_000).filter(|n| allowed(limit.ask(Moment::from_nanos(1_000 + n)))).count();
    // Every fourth nanosecond; every third would be 334, and 300 were promised, and a burst of 1.
    assert_eq!(passed, 250);
}

#[test]
fn policies_c38_eight_threads_admit_no_more_than_the_limit() {
    let limit = RateLimit::new(RateLimitConfig::new(100, MINUTE));
    let count = || (0..1_000).filter(|_| allowed(limit.ask(at(0)))).count();
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(total, 100);
}

#[test]
fn keys_do_not_disturb_each_other_and_memory_is_bounded() {
    let config = RateLimitConfig::new(2, MINUTE);
    let limit = KeyedRateLimit::new(config, 1).with_keys_max(3);
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
fn a_flood_of_new_names_refills_nobody() {
    let limit = KeyedRateLimit::new(RateLimitConfig::new(100, MINUTE), 1).with_keys_max(1_000);
    for _ in 0..100 {
        assert!(allowed(limit.ask(at(0), "greedy")));
    }
    for name in 0..20_000 {
        assert!(allowed(limit.ask(at(1), format!("stranger {name}").as_str())));
        assert!(limit.keys() <= 1_000);
    }
    assert!(!allowed(limit.ask(at(2), "greedy")));
    let _: KeyedRateLimit<String> = limit;
}

#[test]
fn policies_c35_a_clock_that_steps_back_only_refuses() {
    let limit = RateLimit::new(RateLimitConfig::new(1, MINUTE));
    assert!(allowed(limit.ask(at(0))));
    assert!(!allowed(limit.ask(Moment::ORIGIN)));
    assert!(allowed(limit.ask(at(60_000))));
}

/// The most of `passed` (in order) that lie in any stretch of `length`, its end not included.
fn most_in_any(passed: &[u64], length: u64) -> usize {
    let within =
        |start: &u64| passed.iter().filter(|at| (*start..start + length).contains(at)).count();
    passed.iter().map(within).max().unwrap_or(0)
}

/// What a limit admits in the busiest second, if it idles for an hour and is then asked every 100 µs.
fn busiest_second_after_idling(config: RateLimitConfig) -> usize {
    let limit = RateLimit::new(config);
    let start = 3_600_000_000_000_u64;
    let asks = (0..30_000).map(|n| start + n * 100_000);
    let passed: Vec<u64> = asks.filter(|at| allowed(limit.ask(Moment::from_nanos(*at)))).collect();
    most_in_any(&passed, 1_000_000_000)
}

#[test]
fn a_hundred_a_second_after_idling() {
    let second = Duration::from_secs(1);
    for (config, most) in [
        (RateLimitConfig::strict(100, second), 100),
        (RateLimitConfig::new(100, second), 199),
        (RateLimitConfig::new(100, second).with_burst(1), 100),
        (RateLimitConfig::new(51, second).with_burst(50), 100),
    ] {
        assert_eq!(busiest_second_after_idling(config), most, "{config:?}");
        assert_eq!(config.most_in_a_period(), most as u64, "{config:?}");
    }
}

#[test]
fn many_at_once_are_all_or_none() {
    let limit = RateLimit::new(RateLimitConfig::new(10, MINUTE));
    let allowed = |remaining, seconds| {
        Ok(Answer::Allowed { remaining, full_after: Duration::from_secs(seconds) })
    };
    assert_eq!(limit.ask_n(at(0), 0), allowed(10, 0));
    assert_eq!(limit.ask_n(at(0), 7), allowed(3, 42));
    let refused = Ok(Answer::NotUntil { retry_after: Duration::from_secs(6) });
    assert_eq!(limit.ask_n(at(0), 4), refused);
    assert_eq!(limit.ask_n(at(0), 4), refused, "a refusal costs nothing");
    assert_eq!(limit.ask_n(at(0), 3), allowed(0, 60));
    assert_eq!(limit.ask_n(at(0), 0), allowed(0, 60));
    assert_eq!(limit.ask_n(at(0), 11), Err(MoreThanBurst { burst: 10 }), "no wait would help");
}

#[test]
fn a_look_takes_nothing() {
    let limit = RateLimit::new(RateLimitConfig::new(2, MINUTE));
    let keyed = KeyedRateLimit::new(RateLimitConfig::new(2, MINUTE), 1);
    let first = Answer::Allowed { remaining: 1, full_after: Duration::from_secs(30) };
    for _ in 0..100 {
        assert_eq!(limit.peek(at(0)), first);
        assert_eq!(keyed.peek(at(0), "nobody"), first);
    }
    assert_eq!(keyed.keys(), 0, "looking for a key does not keep it");
    assert_eq!((limit.ask(at(0)), keyed.ask(at(0), "nobody")), (first, first));
    let _: KeyedRateLimit<String> = keyed;
}

/// Requests, period, burst; at the moment, asked so often; how many pass, and the wait after them.
#[test]
fn extreme_settings_give_the_right_answers() {
    const YEARS_584: Duration = Duration::from_nanos(u64::MAX);
    let nanos = Duration::from_nanos;
    let year = 365 * 86_400 * 1_000_000_000_u64;
    for (requests, per, burst, now, asked, passed, wait) in [
        // Four a nanosecond can't be told apart: one a nanosecond.
        (u32::MAX, nanos(1), 1, 5, 3, 1, Some(nanos(1))),
        (u32::MAX, Duration::from_secs(1), u32::MAX, 5, 1_000, 1_000, None),
        (1, nanos(1), 1, 0, 2, 1, Some(nanos(1))),
        (1, YEARS_584, 1, year, 2, 1, Some(nanos(u64::MAX / 2))),
        (1, Duration::MAX, 1, 0, 2, 1, Some(nanos(u64::MAX / 2))),
        (1, Duration::MAX, u32::MAX, 0, 3, 2, None),
        (u32::MAX, Duration::MAX, u32::MAX, year, 100, 100, None),
        // At the end of time nothing fits any more, whatever the limit.
        (100, Duration::from_secs(1), 100, u64::MAX, 1, 0, None),
        (0, Duration::ZERO, 0, 5, 2, 1, Some(nanos(1))),
    ] {
        let config = RateLimitConfig { requests, per, burst };
        let limit = RateLimit::new(config);
        let keyed = KeyedRateLimit::new(config, 1);
        let now = Moment::from_nanos(now);
        let answers: Vec<_> = (0..asked).map(|_| limit.ask(now)).collect();
        let keyed: Vec<_> = (0..asked).map(|_| keyed.ask(now, &7_u64)).collect();
        assert_eq!(answers, keyed, "{config:?}");
        let admitted = answers.iter().filter(|answer| allowed(**answer)).count();
        assert_eq!(admitted, passed, "{config:?}");
        if let Some(retry_after) = wait {
            assert_eq!(answers.last(), Some(&Answer::NotUntil { retry_after }), "{config:?}");
        }
    }
}

#[test]
fn policies_c38_eight_threads_with_moving_clocks_stay_under_the_bound() {
    let config = RateLimitConfig::strict(50, Duration::from_millis(10));
    let limit = RateLimit::new(config);
    let keyed = KeyedRateLimit::new(config, 1);
    let clock = AtomicU64::new(1);
    let count = |ask: &(dyn Fn(Moment) -> Answer + Sync)| {
        let mut passed: Vec<u64> = std::thread::scope(|scope| {
            let run = || {
                let mut passed = Vec::new();
                for _ in 0..2_000 {
                    // 16 000 turns of 25 µs: forty periods.
                    let now = clock.fetch_add(25_000, Ordering::Relaxed);
                    if allowed(ask(Moment::from_nanos(now))) {
                        passed.push(now);
                    }
                }
                passed
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        passed.sort_unstable();
        passed
    };
    for passed in [count(&|now| limit.ask(now)), count(&|now| keyed.ask(now, &"all"))] {
        assert!(passed.len() > 900, "{}: it is no wall either", passed.len());
        assert!(most_in_any(&passed, 10_000_000) <= 50);
    }
}

proptest! {
    #[test]
    fn policies_c38_any_stretch_stays_under_its_bound(
        requests in 1_u32..20, burst in 1_u32..20,
        gaps in prop::collection::vec(0_u64..400, 1..200),
    ) {
        let config = RateLimitConfig::new(requests, Duration::from_secs(1)).with_burst(burst);
        let limit = RateLimit::new(config);
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
    fn no_configuration_panics(requests: u32, burst: u32, per: u64, now: u64, n: u32) {
        let config = RateLimitConfig::new(requests, Duration::from_nanos(per)).with_burst(burst);
        let limit = RateLimit::new(config);
        for now in [Moment::from_nanos(now), Moment::FAR_FUTURE, Moment::ORIGIN] {
            limit.ask(now);
            prop_assert_eq!(limit.ask_n(now, n).is_err(), n > burst.max(1));
        }
        prop_assert!(config.most_in_a_period() <= 2 * u64::from(u32::MAX));
    }

    /// Whatever happens to one key, alone or among others, is what happens to a bucket of its own.
    #[test]
    fn a_keyed_bucket_is_a_bucket(
        requests in 1_u32..20, burst in 1_u32..20,
        asks in prop::collection::vec((0_u64..400, 0_u8..5, 0_u32..4), 1..200),
    ) {
        let config = RateLimitConfig::new(requests, Duration::from_secs(1)).with_burst(burst);
        let keyed = KeyedRateLimit::new(config, 5);
        let alone: Vec<RateLimit> = (0..5).map(|_| RateLimit::new(config)).collect();
        let mut now = 0;
        for (gap, key, n) in asks {
            now += gap;
            let own = &alone[usize::from(key)];
            prop_assert_eq!(keyed.peek(at(now), &key), own.peek(at(now)));
            prop_assert_eq!(keyed.ask_n(at(now), &key, n), own.ask_n(at(now), n));
            prop_assert_eq!(own.peek(at(now)), own.ask(at(now)), "a look tells what an ask gets");
            keyed.ask(at(now), &key);
        }
    }

    #[test]
    fn a_strict_limit_holds_in_any_period(
        ceiling in 1_u32..60, per in 1_000_u64..5_000,
        gaps in prop::collection::vec(0_u64..300, 1..400),
    ) {
        let limit = RateLimit::new(RateLimitConfig::strict(ceiling, Duration::from_nanos(per)));
        prop_assert_eq!(limit.config().most_in_a_period(), u64::from(ceiling));
        let (mut now, mut passed) = (0_u64, Vec::new());
        for gap in gaps {
            now += gap;
            if allowed(limit.ask(Moment::from_nanos(now))) {
                passed.push(now);
            }
        }
        prop_assert!(most_in_any(&passed, per) <= ceiling as usize);
    }
}
