//! What a call leaves behind in the metrics.

mod support;

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use mamparo_call::cache::StaleCache;
use mamparo_call::fallback::{Fallback, Lesser};
use mamparo_call::fault::{Fake, FaultInjector};
use mamparo_call::{Dependency, Failure, Repeatable};
use mamparo_core::call::fallback::Windows;
use mamparo_core::call::fault::{FaultConfig, Latency};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use metrics_exporter_prometheus::PrometheusBuilder;
use support::{Answer, Broken, catalog, caught, touchy};

/// Runs `calls` against a fresh recorder and returns what would be scraped.
fn scraped(calls: impl AsyncFnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    metrics::with_local_recorder(&recorder, || runtime.map(|runtime| runtime.block_on(calls())))
        .map(|()| handle.render())
        .unwrap_or_default()
}

#[expect(clippy::panic, reason = "a bug in the operation is what the test is about")]
fn bug() -> Result<(), Broken> {
    panic!("a bug of the operation")
}

async fn call(dependency: &Dependency, failure: Option<Failure>) -> Answer<()> {
    dependency
        .call(Repeatable::Idempotent, |_| async move {
            failure.map_or(Ok(()), |failure| Err(Broken(failure)))
        })
        .await
}

#[test]
fn attempts_retries_refusals_and_the_breaker_are_counted() {
    let text = scraped(async || {
        let catalog = catalog().breaker(touchy(1)).build().expect("sound");
        call(&catalog, None).await.expect("it works");
        call(&catalog, Some(Failure::PERMANENT)).await.expect_err("a 404 is an answer");
        call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it opens");
        call(&catalog, None).await.expect_err("it is open");
        let mail = Dependency::builder("mail")
            .service("orders")
            .retry(3, mamparo_core::backoff::Backoff::default())
            .build()
            .expect("sound");
        call(&mail, Some(Failure::TRANSIENT)).await.expect_err("three attempts");
    });
    for line in [
        r#"circuit_breaker_state{service="orders",dependency="catalog"} 2"#,
        r#"mamparo_attempts_total{service="orders",dependency="catalog",outcome="success"} 1"#,
        r#"mamparo_attempts_total{service="orders",dependency="catalog",outcome="permanent"} 1"#,
        r#"mamparo_attempts_total{service="orders",dependency="catalog",outcome="transient"} 1"#,
        r#"mamparo_refusals_total{service="orders",dependency="catalog",reason="circuit-open"} 1"#,
        r#"mamparo_retries_total{service="orders",dependency="mail"} 2"#,
    ] {
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains(r#"circuit_breaker_state{service="orders",dependency="mail"}"#));
}

#[test]
fn a_hedge_that_was_due_and_not_sent_is_counted_with_its_reason() {
    let text = scraped(async || {
        let after = HedgeAfter::Fixed(Duration::from_millis(100));
        let none = RetryBudgetConfig { ratio: 0.0, reserve: 0 };
        let catalog = catalog()
            .hedge(HedgeConfig { after, extra: 1 })
            .retry_budget(Some(none))
            .build()
            .expect("sound");
        let slow = catalog.call(Repeatable::Idempotent, async |_| {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok::<_, Broken>(())
        });
        slow.await.expect("it works");
    });
    let labels = r#"service="orders",dependency="catalog",reason="budget-spent""#;
    let line = format!("mamparo_hedges_denied_total{{{labels}}} 1");
    assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
}

#[test]
fn the_gauge_is_there_before_the_first_call_and_follows_every_change() {
    let gauge = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("circuit_breaker_state{"));
        line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    let text = scraped(async || {
        catalog().breaker(touchy(1)).build().expect("sound");
    });
    assert_eq!(gauge(&text).as_deref(), Some("0"));
    for (probe, value) in [(None, "0"), (Some(Failure::TRANSIENT), "2")] {
        let text = scraped(async || {
            let catalog = catalog().breaker(touchy(1)).build().expect("sound");
            call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it opens");
            tokio::time::advance(Duration::from_secs(30)).await;
            call(&catalog, probe).await.ok();
        });
        assert_eq!(gauge(&text).as_deref(), Some(value));
    }
    let text = scraped(async || {
        let catalog = catalog().breaker(touchy(2)).build().expect("sound");
        call(&catalog, Some(Failure::TRANSIENT)).await.expect_err("it opens");
        tokio::time::advance(Duration::from_secs(30)).await;
        call(&catalog, None).await.expect("one of two probes");
    });
    assert_eq!(gauge(&text).as_deref(), Some("1"));
}

#[test]
fn a_retry_is_counted_when_it_is_made_and_not_when_it_is_waited_for() {
    let text = scraped(async || {
        let catalog = catalog().build().expect("sound");
        let given_up = tokio::time::timeout(
            Duration::ZERO,
            call(&catalog, Some(Failure::TRANSIENT.with_retry_after(Some(Duration::from_secs(9))))),
        );
        given_up.await.expect_err("its caller goes away during the wait");
        assert_eq!((catalog.snapshot().attempts, catalog.snapshot().retries), (1, 0));
    });
    assert!(!text.contains("mamparo_retries_total"), "{text}");
}

#[test]
fn a_timeout_a_panic_and_a_cancellation_have_names_of_their_own() {
    let text = scraped(async || {
        let catalog = catalog().build().expect("sound");
        let hanging = |_| std::future::pending::<Result<(), Broken>>();
        catalog.call(Repeatable::Unsafe, hanging).await.expect_err("no answer");
        let in_a_hurry =
            tokio::time::timeout(Duration::ZERO, catalog.call(Repeatable::Unsafe, hanging));
        in_a_hurry.await.expect_err("its caller goes away");
        let call = AssertUnwindSafe(catalog.call(Repeatable::Unsafe, |_| async { bug() }));
        caught(call).await.expect_err("it panics");
    });
    for outcome in ["timeout", "cancelled", "panic"] {
        let labels = r#"service="orders",dependency="catalog",outcome="#;
        let line = format!("mamparo_attempts_total{{{labels}\"{outcome}\"}} 1");
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn injected_faults_are_counted_by_kind() {
    let text = scraped(async || {
        let none = Duration::ZERO;
        let config = FaultConfig {
            enabled: true,
            latency: Some(Latency { share: 1.0, least: none, most: none }),
            error: 1.0,
            ..FaultConfig::default()
        };
        let faults = FaultInjector::new("orders", "catalog", config).expect("sound");
        for _ in 0..3 {
            faults.around(None, |fake| assert_eq!(fake, Fake::Error), async || ()).await;
        }
    });
    for kind in ["latency", "error"] {
        let labels = r#"service="orders",dependency="catalog",kind="#;
        let line = format!("mamparo_faults_injected_total{{{labels}\"{kind}\"}} 3");
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn lesser_answers_are_counted_by_source_and_reason() {
    let text = scraped(async || {
        let fallback = Fallback::new("bff", "catalog");
        for failure in [Failure::UNKNOWN, Failure::TRANSIENT, Failure::UNKNOWN] {
            let called: Result<(), _> = Err(Broken(failure));
            let answer = fallback.read(called, |_| Some(Lesser::Partial(())));
            assert!(answer.is_ok_and(|answer| !answer.is_fresh()));
        }
        let nothing: Result<(), _> = Err(Broken(Failure::UNKNOWN));
        assert!(fallback.read(nothing, |_| None).is_err());
    });
    for (reason, count) in [("no-answer", 2), ("unavailable", 1)] {
        let labels = r#"service="bff",dependency="catalog",source="partial",reason="#;
        let line = format!("mamparo_fallbacks_total{{{labels}\"{reason}\"}} {count}");
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn what_a_cache_answers_is_counted_by_outcome() {
    let text = scraped(async || {
        let windows = Windows { while_revalidate: Duration::from_secs(5), ..Windows::default() };
        let cache: Result<StaleCache<u8, u8, Broken>, _> =
            StaleCache::builder("catalog").service("bff").windows(windows).build();
        let cache = cache.expect("sound");
        let down = async || Err(Broken(Failure::TRANSIENT));
        cache.get(&1, down).await.expect_err("nothing stands in");
        cache.get(&1, async || Ok(7.into())).await.expect("fetched");
        let refresh = Cell::new(None);
        cache.get_refreshing(&1, |it| refresh.set(Some(it)), down).await.expect("stale");
        refresh.take().expect("handed over").await;
        tokio::time::advance(Duration::from_secs(5)).await;
        cache.get(&1, down).await.expect("stale");
    });
    for line in [
        r#"mamparo_cache_requests_total{service="bff",cache="catalog",outcome="hit"} 0"#,
        r#"mamparo_cache_requests_total{service="bff",cache="catalog",outcome="failed"} 1"#,
        r#"mamparo_cache_requests_total{service="bff",cache="catalog",outcome="fetched"} 1"#,
        r#"mamparo_cache_requests_total{service="bff",cache="catalog",outcome="revalidating"} 1"#,
        r#"mamparo_cache_requests_total{service="bff",cache="catalog",outcome="stale"} 1"#,
        r#"mamparo_cache_refreshes_total{service="bff",cache="catalog",outcome="failed"} 1"#,
        r#"mamparo_fallbacks_total{service="bff",dependency="catalog",source="stale",reason="unavailable"} 1"#,
    ] {
        assert!(text.lines().any(|each| each == line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains(r#"reason="revalidating""#), "a renewal is no fallback: {text}");
}
