//! The bulkhead's queue under more than it can serve, in virtual time: who is let in gets a slot in
//! time, who would not is told at once, and no slot stands idle meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig, Entry, Order, Slot, Ticket};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;

const LIMIT: u32 = 10;
const SERVICE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Comes,
    Ends,
    TimesOut(Ticket),
}

#[derive(Debug, Default)]
struct Report {
    served: u32,
    /// Waited, and in vain.
    timed_out: u32,
    refused: u32,
    /// By those who were served, before their slot.
    waited: Duration,
}

struct World {
    bulkhead: Bulkhead,
    rng: SeededRng,
    now: Moment,
    events: BinaryHeap<Reverse<(Moment, u32, Event)>>,
    number: u32,
    slots: Vec<Slot>,
    waiting: BTreeMap<Ticket, Moment>,
    report: Report,
}

impl World {
    fn push(&mut self, after: Duration, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now.plus(after), self.number, event)));
    }

    fn happens(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Comes => match self.bulkhead.ask(now, now.plus(PATIENCE)) {
                Entry::Granted(slot) => self.serve(slot),
                Entry::Queued { ticket, shed } => {
                    self.waiting.insert(ticket, now);
                    self.push(PATIENCE, Event::TimesOut(ticket));
                    shed.into_iter().for_each(|shed| self.gives_up(shed));
                }
                Entry::Full { .. } | Entry::TooLate { .. } => self.report.refused += 1,
            },
            Event::Ends => {
                let slot = self.slots.remove(0);
                self.report.served += 1;
                let next = self.bulkhead.release(now, slot);
                self.wakes(next);
            }
            Event::TimesOut(ticket) => self.gives_up(ticket),
        }
    }

    fn serve(&mut self, slot: Slot) {
        // Between half and one and a half of the mean; whose slot it is makes no difference.
        let share = 0.5 + self.rng.up_to(1_000) as f64 / 1_000.0;
        self.slots.push(slot);
        self.push(SERVICE.mul_f64(share), Event::Ends);
    }

    fn gives_up(&mut self, ticket: Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            self.report.timed_out += 1;
            let next = self.bulkhead.leave(self.now, ticket);
            self.wakes(next);
        }
    }

    fn wakes(&mut self, next: Option<Ticket>) {
        if let Some(ticket) = next
            && let Some(slot) = self.bulkhead.claim(self.now, ticket)
        {
            let since = self.waiting.remove(&ticket);
            self.report.waited += self.now.since(since.unwrap_or(self.now));
            self.serve(slot);
        }
    }
}

/// Callers come at `load` times what the slots serve.
fn run(config: BulkheadConfig, load: u32, time: Duration) -> Report {
    let mut world = World {
        bulkhead: Bulkhead::new(config),
        rng: SeededRng::new(4),
        now: Moment::ORIGIN,
        events: BinaryHeap::new(),
        number: 0,
        slots: Vec::new(),
        waiting: BTreeMap::new(),
        report: Report::default(),
    };
    let gap = SERVICE / LIMIT / load;
    let callers = (time.as_nanos() / gap.as_nanos()) as u32;
    for caller in 0..callers {
        let jitter = gap.mul_f64(world.rng.up_to(1_000) as f64 / 1_000.0);
        world.push(gap * caller + jitter, Event::Comes);
    }
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        world.now = at;
        world.happens(event);
    }
    assert_eq!((world.bulkhead.in_flight(), world.bulkhead.queued()), (0, 0));
    world.report
}

/// Slots × time ÷ service time.
fn capacity(time: Duration) -> f64 {
    f64::from(LIMIT) * time.as_secs_f64() / SERVICE.as_secs_f64()
}

#[test]
fn policies_b09_a_queue_that_knows_its_callers_patience_wastes_neither_slots_nor_waits() {
    let time = Duration::from_secs(60);
    for load in [1, 2, 10] {
        let report = run(BulkheadConfig::new(LIMIT, 1_000), load, time);
        let served = f64::from(report.served) / capacity(time);
        assert!(served >= 0.97, "{load}: {served} {report:?}");
        // At ten times the load, nine of ten would wait in vain in a queue that lets everybody in.
        let in_vain = f64::from(report.timed_out) / f64::from(report.served);
        assert!(in_vain <= 0.15, "{load}: {in_vain} {report:?}");
        let told = report.served + report.timed_out + report.refused;
        assert!(told >= load * 5_990, "{told} {report:?}");
    }
}

#[test]
fn under_pressure_the_newest_wait_less_and_as_many_are_served() {
    let time = Duration::from_secs(60);
    let config = BulkheadConfig::new(LIMIT, 40);
    let fifo = run(config, 2, time);
    let lifo = run(BulkheadConfig { order: Order::AdaptiveLifo, ..config }, 2, time);
    assert!(lifo.served >= fifo.served * 97 / 100, "{lifo:?} {fifo:?}");
    let mean = |report: &Report| report.waited / report.served;
    assert!(mean(&lifo) < mean(&fifo) / 4, "{:?} {:?}", mean(&lifo), mean(&fifo));
}
