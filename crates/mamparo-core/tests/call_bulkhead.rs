//! The bulkhead: never more than its limit, in the order it promises, and no slot is ever lost.

#![expect(clippy::panic, clippy::expect_used, reason = "helpers of tests end the test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mamparo_core::call::bulkhead::{
    Bulkhead, BulkheadConfig, Entry, Order, Slot, Standing, Ticket,
};
use mamparo_core::time::Moment;

const NOW: Moment = Moment::ORIGIN;
const EVER: Moment = Moment::FAR_FUTURE;

const fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn granted(entry: Entry) -> Slot {
    let Entry::Granted(slot) = entry else { panic!("{entry:?} is no slot") };
    slot
}

fn queued(entry: &Entry) -> Ticket {
    let Entry::Queued { ticket, shed: None } = entry else { panic!("{entry:?} is no ticket") };
    *ticket
}

fn taken(bulkhead: &Bulkhead, slots: usize) -> Vec<Slot> {
    (0..slots).map(|_| granted(bulkhead.ask(NOW, EVER))).collect()
}

fn waiting(bulkhead: &Bulkhead, callers: usize) -> Vec<Ticket> {
    (0..callers).map(|_| queued(&bulkhead.ask(NOW, EVER))).collect()
}

/// A bulkhead with one slot taken that has learnt a service time of 100 ms.
fn of_100_ms(config: BulkheadConfig) -> (Bulkhead, Slot) {
    let bulkhead = Bulkhead::new(config);
    let slot = granted(bulkhead.ask(NOW, EVER));
    let next = queued(&bulkhead.ask(NOW, EVER));
    assert_eq!(bulkhead.release(at(100), slot), Some(next));
    let slot = bulkhead.claim(at(100), next).expect("granted");
    assert_eq!(bulkhead.service_time(), Some(millis(100)));
    (bulkhead, slot)
}

#[test]
fn the_twenty_first_waits_or_is_rejected_at_once() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(20, 1));
    let mut slots = taken(&bulkhead, 20);
    let ticket = queued(&bulkhead.ask(NOW, EVER));
    assert_eq!(bulkhead.ask(NOW, EVER), Entry::Full { retry_after: None });
    assert_eq!(bulkhead.standing(ticket), Standing::Waiting);
    assert_eq!(bulkhead.claim(NOW, ticket), None, "not yet");
    assert_eq!(bulkhead.release(NOW, slots.remove(0)), Some(ticket));
    assert_eq!(bulkhead.standing(ticket), Standing::Granted);
    assert!(bulkhead.claim(NOW, ticket).is_some());
    assert_eq!(bulkhead.claim(NOW, ticket), None, "once");
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (20, 0));
}

#[test]
fn policies_c15_and_c16_a_waiter_that_left_as_it_was_granted_hands_the_slot_on() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 3));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let [first, second, third] = [(); 3].map(|()| queued(&bulkhead.ask(NOW, EVER)));
    assert_eq!(bulkhead.leave(NOW, second), None, "it was only waiting");
    assert_eq!(bulkhead.release(NOW, slot), Some(first));
    assert_eq!(bulkhead.leave(NOW, first), Some(third), "granted while it timed out");
    let slot = bulkhead.claim(NOW, third).expect("granted");
    assert_eq!(bulkhead.release(NOW, slot), None);
    assert_eq!(bulkhead.in_flight(), 0);
    assert_eq!(bulkhead.leave(NOW, first), None, "leaving twice gives nothing twice");
    assert_eq!(bulkhead.in_flight(), 0);
}

#[test]
fn policies_c16_a_slot_passes_by_whoever_it_would_reach_too_late() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 3));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let late = queued(&bulkhead.ask(NOW, at(50)));
    let in_time = queued(&bulkhead.ask(NOW, at(100)));
    assert_eq!(bulkhead.release(at(60), slot), Some(in_time));
    assert_eq!(bulkhead.standing(late), Standing::Shed);
    let slot = bulkhead.claim(at(60), in_time).expect("granted");
    assert_eq!(bulkhead.release(at(70), slot), None);
    assert_eq!(bulkhead.leave(at(70), late), None, "it had nothing to hand on");
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
}

