//! Tasks, readiness and shutdown of a service, on a paused clock.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mamparo_call::clock;
use mamparo_service::{
    CancellationToken, Ending, Readiness, Role, Service, ServiceError, ShutdownReport, Stage, Step,
    run_all,
};
use tokio::time::sleep;

/// What happened, in order.
type Log = Arc<Mutex<Vec<String>>>;

fn note(log: &Log, what: impl Into<String>) {
    log.lock().expect("no test panics while it writes").push(what.into());
}

/// A task that ends `takes` after it was asked to, and notes it.
fn add_task(service: &Service, log: &Log, role: Role, name: &'static str, takes: Duration) {
    let log = log.clone();
    service.tasks().spawn_essential(role, name, move |stop| async move {
        stop.cancelled().await;
        sleep(takes).await;
        note(&log, format!("{name} ended"));
    });
}

fn add_hook(service: &Service, log: &Log, step: Step) {
    let log = log.clone();
    service.on_stop(step, step.as_str(), move || async move { note(&log, step.as_str()) });
}

fn die(message: &str) {
    panic!("{message}");
}

const EVERY_STEP: [Step; 8] = [
    Step::StopAccepting,
    Step::ReadyOff,
    Step::FinishRequests,
    Step::CancelConsumers,
    Step::SettleMessages,
    Step::StopWorkers,
    Step::ClosePools,
    Step::FlushTelemetry,
];

