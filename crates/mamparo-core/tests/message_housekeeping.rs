//! When rows that have served are forgotten.

use std::time::Duration;

use mamparo_core::backoff::Jitter;
use mamparo_core::message::housekeeping::{Housekeeping, MATTERS, Matter, Policy, Step};
use mamparo_core::rng::SeededRng;
use mamparo_core::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::ORIGIN.plus(Duration::from_secs(seconds))
}

/// Runs until `end`; `answer` says what became of each batch. When each was asked for.
fn run(
    policy: Policy,
    end: Moment,
    mut answer: impl FnMut(Matter, Moment) -> Option<u64>,
) -> Vec<(Matter, Moment)> {
    let (mut now, mut rng) = (Moment::ORIGIN, SeededRng::new(7));
    let mut housekeeping = Housekeeping::new(policy, now);
    let mut asked = Vec::new();
    loop {
        match housekeeping.ask(now) {
            Step::Forget(matter) => {
                asked.push((matter, now));
                housekeeping.tell(now, answer(matter, now), &mut rng);
            }
            Step::Wait(until) if until > end => return asked,
            Step::Wait(until) => {
                assert!(until > now, "waits, and never asks the same again");
                now = until;
            }
        }
    }
}

#[test]
fn an_idle_service_is_asked_three_questions_an_hour() {
    let asked = run(Policy::default(), at(3_600), |_, _| Some(0));
    let (first, rest) = asked.split_at(3);
    assert_eq!(first.iter().map(|(matter, _)| *matter).collect::<Vec<_>>(), MATTERS);
    assert!(rest.is_empty(), "the next round begins an hour after the last question: {rest:?}");
    assert_eq!(run(Policy::default(), at(7_300), |_, _| Some(0)).len(), 9);
}

#[test]
fn a_table_with_more_than_a_batch_is_asked_again_soon_and_never_without_a_pause() {
    let mut left = 10_500_u64;
    let asked = run(Policy::default(), at(3_000), |matter, _| {
        let gone = if matter == Matter::Inbox { left.min(1_000) } else { 0 };
        left -= gone;
        Some(gone)
    });
    assert_eq!(left, 0);
    assert_eq!(asked.iter().filter(|(matter, _)| *matter == Matter::Inbox).count(), 11);
    for pair in asked.windows(2) {
        assert!(pair[1].1 >= pair[0].1.plus(Duration::from_millis(100)), "{pair:?}");
    }
    assert!(asked.last().unwrap().1 < at(4), "and all of it is gone in seconds");
}

#[test]
fn one_table_that_fails_holds_up_no_other_and_is_not_hammered() {
    let mut retries = 0;
    let asked = run(Policy::default(), at(86_400), |matter, _| match matter {
        Matter::Inbox => None,
        Matter::Keys => Some(0),
        Matter::Retries => {
            retries += 1;
            Some(1_000)
        }
    });
    // Base 1 s, doubled up to 5 min, at least half of it.
    let rounds = asked.iter().filter(|(matter, _)| *matter == Matter::Inbox).count();
    assert!((280..600).contains(&rounds), "{rounds} rounds in a day");
    assert!(retries >= rounds - 1);
}

#[test]
fn after_a_failure_that_has_passed_it_is_as_before() {
    let policy = Policy::default();
    let asked = run(policy, at(3_700), |_, now| (now > at(60)).then_some(0));
    let last = asked.iter().rev().take(3).map(|(matter, _)| *matter).collect::<Vec<_>>();
    assert_eq!(last, [Matter::Retries, Matter::Keys, Matter::Inbox]);
    let after: Vec<_> = asked.iter().filter(|(_, now)| *now > at(130)).collect();
    assert!(after.len() <= 3, "an hour of rest: {after:?}");
}

#[test]
fn values_that_would_harm_are_brought_into_range() {
    let second = Duration::from_secs(1);
    let zero = Duration::ZERO;
    let policy = Policy {
        inbox: second,
        keys: zero,
        retries: second,
        every: zero,
        batch: 0,
        ..Policy::default()
    };
    for matter in MATTERS {
        assert_eq!(policy.keep(matter), Duration::from_secs(86_400), "{matter:?}");
    }
    assert_eq!(policy.batch(), 1);
    assert_eq!(Policy { batch: u32::MAX, ..policy }.batch(), 1_000);
    assert!(run(policy, at(59), |_, _| Some(0)).len() <= 3);
    assert_eq!(Policy::default().backoff.jitter, Jitter::Equal);
    let days = |matter| Policy::default().keep(matter).as_secs() / 86_400;
    assert_eq!(MATTERS.map(days), [7, 1, 7]);
}