#[test]
fn policies_c17_a_newcomer_does_not_overtake_who_waits() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 2));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let first = queued(&bulkhead.ask(NOW, EVER));
    assert_eq!(bulkhead.release(NOW, slot), Some(first));
    let second = queued(&bulkhead.ask(NOW, EVER));
    let slot = bulkhead.claim(NOW, first).expect("granted");
    assert_eq!(bulkhead.release(NOW, slot), Some(second));
}

#[test]
fn policies_c21_who_was_refused_or_has_left_holds_nothing() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 1));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let hedge = queued(&bulkhead.ask(NOW, EVER));
    assert!(matches!(bulkhead.ask(NOW, EVER), Entry::Full { .. }));
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (1, 1), "the refused one counts nowhere");
    assert_eq!(bulkhead.leave(NOW, hedge), None);
    assert_eq!(bulkhead.release(NOW, slot), None);
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
}

#[test]
fn who_would_get_a_slot_too_late_is_refused_on_entry() {
    let (bulkhead, slot) = of_100_ms(BulkheadConfig::new(1, 3));
    // One slot, 100 ms each: the first in line waits 100 ms, the second 200 ms.
    let too_late = |after| Entry::TooLate { retry_after: millis(after) };
    assert_eq!(bulkhead.ask(at(100), at(199)), too_late(100));
    let first = queued(&bulkhead.ask(at(100), at(200)));
    assert_eq!(bulkhead.ask(at(100), at(299)), too_late(200));
    queued(&bulkhead.ask(at(100), at(300)));
    queued(&bulkhead.ask(at(100), EVER));
    assert_eq!(bulkhead.ask(at(100), EVER), Entry::Full { retry_after: Some(millis(400)) });
    // Twice the slots, half the wait.
    let woken = bulkhead.set_limit(at(100), 2);
    assert_eq!(woken.into_iter().collect::<Vec<_>>(), [first]);
    assert_eq!(bulkhead.ask(at(100), at(249)), too_late(150));
    assert!(bulkhead.release(at(200), slot).is_some());
}

#[test]
fn service_time_is_smoothed_and_ignores_what_says_nothing() {
    let (bulkhead, slot) = of_100_ms(BulkheadConfig::new(1, 9));
    let tickets = waiting(&bulkhead, 3);
    assert!(bulkhead.release_needs_now());
    // 100 − 100/8 + 900/8
    assert_eq!(bulkhead.release(at(1_000), slot), Some(tickets[0]));
    assert_eq!(bulkhead.service_time(), Some(millis(200)));
    // Released with the moment of its start, or while the clock had gone back.
    for ticket in &tickets[..2] {
        let slot = bulkhead.claim(at(1_000), *ticket).expect("granted");
        assert!(bulkhead.release(at(900), slot).is_some());
    }
    assert_eq!(bulkhead.service_time(), Some(millis(200)));
    let slot = bulkhead.claim(at(1_000), tickets[2]).expect("granted");
    assert!(!bulkhead.release_needs_now());
    assert_eq!(bulkhead.release(at(9_000), slot), None);
    assert_eq!(bulkhead.service_time(), Some(millis(200)), "nobody waited");
}

#[test]
fn an_estimate_that_nobody_renews_is_not_believed_for_ever() {
    let (bulkhead, slot) = of_100_ms(BulkheadConfig::new(1, 3));
    assert!(matches!(bulkhead.ask(at(1_100), at(1_150)), Entry::TooLate { .. }));
    let scout = queued(&bulkhead.ask(at(1_101), at(1_150)));
    assert!(matches!(bulkhead.ask(at(1_101), at(1_150)), Entry::TooLate { .. }), "one is enough");
    assert_eq!(bulkhead.leave(at(1_102), scout), None);
    let scout = queued(&bulkhead.ask(at(1_102), EVER));
    assert_eq!(bulkhead.release(at(1_102), slot), Some(scout));
    let fresh = bulkhead.service_time().expect("measured");
    assert!(fresh > millis(100), "the slot was held for a second: {fresh:?}");
    assert!(matches!(bulkhead.ask(at(1_103), at(1_150)), Entry::TooLate { .. }));
    // The clock went back: nothing is known of that time.
    queued(&bulkhead.ask(at(50), at(60)));
}

