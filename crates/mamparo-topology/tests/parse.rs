//! The whole way from text to model, and from mistakes to what people read.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use mamparo_core::call::breaker::{Over, Trip};
use mamparo_topology::{
    BreakerRule, Fallback, IdempotencyKey, PolicyFile, dependency_table, load, parse,
};
use proptest::prelude::*;

const ORDERS: &str = r#"
[service]
name = "orders"
owner = "team-orders"
request_budget = "3s"            # what a caller may wait for us
listen = "127.0.0.1:8080"
store = "sqlite:orders.db"
broker = "sqlite:broker.db"

[dependencies.catalog]
url = "http://catalog:8081"
attempt_timeout = "700ms"
retry = { attempts = 2, base = "100ms", factor = 2, cap = "2s" }   # attempts count the first
breaker = { failures = 5, window = "10s", open_for = "30s", probes = 1 }
bulkhead = { limit = 20, queue = 0 }
fallback = "none"

[dependencies.customers]
url = "http://customers:8082"
attempt_timeout = "500ms"
breaker = { failure_rate = 0.5, min_calls = 10, window = "1m" }
fallback = "stale"

[[routes]]
path = "POST /v1/orders"
calls = [["catalog GET /v1/products", "customers GET /v1/customers/{id}"]]
idempotency_key = "required"

[[routes]]
path = "GET /v1/orders/{id}"
rate_limit = { requests = 300, per = "1m" }

[queues."orders.saga"]
owner = "team-orders"
prefetch = 10
attempts = 5
retry_delay = "30s"
runbook = "docs/runbooks/dlq.md"
events = ["stock.reserved", "payment.#"]

[sagas.order]
watch_every = "60s"
batch = 100
reservation_expiry = "15m"

[sagas.order.deadlines]
STOCK_RESERVED = "10m"
PENDING = "5m"

[jobs.reconciliation]
every = "1h"
older_than = "20m"

[settings]
currency = "EUR"
page_size = 20
hold = "15m"
"#;

fn orders() -> PolicyFile {
    parse("orders.toml", ORDERS).unwrap_or_else(|problems| panic!("{problems}"))
}

fn mistakes(text: &str) -> String {
    parse("orders.toml", text).unwrap_err().to_string()
}

/// The example file with `from` replaced, which must be there.
fn with(from: &str, to: &str) -> String {
    assert!(ORDERS.contains(from), "{from}");
    ORDERS.replacen(from, to, 1)
}

#[test]
fn the_example_of_the_design_is_read_whole() {
    let policy = orders();
    assert_eq!(*policy.service.name, "orders");
    assert_eq!(policy.service.request_budget.unwrap().value, Duration::from_secs(3));
    assert_eq!(policy.service.listen.port(), 8080);
    assert_eq!(policy.service.store.as_ref().unwrap().as_str(), "sqlite:orders.db");
    let catalog = policy.dependency("catalog").unwrap();
    assert_eq!((catalog.name.line, catalog.attempt_timeout.line), (10, 12));
    assert_eq!(catalog.worst_case(), Duration::from_millis(1_500));
    let breaker = catalog.breaker.as_ref().unwrap();
    assert!(matches!(&breaker.rule, BreakerRule::Failures(n) if **n == 5));
    assert_eq!(*breaker.open_for, Duration::from_secs(30));
    let customers = policy.dependency("customers").unwrap();
    assert_eq!((customers.retry.is_none(), *customers.fallback), (true, Fallback::Stale));
    assert!(customers.bulkhead.is_none());
    let route = policy.route("POST /v1/orders").unwrap();
    assert_eq!(route.idempotency_key.unwrap().value, IdempotencyKey::Required);
    assert_eq!((route.calls.len(), route.calls[0].len()), (1, 2));
    assert_eq!(*route.calls[0][1].dependency, "customers");
    let limit = policy.route("GET /v1/orders/{id}").unwrap().rate_limit.as_ref().unwrap();
    assert_eq!((*limit.requests, *limit.per), (300, Duration::from_secs(60)));
    let queue = policy.queue("orders.saga").unwrap();
    assert_eq!((*queue.prefetch, *queue.handler_timeout), (10, Duration::from_secs(30)));
    assert_eq!(queue.events[1].value, "payment.#");
    let saga = policy.saga("order").unwrap();
    assert_eq!(saga.deadline("STOCK_RESERVED"), Some(Duration::from_secs(600)));
    assert_eq!(saga.deadline("CONFIRMED"), None);
    assert_eq!(*policy.job("reconciliation").unwrap().every, Duration::from_secs(3_600));
}

