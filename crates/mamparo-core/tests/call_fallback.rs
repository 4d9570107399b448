//! Fallback: which failures may be stood in for, how long a value stands in, who shares a failure.

use std::time::Duration;

use mamparo_core::call::fallback::{Denial, Effect, Ended, Reason, Standing, Windows, ask, shares};
use mamparo_core::limits::STALE_MAX;
use mamparo_core::outcome::{Failure, Health, Kind, Repeat, Sent, failure_of_status};
use mamparo_core::time::Moment;
use proptest::prelude::*;

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn every_kind_of_end_has_its_answer_for_reads_and_writes() {
    use Denial::{CallersMistake, Cancelled, MayHaveRun};
    let status = |status| Ended::Failed(failure_of_status(status, None));
    let unsent = |failure| Ended::Failed(Failure { sent: Sent::Nothing, ..failure });
    let our_mistake = Failure { health: Health::Silent, ..Failure::PERMANENT };
    for (what, ended, read, write) in [
        ("open circuit", Ended::Refused, Ok(Reason::Refused), Ok(Reason::Refused)),
        ("503", status(503), Ok(Reason::Unavailable), Err(MayHaveRun)),
        ("429", status(429), Ok(Reason::Unavailable), Err(MayHaveRun)),
        (
            "connection refused",
            Ended::Failed(Failure::NOT_SENT),
            Ok(Reason::Unavailable),
            Ok(Reason::Unavailable),
        ),
        ("500", status(500), Ok(Reason::ServerError), Err(MayHaveRun)),
        ("502", status(502), Ok(Reason::ServerError), Err(MayHaveRun)),
        ("504", status(504), Ok(Reason::NoAnswer), Err(MayHaveRun)),
        ("timeout", Ended::Failed(Failure::UNKNOWN), Ok(Reason::NoAnswer), Err(MayHaveRun)),
        // Nobody can say "unknown" and "never sent" in one breath; the careful half counts.
        ("contradiction", unsent(Failure::UNKNOWN), Ok(Reason::NoAnswer), Err(MayHaveRun)),
        ("400", status(400), Err(CallersMistake), Err(CallersMistake)),
        ("404", status(404), Err(CallersMistake), Err(CallersMistake)),
        ("422", status(422), Err(CallersMistake), Err(CallersMistake)),
        ("bad request", unsent(our_mistake), Err(CallersMistake), Err(CallersMistake)),
        ("cancelled", Ended::Failed(Failure::NEUTRAL), Err(Cancelled), Err(Cancelled)),
    ] {
        assert_eq!(ask(Effect::Read, ended), read, "read: {what}");
        assert_eq!(ask(Effect::Write, ended), write, "write: {what}");
    }
}

#[test]
fn a_call_whose_earlier_attempt_may_have_run_is_no_write_that_was_never_sent() {
    let whole = Failure::NOT_SENT.after(Failure::UNKNOWN);
    assert_eq!(ask(Effect::Write, Ended::Failed(whole)), Err(Denial::MayHaveRun));
}

const WINDOWS: Windows = Windows {
    fresh_for: secs(10),
    while_revalidate: secs(5),
    if_error: secs(60),
    must_revalidate: false,
};

#[test]
fn the_windows_follow_each_other_and_each_ends_before_its_last_moment() {
    let tick = Duration::from_nanos(1);
    for (age, standing) in [
        (Duration::ZERO, Standing::Fresh),
        (secs(10) - tick, Standing::Fresh),
        (secs(10), Standing::Revalidate),
        (secs(15) - tick, Standing::Revalidate),
        (secs(15), Standing::IfError),
        (secs(70) - tick, Standing::IfError),
        (secs(70), Standing::Expired),
        (Duration::MAX, Standing::Expired),
    ] {
        assert_eq!(WINDOWS.standing(age), standing, "{age:?}");
        let strict = Windows { must_revalidate: true, ..WINDOWS };
        let allowed = if age < secs(10) { Standing::Fresh } else { Standing::Expired };
        assert_eq!(strict.standing(age), allowed, "must revalidate, {age:?}");
        assert_eq!(WINDOWS.stands_in(age), standing != Standing::Expired);
    }
    let none = Windows { if_error: Duration::ZERO, ..Windows::default() };
    assert_eq!(none.standing(Duration::ZERO), Standing::Expired, "no window, no value");
    assert_eq!(Windows::default().standing(Duration::ZERO), Standing::IfError);
    // What may be served during a revalidation may be served when that fails.
    let polite = Windows { if_error: Duration::ZERO, ..WINDOWS };
    assert!(polite.stands_in(secs(12)) && !polite.stands_in(secs(15)));
}

