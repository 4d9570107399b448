//! The windows that threads share, in every interleaving of a few of them.
#![cfg(loom)]
#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

mod model;

use std::time::Duration;

use mamparo_core::call::window::{CallRing, Counts, Mark, Standing, Streak, StripedBuckets};
use mamparo_core::sync::Arc;
use mamparo_core::time::Moment;

use model::{Part, check, check_within, together};

const SLOW_AND_FAILED: Mark = Mark { failed: true, slow: true };

#[test]
fn a_ring_that_holds_all_calls_loses_none() {
    for size in [3, 4] {
        check(move || {
            let ring = Arc::new(CallRing::new(size));
            let parts: Vec<Part<CallRing, Counts>> = [Mark::GOOD, Mark::FAILED, SLOW_AND_FAILED]
                .into_iter()
                .map(|mark| -> Part<CallRing, Counts> {
                    Box::new(move |ring| ring.record(0, mark).expect("of this generation"))
                })
                .collect();
            let seen = together(&ring, parts);
            let all = Counts { calls: 3, failed: 2, slow: 1 };
            assert_eq!(ring.counts(0), all);
            assert!(seen[1].failed >= 1, "the present event is included");
            assert!(seen[2].failed >= 1 && seen[2].slow == 1);
            assert!(seen.contains(&all) || seen.iter().any(|counts| counts.calls == 3));
        });
    }
}

/// Laps overtake each other here all the time. Whatever they leave, nothing is counted twice or lost
/// for ever: as many good calls as the ring is long wash everything out.
#[test]
fn sums_and_slots_of_a_tiny_ring_agree_after_any_race() {
    for size in [1, 2] {
        check(move || {
            let ring = Arc::new(CallRing::new(size));
            for _ in 0..size {
                ring.record(0, Mark::GOOD);
            }
            let parts: Vec<Part<CallRing, ()>> = [
                vec![Mark::FAILED, Mark::GOOD],
                vec![SLOW_AND_FAILED],
                vec![Mark::GOOD, Mark::FAILED],
            ]
            .into_iter()
            .map(|marks| -> Part<CallRing, ()> {
                Box::new(move |ring| {
                    for mark in marks {
                        let counts = ring.record(0, mark).expect("of this generation");
                        assert!(counts.failed <= size && counts.slow <= counts.calls);
                    }
                })
            })
            .collect();
            together(&ring, parts);
            let counts = ring.counts(0);
            assert!(counts.calls == size && counts.failed <= size && counts.slow <= 1);
            for _ in 0..size {
                ring.record(0, Mark::GOOD);
            }
            assert_eq!(ring.counts(0), Counts { calls: size, failed: 0, slow: 0 });
        });
    }
}

#[test]
fn policies_c02_a_late_call_leaves_a_renewed_ring_alone() {
    for size in [1, 2] {
        check_within(3, move || {
            let ring = Arc::new(CallRing::new(size));
            ring.record(0, Mark::FAILED);
            let parts: Vec<Part<CallRing, Option<Counts>>> = vec![
                Box::new(|ring| ring.record(0, SLOW_AND_FAILED)),
                Box::new(move |ring| {
                    ring.renew(3);
                    for _ in 1..size {
                        ring.record(3, Mark::GOOD);
                    }
                    ring.record(3, Mark::FAILED)
                }),
            ];
            let seen = together(&ring, parts);
            let own = Counts { calls: size, failed: 1, slow: 0 };
            assert_eq!((seen[1], ring.counts(3)), (Some(own), own));
            for _ in 0..size {
                ring.record(3, Mark::GOOD);
            }
            assert_eq!(ring.counts(3), Counts { calls: size, failed: 0, slow: 0 });
        });
    }
}

#[test]
fn stripes_lose_no_call_and_the_last_to_judge_sees_them_all() {
    check(|| {
        let buckets = Arc::new(StripedBuckets::new(Duration::from_secs(10)));
        let now = Moment::from_millis(100_000);
        let judge = |counts: Counts| match counts {
            Counts { failed: 2, calls: 3, .. } => Standing::Reached,
            Counts { failed: 2, .. } => Standing::TooFew,
            _ => Standing::Below,
        };
        let parts: Vec<Part<StripedBuckets, Standing>> =
            [Mark::GOOD, Mark::FAILED, SLOW_AND_FAILED]
                .into_iter()
                .map(|mark| -> Part<StripedBuckets, Standing> {
                    Box::new(move |b| b.record(now, 0, mark, judge).expect("of this generation"))
                })
                .collect();
        let seen = together(&buckets, parts);
        assert_eq!(buckets.counts(now, 0), Counts { calls: 3, failed: 2, slow: 1 });
        assert!(seen.contains(&Standing::Reached), "{seen:?}");
    });
}

#[test]
fn policies_c02_a_late_success_certifies_nothing_for_those_after_it() {
    check(|| {
        let buckets = Arc::new(StripedBuckets::new(Duration::from_secs(10)));
        let now = Moment::from_millis(100_000);
        let judge = |counts: Counts| match counts {
            Counts { failed: 0, .. } => Standing::Below,
            Counts { calls: 2, .. } => Standing::Reached,
            _ => Standing::TooFew,
        };
        let parts: Vec<Part<StripedBuckets, Option<Standing>>> = vec![
            Box::new(move |b| b.record(now, 0, Mark::GOOD, judge)),
            Box::new(move |b| {
                b.record(now, 3, Mark::FAILED, judge);
                b.record(now, 3, Mark::GOOD, judge)
            }),
        ];
        let seen = together(&buckets, parts);
        assert_eq!(seen[1], Some(Standing::Reached));
        assert_eq!(buckets.counts(now, 3), Counts { calls: 2, failed: 1, slow: 0 });
    });
}

#[test]
fn a_row_of_failures_is_counted_in_full_and_ended_by_one_success() {
    check_within(3, || {
        let streak = Arc::new(Streak::new());
        let parts: Vec<Part<Streak, Option<u32>>> = vec![
            Box::new(|streak| streak.record(0, true)),
            Box::new(|streak| streak.record(0, true)),
            Box::new(|streak| streak.record(0, true)),
        ];
        let mut seen = together(&streak, parts);
        seen.sort_unstable();
        assert_eq!(seen, [Some(1), Some(2), Some(3)]);
        let parts: Vec<Part<Streak, Option<u32>>> = vec![
            Box::new(|streak| streak.record(0, false)),
            Box::new(|streak| streak.record(0, true)),
        ];
        together(&streak, parts);
        assert!(streak.count(0) <= 1);
    });
}
