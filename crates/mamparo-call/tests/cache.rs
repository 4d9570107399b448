//! Remembered answers: how old they are, when they stand in, and one call for all who wait.

#![expect(clippy::expect_used, reason = "what tests share fails by panicking")]

mod support;

use std::cell::Cell;
use std::time::Duration;

use mamparo_call::cache::{CacheError, Cached, Fetched, Keep, Outcome, Refresh, StaleCache};
use mamparo_call::fallback::{Degraded, Fallback, Lesser};
use mamparo_call::{Classify, Context, Failure, clock};
use mamparo_core::call::fallback::{Reason, Windows};
use mamparo_core::outcome::failure_of_status;
use support::{Broken, all, millis};

type Cache = StaleCache<&'static str, u32, Broken>;
type Got = Result<Cached<u32>, CacheError<Broken>>;

const WINDOWS: Windows = Windows {
    fresh_for: Duration::from_secs(10),
    while_revalidate: Duration::ZERO,
    if_error: Duration::from_secs(60),
    must_revalidate: false,
};

fn cache(windows: Windows) -> Cache {
    StaleCache::builder("catalog").windows(windows).build().expect("sound")
}

/// What the cache stands in front of: the answer to call n is n, and takes 100 ms.
#[derive(Default)]
struct Catalog {
    calls: Cell<u32>,
    down: Cell<Option<Failure>>,
}

impl Catalog {
    async fn answer(&self) -> Result<Fetched<u32>, Broken> {
        let call = self.calls.get() + 1;
        self.calls.set(call);
        clock::sleep_until(clock::now().plus(millis(100))).await;
        self.down.get().map_or(Ok(call.into()), |failure| Err(Broken(failure)))
    }

    async fn through(&self, cache: &Cache) -> Got {
        cache.get(&"p-1", || self.answer()).await
    }
}

async fn pass(time: Duration) {
    tokio::time::advance(time).await;
}

#[track_caller]
fn fresh(got: Got) -> u32 {
    got.expect("an answer").answer.fresh().expect("a fresh one").into_inner()
}

#[track_caller]
fn stale(got: Got) -> Degraded<u32> {
    got.expect("an answer").answer.fresh().expect_err("a stale one")
}

/// The failure of a call that gave no answer, and whether it was somebody else's call.
#[track_caller]
fn failed(got: Got) -> (Failure, bool) {
    let error = got.expect_err("no answer");
    let CacheError::Failed { source, collapsed, .. } = error else { unreachable!("{error}") };
    (source.0, collapsed)
}

#[tokio::test(start_paused = true)]
async fn a_fresh_answer_is_served_without_a_call_until_its_time_is_over() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let first = catalog.through(&cache).await.unwrap();
    let outcome = Outcome::Fetched { had_stale: false, collapsed: None, stored: true };
    assert_eq!(first.handling.outcome, outcome);
    assert_eq!((first.handling.age, first.handling.ttl_seconds), (millis(100), 9));

    pass(millis(9_899)).await;
    let hit = catalog.through(&cache).await.unwrap();
    assert_eq!((hit.handling.outcome, hit.handling.ttl_seconds), (Outcome::Hit, 0));
    assert_eq!(fresh(Ok(hit)), 1);
    pass(millis(1)).await;
    assert_eq!(fresh(catalog.through(&cache).await), 2);
    assert_eq!(catalog.calls.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_stands_in_while_the_dependency_fails_and_not_for_longer_than_its_window() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    assert_eq!(fresh(catalog.through(&cache).await), 1);
    catalog.down.set(Some(Failure::UNKNOWN));
    pass(Duration::from_secs(40)).await;
    let got = catalog.through(&cache).await.unwrap();
    assert_eq!(got.handling.outcome, Outcome::Stale(Reason::NoAnswer));
    assert_eq!((got.handling.age, got.handling.ttl_seconds), (millis(40_200), -31));
    let got = stale(Ok(got));
    assert_eq!((got.age(), got.reason()), (Some(millis(40_200)), Reason::NoAnswer));
    assert_eq!(got.accept_stale(Duration::from_secs(60)), Ok(1));

    pass(Duration::from_secs(30)).await;
    assert_eq!(failed(catalog.through(&cache).await), (Failure::UNKNOWN, false));
    catalog.down.set(None);
    assert_eq!(fresh(catalog.through(&cache).await), 4);
    assert_eq!(
        catalog.calls.get(),
        4,
        "each time it was asked first, and errors aren't remembered"
    );
}

