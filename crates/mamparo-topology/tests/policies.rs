//! Every key of a dependency's policies: what it comes to, and what is said of a wrong one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use mamparo_core::backoff::{Backoff, Jitter};
use mamparo_core::call::adaptive::{AdaptiveConfig, Algorithm};
use mamparo_core::call::breaker::{BreakerConfig, Over, SlowRate, Trip};
use mamparo_core::call::bulkhead::{BulkheadConfig, Order};
use mamparo_core::call::fault::{Draw, FaultConfig, Latency};
use mamparo_core::call::hedge::{HedgeAfter, HedgeConfig};
use mamparo_core::call::plan::Plan;
use mamparo_core::call::rate_limit::RateLimitConfig;
use mamparo_core::call::retry_budget::RetryBudgetConfig;
use mamparo_core::call::shed::ShedConfig;
use mamparo_core::call::throttle::ThrottleConfig;
use mamparo_topology::{dependency_table, parse};

fn file(policies: &str) -> String {
    format!(
        "[service]\nname = \"orders\"\nowner = \"team\"\n[dependencies.catalog]\n\
         url = \"http://catalog:8081\"\nattempt_timeout = \"700ms\"\n{policies}\n"
    )
}

fn plan(policies: &str) -> Plan {
    let parsed = parse("orders.toml", &file(policies));
    parsed.unwrap_or_else(|problems| panic!("{policies}\n{problems}")).plan("catalog").unwrap()
}

