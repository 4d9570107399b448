//! One run of the demo, from an empty directory to the verdict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mamparo::call::{Dependency, clock};
use mamparo::core::rng::{Rng, SeededRng};
use mamparo::core::time::Moment;
use mamparo::http::HttpClient;
use mamparo::service::Telemetry;
use sqlx::{Connection as _, SqliteConnection};

use super::live::Look;
use super::report::{self, Report};
use super::scenario::{Fault, Scenario};
use super::script::{self, Told};
use super::site::Site;
use super::staff::Staff;
use super::traffic::{Did, Seen, Shared, Traffic, percentile, with};
use super::verdict::Verdict;
use super::{DemoError, books, metrics, verdict};
use crate::services::answers::chain;
use crate::shop::SERVICES;

/// How long the shop may take to come to rest after the last request.
const DRAIN: Duration = Duration::from_secs(90);
/// A refusal must come well within what its caller waits.
const REFUSAL: Duration = Duration::from_secs(3);
/// The live view looks back this far.
const RECENT: Duration = Duration::from_secs(3);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

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
    /// This program, for services that run in processes of their own.
    pub program: PathBuf,
}

/// Where the live view goes.
pub trait Screen {
    /// A look at the shop.
    fn look(&mut self, look: &Look);
    /// Something happened.
    fn note(&mut self, text: &str);
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
    let site = Site::lay(&options.dir, scenario, &mut clock::entropy())?;
    // A process can only be killed if it is one.
    let apart = if scenario.fault == Fault::PaymentsKilled { vec!["payments"] } else { Vec::new() };
    let mut staff = Staff::new(site, telemetry, options.program.clone(), apart);
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
    };
    let mut view = View::open(&staff, &seen, start, options.length, [begins, ends, until]).await?;
    let (note, notes) = mpsc::channel();
    let work = async {
        let fault = script::play(scenario, &mut staff, begins, ends, &note);
        let ((), told) = tokio::join!(traffic.run(until), fault);
        told
    };
    let told = view.while_working(work, &notes, screen).await?;
    let drained = view.drain(screen).await?;
    let apart_metrics = view.apart_metrics().await;
    let stops = staff.stop_all().await?;
    let text = format!("{}\n{apart_metrics}", staff.telemetry().render());

    let mut verdict = verdict::judge(&mut view.books, told.poisoned).await?;
    with(&seen, |seen| view_of_shoppers(&mut verdict, seen));
    let lost = lost_orders(&mut view.books, &seen).await?;
    verdict.add("every order that was answered 201 is in the books", lost);
    let late = metrics::total(&text, "mamparo_attempts_after_deadline_total");
    verdict.add("no attempt was sent after its deadline", late);
    verdict.add("the shop came to rest in time", u64::from(drained.is_none()));
    let unclean = stops.iter().filter(|report| !report.clean()).count() as u64;
    verdict.add("every service stopped in order, nothing cut off", unclean);
    let psp_failed = failed_attempts(&text, "psp");
    with(&seen, |seen| fault_was_seen(&mut verdict, scenario, seen, told, psp_failed));
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

/// The shoppers' way in: patient, and without any policy that would hide what the shop does.
fn gateway(staff: &Staff) -> Result<HttpClient, DemoError> {
    let dependency = Dependency::builder("gateway")
        .service("shoppers")
        .attempt_timeout(Duration::from_secs(6))
        .build()?;
    Ok(HttpClient::new(&staff.site().url("gateway"), dependency)?)
}

/// What the shoppers themselves can tell: refusals are honest and prompt, keys are kept.
fn view_of_shoppers(verdict: &mut Verdict, seen: &Seen) {
    let refusals = || seen.samples.iter().filter(|sample| sample.status == Some(503));
    let vague = refusals().filter(|sample| !sample.honest).count() as u64;
    verdict.add("every refusal is a problem with Retry-After", vague);
    let slow = refusals().filter(|sample| sample.did == Did::Order && sample.took >= REFUSAL);
    verdict.add("every refusal of an order comes in under 3 s", slow.count() as u64);
    verdict.add("one idempotency key is one order", seen.split_keys);
    let bugs = seen.samples.iter().filter(|sample| sample.status == Some(500)).count() as u64;
    verdict.add("nobody sees a 500", bugs);
}

