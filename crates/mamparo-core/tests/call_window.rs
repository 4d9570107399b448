//! The windows equal a naive recount, whatever comes in whatever order.

use std::time::Duration;

use mamparo_core::call::window::{BUCKETS, CallRing, Counts, FailureRing, TimeBuckets};
use mamparo_core::time::Moment;
use proptest::prelude::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

#[test]
fn policies_c12_the_event_that_rolls_a_bucket_is_counted() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(0), true);
    assert_eq!(buckets.record(at(9_999), true), Counts { calls: 2, failed: 2 });
    assert_eq!(buckets.record(at(10_000), true), Counts { calls: 2, failed: 2 });
    assert_eq!(buckets.record(at(60_000), true), Counts { calls: 1, failed: 1 });
    let mut ring = CallRing::new(1);
    assert_eq!(ring.record(true), Counts { calls: 1, failed: 1 });
    assert_eq!(ring.record(false), Counts { calls: 1, failed: 0 });
}

#[test]
fn a_window_that_nobody_writes_to_empties_all_the_same() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(100_000), true);
    assert_eq!(buckets.counts(at(109_999)), Counts { calls: 1, failed: 1 });
    assert_eq!(buckets.counts(at(110_000)), Counts::default());
}

#[test]
fn policies_c35_a_clock_that_steps_back_erases_no_bucket() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(100_000), true);
    // Ten widths earlier: the same place in the ring.
    assert_eq!(buckets.record(at(90_000), true), Counts { calls: 2, failed: 2 });
    assert_eq!(buckets.counts(at(109_999)), Counts { calls: 2, failed: 2 });
}

proptest! {
    #[test]
    fn policies_c11_the_call_ring_equals_a_recount(
        size in 1_u32..200,
        verdicts in prop::collection::vec(any::<bool>(), 0..600),
    ) {
        let mut ring = CallRing::new(size);
        for end in 1..=verdicts.len() {
            let counts = ring.record(verdicts[end - 1]);
            let inside = &verdicts[end.saturating_sub(size as usize)..end];
            let failed = inside.iter().filter(|failed| **failed).count();
            prop_assert_eq!(counts, Counts { calls: inside.len() as u32, failed: failed as u32 });
        }
    }

    #[test]
    fn policies_c11_the_buckets_equal_a_recount(
        period in 1_u64..20_000,
        events in prop::collection::vec((0_u64..5_000, any::<bool>()), 0..300),
    ) {
        let width = (Duration::from_millis(period).as_nanos() as u64 / BUCKETS as u64).max(1);
        let mut buckets = TimeBuckets::new(Duration::from_millis(period));
        let mut past = Vec::new();
        let mut now = 0;
        for (passed, failed) in events {
            now += passed;
            past.push((at(now).nanos() / width, failed));
            let counts = buckets.record(at(now), failed);
            let slice = at(now).nanos() / width;
            let inside = past.iter().filter(|(epoch, _)| slice - epoch < BUCKETS as u64);
            let (calls, bad) = inside.fold((0, 0), |(n, bad), (_, f)| (n + 1, bad + u32::from(*f)));
            prop_assert_eq!(counts, Counts { calls, failed: bad });
        }
    }

    #[test]
    fn the_failure_ring_answers_exactly(
        failures in 1_u32..8, period in 1_u64..3_000,
        gaps in prop::collection::vec(0_u64..1_500, 0..200),
    ) {
        let mut ring = FailureRing::new(failures, Duration::from_millis(period));
        let mut past = Vec::new();
        let mut now = 0;
        for gap in gaps {
            now += gap;
            past.push(now);
            let inside = past.iter().filter(|moment| now - **moment < period).count();
            prop_assert_eq!(ring.record(at(now)), inside >= failures as usize);
        }
    }
}
