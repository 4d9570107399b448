//! Wall time in interleaved rounds.
//!
//! A machine that others use too has fast and slow phases that last longer than a measurement. So
//! each round measures every row once, in a new random order, and ratios are only ever taken between
//! two rows of one round; what is reported is the median of those.
//!
//! Where somebody else had the processor during a cell, the cell is measured again, a few times; the
//! share of those that stayed disturbed is part of the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mamparo_core::rng::{Rng, SeededRng};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::case::{Boxed, Case};
use crate::start::Start;
use crate::{clock, loopback};

/// How often a disturbed cell is tried.
const TRIES: usize = 4;

/// How a row is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One task on a runtime of one thread.
    OneTask,
    /// One task on a runtime of two workers.
    TwoWorkers,
    /// Two tasks at once on two workers, sharing one policy; time per call of each.
    TwoTasks,
}

/// All ways, in the order of the output.
pub const WAYS: [Way; 3] = [Way::OneTask, Way::TwoWorkers, Way::TwoTasks];

impl Way {
    /// As in the output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneTask => "one_task",
            Self::TwoWorkers => "two_workers",
            Self::TwoTasks => "two_tasks",
        }
    }
}

/// What the rounds gave.
#[derive(Debug)]
pub struct Times {
    /// Nanoseconds per call: by row, by way, by round.
    pub calls: Vec<[Vec<f64>; 3]>,
    /// Nanoseconds of a loopback round trip, by round.
    pub loopback: Vec<f64>,
    /// The share of cells during which somebody else had the processor, however often they were tried.
    pub disturbed: f64,
}

/// The two runtimes that rows run on.
#[derive(Debug)]
pub struct Runtimes {
    one: Runtime,
    two: Runtime,
}

impl Runtimes {
    /// Both runtimes, timers and sockets included.
    ///
    /// # Errors
    /// When threads can't be had.
    pub fn new() -> std::io::Result<Self> {
        let one = Builder::new_current_thread().enable_all().build()?;
        let two = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { one, two })
    }

    fn measure(&self, case: &Case, way: Way, calls: u64) -> Cell {
        match way {
            Way::OneTask => self.one.block_on(alone(case, calls)),
            Way::TwoWorkers => self.two.block_on(alone(case, calls)),
            Way::TwoTasks => self.two.block_on(side_by_side(case, calls)),
        }
    }

    /// A cell that nobody disturbed, or the least disturbed of a few.
    fn measure_undisturbed(&self, case: &Case, way: Way, calls: u64) -> Cell {
        let mut best = self.measure(case, way, calls);
        for _ in 1..TRIES {
            if !best.disturbed() {
                break;
            }
            let next = self.measure(case, way, calls);
            if next.waited < best.waited {
                best = next;
            }
        }
        best
    }

    /// Calls that fill about `cell`.
    fn calibrate(&self, case: &Case, way: Way, cell: Duration) -> u64 {
        let mut calls = 64;
        loop {
            let took = self.measure_undisturbed(case, way, calls).took;
            if took * 4.0 >= cell.as_nanos() as f64 || calls >= 1 << 24 {
                let fitting = calls as f64 * cell.as_nanos() as f64 / took.max(1.0);
                return (fitting as u64).max(1);
            }
            calls *= 2;
        }
    }
}

/// One measurement, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Cell {
    began: Instant,
    /// From the first call to the last; the mean of both tasks, where there are two.
    took: f64,
    /// How much of it a thread was ready to run and had no processor, or ran without the other one.
    waited: f64,
}

impl Cell {
    /// More than a fiftieth of the time went to others.
    fn disturbed(self) -> bool {
        self.waited * 50.0 > self.took
    }
}

/// A loop of `calls` calls in a task of its own.
async fn alone(case: &Case, calls: u64) -> Cell {
    result_of(spawn(timed(case.run(calls), || ()))).await
}

/// Two such loops that run at the same time.
///
/// The second task is only made when the first one runs and keeps its worker busy: two tasks that
/// are made at once may both land in the queue of one worker, and run one after the other.
async fn side_by_side(case: &Case, calls: u64) -> Cell {
    let start = Arc::new(Start::default());
    let leader = Arc::clone(&start);
    let first = spawn(timed(case.run(calls), move || leader.lead()));
    while !start.led.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let second = spawn(timed(case.run(calls), move || start.follow()));
    let (first, second) = (result_of(first).await, result_of(second).await);
    // One task that waits, or starts late, is enough to leave the other one alone on the policy.
    let apart = (first.began.max(second.began) - first.began.min(second.began)).as_nanos() as f64;
    let took = (first.took + second.took) / 2.0;
    Cell { took, waited: first.waited.max(second.waited) + apart, ..first }
}

/// The time of `run` alone, from the return of `start` on.
async fn timed(run: Boxed<()>, start: impl FnOnce() + Send) -> Cell {
    start();
    let waited = clock::waited().unwrap_or_default();
    let began = clock::now();
    run.await;
    let took = began.elapsed();
    let waited = clock::waited().unwrap_or_default().saturating_sub(waited);
    Cell { began, took: took.as_nanos() as f64, waited: waited.as_nanos() as f64 }
}

#[expect(clippy::disallowed_methods, reason = "the cell that spawns it awaits it")]
fn spawn(future: impl Future<Output = Cell> + Send + 'static) -> JoinHandle<Cell> {
    tokio::spawn(future)
}

/// What the task measured; no number when it panicked, which no comparison survives.
async fn result_of(task: JoinHandle<Cell>) -> Cell {
    let failed = |_| Cell { began: clock::now(), took: f64::NAN, waited: 0.0 };
    task.await.unwrap_or_else(failed)
}

/// Measures all of `cases` in `rounds` rounds with cells of about `cell`. `progress` hears of each.
///
/// # Errors
/// When a row does not say what it is about, or the machine gives no threads or sockets.
pub fn measure(
    cases: &[Case],
    rounds: usize,
    cell: Duration,
    seed: u64,
    progress: impl Fn(usize),
) -> Result<Times, String> {
    let runtimes = Runtimes::new().map_err(|error| format!("start the runtimes: {error}"))?;
    for case in cases {
        runtimes.one.block_on(case.check())?;
    }
    let sizes: Vec<[u64; 3]> =
        cases.iter().map(|case| WAYS.map(|way| runtimes.calibrate(case, way, cell))).collect();
    let mut rng = SeededRng::new(seed);
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut calls = vec![[const { Vec::new() }; 3]; cases.len()];
    let mut trips = Vec::new();
    let mut disturbed = 0;
    for round in 0..rounds {
        progress(round);
        shuffle(&mut order, &mut rng);
        for &index in &order {
            for (at, way) in WAYS.into_iter().enumerate() {
                let size = sizes[index][at];
                let cell = runtimes.measure_undisturbed(&cases[index], way, size);
                disturbed += usize::from(cell.disturbed());
                calls[index][at].push(cell.took / size as f64);
            }
        }
        let trip = runtimes.one.block_on(loopback::round_trip(400));
        trips.push(trip.map_err(|error| format!("use the loopback: {error}"))?.as_nanos() as f64);
    }
    for case in cases {
        runtimes.one.block_on(case.check())?;
    }
    let cells = (rounds * cases.len() * WAYS.len()).max(1);
    Ok(Times { calls, loopback: trips, disturbed: disturbed as f64 / cells as f64 })
}

fn shuffle(order: &mut [usize], rng: &mut SeededRng) {
    for last in (1..order.len()).rev() {
        let other = rng.up_to(last as u64) as usize;
        order.swap(last, other);
    }
}
