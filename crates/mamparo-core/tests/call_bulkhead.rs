//! The bulkhead: never more than its limit, first come first served, and no slot is ever lost.

#![expect(clippy::panic, reason = "helpers of tests end the test")]

use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig, Entry, Ticket};
use proptest::prelude::*;

fn queued(entry: Entry) -> Ticket {
    match entry {
        Entry::Queued(ticket) => ticket,
        Entry::Granted | Entry::Full => panic!("{entry:?} is no ticket"),
    }
}

#[test]
fn the_twenty_first_waits_or_is_rejected_at_once() {
    let mut bulkhead = Bulkhead::new(BulkheadConfig { limit: 20, queue: 1 });
    for _ in 0..20 {
        assert_eq!(bulkhead.ask(), Entry::Granted);
    }
    let ticket = queued(bulkhead.ask());
    assert_eq!(bulkhead.ask(), Entry::Full);
    assert!(!bulkhead.is_granted(ticket));
    assert!(!bulkhead.claim(ticket), "not yet");
    assert_eq!(bulkhead.release(), Some(ticket));
    assert!(bulkhead.is_granted(ticket) && bulkhead.claim(ticket));
    assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (20, 0));
}

#[test]
fn policies_c16_a_waiter_that_left_as_it_was_granted_hands_the_slot_on() {
    let mut bulkhead = Bulkhead::new(BulkheadConfig { limit: 1, queue: 3 });
    bulkhead.ask();
    let [first, second, third] = [(); 3].map(|()| queued(bulkhead.ask()));
    assert_eq!(bulkhead.leave(second), None, "it was only waiting");
    assert_eq!(bulkhead.release(), Some(first));
    assert_eq!(bulkhead.leave(first), Some(third), "granted while it timed out");
    assert!(bulkhead.claim(third));
    assert_eq!(bulkhead.release(), None);
    assert_eq!(bulkhead.in_flight(), 0);
    assert_eq!(bulkhead.leave(first), None, "leaving twice gives nothing twice");
    assert_eq!(bulkhead.in_flight(), 0);
}

proptest! {
    #[test]
    fn policies_c17_the_limit_holds_and_c16_all_slots_come_back(
        limit in 1_u32..5, queue in 0_u32..5,
        steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..300),
    ) {
        let mut bulkhead = Bulkhead::new(BulkheadConfig { limit, queue });
        let mut running = 0_u32;
        let mut waiting: Vec<Ticket> = Vec::new();
        for (action, pick) in steps {
            match action {
                0 | 1 => match bulkhead.ask() {
                    Entry::Granted => running += 1,
                    Entry::Queued(ticket) => waiting.push(ticket),
                    Entry::Full => prop_assert!(running + waiting.len() as u32 >= limit + queue),
                },
                2 if running > 0 => {
                    running -= 1;
                    let next = bulkhead.release();
                    let first = waiting.iter().find(|ticket| bulkhead.is_granted(**ticket));
                    prop_assert!(next.is_none() || first.is_some());
                }
                3 if !waiting.is_empty() => {
                    let ticket = waiting.remove(pick.index(waiting.len()));
                    if pick.index(2) == 0 && bulkhead.claim(ticket) {
                        running += 1;
                    } else {
                        bulkhead.leave(ticket);
                    }
                }
                _ => {}
            }
            prop_assert!(running <= limit && bulkhead.in_flight() <= limit);
            prop_assert!(bulkhead.queued() <= queue as usize);
        }
        for ticket in waiting {
            bulkhead.leave(ticket);
        }
        for _ in 0..running {
            bulkhead.release();
        }
        prop_assert_eq!((bulkhead.in_flight(), bulkhead.queued()), (0, 0));
    }
}
