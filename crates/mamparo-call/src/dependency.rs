//! One dependency: its plan, its shared policies, and how to call it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use mamparo_core::call::breaker::Phase;
use mamparo_core::call::latency::{Advice, Adviser, NoAdvice};
use mamparo_core::call::plan::Plan;
use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;

use crate::builder::{BuildError, DependencyBuilder};
use crate::detached::Detachable;
use crate::explain::Explanation;
use crate::gate::Gate;
use crate::snapshot::Snapshot;
use crate::{CallError, Classify, clock, driver};

/// What one attempt may use. Handed to the closure that makes the attempt.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Attempt {
    /// Counted from one; sent downstream as `x-attempt`.
    pub number: u32,
    /// When the attempt starts.
    pub started: Moment,
    /// When it will be cancelled: the earlier of attempt timeout and caller's deadline.
    pub deadline: Option<Moment>,
}

impl Attempt {
    pub(crate) const fn new(number: u32, started: Moment, deadline: Option<Moment>) -> Self {
        Self { number, started, deadline }
    }
}

/// Something that this process calls, with the policies that stand in front of it.
///
/// Cheap to clone; clones share breaker, bulkhead and limits.
///
/// ```
/// # #[derive(Debug)] struct Down;
/// # impl std::fmt::Display for Down {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("down") }
/// # }
/// # impl std::error::Error for Down {}
/// # impl mamparo_call::Classify for Down {
/// #     fn classify(&self) -> mamparo_call::Failure { mamparo_call::Failure::TRANSIENT }
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use mamparo_call::{Dependency, Repeatable};
///
/// let catalog = Dependency::builder("catalog")
///     .attempt_timeout(Duration::from_millis(700))
///     .retry(2, mamparo_core::backoff::Backoff::default())
///     .build()?;
/// let answer = catalog
///     .call(Repeatable::Idempotent, |attempt| async move { Ok::<_, Down>(attempt.number) })
///     .await?;
/// assert_eq!(answer, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Dependency {
    gate: Arc<Gate>,
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependency").field("plan", self.plan()).finish_non_exhaustive()
    }
}

impl Dependency {
    /// Starts building the dependency called `name`.
    #[must_use]
    pub fn builder(name: impl Into<String>) -> DependencyBuilder {
        DependencyBuilder::from_plan(Plan::new(name))
    }

    /// The dependency that `plan` describes.
    ///
    /// # Errors
    /// [`BuildError`] lists every mistake of the plan.
    pub fn from_plan(plan: Plan) -> Result<Self, BuildError> {
        DependencyBuilder::from_plan(plan).build()
    }

    pub(crate) fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
    }

    pub(crate) const fn from_shared(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    /// The dependency's name, as in logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.gate.plan.dependency
    }

    /// The policies' values.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.gate.plan
    }

    /// The breaker's state now; `None` without a breaker.
    #[must_use]
    pub fn breaker_state(&self) -> Option<Phase> {
        self.gate.breaker_state(clock::now())
    }

    /// What goes on now, and what was counted since the start.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.gate.snapshot(clock::now())
    }

    /// The timeout of an attempt that the answers of the last minute or so ask for, with its reason, to
    /// be read by people and written into the plan: nothing is changed by it. `None` where the plan
    /// observes no latency ([`Plan::latency`]).
    #[must_use]
    pub fn timeout_advice(&self) -> Option<Result<Advice, NoAdvice>> {
        let latency = self.gate.policies.latency.as_ref()?;
        let Plan { retry, budget, .. } = self.plan();
        Some(Adviser::default().propose(clock::now(), latency, retry, *budget))
    }

    /// Keeps the circuit open until another order: nobody calls, whatever the window says. False where
    /// there is no breaker, or nothing to change.
    pub fn force_open(&self) -> bool {
        self.gate.order(|breaker| breaker.force_open(clock::now()))
    }

    /// Keeps the circuit closed until another order; verdicts are still counted. False where there is
    /// no breaker, or nothing to change.
    pub fn force_closed(&self) -> bool {
        self.gate.order(|breaker| breaker.force_closed(clock::now()))
    }

    /// Lets every call pass and counts nothing, until another order. False where there is no breaker,
    /// or nothing to change.
    pub fn disable_breaker(&self) -> bool {
        self.gate.order(|breaker| breaker.disable(clock::now()))
    }

    /// Takes the order back: the breaker decides again. False where there was none.
    pub fn automatic(&self) -> bool {
        self.gate.order(|breaker| breaker.automatic(clock::now()))
    }

    /// The plan, and where its policies stand: why the circuit is (not) open, what is left of the retry
    /// budget, who is in flight, and which timeout the observed latency asks for.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.gate.explain(clock::now())
    }

    /// Calls the dependency: `operation` makes one attempt each time it is called.
    ///
    /// The call ends at the deadline of the current [`crate::Context`] at the latest, and each
    /// attempt runs in a context whose deadline is the attempt's own. Dropping the future at any
    /// point, and a panic in `operation`, give back everything that was taken; a panic counts as a
    /// failure of the attempt, a drop has no verdict.
    ///
    /// # Errors
    /// [`CallError`] says which guard refused or how the last attempt failed.
    #[inline]
    pub fn call<T, E, F, Fut>(
        &self,
        repeatable: Repeatable,
        operation: F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        E: Classify,
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        driver::call(&self.gate, repeatable, operation)
    }

    /// [`Dependency::call`] whose attempts are not cancelled when their time is over or their caller
    /// goes away: with [`DependencyBuilder::detached`] they go on in the background to their end. For
    /// work that must not stop half-way. So does an attempt that lost to its hedge. What they come to is counted (`mamparo_detached_total`) and
    /// changes neither the call nor the circuit; the slot of the call is free again.
    ///
    /// Each attempt is boxed. A panic is never detached.
    ///
    /// # Errors
    /// As [`Dependency::call`].
    pub fn call_detached<T, E, F, Fut>(
        &self,
        repeatable: Repeatable,
        mut operation: F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        T: Send + 'static,
        E: Classify + Send + 'static,
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let gate = &self.gate;
        driver::call(gate, repeatable, move |attempt| {
            Detachable::new(Arc::clone(gate), operation(attempt))
        })
    }
}