#[test]
fn three_mistakes_in_one_file_are_reported_together_with_their_lines() {
    let text = with("attempt_timeout = \"700ms\"", "attempt_timout = \"700ms\"")
        .replacen("prefetch = 10", "prefetch = \"10\"", 1)
        .replacen("every = \"1h\"", "every = 3600", 1);
    assert_eq!(
        mistakes(&text),
        "orders.toml:10: dependencies.catalog.attempt_timeout: missing required key
orders.toml:12: dependencies.catalog.attempt_timout: unknown key
  hint: did you mean attempt_timeout?
orders.toml:35: queues.\"orders.saga\".prefetch: expected an integer, found a string
orders.toml:51: jobs.reconciliation.every: a duration needs a unit
  hint: write \"3600ms\" or \"3600s\""
    );
}

#[test]
fn each_mistake_has_its_sentence() {
    for (from, to, expected) in [
        ("[service]", "[servce]", ":2: servce: unknown key\n  hint: did you mean service?"),
        ("name = \"orders\"", "", ":2: service.name: missing required key"),
        ("\"127.0.0.1:8080\"", "\"here\"", ":6: service.listen: is not a socket address"),
        ("sqlite:orders.db", "mysql:x", ":7: service.store: \"mysql:x\" is no address of a store"),
        ("http://catalog:8081", "catalog", ":11: dependencies.catalog.url: is no http"),
        ("\"700ms\"", "\"0s\"", ":12: dependencies.catalog.attempt_timeout: 0s is out of range"),
        ("\"700ms\"", "\"fast\"", "attempt_timeout: is not a duration\n  hint: write a whole"),
        ("attempts = 2", "attempts = 0", "retry.attempts: 0 is out of range: from 1 to 100"),
        ("attempts = 2", "attempts = -2", "retry.attempts: must not be negative"),
        ("factor = 2", "factor = 0.5", "retry.factor: 0.5 is out of range: from 1 to 100"),
        ("cap = \"2s\"", "cap = \"1ms\"", "retry.cap: the cap is below the base"),
        ("failures = 5", "failurs = 5", "breaker.failurs: unknown key\n  hint: did you mean fail"),
        ("failures = 5", "failures = 5, failure_rate = 0.5", "exclude each other"),
        ("failures = 5", "min_calls = 5", "min_calls: only counts with failure_rate"),
        ("failure_rate = 0.5", "failure_rate = 2.0", "failure_rate: 2 is out of range"),
        ("bulkhead = { limit = 20, queue = 0 }", "bulkhead = 20", "expected a table, found an int"),
        ("\"none\"", "\"stal\"", "\"stal\" is no fallback\n  hint: did you mean stale?"),
        ("POST /v1/orders", "PSOT /v1/orders", "routes[0].path: \"PSOT\" is no method"),
        ("POST /v1/orders", "/v1/orders", "is not of the form \"METHOD /path\""),
        ("\"required\"", "\"requird\"", "hint: did you mean required?"),
        ("catalog GET /v1", "catalg GET /v1", ":26: routes[0].calls: no dependency is called"),
        ("catalog GET /v1", "catalg GET /v1", "hint: did you mean catalog?"),
        ("[[\"catalog GET /v1/products\", ", "[\"catalog GET /x\", [", "outside of a group"),
        ("owner = \"team-orders\"\nprefetch", "prefetch", "saga\".owner: a queue needs an owner"),
        ("runbook = \"docs/runbooks/dlq.md\"", "", "runbook: missing required key"),
        ("STOCK_RESERVED = \"10m\"", "STOCK_RESERVED = \"14m\"", ":47: sagas.order.deadlines.STO"),
        ("every = \"1h\"", "", "jobs.reconciliation.every: missing required key"),
        ("request_budget = \"3s\" ", "", "request_budget: missing required key: the service has"),
        ("queues.\"orders.saga\"", "queues.\"a.retry\"", ":33: queues.\"a.retry\": name: must not"),
        ("payment.#", "payment..x", "bindings: \"payment..x\" has an empty word"),
        ("requests = 300, ", "", "rate_limit.requests: missing required key"),
        ("GET /v1/orders/{id}", "POST /v1/orders", "the same route stands on line 25"),
    ] {
        let text = mistakes(&with(from, to));
        assert!(text.contains(expected), "{from} → {to}:\n{text}\nwanted: {expected}");
    }
}