#[test]
fn extreme_times_overflow_nothing() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 3));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let next = queued(&bulkhead.ask(NOW, EVER));
    assert_eq!(bulkhead.release(EVER, slot), Some(next));
    assert!(bulkhead.ask(EVER, EVER) != Entry::Full { retry_after: None });
    let last = bulkhead.ask(NOW, at(1));
    assert!(matches!(last, Entry::TooLate { .. }), "{last:?}");
}

#[test]
fn under_pressure_the_newest_goes_first_and_the_oldest_makes_room() {
    let config = BulkheadConfig { order: Order::AdaptiveLifo, ..BulkheadConfig::new(1, 4) };
    let bulkhead = Bulkhead::new(config);
    let mut slot = granted(bulkhead.ask(NOW, EVER));
    let tickets = waiting(&bulkhead, 4);
    let Entry::Queued { ticket: fifth, shed: Some(oldest) } = bulkhead.ask(NOW, EVER) else {
        panic!("a full queue under pressure sheds");
    };
    assert_eq!(oldest, tickets[0]);
    assert_eq!(bulkhead.standing(oldest), Standing::Shed);
    assert_eq!(bulkhead.claim(NOW, oldest), None);
    assert_eq!(bulkhead.leave(NOW, oldest), None);
    assert_eq!(bulkhead.queued(), 4);
    // Four and three of four places are pressure, two are not.
    for expected in [fifth, tickets[3], tickets[1], tickets[2]] {
        assert_eq!(bulkhead.release(NOW, slot), Some(expected));
        slot = bulkhead.claim(NOW, expected).expect("granted");
    }
    assert_eq!(bulkhead.release(NOW, slot), None);
}

#[test]
fn under_pressure_a_newcomer_is_judged_by_its_own_wait() {
    let config = BulkheadConfig { order: Order::AdaptiveLifo, ..BulkheadConfig::new(1, 4) };
    let (bulkhead, slot) = of_100_ms(config);
    waiting(&bulkhead, 2);
    let third = queued(&bulkhead.ask(at(100), at(200)));
    assert_eq!(bulkhead.ask(at(100), at(199)), Entry::TooLate { retry_after: millis(100) });
    assert_eq!(bulkhead.release(at(200), slot), Some(third));
}

#[test]
fn without_a_queue_adaptive_lifo_has_nobody_to_shed() {
    let config = BulkheadConfig { order: Order::AdaptiveLifo, ..BulkheadConfig::new(1, 0) };
    let bulkhead = Bulkhead::new(config);
    let slot = granted(bulkhead.ask(NOW, EVER));
    assert_eq!(bulkhead.ask(NOW, EVER), Entry::Full { retry_after: None });
    assert_eq!(bulkhead.release(NOW, slot), None);
}

#[test]
fn a_larger_limit_wakes_and_a_smaller_one_takes_nothing_away() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(2, 10));
    let mut slots = taken(&bulkhead, 2);
    let tickets = waiting(&bulkhead, 4);
    let woken: Vec<Ticket> = bulkhead.set_limit(NOW, 4).into_iter().collect();
    assert_eq!(woken, tickets[..2]);
    slots.extend(woken.iter().filter_map(|ticket| bulkhead.claim(NOW, *ticket)));
    assert_eq!((slots.len(), bulkhead.in_flight(), bulkhead.queued()), (4, 4, 2));

    assert_eq!(bulkhead.set_limit(NOW, 1).into_iter().count(), 0);
    assert_eq!(bulkhead.in_flight(), 4, "running calls keep their slots");
    for left in [3, 2, 1] {
        assert_eq!(bulkhead.release(NOW, slots.remove(0)), None, "above the limit, none goes on");
        assert_eq!(bulkhead.in_flight(), left);
    }
    assert_eq!(bulkhead.release(NOW, slots.remove(0)), Some(tickets[2]));
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (1, 1));
}