/// A scenario that did not happen proves nothing: the fault itself must have been seen.
fn fault_was_seen(
    verdict: &mut Verdict,
    scenario: &Scenario,
    seen: &Seen,
    told: Told,
    psp_failed: u64,
) {
    let absent = |seen: bool| u64::from(!seen);
    let refused = seen.samples.iter().any(|sample| sample.status == Some(503));
    let partial = seen.samples.iter().any(|sample| sample.partial);
    match scenario.fault {
        Fault::None => {}
        Fault::PspUnavailable | Fault::PspLate(_) => {
            verdict.add("payments got no answer from the PSP", absent(psp_failed > 0));
        }
        Fault::CatalogDown | Fault::CatalogSlow(_) => {
            verdict.add("orders were refused while the catalog was away", absent(refused));
            verdict.add("lists were partial while the catalog was away", absent(partial));
            let failed = |s: &&super::traffic::Sample| s.did == Did::List && s.status != Some(200);
            let lists = seen.samples.iter().filter(failed).count() as u64;
            verdict.add("lists were answered all the same", lists);
        }
        Fault::Poison => verdict.add("poison was sent", absent(told.poisoned > 0)),
        Fault::PaymentsKilled => {
            let name = "payments died with a charge in flight";
            verdict.add(name, absent(told.killed_mid_charge > 0));
        }
        Fault::PaymentsGone => {
            let cancelled = verdict.facts.cancelled > 0;
            verdict.add("the watchdog cancelled orders", absent(cancelled));
        }
    }
}

async fn lost_orders(books: &mut SqliteConnection, seen: &Shared) -> Result<u64, DemoError> {
    let answered = with(seen, |seen| seen.answered.clone());
    let ids = serde_json::to_string(&answered).map_err(|e| sqlx::Error::Encode(e.into()))?;
    let lost: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM json_each(?) WHERE value NOT IN (SELECT id FROM orders.orders)",
    )
    .bind(ids)
    .fetch_one(books)
    .await?;
    Ok(u64::try_from(lost).unwrap_or(0))
}

/// Attempts of calling `dependency` that did not succeed.
fn failed_attempts(text: &str, dependency: &str) -> u64 {
    let failed = metrics::samples(text, "mamparo_attempts_total").into_iter().filter(|(of, _)| {
        let is = |label, value| of.get(label).is_some_and(|found| found == value);
        is("dependency", dependency) && !is("outcome", "success")
    });
    failed.map(|(_, times)| times as u64).sum()
}

fn openings(text: &str) -> BTreeMap<String, u64> {
    let all = metrics::by_dependency(text, "mamparo_breaker_openings_total");
    let opened = all.into_iter().filter(|(_, times)| *times > 0);
    opened.map(|((from, to), times)| (format!("{from}→{to}"), times)).collect()
}

/// What the live view looks at.
#[derive(Debug)]
struct View {
    books: SqliteConnection,
    seen: Shared,
    telemetry: Telemetry,
    /// Services in processes of their own answer for their metrics themselves.
    apart: Vec<HttpClient>,
    start: Moment,
    length: Duration,
    marks: [Moment; 3],
}

impl View {
    async fn open(
        staff: &Staff,
        seen: &Shared,
        start: Moment,
        length: Duration,
        marks: [Moment; 3],
    ) -> Result<Self, DemoError> {
        let mut apart = Vec::new();
        for service in staff.apart() {
            let dependency = Dependency::builder(*service)
                .service("demo")
                .attempt_timeout(Duration::from_secs(1))
                .build()?;
            apart.push(HttpClient::new(&staff.site().url(service), dependency)?);
        }
        let (seen, telemetry) = (Arc::clone(seen), staff.telemetry().clone());
        let books = books::open(staff.site().dir()).await?;
        Ok(Self { books, seen, telemetry, apart, start, length, marks })
    }

    /// Shows the shop until `work` is done. Both go on side by side, so that looking never delays
    /// the traffic that is being measured.
    async fn while_working<T>(
        &mut self,
        work: impl Future<Output = T>,
        notes: &mpsc::Receiver<String>,
        screen: &mut impl Screen,
    ) -> T {
        let done = {
            let watching = async {
                loop {
                    clock::sleep_until(clock::now().plus(LOOK)).await;
                    notes.try_iter().for_each(|note| screen.note(&note));
                    self.show(screen).await;
                }
            };
            tokio::select! {
                done = work => done,
                never = watching => never,
            }
        };
        notes.try_iter().for_each(|note| screen.note(&note));
        done
    }

    /// Shows one look. A book that can't be read just now (somebody recovers it, say) costs a look
    /// and not the run: only the verdict needs every book.
    async fn show(&mut self, screen: &mut impl Screen) {
        match self.look().await {
            Ok(look) => screen.look(&look),
            Err(error) => screen.note(&format!("no look this time: {}", chain(&error))),
        }
    }

