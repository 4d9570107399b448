//! The bulkhead in every interleaving of a few threads: its limit holds at every instant, a slot that
//! comes back reaches whoever waits for it, and none is lost. Runs under `cargo xtask model`.
#![cfg(loom)]
#![expect(clippy::panic, clippy::expect_used, reason = "helpers of tests end the test")]

mod model;

use mamparo_core::call::bulkhead::{
    Bulkhead, BulkheadConfig, Entry, Order, Slot, Standing, Ticket,
};
use mamparo_core::sync::Arc;
use mamparo_core::sync::atomic::{AtomicU32, Ordering};
use mamparo_core::time::Moment;

use model::{Part, check, together};

const NOW: Moment = Moment::ORIGIN;
const EVER: Moment = Moment::FAR_FUTURE;

/// A bulkhead, and a count of those who run in it that it knows nothing of.
struct Scene {
    bulkhead: Bulkhead,
    running: AtomicU32,
    /// Most that may run at a time.
    most: u32,
}

impl Scene {
    fn new(limit: u32, queue: u32, most: u32) -> Self {
        Self::of(BulkheadConfig::new(limit, queue), most)
    }

    fn of(config: BulkheadConfig, most: u32) -> Self {
        Self { bulkhead: Bulkhead::new(config), running: AtomicU32::new(0), most }
    }

    fn take(&self) -> Slot {
        let entry = self.bulkhead.ask(NOW, EVER);
        let Entry::Granted(slot) = entry else { panic!("{entry:?} is no slot") };
        slot
    }

    fn queue(&self) -> Ticket {
        let entry = self.bulkhead.ask(NOW, EVER);
        let Entry::Queued { ticket, .. } = entry else { panic!("{entry:?} is no ticket") };
        ticket
    }

    /// Runs with a slot, then runs whoever was handed it, to the end of the line.
    fn run(&self, slot: Slot) {
        let mut slot = Some(slot);
        while let Some(held) = slot.take() {
            let before = self.running.fetch_add(1, Ordering::SeqCst);
            assert!(before < self.most, "{before} run beside this one");
            self.running.fetch_sub(1, Ordering::SeqCst);
            slot = self.bulkhead.release(NOW, held).map(|next| self.claim(next));
        }
    }

    fn claim(&self, granted: Ticket) -> Slot {
        self.bulkhead.claim(NOW, granted).expect("it was granted, and nobody else claims it")
    }

    /// A call that runs if it may. If it has to wait, whoever hands it a slot runs it.
    fn call(&self) {
        if let Entry::Granted(slot) = self.bulkhead.ask(NOW, EVER) {
            self.run(slot);
        }
    }

    fn assert_empty(&self) {
        assert_eq!((self.bulkhead.in_flight(), self.bulkhead.queued()), (0, 0));
    }
}

fn calls() -> Part<Scene, ()> {
    Box::new(Scene::call)
}

fn runs(slot: Slot) -> Part<Scene, ()> {
    Box::new(move |scene| scene.run(slot))
}

/// Leaves the line, and runs whoever gets the slot that was on its way.
fn leaves(ticket: Ticket) -> Part<Scene, ()> {
    Box::new(move |scene| {
        if let Some(next) = scene.bulkhead.leave(NOW, ticket) {
            scene.run(scene.claim(next));
        }
    })
}

/// Releases a slot, and leaves it to the waiter that gets it to pick it up.
fn hands_on(slot: Slot) -> Part<Scene, ()> {
    Box::new(move |scene| {
        scene.bulkhead.release(NOW, slot);
    })
}

#[test]
fn policies_c17_the_limit_holds_and_nobody_who_queues_is_forgotten() {
    for (limit, queue) in [(1, 0), (1, 1), (1, 2), (2, 1)] {
        check(move || {
            let scene = Arc::new(Scene::new(limit, queue, limit));
            together(&scene, vec![calls(), calls(), calls()]);
            scene.assert_empty();
        });
    }
}

#[test]
fn policies_c17_a_newcomer_that_sheds_the_oldest_keeps_the_limit() {
    check(|| {
        let config = BulkheadConfig { order: Order::AdaptiveLifo, ..BulkheadConfig::new(1, 1) };
        let scene = Arc::new(Scene::of(config, 1));
        let slot = scene.take();
        let oldest = scene.queue();
        together(&scene, vec![calls(), calls(), runs(slot)]);
        // Shed or run, it is past waiting; and if shed, it says so until it leaves.
        assert_ne!(scene.bulkhead.standing(oldest), Standing::Waiting);
        assert_eq!(scene.bulkhead.leave(NOW, oldest), None);
        scene.assert_empty();
    });
}