/// Slots above a lowered limit come back first, and whoever waits waits for them too.
#[test]
fn a_lowered_limit_lengthens_the_wait_by_the_slots_above_it() {
    let (bulkhead, _one) = of_100_ms(BulkheadConfig::new(1, 9));
    assert!(bulkhead.set_limit(at(100), 4).is_empty());
    let _others = [(); 3].map(|()| granted(bulkhead.ask(at(100), EVER)));
    assert_eq!(bulkhead.ask(at(100), at(124)), Entry::TooLate { retry_after: millis(25) });
    assert!(bulkhead.set_limit(at(100), 2).is_empty());
    let wait = millis(150);
    assert_eq!(
        bulkhead.ask(at(100), at(249)),
        Entry::TooLate { retry_after: wait },
        "third of two"
    );
    queued(&bulkhead.ask(at(100), at(250)));
}

#[test]
fn a_limit_is_clamped_to_its_range() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(0, 0));
    assert_eq!(bulkhead.limit(), 1);
    assert_eq!(bulkhead.set_limit(NOW, u32::MAX).into_iter().count(), 0);
    assert_eq!(bulkhead.limit(), 100_000);
}

#[test]
fn a_queue_without_end_ends_at_ten_thousand() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, u32::MAX));
    let mut slot = granted(bulkhead.ask(NOW, EVER));
    let tickets = waiting(&bulkhead, 10_000);
    assert_eq!(bulkhead.ask(NOW, EVER), Entry::Full { retry_after: None });
    assert!(bulkhead.set_config(NOW, BulkheadConfig::new(1, u32::MAX)).is_empty());
    assert_eq!(bulkhead.ask(NOW, EVER), Entry::Full { retry_after: None });
    for ticket in tickets {
        assert_eq!(bulkhead.release(NOW, slot), Some(ticket));
        slot = bulkhead.claim(NOW, ticket).expect("granted");
    }
    assert_eq!(bulkhead.release(NOW, slot), None);
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
}

#[test]
fn a_reload_keeps_who_runs_and_who_waits() {
    let bulkhead = Bulkhead::new(BulkheadConfig::new(1, 3));
    let slot = granted(bulkhead.ask(NOW, EVER));
    let tickets = waiting(&bulkhead, 3);
    let woken = bulkhead.set_config(NOW, BulkheadConfig::new(2, 1));
    assert_eq!(woken.into_iter().collect::<Vec<_>>(), tickets[..1]);
    assert!(matches!(bulkhead.ask(NOW, EVER), Entry::Full { .. }));
    assert_eq!(bulkhead.queued(), 2, "a shorter queue turns nobody away who is in it");
    assert_eq!(bulkhead.release(NOW, slot), Some(tickets[1]));
}

#[test]
fn policies_c16_and_c17_threads_that_come_wait_and_leave_keep_the_limit_and_lose_nothing() {
    const LIMIT: u32 = 3;
    let bulkhead = Bulkhead::new(BulkheadConfig::new(LIMIT, 4));
    let running = AtomicU32::new(0);
    let run = |slot| {
        let others = running.fetch_add(1, Ordering::SeqCst);
        assert!(others < LIMIT, "{others} run beside this one");
        running.fetch_sub(1, Ordering::SeqCst);
        // Whoever is handed the slot looks for it by itself, or hands it on as it leaves.
        bulkhead.release(NOW, slot);
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..10_000 {
                    match bulkhead.ask(NOW, EVER) {
                        Entry::Granted(slot) => run(slot),
                        Entry::Queued { ticket, .. } => match bulkhead.claim(NOW, ticket) {
                            Some(slot) => run(slot),
                            None => drop(bulkhead.leave(NOW, ticket)),
                        },
                        Entry::Full { .. } | Entry::TooLate { .. } if number % 64 == 0 => {
                            let woken = bulkhead.set_limit(NOW, 1 + number / 64 % LIMIT);
                            drop(woken);
                        }
                        Entry::Full { .. } | Entry::TooLate { .. } => {}
                    }
                }
            });
        }
    });
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
}
