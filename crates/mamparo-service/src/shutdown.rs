//! Carries the ordered shutdown out.
//!
//! Core decides the order and how long each step may take; this room runs what the components
//! registered, cuts what overruns, and writes down how each step went.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use mamparo_call::clock;
use mamparo_core::limits::SHUTDOWN_MAX;
use mamparo_core::process::shutdown::{self as core, Ending, Record, Step};

use crate::tasks::{lock, panic_message};
use crate::{Readiness, Role, Tasks, observe};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Hook {
    step: Step,
    name: String,
    work: Box<dyn FnOnce() -> Work + Send>,
}

/// What a service does in each step, besides stopping its tasks. Cheap to clone.
#[derive(Clone)]
pub struct Shutdown {
    shared: Arc<Shared>,
}

struct Shared {
    hooks: Mutex<Vec<Hook>>,
    limit: Mutex<Duration>,
}

impl std::fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hooks: Vec<String> = lock(&self.shared.hooks)
            .iter()
            .map(|hook| format!("{}: {}", hook.step.as_str(), hook.name))
            .collect();
        f.debug_struct("Shutdown").field("hooks", &hooks).finish_non_exhaustive()
    }
}

/// How a step went, and what was cut in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepReport {
    /// The step, how long it took, and how it ended.
    pub record: Record,
    /// The tasks and parts that were not finished when the step was cut.
    pub unfinished: Vec<String>,
}

/// How a shutdown went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownReport {
    /// The service's name.
    pub service: String,
    /// Each step, in order.
    pub steps: Vec<StepReport>,
}

impl ShutdownReport {
    /// Whether every step was finished in its time.
    #[must_use]
    pub fn clean(&self) -> bool {
        self.steps.iter().all(|step| step.record.ending == Ending::Done)
    }

    /// How long all steps took together.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.steps.iter().map(|step| step.record.took).sum()
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// A shutdown that may take 30 s in all.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared { hooks: Mutex::default(), limit: Mutex::new(SHUTDOWN_MAX) };
        Self { shared: Arc::new(shared) }
    }

    /// Sets how long the whole may take, at most 30 s; more is cut to that.
    pub fn limit(&self, limit: Duration) {
        *lock(&self.shared.limit) = limit.min(SHUTDOWN_MAX);
    }

    /// Cuts the limit to `most`, where it is longer.
    pub(crate) fn shorten(&self, most: Duration) {
        let mut limit = lock(&self.shared.limit);
        *limit = most.min(*limit);
    }

    /// Runs `work` in `step`. The parts of one step run at the same time; a part that panics is
    /// logged and holds nothing up.
    pub fn on<F>(
        &self,
        step: Step,
        name: impl Into<String>,
        work: impl FnOnce() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let hook = Hook { step, name: name.into(), work: Box::new(|| Box::pin(work())) };
        lock(&self.shared.hooks).push(hook);
    }

    /// Carries all steps out.
    pub(crate) async fn execute(
        &self,
        service: &str,
        tasks: &Tasks,
        readiness: &Readiness,
    ) -> ShutdownReport {
        let mut plan = core::Shutdown::new(clock::now(), *lock(&self.shared.limit));
        let mut steps = Vec::new();
        while let Some(allotment) = plan.ask(clock::now()) {
            let step = allotment.step;
            let end = clock::now().plus(allotment.may_use);
            let mut parts = self.parts(service, step, tasks, readiness);
            let finished = tokio::select! {
                // What is finished at the same moment as the time is over counts as finished.
                biased;
                () = parts.finish() => true,
                () = clock::sleep_until(end) => false,
            };
            let mut unfinished = parts.unfinished;
            if let (false, Some(role)) = (finished, awaited_in(step)) {
                unfinished.extend(tasks.abort(role));
            }
            let ending = if finished { Ending::Done } else { Ending::Cut };
            match plan.tell(clock::now(), step, ending) {
                Ok(record) => {
                    let report = StepReport { record, unfinished };
                    observe::step(service, &report);
                    steps.push(report);
                }
                Err(error) => {
                    tracing::error!(service, %error, "shutdown left its order");
                    break;
                }
            }
        }
        readiness.stopped();
        ShutdownReport { service: service.to_owned(), steps }
    }

    /// Starts `step`: tells tasks and readiness, and collects what is to be awaited.
    fn parts(&self, service: &str, step: Step, tasks: &Tasks, readiness: &Readiness) -> Parts {
        match step {
            Step::StopAccepting => tasks.stop(Role::Server),
            Step::ReadyOff => readiness.stopping(),
            Step::CancelConsumers => tasks.stop(Role::Consumer),
            Step::StopWorkers => tasks.stop(Role::Worker),
            Step::FinishRequests
            | Step::SettleMessages
            | Step::ClosePools
            | Step::FlushTelemetry => {}
        }
        let mut hooks = lock(&self.shared.hooks);
        let (now, later): (Vec<Hook>, Vec<Hook>) =
            std::mem::take(&mut *hooks).into_iter().partition(|hook| hook.step == step);
        *hooks = later;
        drop(hooks);
        let mut parts = Parts::default();
        for hook in now {
            let (service, name) = (service.to_owned(), hook.name.clone());
            parts.unfinished.push(hook.name);
            parts.running.push(Box::pin(async move {
                let work = AssertUnwindSafe(async { (hook.work)().await });
                if let Err(panic) = work.catch_unwind().await {
                    observe::hook_panicked(&service, &name, &panic_message(panic.as_ref()));
                }
                Some(name)
            }));
        }
        if let Some(role) = awaited_in(step) {
            let tasks = tasks.clone();
            parts.running.push(Box::pin(async move {
                tasks.ended(role).await;
                None
            }));
        }
        parts
    }
}

/// The role whose tasks must have ended when `step` is over.
const fn awaited_in(step: Step) -> Option<Role> {
    match step {
        Step::FinishRequests => Some(Role::Server),
        Step::SettleMessages => Some(Role::Consumer),
        Step::StopWorkers => Some(Role::Worker),
        Step::StopAccepting
        | Step::ReadyOff
        | Step::CancelConsumers
        | Step::ClosePools
        | Step::FlushTelemetry => None,
    }
}

/// The parts of one step that are running.
#[derive(Default)]
struct Parts {
    /// Each ends with its name, if it is a hook.
    running: FuturesUnordered<Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
    /// The names of the hooks that have not ended.
    unfinished: Vec<String>,
}

impl Parts {
    async fn finish(&mut self) {
        while let Some(ended) = self.running.next().await {
            if let Some(at) = ended.and_then(|name| self.unfinished.iter().position(|n| *n == name))
            {
                self.unfinished.remove(at);
            }
        }
    }
}
