//! Quantiles against exact ones, and what they forget.

use std::time::Duration;

use mamparo_core::call::latency::{Adviser, Latency, NoAdvice, Observed, samples_needed};
use mamparo_core::call::retry::Retry;
use mamparo_core::time::Moment;
use proptest::prelude::*;

const WINDOW: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Moment {
    Moment::from_millis(seconds * 1_000)
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Answers of 1 ms, 2 ms, … `count` ms.
fn up_to(count: u64) -> Latency {
    let latency = Latency::new(WINDOW);
    (1..=count).for_each(|n| latency.record(at(0), millis(n)));
    latency
}

fn near(value: Option<Duration>, expected: Duration) -> bool {
    value.is_some_and(|value| value.abs_diff(expected) <= expected / 32 + Duration::from_nanos(1))
}

#[test]
fn a_quantile_is_what_that_share_stays_under() {
    let latency = up_to(1_000);
    for (quantile, expected) in [(0.0, 1), (0.5, 500), (0.95, 950), (0.99, 990), (1.0, 1_000)] {
        let observed = latency.observed(at(0), quantile);
        assert!(near(observed.value, millis(expected)), "{observed:?}");
        assert_eq!((observed.answered, observed.cut_off), (1_000, 0));
    }
    let nothing = Latency::new(WINDOW).observed(at(0), 0.5);
    assert_eq!((nothing.samples(), nothing.value), (0, None));
}

#[test]
fn what_is_shorter_or_longer_than_the_scale_counts_at_its_ends() {
    let latency = Latency::new(WINDOW);
    latency.record(at(0), Duration::ZERO);
    let shortest = latency.observed(at(0), 0.5).value;
    assert!(shortest.is_some_and(|value| value < Duration::from_micros(2)), "{shortest:?}");
    (0..9).for_each(|_| latency.record(at(0), Duration::MAX));
    let longest = latency.observed(at(0), 0.5).value;
    assert!(longest.is_some_and(|value| value > Duration::from_secs(130)), "{longest:?}");
}

#[test]
fn an_answer_counts_for_half_a_window_at_least_and_a_window_at_most() {
    let latency = Latency::new(WINDOW);
    latency.record(at(29), millis(5));
    let samples = |seconds| latency.observed(at(seconds), 0.5).samples();
    assert_eq!((samples(29), samples(59), samples(60)), (1, 1, 0));
    // The half that it was in is emptied for the next answer.
    latency.record(at(61), millis(900));
    let observed = latency.observed(at(61), 0.5);
    assert_eq!(observed.samples(), 1);
    assert!(near(observed.value, millis(900)));
    latency.record(at(95), millis(900));
    assert_eq!(latency.observed(at(95), 0.5).samples(), 2);
}

#[test]
fn years_of_idleness_leave_nothing_and_break_nothing() {
    let latency = up_to(100);
    latency.record_cut_off(at(0));
    let years = Moment::from_nanos(u64::MAX / 2);
    assert_eq!(latency.observed(years, 0.5).samples(), 0);
    latency.record(years, millis(3));
    assert_eq!(latency.observed(years, 0.5).samples(), 1);
    latency.record(Moment::FAR_FUTURE, millis(3));
    assert_eq!(latency.observed(Moment::FAR_FUTURE, 0.5).samples(), 1);
    // A window of nothing is a window all the same.
    let none = Latency::new(Duration::ZERO);
    none.record(Moment::FAR_FUTURE, millis(3));
    assert_eq!(none.observed(Moment::FAR_FUTURE, 0.5).samples(), 1);
}

#[test]
fn policies_c35_a_clock_that_steps_back_counts_in_the_present_half() {
    let latency = Latency::new(WINDOW);
    latency.record(at(100), millis(5));
    latency.record(at(3), millis(7));
    latency.record(Moment::ORIGIN, millis(9));
    assert_eq!(latency.observed(at(100), 0.5).samples(), 3);
    assert_eq!(latency.observed(at(3), 0.5).samples(), 3);
}

/// If those that were cut off counted as answers, a timeout would prove itself right.
#[test]
fn a_quantile_among_attempts_that_were_cut_off_has_no_value() {
    let latency = up_to(98);
    latency.record_cut_off(at(0));
    latency.record_cut_off(at(0));
    assert!(near(latency.observed(at(0), 0.98).value, millis(98)));
    let observed = latency.observed(at(0), 0.99);
    assert_eq!((observed.answered, observed.cut_off, observed.value), (98, 2, None));
}

#[test]
fn a_quantile_is_believed_when_ten_attempts_lie_beyond_it() {
    assert_eq!((samples_needed(0.5), samples_needed(0.95)), (20, 200));
    assert_eq!((samples_needed(0.99), samples_needed(0.999)), (1_000, 10_000));
    for never in [1.0, 2.0, f64::NAN, f64::INFINITY] {
        assert_eq!(samples_needed(never), u64::MAX, "{never}");
    }
    assert_eq!(up_to(199).observed(at(0), 0.95).sound(), None);
    assert!(up_to(200).observed(at(0), 0.95).sound().is_some());
}

#[test]
fn a_timeout_is_a_little_over_nearly_all_answers() {
    let latency = up_to(1_000);
    let advice = Adviser::default().propose(at(0), &latency, &Retry::NONE, None).expect("enough");
    // 990 ms, off by up to 3.1 %, and 10 %.
    assert!((millis(1_055)..=millis(1_123)).contains(&advice.timeout), "{advice}");
    assert_eq!(advice.timeout.subsec_nanos() % 1_000_000, 0);
    let value = advice.observed.value.map(|value| value.as_nanos().div_ceil(1_000_000));
    let value = value.unwrap_or_default();
    let text = format!(": 99 % of 1000 attempts were answered within {value}ms, plus 10 %");
    assert!(advice.to_string().ends_with(&text), "{advice}");
}

#[test]
fn a_timeout_leaves_room_for_the_attempts_of_the_budget() {
    let latency = up_to(1_000);
    let retry = Retry::default();
    let roomy = Some(Duration::from_secs(4));
    let advice = Adviser::default().propose(at(0), &latency, &retry, roomy).expect("fits");
    assert_eq!(advice.narrowed, None);
    let advice =
        Adviser::default().propose(at(0), &latency, &retry, Some(millis(3_000))).expect("narrower");
    assert_eq!(advice.timeout, millis(900));
    let text = advice.to_string();
    assert!(text.starts_with("900ms: 99 % of 1000 attempts were answered within "), "{text}");
    assert!(text.ends_with("an attempt timeout of 900ms or fewer attempts would"), "{text}");

    let least = Adviser::default().propose(at(0), &latency, &retry, Some(millis(333)));
    assert_eq!(least.map(|advice| advice.timeout), Ok(millis(11)));
    let tight = Adviser::default().propose(at(0), &latency, &retry, Some(millis(332)));
    assert!(matches!(tight, Err(NoAdvice::NothingFits(_))), "10 ms are no time for an attempt");
    let tight = Adviser::default().propose(at(0), &latency, &retry, Some(millis(310)));
    let error = tight.expect_err("3 ms are no timeout");
    assert!(matches!(error, NoAdvice::NothingFits(_)), "{error}");
}

#[test]
fn a_guess_is_no_advice() {
    let propose = |latency: &Latency| {
        let advice = Adviser::default().propose(at(0), latency, &Retry::NONE, None);
        advice.expect_err("no ground for it")
    };
    let few = propose(&up_to(999));
    assert_eq!(few, NoAdvice::TooFewSamples { samples: 999, needed: 1_000 });
    assert_eq!(few.to_string(), "999 attempts in the window are too few, 1000 would do");
    let slow = up_to(1_000);
    (0..11).for_each(|_| slow.record_cut_off(at(0)));
    assert_eq!(
        propose(&slow).to_string(),
        "11 of 1011 attempts were cut off, so how long 99 % take is unknown"
    );
}

#[test]
fn a_strange_margin_is_no_panic_and_a_fast_dependency_gets_a_usable_timeout() {
    let latency = Latency::new(WINDOW);
    (0..1_000).for_each(|_| latency.record(at(0), Duration::from_micros(80)));
    for (margin, least) in [(0.1, 11), (f64::NAN, 11), (-5.0, 11), (f64::INFINITY, 1_000_000)] {
        let adviser = Adviser { margin, ..Adviser::default() };
        let advice = adviser.propose(at(0), &latency, &Retry::NONE, None).expect("enough");
        assert!(advice.timeout >= millis(least), "{margin}: {advice}");
        assert!(least > 11 || advice.timeout == millis(11), "{margin}: {advice}");
    }
    let slow = up_to(1_000);
    for none in [f64::NAN, -5.0, 0.0] {
        let adviser = Adviser { margin: none, ..Adviser::default() };
        let advice = adviser.propose(at(0), &slow, &Retry::NONE, None).expect("enough");
        assert_eq!(advice.observed.value.map(|v| v <= advice.timeout), Some(true), "{advice}");
    }
}

/// Within the scale, its ends and the edges of a doubling included.
fn any_nanos() -> impl Strategy<Value = u64> {
    let edges = prop::sample::select(&[1_024, 1 << 20, (1 << 21) - 1, (1 << 37) - 1][..]);
    prop_oneof![1_024_u64..100_000, 1_024_u64..(1 << 37), edges]
}

proptest! {
    #[test]
    fn a_quantile_is_within_a_thirty_second_of_the_exact_one(
        mut nanos in prop::collection::vec(any_nanos(), 1..400),
        quantile in 0.0_f64..=1.0,
    ) {
        let latency = Latency::new(WINDOW);
        nanos.iter().for_each(|n| latency.record(at(0), Duration::from_nanos(*n)));
        nanos.sort_unstable();
        let rank = ((nanos.len() as f64 * quantile).ceil() as usize).clamp(1, nanos.len());
        let exact = Duration::from_nanos(nanos[rank - 1]);
        let observed: Observed = latency.observed(at(0), quantile);
        prop_assert!(near(observed.value, exact), "{observed:?} for {exact:?}");
    }

    #[test]
    fn no_time_and_no_clock_panics(
        steps in prop::collection::vec((any::<u64>(), any::<u64>()), 1..12), quantile: f64,
    ) {
        let latency = Latency::new(WINDOW);
        for (now, took) in steps {
            let now = Moment::from_nanos(now);
            latency.record(now, Duration::from_nanos(took));
            prop_assert!(latency.observed(now, quantile).samples() >= 1);
        }
    }
}

#[test]
fn threads_that_record_across_a_turn_lose_no_answer() {
    let latency = Latency::new(WINDOW);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..6_000 {
                    latency.record(Moment::from_millis(n * 10), millis(n % 50));
                }
            });
        }
    });
    // The last half window is whole: nobody's answers were emptied with the old ones.
    assert!(latency.observed(at(59), 0.5).samples() >= 4 * 3_000);
}
