//! Load shedding: the least important first, smoothly, without flapping, and in time.

use std::time::Duration;

use mamparo_core::call::shed::{Change, Criticality, Entry, Lot, Needs, Shed, ShedConfig, Work};
use mamparo_core::keyed::{Dispensable, Keep};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const SECOND: u64 = 1_000;

fn at(millis: u64) -> Moment {
    Moment::from_millis(1_000_000 + millis)
}

fn work(criticality: Criticality, load: f64) -> Work {
    Work { criticality, load, left: None, needs: None }
}

/// The share of each level that is refused at `load`, coming from below.
fn refused_at(load: f64) -> [f64; 5] {
    let shed = Shed::new(ShedConfig::default());
    let mut rng = SeededRng::new(3);
    Criticality::ALL.map(|level| {
        let refused = |_: &u64| {
            let entry = shed.ask(work(level, load), Lot::drawn(&mut rng)).entry;
            matches!(entry, Entry::Overloaded { .. })
        };
        (0..2_000_u64).filter(refused).count() as f64 / 2_000.0
    })
}

#[test]
fn the_least_important_goes_first_and_smoothly() {
    for (load, shares) in [
        (0.0, [0.0, 0.0, 0.0, 0.0, 0.0]),
        (0.74, [0.0, 0.0, 0.0, 0.0, 0.0]),
        (0.76, [0.6, 0.0, 0.0, 0.0, 0.0]),
        (0.83, [1.0, 0.6, 0.0, 0.0, 0.0]),
        (0.91, [1.0, 1.0, 0.8, 0.0, 0.0]),
        (0.99, [1.0, 1.0, 1.0, 0.8, 0.0]),
        (0.9999, [1.0, 1.0, 1.0, 1.0, 0.0]),
        (1.01, [1.0, 1.0, 1.0, 1.0, 0.6]),
        (2.0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        (f64::INFINITY, [1.0, 1.0, 1.0, 1.0, 1.0]),
        // What can't be measured counts as full.
        (f64::NAN, [1.0, 1.0, 1.0, 1.0, 0.4]),
        (-1.0, [0.0, 0.0, 0.0, 0.0, 0.0]),
    ] {
        let measured = refused_at(load);
        let close = measured.iter().zip(shares).all(|(is, should)| (is - should).abs() < 0.04);
        assert!(close, "at {load}: {measured:?}, not {shares:?}");
    }
}

#[test]
fn a_level_comes_back_below_the_load_at_which_it_went() {
    let shed = Shed::new(ShedConfig::default());
    let refused = |load| {
        shed.ask(work(Criticality::Critical, load), Lot::drawn(&mut SeededRng::new(1)));
        shed.refusing() >= Some(Criticality::Sheddable)
    };
    // Begins at 0.82, ends at 0.80.
    assert!(!refused(0.81));
    assert!(refused(0.821));
    for _ in 0..100 {
        assert!(
            refused(0.819) && refused(0.805) && refused(0.821),
            "the same noise, the same answer"
        );
    }
    assert!(!refused(0.799));
    for _ in 0..100 {
        assert!(!refused(0.81) && !refused(0.819) && !refused(0.80));
    }
    assert!(refused(0.82));
}

#[test]
fn each_change_is_reported_once() {
    let shed = Shed::new(ShedConfig::default());
    let told = |load| {
        shed.ask(work(Criticality::Critical, load), Lot::drawn(&mut SeededRng::new(1))).change
    };
    let change = |from, to| Some(Change { from, to });
    assert_eq!((told(0.5), shed.refusing()), (None, None));
    assert_eq!(told(0.9), change(None, Some(Criticality::SheddablePlus)));
    assert_eq!(told(0.9), None);
    assert_eq!(
        told(1.5),
        change(Some(Criticality::SheddablePlus), Some(Criticality::CriticalPlus))
    );
    assert_eq!(told(0.0), change(Some(Criticality::CriticalPlus), None));
    let changes = std::thread::scope(|scope| {
        let ask = || {
            shed.ask(work(Criticality::Critical, 0.9), Lot::drawn(&mut SeededRng::new(1))).change
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).count()
    });
    assert_eq!(changes, 1);
}

#[test]
fn what_is_needed_is_learned_from_what_was_done() {
    let needs = Needs::new();
    assert_eq!(needs.ask(at(0)), None);
    for n in 0..99 {
        needs.tell(at(n), Duration::from_millis(100 + n));
    }
    assert_eq!(needs.ask(at(2_000)), None, "99 are no basis");
    needs.tell(at(2_000), Duration::from_millis(100));
    assert_eq!(needs.ask(at(2_999)), None, "a reading is good for a second");
    let least = needs.ask(at(3_000)).unwrap();
    assert!((105..=113).contains(&least.as_millis()), "{least:?}: the tenth of a hundred");
    assert_eq!(needs.keep(at(3_000)), Keep::Nearest(at(64_000).nanos()));
    assert_eq!(needs.keep(at(64_000)), Keep::Idle);
    assert_eq!(needs.ask(at(200_000)), None, "forgotten after a minute");
}

#[test]
fn work_that_can_not_end_in_time_is_refused_at_any_load() {
    let shed = Shed::new(ShedConfig::default());
    let millis = |millis| Some(Duration::from_millis(millis));
    for (left, needs, entry) in [
        (millis(49), millis(50), Entry::TooLate),
        (millis(50), millis(50), Entry::Admitted),
        (millis(0), None, Entry::Admitted),
        (None, millis(50), Entry::Admitted),
    ] {
        let work = Work { left, needs, ..work(Criticality::CriticalPlus, 0.0) };
        assert_eq!(shed.ask(work, Lot::drawn(&mut SeededRng::new(1))).entry, entry);
    }
}

#[test]
fn a_key_keeps_its_lot_for_a_minute_and_no_longer() {
    let shed = Shed::new(ShedConfig::default());
    let load = 0.755; // Half of best-effort.
    let admitted = |key: u32, now| {
        let lot = Lot::of_key(&key, now, 9);
        shed.ask(work(Criticality::BestEffort, load), lot).entry == Entry::Admitted
    };
    let start = at(0).nanos() / 60_000_000_000 * 60_000;
    let minute = |n: u64| Moment::from_millis(start + n * 60 * SECOND);
    let first: Vec<bool> = (0..1_000).map(|key| admitted(key, minute(0))).collect();
    let share = first.iter().filter(|admitted| **admitted).count();
    assert!((450..550).contains(&share), "{share}");
    for offset in [1, 10 * SECOND, 59 * SECOND] {
        let now = minute(0).plus(Duration::from_millis(offset));
        assert!((0..1_000).all(|key| admitted(key, now) == first[key as usize]));
    }
    let always = |key: &u32| (0..20).all(|n| !admitted(*key, minute(n)));
    assert_eq!((0..1_000).filter(always).count(), 0, "nobody stays among the refused");
    assert_ne!(Lot::of_key("a", at(0), 1), Lot::of_key("a", at(0), 2));
}

#[test]
fn the_refused_do_not_come_back_as_one() {
    let shed = Shed::new(ShedConfig::default());
    let mut rng = SeededRng::new(5);
    let waits: Vec<Duration> = (0..200)
        .filter_map(|_| {
            let lot = Lot::drawn(&mut rng);
            match shed.ask(work(Criticality::Sheddable, 2.0), lot).entry {
                Entry::Overloaded { retry_after } => Some(retry_after),
                Entry::Admitted | Entry::TooLate => None,
            }
        })
        .collect();
    let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert_eq!(waits.len(), 200);
    assert!(*least >= Duration::from_secs(1) && *most < Duration::from_secs(2));
    assert!(*most - *least > Duration::from_millis(900));
}

/// A server of 100 places, 100 ms a request, so 1 000 a second; ten times that comes.
#[test]
fn at_ten_times_the_load_what_matters_is_served_and_nothing_is_wasted() {
    let shed = Shed::new(ShedConfig::default());
    let mut rng = SeededRng::new(11);
    // 4 000 + 3 000 + 2 400 + 400 + 200 a second.
    let mix = [(0.40, 0), (0.70, 1), (0.94, 2), (0.98, 3), (1.0, 4)];
    let mut ends = std::collections::VecDeque::new();
    let (mut asked, mut served) = ([0_u32; 5], [0_u32; 5]);
    for tenth in 0..200_000_u64 {
        let micros = tenth * 100;
        while ends.front().is_some_and(|end| *end <= micros) {
            ends.pop_front();
        }
        let draw = rng.up_to(999_999) as f64 / 1e6;
        let level = mix.iter().find(|(up_to, _)| draw < *up_to).map_or(4, |(_, level)| *level);
        let load = ends.len() as f64 / 100.0;
        let entry = shed.ask(work(Criticality::ALL[level], load), Lot::drawn(&mut rng)).entry;
        let admitted = entry == Entry::Admitted && ends.len() < 100;
        if admitted {
            ends.push_back(micros + 100_000);
        }
        // The first two seconds are for finding the level.
        if micros >= 2_000_000 {
            asked[level] += 1;
            served[level] += u32::from(admitted);
        }
    }
    let share = |level: usize| f64::from(served[level]) / f64::from(asked[level]);
    let goodput = f64::from(served.iter().sum::<u32>()) / 18.0;
    assert!(goodput >= 900.0, "{goodput} of 1 000 a second");
    assert!(share(4) >= 0.99 && share(3) >= 0.97, "{served:?} of {asked:?}");
    assert!(share(0) <= 0.01 && share(1) <= 0.05, "{served:?} of {asked:?}");
}

#[test]
fn settings_that_can_not_be_meant_are_mistakes() {
    let keys = |config: ShedConfig| -> Vec<&str> {
        config.mistakes().iter().map(|mistake| mistake.key).collect()
    };
    let sound = ShedConfig::default();
    assert_eq!(keys(sound), [""; 0]);
    for begin in
        [[0.9, 0.8, 0.9, 1.0, 1.0], [0.0; 5], [f64::NAN; 5], [0.5, 0.6, 0.7, 0.8, f64::INFINITY]]
    {
        assert!(keys(ShedConfig { begin, ..sound }).contains(&"shed.begin"), "{begin:?}");
    }
    for band in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(keys(ShedConfig { band, ..sound }), ["shed.band"]);
    }
    for hysteresis in [-0.1, 0.75, f64::NAN] {
        assert_eq!(keys(ShedConfig { hysteresis, ..sound }), ["shed.hysteresis"]);
    }
}