#[test]
fn an_attempt_as_long_as_the_budget_is_a_mistake() {
    let text = mistakes(&with("\"700ms\"", "\"3s\""));
    assert_eq!(
        text,
        "orders.toml:12: dependencies.catalog.attempt_timeout: 3s is not less than request_budget \
         3s: the caller gives up as the answer comes\n  hint: an attempt must end well before 3s"
    );
}

#[test]
fn attempts_and_waits_that_do_not_fit_the_budget_are_shown_with_their_numbers() {
    let text = with("attempts = 2", "attempts = 3").replacen("\"700ms\"", "\"2s\"", 1);
    assert_eq!(
        mistakes(&text),
        "orders.toml:13: dependencies.catalog.retry: 3 attempts of 2s and waits of up to 300ms \
         make 6300ms, more than request_budget 3s\n  hint: make fewer attempts, or an \
         attempt_timeout of at most 900ms"
    );
}

#[test]
fn calls_in_turn_add_up_and_calls_in_parallel_do_not() {
    let fitting = with("\"500ms\"", "\"1600ms\"");
    assert!(parse("orders.toml", &fitting).is_ok(), "in parallel the longer one counts");
    let in_turn = fitting.replacen("products\", \"cust", "products\"], [\"cust", 1);
    let text = mistakes(&in_turn);
    assert!(text.contains(":26: routes[0].calls: its calls in turn can take 3100ms"), "{text}");
}

#[test]
fn a_dependency_that_no_route_waits_for_may_take_its_time() {
    let text = format!(
        "{ORDERS}\n[dependencies.psp]\nurl = \"http://psp\"\nattempt_timeout = \"5s\"\n\
         retry = {{ attempts = 3, base = \"500ms\", cap = \"5s\" }}\n"
    );
    let policy = parse("orders.toml", &text).unwrap();
    assert_eq!(policy.dependency("psp").unwrap().worst_case(), Duration::from_millis(16_500));
}

#[test]
fn syntax_errors_come_with_the_other_mistakes_but_miss_nothing_by_themselves() {
    let text = with("prefetch = 10", "prefetch = ten").replacen("failures = 5", "failurs = 5", 1);
    let text = mistakes(&text);
    assert!(text.contains("orders.toml:35: "), "{text}");
    assert!(text.contains("failurs: unknown key"), "{text}");
    // The owner is there for whoever reads the line; only the parser lost it.
    let lost = mistakes(&with("owner = \"team-orders\"\nrequest", "owner team-orders\nrequest"));
    assert_eq!(lost, "orders.toml:4: key with no value, expected `=`");
    let doubled = mistakes(&with("prefetch = 10", "attempts = 10"));
    assert!(doubled.starts_with("orders.toml:36: duplicate key"), "{doubled}");
}

#[test]
fn an_empty_file_lacks_its_service() {
    assert_eq!(mistakes(""), "orders.toml:1: service: missing required key");
}

