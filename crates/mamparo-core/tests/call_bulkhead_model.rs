//! The bulkhead against a plain model of it: two lists and a count, checked after every step.

#![expect(clippy::expect_used, reason = "helpers of tests end the test")]

use std::time::Duration;

use mamparo_core::call::bulkhead::{
    Bulkhead, BulkheadConfig, Entry, Order, Slot, Standing, Ticket,
};
use mamparo_core::time::Moment;
use proptest::prelude::*;

/// What a bulkhead is, said without atomics, links or places that are used again.
#[derive(Debug)]
struct Model {
    config: BulkheadConfig,
    running: u32,
    /// In order of arrival, with the last moment at which a slot is of use.
    waiting: Vec<(Ticket, Moment)>,
    granted: Vec<Ticket>,
    shed: Vec<Ticket>,
}

impl Model {
    fn taken(&self) -> u32 {
        self.running + self.granted.len() as u32
    }

    fn pressed(&self) -> bool {
        self.config.order == Order::AdaptiveLifo
            && self.waiting.len() as u32 > self.config.queue / 2
    }

    fn end(&mut self, ticket: Ticket) {
        self.waiting.retain(|(each, _)| *each != ticket);
        self.granted.retain(|each| *each != ticket);
        self.shed.retain(|each| *each != ticket);
    }

    /// Hands free slots out, one look at the pressure a slot.
    fn hand_out(&mut self, now: Moment) -> Vec<Ticket> {
        let mut woken = Vec::new();
        while self.taken() < self.config.limit && !self.waiting.is_empty() {
            let newest = self.pressed();
            while !self.waiting.is_empty() {
                let at = if newest { self.waiting.len() - 1 } else { 0 };
                let (ticket, until) = self.waiting.remove(at);
                if until >= now {
                    self.granted.push(ticket);
                    woken.push(ticket);
                    break;
                }
                self.shed.push(ticket);
            }
        }
        woken
    }
}

/// A caller that has not come to its end.
#[derive(Debug)]
enum Caller {
    Runs(Slot),
    Waits(Ticket),
}

/// The bulkhead, its model, and those who use both.
struct Pair {
    bulkhead: Bulkhead,
    model: Model,
    callers: Vec<Caller>,
}

impl Pair {
    fn new(config: BulkheadConfig) -> Self {
        let (waiting, granted, shed) = (Vec::new(), Vec::new(), Vec::new());
        let model = Model { config, running: 0, waiting, granted, shed };
        Self { bulkhead: Bulkhead::new(config), model, callers: Vec::new() }
    }

    fn ask(&mut self, now: Moment, until: Moment) {
        let model = &mut self.model;
        let busy = model.taken() >= model.config.limit;
        let full = model.waiting.len() as u32 >= model.config.queue;
        match self.bulkhead.ask(now, until) {
            Entry::Granted(slot) => {
                assert!(!busy && model.waiting.is_empty());
                model.running += 1;
                self.callers.push(Caller::Runs(slot));
            }
            Entry::Queued { ticket, shed } => {
                assert!(busy);
                assert_eq!(shed.is_some(), full);
                if let Some(shed) = shed {
                    assert_eq!(model.config.order, Order::AdaptiveLifo);
                    assert_eq!(shed, model.waiting.remove(0).0, "the oldest makes room");
                    model.shed.push(shed);
                }
                model.waiting.push((ticket, until));
                self.callers.push(Caller::Waits(ticket));
            }
            Entry::Full { .. } => assert!(busy && full),
            Entry::TooLate { retry_after } => {
                assert!(busy && self.bulkhead.service_time().is_some());
                assert!(now.plus(retry_after) > until);
            }
        }
    }

    fn set_limit(&mut self, now: Moment, limit: u32) {
        self.model.config.limit = limit;
        let woken: Vec<Ticket> = self.bulkhead.set_limit(now, limit).into_iter().collect();
        assert_eq!(woken, self.model.hand_out(now));
    }

    /// One caller goes on: it ends, or picks its slot up if it has one and `claims`.
    fn go_on(&mut self, now: Moment, caller: Caller, claims: bool) {
        let next = match caller {
            Caller::Runs(slot) => {
                self.model.running -= 1;
                self.bulkhead.release(now, slot)
            }
            Caller::Waits(ticket) => {
                let granted = self.model.granted.contains(&ticket);
                let standing = self.bulkhead.standing(ticket);
                assert_eq!(standing == Standing::Granted, granted);
                self.model.end(ticket);
                if claims && granted {
                    self.model.running += 1;
                    let slot = self.bulkhead.claim(now, ticket).expect("granted");
                    self.callers.push(Caller::Runs(slot));
                    None
                } else {
                    assert!(granted || self.bulkhead.claim(now, ticket).is_none());
                    let next = self.bulkhead.leave(now, ticket);
                    assert_eq!(self.bulkhead.leave(now, ticket), None, "it has ended");
                    next
                }
            }
        };
        assert_eq!(Vec::from_iter(next), self.model.hand_out(now));
    }

    fn agree(&self) {
        let (bulkhead, model) = (&self.bulkhead, &self.model);
        assert_eq!(bulkhead.in_flight(), model.taken());
        assert_eq!(bulkhead.queued() as usize, model.waiting.len());
        assert_eq!(bulkhead.limit(), model.config.limit);
        for ticket in &model.shed {
            assert_eq!(bulkhead.standing(*ticket), Standing::Shed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn policies_c17_the_limit_holds_and_c16_all_slots_come_back(
        limit in 1_u32..5, queue in 0_u32..6, lifo: bool,
        steps in prop::collection::vec((0_u8..10, any::<prop::sample::Index>(), 0_u64..8), 0..300),
    ) {
        let order = if lifo { Order::AdaptiveLifo } else { Order::Fifo };
        let mut pair = Pair::new(BulkheadConfig { limit, queue, order });
        let mut now = Moment::ORIGIN;
        for (action, pick, millis) in steps {
            now = now.plus(Duration::from_millis(millis / 4));
            match action {
                0..=3 => pair.ask(now, now.plus(Duration::from_millis(millis))),
                4 => pair.set_limit(now, 1 + pick.index(5) as u32),
                _ if pair.callers.is_empty() => {}
                _ => {
                    let caller = pair.callers.swap_remove(pick.index(pair.callers.len()));
                    pair.go_on(now, caller, action % 2 == 0);
                }
            }
            pair.agree();
        }
        while let Some(caller) = pair.callers.pop() {
            pair.go_on(now, caller, false);
        }
        prop_assert_eq!((pair.bulkhead.in_flight(), pair.bulkhead.queued()), (0, 0));
    }
}