#[tokio::test(start_paused = true)]
async fn must_revalidate_forbids_both_kinds_of_staleness() {
    let strict = Windows { must_revalidate: true, while_revalidate: millis(60_000), ..WINDOWS };
    let (cache, catalog) = (cache(strict), Catalog::default());
    fresh(catalog.through(&cache).await);
    catalog.down.set(Some(Failure::UNKNOWN));
    pass(millis(9_000)).await;
    assert_eq!(fresh(catalog.through(&cache).await), 1, "fresh is fresh");
    pass(millis(1_000)).await;
    assert_eq!(failed(catalog.through(&cache).await).0, Failure::UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn a_no_of_the_dependency_is_passed_on_and_makes_the_cache_forget() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    fresh(catalog.through(&cache).await);
    pass(millis(10_000)).await;
    let gone = failure_of_status(404, None);
    catalog.down.set(Some(gone));
    assert_eq!(failed(catalog.through(&cache).await).0, gone);
    // What was deleted does not come back because the dependency is down.
    catalog.down.set(Some(Failure::UNKNOWN));
    assert_eq!(failed(catalog.through(&cache).await).0, Failure::UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn an_answer_brings_its_age_and_its_own_windows_along() {
    let cache = cache(WINDOWS);
    let fetched = |keep| Fetched { value: 7, age: Duration::from_secs(4), keep, stale: false };
    cache.put("p-1", fetched(Keep::For(Windows { fresh_for: millis(6_000), ..WINDOWS })));
    let never = || async { unreachable!("it is fresh") };
    let hit = cache.get(&"p-1", never).await.unwrap();
    assert_eq!((hit.handling.age, hit.handling.ttl_seconds), (millis(4_000), 2));
    cache.put("p-2", fetched(Keep::Never));
    assert_eq!(cache.recall(&"p-2"), None);
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(7, millis(4_000))));
    pass(Duration::from_secs(61)).await;
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(7, millis(65_000))));
    pass(Duration::from_secs(1)).await;
    assert_eq!(cache.recall(&"p-1"), None, "6 s and 60 s are over");
    cache.put("p-3", 8);
    cache.forget(&"p-3");
    assert_eq!(cache.recall(&"p-3"), None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_older_than_this_process_keeps_its_age() {
    let days = |n: u64| Duration::from_secs(n * 86_400);
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let windows = Windows { fresh_for: days(3), ..WINDOWS };
    cache.put("p-1", Fetched { age: days(2), keep: Keep::For(windows), ..Fetched::from(7) });
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(7, days(2))));
    pass(days(1)).await;
    assert_eq!(fresh(catalog.through(&cache).await), 1, "three days are over");
    cache.put("p-2", Fetched { age: Duration::MAX, ..Fetched::from(7) });
    pass(days(1)).await;
    assert_eq!(cache.recall(&"p-2"), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_forgotten_during_a_call_does_not_come_back_with_its_answer() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let forgets = async {
        pass(millis(50)).await;
        cache.forget(&"p-1");
    };
    let (before, ()) = tokio::join!(catalog.through(&cache), forgets);
    assert_eq!(fresh(before), 1, "it was asked for before");
    assert_eq!(cache.recall(&"p-1"), None);
    let changes = async {
        pass(millis(50)).await;
        cache.forget(&"p-1");
        cache.put("p-1", 77);
    };
    let (before, ()) = tokio::join!(catalog.through(&cache), changes);
    assert_eq!(fresh(before), 2);
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(77, millis(50))), "nobody forgot this one");
    cache.forget(&"p-1");

    let later = async {
        pass(millis(50)).await;
        cache.forget(&"p-1");
        catalog.through(&cache).await
    };
    let (before, waits, later) =
        tokio::join!(catalog.through(&cache), catalog.through(&cache), later);
    assert_eq!((fresh(before), fresh(waits), fresh(later)), (3, 3, 4));
    let never = || async { unreachable!("it is fresh") };
    assert_eq!(fresh(cache.get(&"p-1", never).await), 4);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_overtaken_does_not_replace_the_newer_one() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let overtakes = async {
        pass(millis(50)).await;
        cache.put("p-1", 77);
    };
    let (got, ()) = tokio::join!(catalog.through(&cache), overtakes);
    assert_eq!(fresh(got), 1);
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(77, millis(50))));
    // A cache on the way that lags behind the one that answered before.
    cache.put("p-1", Fetched { age: millis(51), ..Fetched::from(1) });
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(77, millis(50))));
    cache.put("p-1", Fetched { age: millis(50), ..Fetched::from(78) });
    assert_eq!(cache.recall(&"p-1"), Some(Lesser::Stale(78, millis(50))), "the later word counts");
}

