//! Rows, and rounds in which they are measured beside each other.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::rng::{Rng, SeededRng};
use serde_json::{Value, json};

use crate::bed::Bed;
use crate::{Error, Result};

/// The longest that one row may take in one round. Long enough for the slowest on a busy machine; a
/// row that waits for what never comes must end the run with its name.
const LIMIT: Duration = Duration::from_secs(600);

/// One measured number of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    /// Added to the row's name, where a row gives several numbers.
    pub(crate) part: &'static str,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// The number.
    pub(crate) value: f64,
}

impl Figure {
    /// `count` things in `took`, per second.
    pub(crate) fn rate(count: usize, took: Duration) -> Vec<Self> {
        let value = count as f64 / took.as_secs_f64().max(1e-9);
        vec![Self { part: "", unit: "1/s", value }]
    }

    /// Median and 99th percentile of `times`, in milliseconds.
    pub(crate) fn latencies(mut times: Vec<Duration>) -> Vec<Self> {
        times.sort_unstable();
        let at = |share: f64| {
            let index = ((times.len().max(1) - 1) as f64 * share).round() as usize;
            times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
        };
        let figure = |part, share| Self { part, unit: "ms", value: at(share) };
        vec![figure(".p50", 0.5), figure(".p99", 0.99)]
    }
}

type Running = Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + Send>>;

/// A row.
pub(crate) struct Case {
    name: String,
    run: Box<dyn Fn(Arc<Bed>) -> Running>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Case {
    /// The row `name`, measured by `run`.
    pub(crate) fn new<F, R>(name: impl Into<String>, run: F) -> Self
    where
        F: Fn(Arc<Bed>) -> R + 'static,
        R: Future<Output = Result<Vec<Figure>>> + Send + 'static,
    {
        Self { name: name.into(), run: Box::new(move |bed| Box::pin(run(bed))) }
    }
}

/// Rows that are compared with each other.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// How often it is measured: as often as asked for, or once where rounds would say nothing new.
    pub(crate) once: bool,
    /// Its rows.
    pub(crate) cases: Vec<Case>,
}

impl Group {
    /// A group measured in rounds.
    pub(crate) fn new(name: &'static str, cases: Vec<Case>) -> Self {
        Self { name, once: false, cases }
    }
}

/// What the rounds of one row gave.
#[derive(Debug)]
struct Row {
    name: String,
    unit: &'static str,
    rounds: Vec<f64>,
}

/// What a run gave.
#[derive(Debug, Default)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    /// Measures `group` in `rounds` rounds. Each measures every row once, in a new random order, so
    /// that a slow phase of the machine meets all of them.
    pub(crate) async fn measure(
        &mut self,
        bed: &Arc<Bed>,
        group: &Group,
        rounds: usize,
        rng: &mut SeededRng,
    ) -> Result<()> {
        let rounds = if group.once { 1 } else { rounds };
        let mut order: Vec<usize> = (0..group.cases.len()).collect();
        for round in 0..rounds {
            shuffle(&mut order, rng);
            for &index in &order {
                let case = &group.cases[index];
                eprint!("\r\x1b[K{} round {} of {rounds}: {}", group.name, round + 1, case.name);
                let run = tokio::time::timeout(LIMIT, (case.run)(Arc::clone(bed)));
                let measured = run.await.unwrap_or_else(|_| Err(Error::from("no end in time")));
                let figures = measured.map_err(|e| format!("measure {}: {e}", case.name))?;
                for figure in figures {
                    self.add(format!("{}{}", case.name, figure.part), figure);
                }
            }
        }
        eprintln!("\r\x1b[K{}: {rounds} rounds of {} rows", group.name, group.cases.len());
        Ok(())
    }

    fn add(&mut self, name: String, figure: Figure) {
        match self.0.iter_mut().find(|row| row.name == name) {
            Some(row) => row.rounds.push(figure.value),
            None => {
                self.0.push(Row { name, unit: figure.unit, rounds: vec![figure.value] });
            }
        }
    }

    /// All of it, rows by name: the order in which a round met them says nothing.
    pub(crate) fn json(mut self) -> Value {
        self.0.sort_by(|a, b| a.name.cmp(&b.name));
        let row = |row: Row| json!({"name": row.name, "unit": row.unit, "rounds": row.rounds});
        self.0.into_iter().map(row).collect()
    }
}

fn shuffle(order: &mut [usize], rng: &mut SeededRng) {
    for last in (1..order.len()).rev() {
        let other = rng.up_to(last as u64) as usize;
        order.swap(last, other);
    }
}
