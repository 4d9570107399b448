//! Which failed transactions run again, when, and how often.

use std::time::Duration;

use mamparo_core::message::transaction::{CLASSES, Class, Decision, Repeats};
use mamparo_core::rng::SeededRng;

#[test]
fn deadlocks_run_again_twice_within_the_growing_waits() {
    let repeats = Repeats::default();
    let mut longest = [Duration::ZERO; 2];
    for seed in 0..1_000 {
        let mut rng = SeededRng::new(seed);
        for (attempt, ceiling) in [(1, 50), (2, 100)] {
            let decision = repeats.ask(attempt, Class::RetryWhole, &mut rng);
            let Decision::Again { after } = decision else {
                unreachable!("attempt {attempt}: {decision:?}")
            };
            assert!(after <= Duration::from_millis(ceiling), "{after:?}");
            let longest = &mut longest[attempt as usize - 1];
            *longest = after.max(*longest);
        }
        assert_eq!(repeats.ask(3, Class::RetryWhole, &mut rng), Decision::GiveUp);
    }
    assert!(longest[0] > Duration::from_millis(45) && longest[1] > Duration::from_millis(90));
}

#[test]
fn a_statement_is_prepared_anew_once() {
    let (repeats, mut rng) = (Repeats::default(), SeededRng::new(1));
    assert_eq!(repeats.ask(1, Class::Reprepare, &mut rng), Decision::AgainOnFresh);
    assert_eq!(repeats.ask(2, Class::Reprepare, &mut rng), Decision::GiveUp);
    let single = Repeats { attempts: 1, ..repeats };
    assert_eq!(single.ask(1, Class::Reprepare, &mut rng), Decision::GiveUp);
}

/// Above all the unknown outcome: it may have happened.
#[test]
fn nothing_else_runs_again_by_itself() {
    let (repeats, mut rng) = (Repeats::default(), SeededRng::new(1));
    for class in CLASSES {
        if !matches!(class, Class::RetryWhole | Class::Reprepare) {
            assert_eq!(repeats.ask(1, class, &mut rng), Decision::GiveUp, "{class:?}");
        }
    }
}

#[test]
fn what_is_away_is_not_the_works_fault() {
    let away: Vec<_> = CLASSES.into_iter().filter(|class| class.is_away()).collect();
    assert_eq!(away, [Class::LockBusy, Class::Reconnect, Class::ReadOnly, Class::StopIntake]);
}