#[tokio::test(start_paused = true)]
async fn policies_c24_nobody_takes_a_call_over_after_its_own_deadline() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let now = clock::now();
    let within = |time| Context::default().with_budget(now, millis(time));
    for late in all((0..3).map(|_| within(50).scope(catalog.through(&cache)))).await {
        assert!(matches!(late, Err(CacheError::Late { .. })), "{late:?}");
    }
    assert_eq!(catalog.calls.get(), 1);
    // The same for one whose answer turns out to be for another one alone.
    let now = clock::now();
    let private =
        || async { catalog.answer().await.map(|fetched| Fetched { keep: Keep::Never, ..fetched }) };
    let within = |time| Context::default().with_budget(now, millis(time));
    let got = all([200, 100].map(|time| within(time).scope(cache.get(&"p-1", private)))).await;
    assert!(matches!(got[..], [Ok(_), Err(CacheError::Late { .. })]), "{got:?}");
    assert_eq!(catalog.calls.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_dependency_itself_calls_stale_is_stale_here_too_and_never_fresh() {
    let (cache, calls) = (cache(WINDOWS), Cell::new(0));
    let second_hand = || async {
        calls.set(calls.get() + 1);
        Ok(Fetched { age: Duration::from_secs(4), stale: true, ..Fetched::from(7) })
    };
    for call in 1..=2 {
        let got = cache.get(&"p-1", second_hand).await.unwrap();
        assert!(matches!(got.handling.outcome, Outcome::Fetched { stored: true, .. }));
        assert_eq!(got.handling.ttl_seconds, -4);
        let got = stale(Ok(got));
        assert_eq!((got.reason(), got.age()), (Reason::Upstream, Some(millis(4_000))));
        assert_eq!(calls.get(), call, "within the time in which it would be fresh");
    }
    let got = stale(cache.get(&"p-1", || async { Err(Broken(Failure::UNKNOWN)) }).await);
    assert_eq!((got.reason(), got.accept_degraded()), (Reason::NoAnswer, 7));
}

#[tokio::test(start_paused = true)]
async fn a_recalled_answer_stands_in_for_a_call_that_was_made_elsewhere() {
    let cache = cache(Windows::default());
    cache.put("p-1", 7);
    let called = Err::<u32, _>(Broken(Failure::TRANSIENT));
    let answer = Fallback::new("bff", "catalog").read(called, |_| cache.recall(&"p-1")).unwrap();
    let degraded = answer.fresh().expect_err("recalled");
    assert_eq!(degraded.accept_stale(Duration::ZERO), Ok(7));
}

#[tokio::test(start_paused = true)]
async fn of_a_hundred_callers_one_makes_the_call_and_all_get_its_answer() {
    let (cache, catalog) = (cache(Windows::default()), Catalog::default());
    let started = clock::now();
    let got = all((0..100).map(|_| catalog.through(&cache))).await;
    assert_eq!(catalog.calls.get(), 1);
    assert!(clock::now().since(started) <= millis(101));
    let collapsed = got.iter().filter(|got| {
        got.as_ref().is_ok_and(|cached| cached.handling.outcome.slug() == "collapsed")
    });
    assert_eq!(collapsed.count(), 99);
    assert!(got.into_iter().all(|got| fresh(got) == 1), "also where nothing is ever fresh");
    assert_eq!(fresh(catalog.through(&cache).await), 2, "who comes later asks again");
}

#[tokio::test(start_paused = true)]
async fn keys_do_not_wait_for_each_other() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let keys = ["a", "b", "c"];
    all(keys.iter().map(|key| cache.get(key, || catalog.answer()))).await;
    assert_eq!(catalog.calls.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn when_the_one_who_makes_the_call_is_dropped_another_one_takes_over() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let leaves = tokio::time::timeout(millis(50), catalog.through(&cache));
    let stay = all((0..10).map(|_| catalog.through(&cache)));
    let (left, got) = tokio::join!(leaves, stay);
    assert!(left.is_err(), "it made the call, and left");
    assert!(got.into_iter().all(|got| fresh(got) == 2));
    assert_eq!(catalog.calls.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn policies_c20_when_the_call_panics_another_one_takes_over() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let bug = async {
        clock::sleep_until(clock::now().plus(millis(50))).await;
        std::panic::resume_unwind(Box::new("a bug of the call"))
    };
    let panics = support::caught(std::panic::AssertUnwindSafe(cache.get(&"p-1", || bug)));
    let (panicked, got) = tokio::join!(panics, all((0..10).map(|_| catalog.through(&cache))));
    assert!(panicked.is_err());
    assert!(got.into_iter().all(|got| fresh(got) == 1));
    assert_eq!(catalog.calls.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_dependency_named_is_shared_and_the_next_one_asks_again() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    catalog.down.set(Some(Failure::TRANSIENT));
    let got = all((0..10).map(|_| catalog.through(&cache))).await;
    let shared = got.into_iter().map(failed).filter(|end| *end == (Failure::TRANSIENT, true));
    assert_eq!((shared.count(), catalog.calls.get()), (9, 1));
    failed(catalog.through(&cache).await);
    assert_eq!(catalog.calls.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_time_is_not_shared_with_those_who_have_more() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let now = clock::now();
    let within = |time| Context::default().with_budget(now, millis(time));
    let (hurried, other, patient, unlimited) = tokio::join!(
        within(50).scope(catalog.through(&cache)),
        within(40).scope(catalog.through(&cache)),
        within(500).scope(catalog.through(&cache)),
        catalog.through(&cache),
    );
    for late in [hurried, other] {
        let error = late.expect_err("no time");
        assert!(matches!(error, CacheError::Late { .. }) && !error.is_refusal(), "{error}");
        assert_eq!(error.to_string(), "fetch for cache catalog: no answer before the deadline");
    }
    assert_eq!((fresh(patient), fresh(unlimited)), (2, 2));

    // The call itself says that its time was up: for those who have as little, that is the answer.
    catalog.down.set(Some(Failure::UNKNOWN));
    pass(Duration::from_secs(100)).await;
    let now = clock::now();
    let within = |time| Context::default().with_budget(now, millis(time));
    let calls = catalog.calls.get();
    let got = tokio::join!(
        within(300).scope(catalog.through(&cache)),
        within(250).scope(catalog.through(&cache)),
        within(400).scope(catalog.through(&cache)),
    );
    assert_eq!(failed(got.0), (Failure::UNKNOWN, false));
    assert_eq!(failed(got.1), (Failure::UNKNOWN, true));
    assert_eq!(failed(got.2), (Failure::UNKNOWN, false), "it tried on its own");
    assert_eq!(catalog.calls.get(), calls + 2);
}

#[tokio::test(start_paused = true)]
async fn who_waits_waits_no_longer_than_its_own_deadline_and_takes_a_stale_answer_then() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    fresh(catalog.through(&cache).await);
    pass(Duration::from_secs(20)).await;
    let started = clock::now();
    let hurried = Context::default().with_budget(started, millis(30)).scope(async {
        let got = catalog.through(&cache).await;
        (got, clock::now().since(started))
    });
    let (patient, (hurried, took)) = tokio::join!(catalog.through(&cache), hurried);
    assert_eq!(stale(hurried).reason(), Reason::NoAnswer);
    assert_eq!(took, millis(30));
    assert_eq!(fresh(patient), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_must_not_be_stored_is_for_nobody_else() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let private =
        || async { catalog.answer().await.map(|fetched| Fetched { keep: Keep::Never, ..fetched }) };
    let started = clock::now();
    let got = all((0..3).map(|_| cache.get(&"p-1", private))).await;
    let outcomes: Vec<_> = got.iter().flatten().map(|cached| cached.handling.outcome).collect();
    let made = |collapsed| Outcome::Fetched { had_stale: false, collapsed, stored: false };
    assert_eq!(outcomes, [made(None), made(Some(false)), made(Some(false))]);
    let mut values: Vec<u32> = got.into_iter().map(fresh).collect();
    values.sort_unstable();
    assert_eq!(values, [1, 2, 3]);
    assert!(clock::now().since(started) <= millis(210), "side by side, not one after the other");
    assert_eq!(cache.recall(&"p-1"), None);
}

#[tokio::test(start_paused = true)]
async fn what_one_caller_asked_for_alone_is_not_remembered() {
    let (cache, catalog) = (cache(WINDOWS), Catalog::default());
    let private =
        || async { catalog.answer().await.map(|fetched| Fetched { keep: Keep::Never, ..fetched }) };
    let (made, alone) = tokio::join!(cache.get(&"p-1", private), catalog.through(&cache));
    let outcome = alone.as_ref().map(|cached| cached.handling.outcome).unwrap();
    let expected = Outcome::Fetched { had_stale: false, collapsed: Some(false), stored: false };
    assert_eq!((fresh(made), outcome, fresh(alone)), (1, expected, 2));
    assert_eq!(cache.recall(&"p-1"), None, "nobody would have told it to forget");
}

thread_local! {
    static WHEN_CLONED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// A key whose clone does something with the cache, once, as code of a user may.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Busy;

impl Clone for Busy {
    fn clone(&self) -> Self {
        if let Some(act) = WHEN_CLONED.take() {
            act();
        }
        Self
    }
}

#[tokio::test(start_paused = true)]
async fn code_of_the_key_runs_under_no_lock_and_what_lands_meanwhile_is_taken() {
    let cache: StaleCache<Busy, u32, Broken> =
        StaleCache::builder("catalog").windows(WINDOWS).build().unwrap();
    let own = cache.clone();
    WHEN_CLONED.set(Some(Box::new(move || {
        own.forget(&Busy);
        own.put(Busy, 7);
    })));
    let never = || async { unreachable!("it has landed") };
    let got = cache.get(&Busy, never).await.unwrap();
    assert_eq!(got.handling.outcome, Outcome::Hit);
    assert_eq!(fresh(Ok(got)), 7);
}

const POLITE: Windows = Windows { while_revalidate: Duration::from_secs(30), ..WINDOWS };

#[tokio::test(start_paused = true)]
async fn while_one_caller_revalidates_the_others_get_the_stale_answer_at_once() {
    let (cache, catalog) = (cache(POLITE), Catalog::default());
    fresh(catalog.through(&cache).await);
    pass(Duration::from_secs(20)).await;
    let started = clock::now();
    let others = async {
        let got = all((0..10).map(|_| catalog.through(&cache))).await;
        (got, clock::now().since(started))
    };
    let (one, (others, took)) = tokio::join!(catalog.through(&cache), others);
    assert_eq!((fresh(one), took), (2, Duration::ZERO));
    assert!(others.into_iter().all(|got| stale(got).reason() == Reason::Revalidating));
    assert_eq!(fresh(catalog.through(&cache).await), 2);

    pass(Duration::from_secs(20)).await;
    catalog.down.set(Some(Failure::TRANSIENT));
    assert_eq!(stale(catalog.through(&cache).await).reason(), Reason::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_in_the_background_keeps_nobody_waiting_and_outlives_its_caller() {
    let cache = cache(POLITE);
    cache.put("p-1", 1);
    pass(Duration::from_secs(20)).await;
    let spawned: Cell<Option<Refresh>> = Cell::new(None);
    let ask = || {
        let keep = |refresh| assert!(spawned.replace(Some(refresh)).is_none(), "once");
        cache.get_refreshing(&"p-1", keep, || async {
            let deadline = Context::current_deadline().expect("a refresh has an end");
            assert_eq!(clock::now().until(deadline), Duration::from_secs(30));
            assert_eq!(Context::current().request_id.as_deref(), Some("r-1"));
            Ok(2.into())
        })
    };
    let caller = Context { request_id: Some("r-1".into()), ..Context::default() };
    let caller = caller.with_budget(clock::now(), millis(5));
    let got = caller.scope(async { [ask().await, ask().await] }).await;
    assert!(got.into_iter().all(|got| stale(got).reason() == Reason::Revalidating));
    let refresh = spawned.take().expect("the first one's");
    refresh.await;
    let never = || async { unreachable!("it is fresh") };
    assert_eq!(fresh(cache.get(&"p-1", never).await), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_never_run_keeps_nobody_from_the_next() {
    let cache = cache(POLITE);
    cache.put("p-1", 1);
    pass(Duration::from_secs(20)).await;
    let got = cache.get_refreshing(&"p-1", drop, || async { Ok(2.into()) }).await;
    assert_eq!(stale(got).accept_degraded(), 1);
    assert_eq!(fresh(cache.get(&"p-1", || async { Ok(3.into()) }).await), 3);
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_at_whatever_moment_the_others_get_an_answer() {
    // Each caller leaves after a time of its own, so that one who makes the call leaves at every
    // stage of the others' waiting.
    for stay in (0..20).map(|n| millis(n * 17)) {
        let (cache, catalog) = (cache(Windows::default()), Catalog::default());
        let leaving = (0..5).map(|n| {
            let time = stay + millis(n * 23);
            tokio::time::timeout(time, catalog.through(&cache))
        });
        let staying = (0..5).map(|_| catalog.through(&cache));
        let (_, got) = tokio::join!(all(leaving), all(staying));
        assert!(got.iter().all(Result::is_ok), "{stay:?}: {got:?}");
        assert!(catalog.calls.get() <= 6, "{stay:?}: {}", catalog.calls.get());
    }
}

#[tokio::test(start_paused = true)]
async fn memory_is_bounded_by_the_number_of_entries() {
    let cache: StaleCache<u32, u32> = StaleCache::builder("catalog").entries(100).build().unwrap();
    for key in 0..20_000 {
        cache.put(key, key);
    }
    let kept = (0..20_000).filter(|key| cache.recall(key).is_some()).count();
    // moka tidies up in batches, so a few more may be there for the moment.
    assert!(kept < 1_000, "{kept}");
}

#[test]
fn mistakes_come_back_at_once() {
    let windows = Windows { if_error: Duration::MAX, ..WINDOWS };
    let built: Result<Cache, _> =
        StaleCache::builder("catalog").entries(0).windows(windows).build();
    let text = built.expect_err("two mistakes").to_string();
    assert!(text.contains("cache.stale_if_error: is "), "{text}");
    assert!(text.ends_with("cache.entries: is 0, must be from 1 to 1000000"), "{text}");
}
