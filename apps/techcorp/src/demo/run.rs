//! One run of the demo, from an empty directory to the verdict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mamparo::call::{Dependency, clock};
use mamparo::core::rng::{Rng, SeededRng};
use mamparo::http::HttpClient;
use mamparo::service::Telemetry;

use super::books::Books;
use super::engines::Engines;
use super::report::{self, Report};
use super::scenario::{Fault, Scenario};
use super::site::Site;
use super::staff::Staff;
use super::traffic::{Shared, Traffic, with};
use super::verdict::Verdict;
use super::view::{DRAIN, Screen, View};
use super::{DemoError, checks, ground, metrics, script, verdict};
use crate::shop::SERVICES;

/// What to run.
#[derive(Debug)]
pub struct Options {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// Length of the traffic.
    pub length: Duration,
    /// Orders a second.
    pub rate: f64,
    /// What the traffic follows from.
    pub seed: u64,
    /// An empty directory.
    pub dir: PathBuf,
    /// What the shop stands on.
    pub engines: Engines,
    /// Leave everything as it is at the end?
    pub keep: bool,
    /// This program, for services that run in processes of their own.
    pub program: PathBuf,
}

/// Runs the demo.
///
/// # Errors
/// When it can't be run to its end; a broken invariant is in the report instead.
pub async fn run(
    options: &Options,
    telemetry: Telemetry,
    screen: &mut impl Screen,
) -> Result<Report, DemoError> {
    let scenario = options.scenario;
    let mut rng = SeededRng::new(options.seed);
    script::playable(scenario, &options.engines)?;
    ground::must_be_free(&options.engines).await?;
    let site = Site::lay(&options.dir, scenario, &options.engines, &mut clock::entropy())?;
    let mut staff = Staff::new(site, telemetry, options.program.clone(), apart(options));
    for service in SERVICES {
        staff.start(service).await?;
    }
    screen.note("all services are ready");

    let start = clock::now();
    let at = |share: f64| start.plus(options.length.mul_f64(share));
    let (begins, ends, until) = (at(scenario.begins), at(scenario.ends), at(1.0));
    let seen = Shared::default();
    let traffic = Traffic {
        gateway: gateway(&staff)?,
        seen: Arc::clone(&seen),
        rate: options.rate,
        rng: SeededRng::new(rng.next_u64()),
        regular_at: [0.25, 0.5].map(|part| begins.plus(ends.since(begins).mul_f64(part))).into(),
    };
    let mut view = View::open(&staff, &seen, start, options.length, [begins, ends, until]).await?;
    let (note, notes) = mpsc::channel();
    let work = async {
        let fault = script::play(scenario, &mut staff, begins, ends, &note);
        let ((), told) = tokio::join!(traffic.run(until), fault);
        told
    };
    let told = Box::pin(view.while_working(work, &notes, screen)).await?;
    let drained = view.drain(screen).await?;
    let apart_metrics = view.apart_metrics().await;
    let stops = staff.stop_all().await?;
    let text = format!("{}\n{apart_metrics}", staff.telemetry().render());

    let mut verdict = verdict::judge(&view.books, told.poisoned).await?;
    with(&seen, |seen| checks::of_shoppers(&mut verdict, seen));
    let lost = checks::lost_orders(&view.books, &seen).await?;
    verdict.add("every order that was answered 201 is in the books", lost);
    let late = metrics::total(&text, "mamparo_attempts_after_deadline_total");
    verdict.add("no attempt was sent after its deadline", late);
    verdict.add("the shop came to rest in time", u64::from(drained.is_none()));
    let unclean = stops.iter().filter(|report| !report.clean()).count() as u64;
    verdict.add("every service stopped in order, nothing cut off", unclean);
    let psp_failed = checks::failed_attempts(&text, "psp");
    with(&seen, |seen| checks::fault_was_seen(&mut verdict, scenario, seen, told, psp_failed));
    view.books.close().await;
    if !options.keep {
        ground::clear(&options.engines).await?;
    }
    let slowest = stops.iter().map(|report| report.took()).max().unwrap_or_default();
    Ok(Report {
        scenario: scenario.name,
        seed: options.seed,
        seconds: options.length.as_secs_f64(),
        holds: verdict.holds(),
        verdict,
        traffic: with(&seen, |seen| report::traffic(seen, begins, ends)),
        breaker_openings: openings(&text),
        killed_mid_charge: told.killed_mid_charge,
        drain_seconds: drained.unwrap_or(DRAIN).as_secs_f64(),
        slowest_stop_seconds: slowest.as_secs_f64(),
        shortened: report::shortened(scenario),
    })
}

/// Services in processes of their own.
fn apart(options: &Options) -> Vec<&'static str> {
    if options.engines.any_server() {
        // On servers the shop is what it is in production: many processes.
        SERVICES.to_vec()
    } else if options.scenario.fault == Fault::PaymentsKilled {
        // A process can only be killed if it is one.
        vec!["payments"]
    } else {
        Vec::new()
    }
}

/// The shoppers' way in: patient, and without any policy that would hide what the shop does.
fn gateway(staff: &Staff) -> Result<HttpClient, DemoError> {
    let dependency = Dependency::builder("gateway")
        .service("shoppers")
        .attempt_timeout(Duration::from_secs(6))
        .build()?;
    Ok(HttpClient::new(&staff.site().url("gateway"), dependency)?)
}

fn openings(text: &str) -> BTreeMap<String, u64> {
    let all = metrics::by_dependency(text, "mamparo_breaker_openings_total");
    let opened = all.into_iter().filter(|(_, times)| *times > 0);
    opened.map(|((from, to), times)| (format!("{from}→{to}"), times)).collect()
}

/// Reads a finished run's books again, for tests that broke them.
///
/// # Errors
/// What the database said.
pub async fn judge_again(dir: &Path, poisoned: u64) -> Result<Verdict, DemoError> {
    let books = Books::open(&Engines::default(), dir).await?;
    let verdict = verdict::judge(&books, poisoned).await?;
    // Waited for, so that whoever copies or breaks the files next finds them at rest.
    books.close().await;
    Ok(verdict)
}