proptest! {
    /// At any load, of two requests with the same lot the more important one is admitted if the other is.
    #[test]
    fn importance_never_hurts(loads in prop::collection::vec(0.0_f64..2.0, 1..100), seed: u64) {
        let shed = Shed::new(ShedConfig::default());
        let mut rng = SeededRng::new(seed);
        for load in loads {
            let lot = Lot::drawn(&mut rng);
            let admitted =
                Criticality::ALL.map(|level| shed.ask(work(level, load), lot).entry == Entry::Admitted);
            prop_assert!(admitted.is_sorted(), "{:?}", admitted);
        }
    }

    #[test]
    fn no_settings_panic(
        begin: [f64; 5], band: f64, hysteresis: f64, nanos: u64,
        loads in prop::collection::vec(any::<f64>(), 1..20),
    ) {
        for retry_after in [Duration::from_nanos(nanos), Duration::MAX] {
            let shed = Shed::new(ShedConfig { begin, band, hysteresis, retry_after });
            for load in &loads {
                let lot = Lot::of_key(&nanos, Moment::from_nanos(nanos), nanos);
                for level in Criticality::ALL {
                    shed.ask(work(level, *load), lot);
                }
            }
            prop_assert!(shed.config().mistakes().len() <= 3);
        }
    }
}