fn mistakes(policies: &str) -> String {
    match parse("orders.toml", &file(policies)) {
        Ok(_) => panic!("no mistake in {policies}"),
        Err(problems) => problems.to_string(),
    }
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn every_key_of_a_breaker_comes_through() {
    let trip = |keys: &str| plan(&format!("breaker = {{ {keys} }}")).breaker.unwrap().trip;
    let usual = BreakerConfig::default();
    assert_eq!(trip(""), usual.trip);
    assert_eq!(trip("consecutive = 3"), Trip::Consecutive { failures: 3 });
    let rate = |failure_rate, slow_rate, min_calls, over| Trip::Rate {
        failure_rate,
        slow_rate,
        min_calls,
        over,
    };
    let slow = Some(SlowRate { slower_than: millis(300), rate: 0.8 });
    let over = Over::Time(Duration::from_secs(10));
    assert_eq!(trip("slow_rate = 0.8, slower_than = \"300ms\""), rate(None, slow, 20, over));
    assert_eq!(
        trip("failure_rate = 0.5, slow_rate = 0.8, slower_than = \"300ms\", calls = 10"),
        rate(Some(0.5), slow, 10, Over::Calls(10)),
        "a minimum that ten calls can hold"
    );
    let breaker = plan(
        "breaker = { open_for = \"5s\", open_growth = 2, open_max = \"1m\", open_jitter = 0.1, \
         probes = 5, probe_success = 0.6, half_open_max = \"20s\" }",
    );
    let expected = BreakerConfig {
        open_for: Duration::from_secs(5),
        open_growth: 2.0,
        open_max: Duration::from_secs(60),
        open_jitter: 0.1,
        probes: 5,
        probe_success: 0.6,
        half_open_max: Duration::from_secs(20),
        ..usual
    };
    assert_eq!(breaker.breaker, Some(expected));
    let long = plan("breaker = { open_for = \"10m\" }").breaker.unwrap();
    assert_eq!(long.open_max, Duration::from_secs(600), "no less than the open time");
}

#[test]
fn retry_bulkhead_and_rate_limit_come_through() {
    let made = plan("retry = { attempts = 3, jitter = \"decorrelated\", budget = 0.1 }");
    let backoff = Backoff { jitter: Jitter::Decorrelated, ..Backoff::default() };
    assert_eq!(made.retry.backoff, backoff);
    let budget = RetryBudgetConfig { ratio: 0.1, ..RetryBudgetConfig::default() };
    assert_eq!(made.effective_retry_budget(), Some(budget));
    let usual = plan("retry = { attempts = 3 }").effective_retry_budget();
    assert_eq!(usual, Some(RetryBudgetConfig::default()), "20 % unless the file says otherwise");
    assert_eq!(plan("").effective_retry_budget(), None, "nothing is repeated");

    let made = plan("bulkhead = { limit = 5, queue = 9, order = \"adaptive-lifo\" }");
    let expected = BulkheadConfig { order: Order::AdaptiveLifo, ..BulkheadConfig::new(5, 9) };
    assert_eq!(made.bulkhead, Some(expected));
    let made = plan("rate_limit = { requests = 300, per = \"1m\", burst = 50 }");
    let limit = RateLimitConfig::new(300, Duration::from_secs(60));
    assert_eq!(made.rate_limit, Some(limit.with_burst(50)));
    assert_eq!(plan("rate_limit = { requests = 300, per = \"1m\" }").rate_limit, Some(limit));
}

#[test]
fn hedge_adaptive_throttle_and_shed_come_through() {
    let hedge = |keys: &str| plan(&format!("hedge = {{ {keys} }}")).hedge.unwrap();
    assert_eq!(hedge(""), HedgeConfig::default());
    let after = HedgeAfter::Fixed(millis(150));
    assert_eq!(hedge("after = \"150ms\", max = 2"), HedgeConfig { after, extra: 2 });
    let after = HedgeAfter::Quantile { quantile: 0.99, least: millis(20) };
    assert_eq!(hedge("quantile = 0.99, least = \"20ms\""), HedgeConfig { after, extra: 1 });

    let adaptive = |keys: &str| plan(&format!("adaptive = {{ {keys} }}")).adaptive.unwrap();
    assert_eq!(adaptive(""), AdaptiveConfig::default());
    let expected = AdaptiveConfig { algorithm: Algorithm::Vegas, min: 2, max: 10, initial: 10 };
    assert_eq!(adaptive("algorithm = \"vegas\", min = 2, max = 10"), expected);
    let algorithm = Algorithm::Gradient2 { tolerance: 2.0 };
    let expected = AdaptiveConfig { algorithm, ..AdaptiveConfig::default() };
    assert_eq!(adaptive("tolerance = 2.0"), expected);

    let throttle = |keys: &str| plan(&format!("throttle = {{ {keys} }}")).throttle.unwrap();
    assert_eq!(throttle(""), ThrottleConfig::default());
    assert_eq!(throttle("k = 1.5"), ThrottleConfig { k: 1.5, ..ThrottleConfig::default() });

    let shed = |keys: &str| plan(&format!("bulkhead = {{}}\nshed = {{ {keys} }}")).shed.unwrap();
    assert_eq!(shed(""), ShedConfig::default());
    let begin = [0.5, 0.82, 0.89, 0.97, 1.0];
    assert_eq!(shed("best_effort = 0.5"), ShedConfig { begin, ..ShedConfig::default() });
    assert_eq!(plan("observe_latency = \"60s\"").latency, Some(Duration::from_secs(60)));
}

#[test]
fn what_cannot_be_meant_is_said_with_the_nearest_key() {
    for (policies, expected) in [
        ("retry = { jiter = \"full\" }", "retry.jiter: unknown key\n  hint: did you mean jitter?"),
        ("retry = { jitter = \"ful\" }", "\"ful\" is no jitter\n  hint: did you mean full?"),
        ("retry = { budget = 1.5 }", "retry.budget: 1.5 is out of range: from 0 to 1"),
        ("retry = { budget = 20 }", "from 0 to 1\n  hint: write a share: 0.2 is 20 %"),
        (
            "breaker = { failure_rate = 0 }",
            "failure_rate: 0 is out of range: more than 0, 1 at most",
        ),
        ("breaker = { failure_rate = 50 }", "1 at most\n  hint: write a share: 0.5 is 50 %"),
        ("breaker = { consecutiv = 3 }", "hint: did you mean consecutive?"),
        ("breaker = { failures = 3, consecutive = 3 }", "exclude each other"),
        ("breaker = { slow_rate = 0.5 }", "breaker.slower_than: missing required key"),
        ("breaker = { slower_than = \"1s\" }", "only counts with slow_rate"),
        ("breaker = { calls = 5 }", "breaker.calls: only counts with failure_rate or slow_rate"),
        ("breaker = { failure_rate = 0.5, calls = 5, window = \"5s\" }", "is without effect"),
        ("breaker = { failure_rate = 0.5, calls = 5, min_calls = 6 }", "from 1 to 5"),
        ("breaker = { open_growth = 0.5 }", "breaker.open_growth: 0.5 is out of range"),
        ("breaker = { open_jitter = 0.6 }", "breaker.open_jitter: 0.6 is out of range"),
        ("breaker = { open_growth = 2, open_max = \"1s\" }", "breaker.open_max"),
        (
            "bulkhead = { order = \"lifo\" }",
            "\"lifo\" is no order\n  hint: did you mean adaptive-lifo?",
        ),
        ("hedge = { aftr = \"1s\" }", "hedge.aftr: unknown key\n  hint: did you mean after?"),
        ("hedge = { after = \"1s\" }", "not less than the attempt timeout"),
        ("hedge = { after = \"9ms\", quantile = 0.9 }", "after and quantile exclude each other"),
        ("hedge = { max = 4 }", "hedge.max: 4 is out of range: from 1 to 3"),
        ("adaptive = { min = 50, max = 10 }", "adaptive.min"),
        ("adaptive = { algorithm = \"aimd\", tolerance = 2.0 }", "only counts with algorithm"),
        ("shed = {}", "shed: needs a bulkhead"),
        ("bulkhead = {}\nshed = { best_effort = 0.9 }", "rise with the importance"),
        ("throttle = { k = 0.5 }", "throttle.k: 0.5 is out of range"),
        ("rate_limit = { requests = 5, per = \"1s\", burst = 0 }", "burst: 0 is out of range"),
    ] {
        let text = mistakes(policies);
        assert!(text.contains(expected), "{policies}:\n{text}\nwanted: {expected}");
    }
}

#[test]
fn the_table_of_dependencies_says_what_opens_and_what_limits() {
    for (policies, expected) in [
        ("breaker = { consecutive = 3 }", "| 3 failures in a row, open 30s, 1 probe |"),
        (
            "breaker = { failure_rate = 0.5, slow_rate = 0.8, slower_than = \"300ms\", calls = 50 }",
            "| 50 % failed or 80 % slower than 300ms of at least 20 calls in the last 50, open",
        ),
        ("adaptive = {}", "| 4 to 200, adaptive |"),
    ] {
        let table = dependency_table(&parse("orders.toml", &file(policies)).unwrap());
        assert!(table.contains(expected), "{table}");
    }
}

#[test]
fn faults_come_through_and_are_off_unless_the_switch_is_on() {
    let read = |keys: &str| {
        let text = file(&format!("faults = {{ {keys} }}"));
        let policy = parse("orders.toml", &text).unwrap_or_else(|problems| panic!("{problems}"));
        policy.dependency("catalog").unwrap().faults.unwrap()
    };
    let off = read("error = 1.0, panic = 0.0, latency = { share = 1.0, most = \"3s\" }");
    assert!(!off.enabled && (0..1_000).all(|call| off.decide(call).is_none()));
    let latency =
        |least, most| Some(Latency { share: 0.5, least: millis(least), most: millis(most) });
    let on = FaultConfig {
        enabled: true,
        seed: 42,
        draw: Draw::Key,
        latency: latency(100, 300),
        panic: 0.01,
        error: 0.1,
        outcome: 0.05,
    };
    let keys = "enabled = true, seed = 42, by = \"key\", error = 0.1, outcome = 0.05, panic = 0.01";
    let slow = "latency = { share = 0.5, least = \"100ms\", most = \"300ms\" }";
    assert_eq!(read(&format!("{keys}, {slow}")), on);
    let slow = "latency = { share = 0.5, most = \"2s\" }";
    assert_eq!(read(slow).latency, latency(2_000, 2_000), "without a least, all are the longest");
}

#[test]
fn an_attempt_with_hedges_takes_as_long_as_the_last_of_them() {
    let file = |hedge: &str| {
        file(&format!(
            "hedge = {{ {hedge} }}\n[[routes]]\npath = \"GET /\"\ncalls = [[\"catalog GET /\"]]"
        ))
        .replace("owner", "request_budget = \"1s\"\nowner")
    };
    let read = |hedge: &str| parse("orders.toml", &file(hedge));
    let fits = read("after = \"100ms\", max = 3").unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(fits.dependency("catalog").unwrap().worst_case(), millis(1_000));
    assert_eq!(fits.plan("catalog").unwrap().validate(), []);
    let text = read("after = \"200ms\", max = 3").unwrap_err().to_string();
    let expected = "1 attempts of 1300ms and waits of up to 0s make 1300ms, more than request_budget 1s\n  \
                    hint: make fewer attempts, or an attempt_timeout of at most 400ms";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn the_on_call_sees_on_the_first_page_that_faults_are_on_purpose() {
    let table = |keys: &str| {
        let text = file(&format!("faults = {{ {keys} }}"));
        dependency_table(&parse("orders.toml", &text).unwrap())
    };
    let shares = "error = 0.07, latency = { share = 0.5, most = \"2s\" }";
    let on = table(&format!("enabled = true, {shares}"));
    let expected =
        "\nFaults are injected on purpose into calls of catalog: latency 50 %, error 7 %.\n";
    assert!(on.ends_with(expected), "{on}");
    assert!(!table(shares).contains("on purpose"));
}
