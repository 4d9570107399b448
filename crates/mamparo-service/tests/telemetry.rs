//! One recorder a process, however many services ask for it.

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
