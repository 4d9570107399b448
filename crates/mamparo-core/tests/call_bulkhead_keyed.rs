//! A bulkhead a key: none takes the slots of another, and memory stays bounded.

use mamparo_core::call::bulkhead::{BulkheadConfig, Entry, KeyedBulkhead};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;

const NOW: Moment = Moment::ORIGIN;

#[test]
fn a_key_that_takes_all_its_slots_leaves_the_others_alone() {
    let tenants: KeyedBulkhead<String> = KeyedBulkhead::new(BulkheadConfig::new(2, 0), 1);
    let greedy = tenants.get(NOW, "greedy");
    let _held = [greedy.ask(NOW, NOW), greedy.ask(NOW, NOW)];
    assert!(matches!(tenants.get(NOW, "greedy").ask(NOW, NOW), Entry::Full { .. }));
    assert!(matches!(tenants.get(NOW, "modest").ask(NOW, NOW), Entry::Granted(_)));
}

#[test]
fn a_key_in_use_is_never_forgotten_and_idle_ones_go() {
    let tenants: KeyedBulkhead<u64> =
        KeyedBulkhead::with_keys_max(BulkheadConfig::new(1, 0), 1, 100);
    let used: Vec<_> = (0..10)
        .map(|key| {
            let bulkhead = tenants.get(NOW, &key);
            let entry = bulkhead.ask(NOW, NOW);
            // The handle goes, the slot stays: that is use too.
            assert!(matches!(entry, Entry::Granted(_)));
            entry
        })
        .collect();
    for key in 1_000..20_000 {
        let bulkhead = tenants.get(NOW, &key);
        let Entry::Granted(slot) = bulkhead.ask(NOW, NOW) else { panic!("{key} is alone") };
        bulkhead.release(NOW, slot);
        assert!(tenants.keys() <= 100);
    }
    assert_eq!(tenants.overflowed(), 0, "there was always one to forget");
    for (key, entry) in (0..10).zip(used) {
        let bulkhead = tenants.get(NOW, &key);
        assert!(matches!(bulkhead.ask(NOW, NOW), Entry::Full { .. }), "{key} was forgotten");
        let Entry::Granted(slot) = entry else { panic!("{key} held a slot") };
        bulkhead.release(NOW, slot);
        assert_eq!(bulkhead.in_flight(), 0);
    }
}

#[test]
fn keys_beyond_the_bound_share_one_when_all_are_in_use() {
    let tenants: KeyedBulkhead<u64> = KeyedBulkhead::with_keys_max(BulkheadConfig::new(1, 0), 1, 4);
    let handles: Vec<_> = (0..4).map(|key| tenants.get(NOW, &key)).collect();
    let slot = tenants.get(NOW, &100).ask(NOW, NOW);
    assert!(matches!(slot, Entry::Granted(_)));
    assert!(matches!(tenants.get(NOW, &200).ask(NOW, NOW), Entry::Full { .. }));
    assert_eq!((tenants.keys(), tenants.overflowed()), (4, 2));
    drop(handles);
    assert!(matches!(tenants.get(NOW, &300).ask(NOW, NOW), Entry::Granted(_)));
}

#[test]
fn policies_c17_eight_threads_on_few_keys_keep_every_limit() {
    let tenants: KeyedBulkhead<u64> = KeyedBulkhead::with_keys_max(BulkheadConfig::new(3, 0), 1, 8);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let tenants = &tenants;
            scope.spawn(move || {
                let mut rng = SeededRng::new(seed);
                for _ in 0..5_000 {
                    let bulkhead = tenants.get(NOW, &rng.up_to(20));
                    if let Entry::Granted(slot) = bulkhead.ask(NOW, NOW) {
                        assert!((1..=3).contains(&bulkhead.in_flight()));
                        bulkhead.release(NOW, slot);
                    }
                }
            });
        }
    });
    assert!(tenants.entries().iter().all(|(_, bulkhead)| bulkhead.in_flight() == 0));
}