#[test]
fn no_header_makes_a_value_stand_in_for_longer_than_a_week() {
    let for_ever = Windows { if_error: Duration::MAX, while_revalidate: Duration::MAX, ..WINDOWS };
    assert!(for_ever.stands_in(secs(9) + STALE_MAX));
    assert!(!for_ever.stands_in(secs(10) + STALE_MAX));
    let keys: Vec<&str> = for_ever.mistakes().iter().map(|mistake| mistake.key).collect();
    assert_eq!(keys, ["cache.stale_while_revalidate", "cache.stale_if_error"]);
    assert_eq!(WINDOWS.mistakes(), []);
}

#[test]
fn the_time_to_live_is_negative_when_stale() {
    let millis = Duration::from_millis;
    for (age, ttl) in [
        (millis(0), 10),
        (millis(1), 9),
        (millis(9_500), 0),
        (millis(10_000), 0),
        (millis(10_001), -1),
        (millis(11_000), -1),
        (millis(422_000), -412),
        (Duration::MAX, -i64::MAX),
    ] {
        assert_eq!(WINDOWS.ttl_seconds(age), ttl, "{age:?}");
    }
}

#[test]
fn what_the_dependency_said_holds_for_all_and_a_lack_of_time_only_for_those_who_lack_it() {
    let (soon, later) = (Some(Moment::from_millis(1)), Some(Moment::from_millis(2)));
    for said in [Failure::TRANSIENT, Failure::PERMANENT] {
        assert!(shares(Ended::Failed(said), soon, later));
        assert!(shares(Ended::Failed(said), soon, None));
    }
    for ended in [Ended::Refused, Ended::Failed(Failure::UNKNOWN), Ended::Failed(Failure::NEUTRAL)]
    {
        assert!(!shares(ended, soon, later), "{ended:?}");
        assert!(!shares(ended, soon, None), "{ended:?}");
        assert!(shares(ended, later, soon), "{ended:?}");
        assert!(shares(ended, soon, soon), "{ended:?}");
        assert!(shares(ended, None, None), "{ended:?}");
    }
}

fn any_failure() -> impl Strategy<Value = Failure> {
    use prop::sample::select;
    let kinds = vec![Kind::Transient, Kind::Permanent, Kind::Unknown, Kind::Neutral];
    let healths = vec![Health::Good, Health::Bad, Health::Silent];
    let sents = vec![Sent::Nothing, Sent::Maybe];
    (select(kinds), select(healths), select(sents)).prop_map(|(kind, health, sent)| Failure {
        kind,
        health,
        sent,
        repeat: Repeat::Never,
        retry_after: None,
    })
}

proptest! {
    #[test]
    fn a_write_falls_back_only_when_nothing_was_sent(failure in any_failure()) {
        let ended = Ended::Failed(failure);
        if ask(Effect::Write, ended).is_ok() {
            prop_assert!(failure.sent == Sent::Nothing && failure.kind != Kind::Unknown);
            prop_assert_eq!(ask(Effect::Read, ended), ask(Effect::Write, ended));
        }
    }

    #[test]
    fn a_value_only_gets_worse_with_age(
        fresh in 0_u64..100, revalidate in 0_u64..100, error in 0_u64..100,
        must_revalidate: bool, age in 0_u64..300, older in 0_u64..300,
    ) {
        let windows = Windows {
            fresh_for: secs(fresh),
            while_revalidate: secs(revalidate),
            if_error: secs(error),
            must_revalidate,
        };
        let rank = |age| match windows.standing(secs(age)) {
            Standing::Fresh => 0,
            Standing::Revalidate => 1,
            Standing::IfError => 2,
            Standing::Expired => 3,
        };
        prop_assert!(rank(age) <= rank(age + older));
        prop_assert!(windows.ttl_seconds(secs(age)) >= windows.ttl_seconds(secs(age + older)));
        prop_assert_eq!(rank(age) == 0, windows.ttl_seconds(secs(age)) > 0);
    }
}