#[test]
fn several_files_report_together_and_an_unreadable_one_by_name() {
    let folder = std::env::temp_dir().join(format!("mamparo-topology-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (good, bad) = (folder.join("good.toml"), folder.join("bad.toml"));
    std::fs::write(&good, ORDERS).unwrap();
    std::fs::write(&bad, "[service]\nname = 7\nowner = \"x\"\n").unwrap();
    assert_eq!(load(&[&good]).unwrap(), [parse(&good.display().to_string(), ORDERS).unwrap()]);
    let problems = load(&[&bad, &good, &folder.join("none.toml")]).unwrap_err().to_string();
    assert!(problems.contains("bad.toml:2: service.name: expected a string, found an integer"));
    assert!(problems.contains("none.toml: cannot read the file: "), "{problems}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn settings_are_read_with_their_types_and_their_mistakes_together() {
    let policy = orders();
    let mut settings = policy.settings.reader();
    assert_eq!(settings.required::<String>("currency"), "EUR");
    assert_eq!(settings.or("page_size", 5_u32), 20);
    assert_eq!(settings.or("hold", Duration::ZERO), Duration::from_secs(900));
    assert_eq!(settings.or("color", "blue".to_owned()), "blue");
    settings.finish().unwrap();

    let mut settings = policy.settings.reader();
    settings.required::<u32>("page_sze");
    settings.required::<bool>("hold");
    settings.or("currency", String::new());
    assert_eq!(
        settings.finish().unwrap_err().to_string(),
        "orders.toml:54: settings.page_sze: missing required key
orders.toml:56: settings.page_size: unknown key
  hint: did you mean page_sze?
orders.toml:57: settings.hold: expected true or false, found a string"
    );
}

#[test]
fn the_model_becomes_cores_plans_which_find_nothing_to_refuse() {
    let policy = orders();
    let plan = policy.plan("catalog").unwrap();
    assert_eq!((plan.service.as_str(), plan.retry.attempts), ("orders", 2));
    assert_eq!(plan.budget, Some(Duration::from_secs(3)), "a route waits for it");
    assert_eq!(plan.validate(), []);
    let breaker = policy.plan("customers").unwrap().breaker.unwrap();
    let over = Over::Time(Duration::from_secs(60));
    assert_eq!(
        breaker.trip,
        Trip::Rate { failure_rate: Some(0.5), slow_rate: None, min_calls: 10, over }
    );
    let customers = policy.dependency("customers").unwrap().plan("orders");
    assert_eq!((customers.retry.attempts, customers.bulkhead), (1, None), "never assumed");
    assert_eq!(customers.budget, None);
    assert_eq!(policy.plan("psp"), None);
    let queue = policy.queue("orders.saga").unwrap().policy();
    assert_eq!((queue.dlq().as_str(), queue.bindings.len()), ("orders.saga.dlq", 2));
    assert!(queue.problems().is_empty());
    let limit = policy.routes[1].rate_limit.as_ref().unwrap().config();
    assert_eq!((limit.requests, limit.burst), (300, 300));
}

#[test]
fn the_table_of_dependencies_is_the_on_calls_first_page() {
    assert_eq!(
        dependency_table(&orders()),
        "# Dependencies of orders

Owner: team-orders. A caller waits at most 3s.

| dependency | timeout | retries | breaker | bulkhead | fallback | worst case |
|---|---|---|---|---|---|---|
| catalog | 700ms | 1 (base 100ms, × 2, cap 2s) | 5 failures in 10s, open 30s, 1 probe | 20, no \
queue | none | 1500ms |
| customers | 500ms | none | 50 % of at least 10 calls in 1m, open 30s, 1 probe | none | stale | \
500ms |
"
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = parse("any.toml", &text);
    }

    /// Cuts, doubles and swaps pieces of a good file: near misses reach deeper than noise.
    #[test]
    fn no_mangled_file_makes_the_parser_panic(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), ".{0,6}"), 1..6),
    ) {
        let mut text: Vec<char> = ORDERS.chars().collect();
        for (at, insert) in cuts {
            let at = at.index(text.len());
            let end = (at + insert.len()).min(text.len());
            text.splice(at..end, insert.chars().rev());
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = parse("any.toml", &text) {
            prop_assert!(!problems.is_empty());
        }
    }
}