#[test]
fn policies_c16_a_waiter_that_leaves_as_it_is_granted_hands_the_slot_on() {
    check(|| {
        let scene = Arc::new(Scene::new(1, 2, 1));
        let slot = scene.take();
        let (goes, stays) = (scene.queue(), scene.queue());
        let waits: Part<Scene, ()> = Box::new(move |scene| {
            if scene.bulkhead.standing(stays) == Standing::Granted {
                scene.run(scene.claim(stays));
            }
        });
        let leaves: Part<Scene, ()> = Box::new(move |scene| {
            let next = scene.bulkhead.leave(NOW, goes);
            assert!(next.is_none_or(|next| next == stays));
        });
        together(&scene, vec![waits, leaves, hands_on(slot)]);
        if scene.bulkhead.standing(stays) == Standing::Granted {
            scene.run(scene.claim(stays));
        }
        assert_eq!(scene.bulkhead.standing(stays), Standing::Gone, "it has run");
        scene.assert_empty();
    });
}

#[test]
fn policies_c16_a_cancelled_caller_and_a_newcomer_lose_no_slot() {
    check(|| {
        let scene = Arc::new(Scene::new(1, 1, 1));
        let slot = scene.take();
        let ticket = scene.queue();
        // Whoever releases sees the waiter go, or hands it the slot and the waiter hands it on.
        let releases: Part<Scene, ()> = Box::new(move |scene| {
            let next = scene.bulkhead.release(NOW, slot).filter(|next| *next != ticket);
            next.into_iter().for_each(|next| scene.run(scene.claim(next)));
        });
        together(&scene, vec![calls(), releases, leaves(ticket)]);
        scene.assert_empty();
    });
}

#[test]
fn a_larger_limit_reaches_who_waits_whoever_comes_first() {
    check(|| {
        let scene = Arc::new(Scene::new(1, 2, 2));
        let slot = scene.take();
        let ticket = scene.queue();
        let grows: Part<Scene, ()> = Box::new(|scene| {
            for next in scene.bulkhead.set_limit(NOW, 2) {
                scene.run(scene.claim(next));
            }
        });
        together(&scene, vec![calls(), grows, runs(slot)]);
        assert_eq!(scene.bulkhead.standing(ticket), Standing::Gone, "it has run");
        scene.assert_empty();
    });
}

#[test]
fn a_smaller_limit_holds_for_whoever_asks_after_it() {
    check(|| {
        let scene = Arc::new(Scene::new(2, 1, 2));
        let (one, other) = (scene.take(), scene.take());
        let shrinks: Part<Scene, ()> = Box::new(|scene| {
            assert_eq!(scene.bulkhead.set_limit(NOW, 1).into_iter().count(), 0);
            if let Entry::Granted(slot) = scene.bulkhead.ask(NOW, EVER) {
                assert_eq!(scene.bulkhead.in_flight(), 1, "this one alone");
                scene.run(slot);
            }
        });
        together(&scene, vec![runs(one), shrinks, runs(other)]);
        assert_eq!(scene.bulkhead.limit(), 1);
        scene.assert_empty();
    });
}

/// Whoever queues as the queue is taken away is in line or refused, never forgotten in between.
#[test]
fn policies_c16_a_shorter_queue_forgets_nobody_who_just_joined() {
    for order in [Order::Fifo, Order::AdaptiveLifo] {
        check(move || {
            let before = BulkheadConfig { order, ..BulkheadConfig::new(1, 1) };
            let after = BulkheadConfig { queue: 0, ..before };
            let scene = Arc::new(Scene::of(before, 1));
            let slot = scene.take();
            let reloads: Part<Scene, ()> = Box::new(move |scene| {
                assert!(scene.bulkhead.set_config(NOW, after).is_empty());
            });
            let joins: Part<Scene, ()> = Box::new(|scene| {
                if let Entry::Queued { shed, .. } = scene.bulkhead.ask(NOW, EVER) {
                    assert_eq!(shed, None, "nobody else is there");
                    assert_eq!(scene.bulkhead.queued(), 1);
                }
            });
            together(&scene, vec![reloads, joins]);
            scene.run(slot);
            scene.assert_empty();
        });
    }
}
