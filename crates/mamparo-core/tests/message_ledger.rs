//! Acknowledgements against a broker that knows nothing but the protocol's rule.

use std::collections::BTreeSet;

use mamparo_core::message::ledger::{Ledger, Wire};
use proptest::prelude::*;

#[test]
fn one_frame_settles_all_when_nothing_below_is_open() {
    let mut ledger = Ledger::default();
    for tag in 1..=4 {
        ledger.arrived(tag);
        assert!(ledger.hand_out(tag, i64::try_from(tag).unwrap()));
    }
    for tag in [3, 1, 2] {
        assert!(ledger.ack(tag, i64::try_from(tag).unwrap()));
    }
    assert_eq!(ledger.flush(), Wire { through: Some(3), ..Wire::default() });
    assert!(ledger.flush().is_empty(), "sent once");
    assert_eq!((ledger.open(), ledger.newest()), (1, Some(4)));
}

#[test]
fn a_slow_neighbour_below_is_not_acknowledged_with_the_others() {
    let mut ledger = Ledger::default();
    for tag in 1..=4 {
        ledger.arrived(tag);
        ledger.hand_out(tag, 1);
    }
    for tag in [1, 3, 4] {
        ledger.ack(tag, 1);
    }
    assert_eq!(ledger.flush(), Wire { through: Some(1), singles: vec![3, 4], rejects: vec![] });
    ledger.reject(2, 1);
    assert_eq!(ledger.flush(), Wire { rejects: vec![2], ..Wire::default() });
}

#[test]
fn messages_c13_an_older_hand_out_puts_nothing_on_the_wire() {
    let mut ledger = Ledger::default();
    assert!(!ledger.ack(1, 1), "never delivered on this channel");
    ledger.arrived(1);
    assert!(ledger.hand_out(1, 7));
    assert!(ledger.recall(1, 7), "kept back");
    assert!(!ledger.ack(1, 7) && !ledger.reject(1, 7) && !ledger.recall(1, 7));
    assert!(ledger.hand_out(1, 8));
    assert!(!ledger.ack(1, 7), "the hand-out before");
    assert!(ledger.flush().is_empty());
    assert!(ledger.ack(1, 8));
    assert!(!ledger.ack(1, 8), "twice");
    assert_eq!(ledger.flush().through, Some(1));
}

#[derive(Debug, Clone)]
enum Step {
    Arrive,
    Ack(usize),
    Reject(usize),
    Keep(usize),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Arrive),
        3 => (0_usize..20).prop_map(Step::Ack),
        1 => (0_usize..20).prop_map(Step::Reject),
        1 => (0_usize..20).prop_map(Step::Keep),
        2 => Just(Step::Flush),
    ]
}

/// RabbitMQ's side: an acknowledgement of a number that is not outstanding closes the channel.
#[derive(Default)]
struct Peer {
    outstanding: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    requeued: BTreeSet<u64>,
}

impl Peer {
    fn receive(&mut self, wire: &Wire) {
        for tag in &wire.rejects {
            assert!(self.outstanding.remove(tag), "unknown delivery tag {tag}");
            self.requeued.insert(*tag);
        }
        if let Some(through) = wire.through {
            assert!(self.outstanding.contains(&through), "unknown delivery tag {through}");
            let above = self.outstanding.split_off(&(through + 1));
            self.acked.extend(std::mem::replace(&mut self.outstanding, above));
        }
        for tag in &wire.singles {
            assert!(self.outstanding.remove(tag), "unknown delivery tag {tag}");
            self.acked.insert(*tag);
        }
    }
}

proptest! {
    #[test]
    fn exactly_what_was_settled_is_settled(steps in prop::collection::vec(step(), 0..120)) {
        let (mut ledger, mut peer) = (Ledger::default(), Peer::default());
        let (mut acked, mut rejected) = (BTreeSet::new(), BTreeSet::new());
        let mut held: Vec<(u64, i64)> = Vec::new();
        let (mut tag, mut epoch) = (0, 0);
        for step in steps {
            match step {
                Step::Arrive => {
                    (tag, epoch) = (tag + 1, epoch + 1);
                    peer.outstanding.insert(tag);
                    ledger.arrived(tag);
                    ledger.hand_out(tag, epoch);
                    held.push((tag, epoch));
                }
                Step::Ack(n) if n < held.len() => {
                    let (tag, epoch) = held.swap_remove(n);
                    prop_assert!(ledger.ack(tag, epoch));
                    acked.insert(tag);
                }
                Step::Reject(n) if n < held.len() => {
                    let (tag, epoch) = held.swap_remove(n);
                    prop_assert!(ledger.reject(tag, epoch));
                    rejected.insert(tag);
                }
                Step::Keep(n) if n < held.len() => {
                    let (tag, old) = held[n];
                    prop_assert!(ledger.recall(tag, old));
                    epoch += 1;
                    prop_assert!(ledger.hand_out(tag, epoch));
                    held[n] = (tag, epoch);
                }
                Step::Flush => {
                    peer.receive(&ledger.flush());
                    prop_assert_eq!(&peer.acked, &acked);
                    prop_assert_eq!(&peer.requeued, &rejected);
                }
                Step::Ack(_) | Step::Reject(_) | Step::Keep(_) => {}
            }
            prop_assert_eq!(ledger.open(), held.len());
        }
        peer.receive(&ledger.flush());
        prop_assert_eq!((&peer.acked, &peer.requeued), (&acked, &rejected));
        prop_assert_eq!(peer.outstanding.len(), held.len());
    }
}