#[tokio::test(start_paused = true)]
async fn a_shutdown_goes_through_its_steps_in_order_and_awaits_each_kind_of_task_in_its_own() {
    let (service, log) = (Service::new("orders"), Log::default());
    let second = Duration::from_secs(1);
    add_task(&service, &log, Role::Worker, "relay", second);
    add_task(&service, &log, Role::Consumer, "consumer", second);
    add_task(&service, &log, Role::Server, "server", second);
    for step in EVERY_STEP {
        add_hook(&service, &log, step);
    }
    let report = service.run(async {}).await.unwrap();
    assert!(report.clean(), "{report:?}");
    let log = log.lock().unwrap();
    assert_eq!(
        *log,
        [
            "stop accepting",
            "ready off",
            "finish requests",
            "server ended",
            "cancel consumers",
            "settle messages",
            "consumer ended",
            "stop workers",
            "relay ended",
            "close pools",
            "flush telemetry",
        ]
        .map(str::to_owned)
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_that_overruns_is_cut_and_takes_nothing_from_the_others() {
    let (service, log) = (Service::new("orders"), Log::default());
    service.on_stop(Step::FinishRequests, "a client that never reads", std::future::pending);
    add_task(&service, &log, Role::Consumer, "stuck", Duration::from_secs(3_600));
    for step in EVERY_STEP {
        add_hook(&service, &log, step);
    }
    let began = clock::now();
    let report = service.run(async {}).await.unwrap();
    let took = clock::now().since(began);
    assert!(took <= Duration::from_secs(30), "{took:?}");
    let cut: Vec<(Step, &[String])> = report
        .steps
        .iter()
        .filter(|step| step.record.ending == Ending::Cut)
        .map(|step| (step.record.step, step.unfinished.as_slice()))
        .collect();
    assert_eq!(
        cut,
        [
            (Step::FinishRequests, ["a client that never reads".to_owned()].as_slice()),
            (Step::SettleMessages, ["stuck".to_owned()].as_slice()),
        ]
    );
    let kept = report.steps[4].record.took;
    assert!(kept >= Duration::from_secs(8), "settling kept its share: {kept:?}");
    assert!(log.lock().unwrap().contains(&"flush telemetry".to_owned()), "the last step ran");
    sleep(Duration::from_secs(7_200)).await;
    assert!(!log.lock().unwrap().contains(&"stuck ended".to_owned()), "it was aborted");
}

#[tokio::test(start_paused = true)]
async fn a_part_of_the_shutdown_that_panics_holds_nothing_up() {
    let (service, log) = (Service::new("orders"), Log::default());
    service.on_stop(Step::ClosePools, "broken pool", || async { panic!("no such pool") });
    add_hook(&service, &log, Step::FlushTelemetry);
    let report = service.run(async {}).await.unwrap();
    assert!(report.clean());
    assert_eq!(*log.lock().unwrap(), ["flush telemetry"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_an_essential_task_ends_the_run_with_an_error_after_an_ordered_shutdown() {
    let (service, log) = (Service::new("orders"), Log::default());
    add_hook(&service, &log, Step::ClosePools);
    service.tasks().spawn_essential(Role::Worker, "watchdog", |_| async {
        sleep(Duration::from_secs(1)).await;
        die("index out of bounds");
    });
    let error = service.run(std::future::pending()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "keep task \"watchdog\" running: it panicked: index out of bounds"
    );
    assert_eq!(*log.lock().unwrap(), ["close pools"]);
}

#[tokio::test(start_paused = true)]
async fn an_essential_task_that_ends_or_fails_by_itself_ends_the_run() {
    let service = Service::new("orders");
    service.tasks().spawn_essential(Role::Consumer, "consumer", |_| async {});
    let ended = service.run(std::future::pending()).await.unwrap_err();
    assert!(matches!(&ended, ServiceError::TaskEnded { task } if task == "consumer"), "{ended}");

    let service = Service::new("orders");
    service.tasks().spawn_essential(Role::Server, "server", |_| async {
        Err(std::io::Error::other("address in use"))
    });
    let failed = service.run(std::future::pending()).await.unwrap_err();
    let source = std::error::Error::source(&failed).unwrap();
    assert_eq!(source.to_string(), "address in use");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_may_end_may_fail_too_but_its_panic_is_loud() {
    let service = Service::new("orders");
    service.tasks().spawn(Role::Worker, "warm the cache", |_| async {});
    service.tasks().spawn(Role::Worker, "ask for news", |_| async { Err("no news") });
    let later = sleep(Duration::from_secs(5));
    service.run(later).await.unwrap();

    let service = Service::new("orders");
    service.tasks().spawn(Role::Worker, "warm the cache", |_| async { die("cold") });
    let error = service.run(std::future::pending()).await.unwrap_err();
    assert!(matches!(error, ServiceError::TaskPanicked { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_stopping_is_not_swallowed() {
    let service = Service::new("orders");
    service.tasks().spawn_essential(Role::Worker, "relay", |stop| async move {
        stop.cancelled().await;
        die("lost the last batch");
    });
    let error = service.run(async {}).await.unwrap_err();
    assert!(error.to_string().contains("lost the last batch"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn in_one_process_the_loss_of_one_service_stops_all() {
    let (orders, catalog, log) = (Service::new("orders"), Service::new("catalog"), Log::default());
    add_hook(&catalog, &log, Step::ClosePools);
    let catalog_ready = catalog.readiness().clone();
    orders.tasks().spawn_essential(Role::Worker, "relay", move |_| async move {
        catalog_ready.until(Stage::Ready).await;
    });
    let error = run_all(vec![orders, catalog], std::future::pending()).await.unwrap_err();
    assert!(matches!(&error, ServiceError::TaskEnded { task } if task == "relay"), "{error}");
    assert_eq!(*log.lock().unwrap(), ["close pools"]);
}

#[tokio::test(start_paused = true)]
async fn services_stop_one_after_the_other_those_that_call_first() {
    let log = Log::default();
    let service = |name: &'static str, takes: u64| {
        let service = Service::new(name);
        add_task(&service, &log, Role::Server, name, Duration::from_millis(takes));
        service
    };
    // The catalog is called by all; orders hang on a request, and the catalog waits for them no
    // longer than its turn.
    let services = vec![service("catalog", 0), service("orders", 5_000), service("gateway", 800)];
    let began = clock::now();
    let reports = run_all(services, std::future::ready(())).await.unwrap();
    assert!(reports.iter().all(ShutdownReport::clean), "{reports:?}");
    assert_eq!(*log.lock().unwrap(), ["gateway ended", "catalog ended", "orders ended"]);
    let took = clock::now().since(began);
    assert_eq!(took.as_millis() / 100, 58, "0.8 s for the gateway, 5 s for orders");
}

#[tokio::test(start_paused = true)]
async fn any_number_of_services_that_hang_is_gone_within_30_s() {
    for number in [1, 2, 10, 50] {
        let log = Log::default();
        let services = (0..number).map(|_| {
            let service = Service::new("hangs");
            for role in [Role::Server, Role::Consumer, Role::Worker] {
                add_task(&service, &log, role, "hangs", Duration::from_secs(3_600));
            }
            service
        });
        let began = clock::now();
        let reports = run_all(services.collect(), std::future::ready(())).await.unwrap();
        assert!(reports.iter().all(|report| !report.clean()));
        let took = clock::now().since(began);
        assert!(took <= Duration::from_millis(30_100), "{number}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn running_tasks_are_known_by_name() {
    let (service, log) = (Service::new("orders"), Log::default());
    add_task(&service, &log, Role::Consumer, "orders.saga", Duration::ZERO);
    let tasks = service.tasks().clone();
    assert_eq!(tasks.running(Role::Consumer), ["orders.saga"]);
    service.run(async {}).await.unwrap();
    assert_eq!(tasks.running(Role::Consumer), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_is_down_makes_the_service_not_ready_until_it_is_back() {
    let service = Service::new("orders");
    let readiness: Readiness = service.readiness().clone();
    let (database, broker) = (readiness.check("database"), readiness.check("broker"));
    database.ready();
    assert_eq!(readiness.report().stage, Stage::Starting, "nothing counts before the start");
    let stop = CancellationToken::new();
    let running = tokio::join!(service.run(stop.cancelled()), async {
        readiness.until(Stage::NotReady).await;
        let report = readiness.report();
        assert!(!report.ready);
        assert_eq!(report.checks[1].down.as_deref(), Some("not checked yet"));
        broker.ready();
        assert!(readiness.report().ready);
        sleep(Duration::from_secs(7)).await;
        database.not_ready("connection refused");
        sleep(Duration::from_secs(2)).await;
        let report = readiness.report();
        assert_eq!((report.ready, report.stage), (false, Stage::NotReady));
        assert_eq!(report.checks[0].down.as_deref(), Some("connection refused"));
        assert!(report.checks[0].lasted >= Duration::from_secs(2));
        database.ready();
        assert!(readiness.report().ready);
        stop.cancel();
        readiness.until(Stage::Stopped).await;
        database.ready();
        assert!(!readiness.report().ready, "a stopped service never gets ready again");
    });
    running.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_kept_check_probes_with_backoff_while_down_and_a_hanging_probe_is_down() {
    let service = Service::new("orders");
    let readiness = service.readiness().clone();
    let check = readiness.check("database");
    let answers = Arc::new(Mutex::new(vec![Ok(()), Err("refused"), Err("refused"), Ok(())]));
    let (asked, hang) = (answers.clone(), Duration::from_secs(60));
    service.tasks().spawn_essential(Role::Worker, "database check", move |stop| async move {
        let (every, timeout) = (Duration::from_secs(10), Duration::from_secs(1));
        let probe = || {
            // Answers come from the end; when none is left, the probe hangs.
            let next = asked.lock().unwrap().pop();
            async move {
                match next {
                    Some(answer) => answer,
                    None => {
                        sleep(hang).await;
                        Ok(())
                    }
                }
            }
        };
        check.keep(every, timeout, probe, stop).await;
    });
    let stop = CancellationToken::new();
    let (run, ()) = tokio::join!(service.run(stop.cancelled()), async {
        let began = clock::now();
        readiness.until(Stage::Ready).await;
        readiness.until(Stage::NotReady).await;
        let down = clock::now();
        assert!(down.since(began) >= Duration::from_secs(10), "up: asked every 10 s");
        readiness.until(Stage::Ready).await;
        let waited = clock::now().since(down);
        assert!(waited <= Duration::from_millis(310), "down: asked with backoff, {waited:?}");
        readiness.until(Stage::NotReady).await;
        let reason = readiness.report().checks[0].down.clone();
        assert_eq!(reason.as_deref(), Some("no answer in 1s"));
        stop.cancel();
    });
    run.unwrap();
    assert!(answers.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_note_stands_beside_a_check_that_is_up_and_goes_with_its_next_word() {
    let service = Service::new("orders");
    let (readiness, check) = (service.readiness().clone(), service.readiness().check("queue"));
    let said = || {
        let report = readiness.report();
        let check = report.checks.into_iter().next().expect("one is registered");
        (report.ready, check.down, check.note)
    };
    let stop = async {
        check.ready_but("paused: circuit open");
        readiness.until(Stage::Ready).await;
        assert_eq!(said(), (true, None, Some("paused: circuit open".to_owned())));
        check.not_ready("gone");
        assert_eq!(said(), (false, Some("gone".to_owned()), None));
        check.ready();
        assert_eq!(said(), (true, None, None));
    };
    service.run(stop).await.unwrap();
}
