//! Several limits at once: all give, or none, also when threads race for the last request.

use std::time::Duration;

use mamparo_core::call::rate_limit::{
    AllAnswer, Answer, KeyedRateLimit, RateLimit, RateLimitConfig, ask_all,
};
use mamparo_core::time::Moment;

const MINUTE: Duration = Duration::from_secs(60);
const NOW: Moment = Moment::from_millis(1_000_000);

fn limit(requests: u32) -> RateLimit {
    RateLimit::new(RateLimitConfig::new(requests, MINUTE))
}

/// What could still be taken at once.
fn free(limit: &RateLimit) -> u32 {
    match limit.peek(NOW) {
        Answer::Allowed { remaining, .. } => remaining + 1,
        Answer::NotUntil { .. } => 0,
    }
}

#[test]
fn all_give_or_none_and_the_longest_wait_is_named() {
    let (narrow, middle, wide) = (limit(2), limit(6), limit(60));
    let together = || ask_all(NOW, [&narrow, &middle, &wide]);
    let allowed = |remaining, seconds| AllAnswer::Allowed {
        remaining,
        full_after: Duration::from_secs(seconds),
    };
    assert_eq!(together(), allowed(1, 30));
    assert_eq!(together(), allowed(0, 60));
    let refused =
        |by, seconds| AllAnswer::NotUntil { by, retry_after: Duration::from_secs(seconds) };
    assert_eq!(together(), refused(0, 30));
    assert_eq!([free(&narrow), free(&middle), free(&wide)], [0, 4, 58]);
    while free(&middle) > 0 {
        middle.ask(NOW);
    }
    assert_eq!(together(), refused(0, 30), "10 s for the middle one, 30 s for the narrow one");
    let narrow = limit(2);
    assert_eq!(ask_all(NOW, [&narrow, &middle, &wide]), refused(1, 10));
    assert_eq!([free(&narrow), free(&middle), free(&wide)], [2, 0, 58]);
    assert_eq!(
        ask_all(NOW, []),
        AllAnswer::Allowed { remaining: u32::MAX, full_after: Duration::ZERO }
    );
}

#[test]
fn a_limit_that_stands_twice_gives_twice_or_is_as_it_was() {
    let (one, two) = (limit(1), limit(2));
    assert!(matches!(ask_all(NOW, [&two, &two]), AllAnswer::Allowed { remaining: 0, .. }));
    // Each place alone would have been fine, so the look did not see it: what was taken is put back.
    assert!(matches!(ask_all(NOW, [&one, &one]), AllAnswer::NotUntil { by: 1, .. }));
    assert_eq!((free(&one), free(&two)), (1, 0));
}

#[test]
fn a_client_within_a_service_is_exact() {
    let service = limit(5);
    let clients: KeyedRateLimit<String> = KeyedRateLimit::new(RateLimitConfig::new(3, MINUTE), 1);
    let ask = |client: &str| clients.ask_within(NOW, client, [&service]);
    for remaining in [2, 1, 0] {
        assert!(
            matches!(ask("a"), AllAnswer::Allowed { remaining: left, .. } if left == remaining)
        );
    }
    assert!(matches!(ask("a"), AllAnswer::NotUntil { by: 0, .. }));
    assert_eq!(free(&service), 2, "a refused client takes nothing from the others");
    assert!(matches!(ask("b"), AllAnswer::Allowed { remaining: 1, .. }));
    assert!(matches!(ask("b"), AllAnswer::Allowed { remaining: 0, .. }));
    assert!(matches!(ask("b"), AllAnswer::NotUntil { by: 1, .. }));
    let own = |client| match clients.peek(NOW, client) {
        Answer::Allowed { remaining, .. } => remaining + 1,
        Answer::NotUntil { .. } => 0,
    };
    assert_eq!(
        (own("a"), own("b"), own("c")),
        (0, 1, 3),
        "a full service takes nothing from a client"
    );
    // 20 s until the client's next, 12 s until the service's.
    let wait = Duration::from_secs(20);
    assert_eq!(ask("a"), AllAnswer::NotUntil { by: 0, retry_after: wait });
}

#[test]
fn policies_c38_eight_threads_take_from_all_or_from_none() {
    for narrow_first in [true, false] {
        let (narrow, wide) = (limit(300), limit(1_000));
        let run = || {
            let order = if narrow_first { [&narrow, &wide] } else { [&wide, &narrow] };
            (0..1_000).filter(|_| matches!(ask_all(NOW, order), AllAnswer::Allowed { .. })).count()
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((total, free(&narrow)), (300, 0));
        let lost = 700 - free(&wide);
        // Narrow first: who loses the race has taken nothing yet. The other way each of the seven other
        // threads can lose one race, and the place that it took with it.
        assert!(lost <= if narrow_first { 0 } else { 7 }, "{lost}");
    }
}

#[test]
fn policies_c38_eight_threads_of_many_clients_within_a_service() {
    let service = limit(500);
    let clients = KeyedRateLimit::new(RateLimitConfig::new(100, MINUTE), 1);
    let run = |first: u32| {
        let clients = &clients;
        let service = &service;
        move || {
            let ask = |n: u32| clients.ask_within(NOW, &((first + n) % 10), [service]);
            (0..1_000).filter(|n| matches!(ask(*n), AllAnswer::Allowed { .. })).count()
        }
    };
    let total: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|first| scope.spawn(run(first))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((total, free(&service)), (500, 0));
    let taken = |client: &u32| match clients.peek(NOW, client) {
        Answer::Allowed { remaining, .. } => 100 - (remaining + 1),
        Answer::NotUntil { .. } => 100,
    };
    assert_eq!((0..10).map(|client| taken(&client)).sum::<u32>(), 500, "exactly what was admitted");
}
