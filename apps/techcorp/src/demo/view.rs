//! Looks at the shop beside the traffic: twice a second while it runs, and until it is at rest.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use mamparo::call::{Dependency, clock};
use mamparo::core::time::Moment;
use mamparo::http::HttpClient;
use mamparo::service::Telemetry;

use super::books::Books;
use super::live::Look;
use super::staff::Staff;
use super::traffic::{Shared, percentile, with};
use super::{DemoError, metrics};
use crate::services::answers::chain;

/// How long the shop may take to come to rest after the last request.
pub(super) const DRAIN: Duration = Duration::from_secs(90);
/// The live view looks back this far.
const RECENT: Duration = Duration::from_secs(3);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// Where the live view goes.
pub trait Screen {
    /// A look at the shop.
    fn look(&mut self, look: &Look);
    /// Something happened.
    fn note(&mut self, text: &str);
}

/// What the live view looks at.
#[derive(Debug)]
pub(super) struct View {
    /// All books of the shop.
    pub(super) books: Books,
    seen: Shared,
    telemetry: Telemetry,
    /// Services in processes of their own answer for their metrics themselves.
    apart: Vec<HttpClient>,
    start: Moment,
    length: Duration,
    marks: [Moment; 3],
}

impl View {
    pub(super) async fn open(
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
        let books = Books::open(staff.site().engines(), staff.site().dir()).await?;
        Ok(Self { books, seen, telemetry, apart, start, length, marks })
    }

    /// Shows the shop until `work` is done. Both go on side by side, so that looking never delays
    /// the traffic that is being measured.
    pub(super) async fn while_working<T>(
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
    pub(super) async fn drain(
        &mut self,
        screen: &mut impl Screen,
    ) -> Result<Option<Duration>, DemoError> {
        let began = clock::now();
        let mut shown = began;
        loop {
            let unrest = self.books.unrest().await;
            let waited = clock::now().since(began);
            match unrest {
                Ok(unrest) if unrest.is_empty() => return Ok(Some(waited)),
                Ok(unrest) if waited >= DRAIN => {
                    screen.note(&format!("not at rest: {}", unrest.join(", ")));
                    return Ok(None);
                }
                Err(error) if waited >= DRAIN => return Err(error),
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
            orders: self.books.by_state().await?,
            breakers: metrics::breakers(&text),
            // The orders' states are worth a look also while the broker is away.
            depths: self.books.depths().await.ok(),
            requests: took.len(),
            refused,
            p50: percentile(took.clone(), 0.5),
            p99: percentile(took, 0.99),
        })
    }

    /// What services in other processes say; one that is dead says nothing.
    pub(super) async fn apart_metrics(&self) -> String {
        let mut text = String::new();
        for client in &self.apart {
            if let Ok(answer) = client.get("/metrics").send().await {
                text.push_str(&String::from_utf8_lossy(&answer.body));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use mamparo::messaging::AnyBroker;
    use mamparo::service::{Environment, telemetry};
    use tokio::sync::oneshot;

    use super::*;
    use crate::demo::engines::Engines;

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

    #[tokio::test]
    async fn a_book_that_cannot_be_read_costs_a_look_and_not_the_run() {
        // Nobody has written a book here yet.
        let dir = tempfile::tempdir().unwrap();
        let broker = Engines::default().broker_in(dir.path());
        AnyBroker::open(&broker).await.unwrap().close().await;
        let now = clock::now();
        let quiet = Environment { log: "off".to_owned(), ..Environment::default() };
        let mut view = View {
            books: Books::open(&Engines::default(), dir.path()).await.unwrap(),
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
