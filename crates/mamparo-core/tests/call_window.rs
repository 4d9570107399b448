//! The windows equal a naive recount, whatever comes in whatever order.

use std::time::Duration;

use mamparo_core::call::window::{
    BUCKETS, CallRing, Counts, FailureRing, Mark, Streak, TimeBuckets,
};
use mamparo_core::time::Moment;
use proptest::prelude::*;

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

const fn counts(calls: u32, failed: u32, slow: u32) -> Counts {
    Counts { calls, failed, slow }
}

fn recount<'a>(inside: impl IntoIterator<Item = &'a Mark>) -> Counts {
    inside.into_iter().fold(Counts::default(), |sum, mark| Counts {
        calls: sum.calls + 1,
        failed: sum.failed + u32::from(mark.failed),
        slow: sum.slow + u32::from(mark.slow),
    })
}

fn marks() -> impl Strategy<Value = Mark> {
    // Mostly good ones, as in life: the paths that skip work are those of good calls.
    prop_oneof![
        4 => Just(Mark::GOOD),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(failed, slow)| Mark { failed, slow }),
    ]
}

#[test]
fn policies_c12_the_event_that_rolls_a_bucket_is_counted() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(0), Mark::FAILED);
    assert_eq!(buckets.record(at(9_999), Mark::FAILED), counts(2, 2, 0));
    assert_eq!(buckets.record(at(10_000), Mark::FAILED), counts(2, 2, 0));
    assert_eq!(buckets.record(at(60_000), Mark::FAILED), counts(1, 1, 0));
    let ring = CallRing::new(1);
    assert_eq!(ring.record(0, Mark::FAILED), Some(counts(1, 1, 0)));
    assert_eq!(ring.record(0, Mark::GOOD), Some(counts(1, 0, 0)));
}

#[test]
fn a_window_that_nobody_writes_to_empties_all_the_same() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(100_000), Mark::FAILED);
    assert_eq!(buckets.counts(at(109_999)), counts(1, 1, 0));
    assert_eq!(buckets.counts(at(110_000)), Counts::default());
}

#[test]
fn policies_c35_a_clock_that_steps_back_erases_no_bucket() {
    let mut buckets = TimeBuckets::new(Duration::from_secs(10));
    buckets.record(at(100_000), Mark::FAILED);
    // Ten widths earlier: the same place in the ring.
    assert_eq!(buckets.record(at(90_000), Mark::FAILED), counts(2, 2, 0));
    assert_eq!(buckets.counts(at(109_999)), counts(2, 2, 0));
}

proptest! {
    #[test]
    fn policies_c11_the_call_ring_equals_a_recount(
        size in 1_u32..200,
        marks in prop::collection::vec(marks(), 0..600),
    ) {
        let ring = CallRing::new(size);
        for end in 1..=marks.len() {
            let inside = &marks[end.saturating_sub(size as usize)..end];
            prop_assert_eq!(ring.record(0, marks[end - 1]), Some(recount(inside)));
            prop_assert_eq!(ring.counts(0), recount(inside));
        }
    }

    #[test]
    fn policies_c02_a_ring_of_another_generation_takes_nothing(
        size in 1_u32..20,
        lives in prop::collection::vec(prop::collection::vec((marks(), any::<bool>()), 0..40), 1..6),
    ) {
        let ring = CallRing::new(size);
        for (generation, life) in lives.into_iter().enumerate() {
            let generation = generation as u64 * 2_047;
            ring.renew(generation);
            let mut own = Vec::new();
            for (mark, late) in life {
                if late {
                    let other = generation.wrapping_sub(3);
                    prop_assert_eq!(ring.record(other, mark), None);
                    prop_assert_eq!(ring.counts(other), Counts::default());
                } else {
                    own.push(mark);
                    let inside = &own[own.len().saturating_sub(size as usize)..];
                    prop_assert_eq!(ring.record(generation, mark), Some(recount(inside)));
                }
            }
        }
    }

    #[test]
    fn policies_c11_the_buckets_equal_a_recount(
        period in 1_u64..20_000,
        events in prop::collection::vec((0_u64..5_000, marks()), 0..300),
    ) {
        let width = (Duration::from_millis(period).as_nanos() as u64 / BUCKETS as u64).max(1);
        let mut buckets = TimeBuckets::new(Duration::from_millis(period));
        let mut past = Vec::new();
        let mut now = 0;
        for (passed, mark) in events {
            now += passed;
            past.push((at(now).nanos() / width, mark));
            let counts = buckets.record(at(now), mark);
            let slice = at(now).nanos() / width;
            let inside = past.iter().filter(|(epoch, _)| slice - epoch < BUCKETS as u64);
            prop_assert_eq!(counts, recount(inside.map(|(_, mark)| mark)));
        }
    }

    /// A clock that steps back keeps counting in the latest slice; looking changes nothing.
    #[test]
    fn policies_c35_the_buckets_equal_a_recount_under_any_clock(
        period in 0_u64..3_000,
        events in prop::collection::vec((0_u64..20_000, marks(), 0_u64..40_000), 0..300),
    ) {
        let width = (Duration::from_millis(period).as_nanos() as u64 / BUCKETS as u64).max(1);
        let mut buckets = TimeBuckets::new(Duration::from_millis(period));
        let (mut past, mut latest) = (Vec::new(), 0);
        for (now, mark, look) in events {
            latest = latest.max(at(now).nanos() / width);
            past.push((latest, mark));
            buckets.record(at(now), mark);
            for look in [now, look] {
                let slice = latest.max(at(look).nanos() / width);
                let inside = past.iter().filter(|(epoch, _)| slice - epoch < BUCKETS as u64);
                prop_assert_eq!(buckets.counts(at(look)), recount(inside.map(|(_, mark)| mark)));
            }
        }
    }

    #[test]
    fn failures_in_a_row_equal_a_recount(failed in prop::collection::vec(any::<bool>(), 0..200)) {
        let streak = Streak::new();
        for end in 1..=failed.len() {
            let row = failed[..end].iter().rev().take_while(|failed| **failed).count();
            prop_assert_eq!(streak.record(0, failed[end - 1]), Some(row as u32));
        }
        prop_assert_eq!(streak.record(1, true), None);
        streak.renew(1);
        prop_assert_eq!((streak.record(0, true), streak.record(1, true)), (None, Some(1)));
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