    /// Waits until everything is at rest. How long that took; `None` when it did not.
    async fn drain(&mut self, screen: &mut impl Screen) -> Result<Option<Duration>, DemoError> {
        let began = clock::now();
        let mut shown = began;
        loop {
            let unrest = books::unrest(&mut self.books).await;
            let waited = clock::now().since(began);
            match unrest {
                Ok(unrest) if unrest.is_empty() => return Ok(Some(waited)),
                Ok(unrest) if waited >= DRAIN => {
                    screen.note(&format!("not at rest: {}", unrest.join(", ")));
                    return Ok(None);
                }
                Err(error) if waited >= DRAIN => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
            if clock::now().since(shown) >= LOOK {
                shown = clock::now();
                self.show(screen).await;
            }
            clock::sleep_until(clock::now().plus(Duration::from_millis(100))).await;
        }
    }

    async fn look(&mut self) -> Result<Look, DemoError> {
        let now = clock::now();
        let [begins, ends, until] = self.marks;
        let phase = match now {
            _ if now < begins => "calm",
            _ if now < ends => "fault",
            _ if now < until => "recovery",
            _ => "drain",
        };
        let text = format!("{}\n{}", self.telemetry.render(), self.apart_metrics().await);
        let since = now.minus(RECENT);
        let (took, refused) = with(&self.seen, |seen| {
            let recent = seen.samples.iter().rev().take_while(|s| s.at.plus(s.took) >= since);
            let (mut took, mut refused) = (Vec::new(), 0);
            for sample in recent {
                took.push(sample.took);
                refused += usize::from(sample.status == Some(503));
            }
            (took, refused)
        });
        Ok(Look {
            at: now.since(self.start),
            length: self.length,
            phase,
            orders: books::by_state(&mut self.books).await?,
            breakers: metrics::breakers(&text),
            depths: books::depths(&mut self.books).await?,
            requests: took.len(),
            refused,
            p50: percentile(took.clone(), 0.5),
            p99: percentile(took, 0.99),
        })
    }

    /// What services in other processes say; one that is dead says nothing.
    async fn apart_metrics(&self) -> String {
        let mut text = String::new();
        for client in &self.apart {
            if let Ok(answer) = client.get("/metrics").send().await {
                text.push_str(&String::from_utf8_lossy(&answer.body));
            }
        }
        text
    }
}

/// Reads a finished run's books again, for tests that broke them.
///
/// # Errors
/// What the database said.
pub async fn judge_again(dir: &Path, poisoned: u64) -> Result<Verdict, DemoError> {
    let mut books = books::open(dir).await?;
    let verdict = verdict::judge(&mut books, poisoned).await?;
    // Waited for, so that whoever copies or breaks the files next finds them at rest.
    books.close().await?;
    Ok(verdict)
}

#[cfg(test)]
mod tests {
    use mamparo::service::{Environment, telemetry};
    use sqlx::Connection as _;
    use tokio::sync::oneshot;

    use super::*;

    /// Keeps what it was told, and tells somebody of the first note.
    struct Notes(Vec<String>, Option<oneshot::Sender<()>>);

    impl Screen for Notes {
        fn look(&mut self, _look: &Look) {
            self.0.push("a look".to_owned());
        }

        fn note(&mut self, text: &str) {
            self.0.push(text.to_owned());
            if let Some(first) = self.1.take() {
                first.send(()).unwrap();
            }
        }
    }

    #[test]
    fn a_fault_that_nobody_felt_is_not_seen() {
        let of = |dependency: &str, outcome: &str| {
            format!(
                "mamparo_attempts_total{{service=\"payments\",dependency=\"{dependency}\",outcome=\"{outcome}\"}} 3\n"
            )
        };
        let calm = of("psp", "success") + &of("catalog", "timeout");
        assert_eq!(failed_attempts(&calm, "psp"), 0);
        assert_eq!(failed_attempts(&(calm + &of("psp", "timeout")), "psp"), 3);
    }

    #[tokio::test]
    async fn a_book_that_cannot_be_read_costs_a_look_and_not_the_run() {
        let now = clock::now();
        let quiet = Environment { log: "off".to_owned(), ..Environment::default() };
        let mut view = View {
            books: SqliteConnection::connect("sqlite::memory:").await.unwrap(),
            seen: Shared::default(),
            telemetry: telemetry::install(&quiet).unwrap(),
            apart: Vec::new(),
            start: now,
            length: LOOK,
            marks: [now; 3],
        };
        let (note, notes) = mpsc::channel();
        let (first, noted) = oneshot::channel();
        let mut screen = Notes(Vec::new(), Some(first));
        let work = async {
            noted.await.unwrap();
            note.send("the end".to_owned()).unwrap();
        };
        view.while_working(work, &notes, &mut screen).await;
        let [first, .., last] = &screen.0[..] else { panic!("{:?}", screen.0) };
        assert!(first.starts_with("no look this time"), "{first}");
        assert_eq!(last, "the end", "what was said last is not lost");
    }
}
