//! One recorder a process, however many services ask for it.

#![expect(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use mamparo_service::telemetry::METRICS;
use mamparo_service::{Environment, Service, Stage, telemetry};

#[tokio::test(start_paused = true)]
async fn telemetry_is_installed_once_and_shows_readiness() {
    let environment = Environment { log: "off".to_owned(), ..Environment::default() };
    let first = telemetry::install(&environment).unwrap();
    let second = telemetry::install(&environment).unwrap();
    let service = Service::new("orders");
    let readiness = service.readiness().clone();
    let stop = async {
        readiness.until(Stage::Ready).await;
        assert!(first.render().contains("mamparo_ready{service=\"orders\"} 1"));
    };
    service.run(stop).await.unwrap();
    let text = second.render();
    assert!(text.contains("mamparo_ready{service=\"orders\"} 0"), "{text}");
    assert!(text.contains("# HELP mamparo_shutdown_step_seconds "), "{text}");
    assert!(
        text.contains("mamparo_shutdown_step_seconds_bucket"),
        "buckets, not quantiles: {text}"
    );
    assert!(text.contains("mamparo_build_info{version="), "{text}");
}

/// The metrics that the `observe.rs` of `krate` names in its code.
fn named_in(krate: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{krate}/src/observe.rs"));
    let source = std::fs::read_to_string(&path).expect("every driver crate has an observe.rs");
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let quoted = code.split('"').skip(1).step_by(2);
    let names = quoted.filter(|text| {
        text.strip_prefix("mamparo_").is_some_and(|rest| {
            rest.contains('_') && rest.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        }) || *text == "circuit_breaker_state"
            || *text == "mamparo_ready"
    });
    names.map(str::to_owned).collect()
}

#[test]
fn every_metric_in_the_code_has_its_line_in_the_list_and_the_other_way_round() {
    let listed: BTreeSet<String> = METRICS.iter().map(|metric| metric.name.to_owned()).collect();
    assert_eq!(listed.len(), METRICS.len(), "no name stands twice");
    let crates = ["mamparo-call", "mamparo-http", "mamparo-messaging", "mamparo-service"];
    let written: BTreeSet<String> = crates.into_iter().flat_map(named_in).collect();
    assert_eq!(written, listed, "list each metric in telemetry.rs, with its kind and help");
}
