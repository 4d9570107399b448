//! One dependency: its plan, its shared policies, and the loop that drives a call.

use std::future::Future;
use std::time::Duration;

use mamparo_core::outcome::Repeatable;
use mamparo_core::time::Moment;

use crate::{CallError, Classify};

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

/// Something that this process calls, with the policies that stand in front of it.
///
/// Cheap to clone; clones share breaker, bulkhead and limits.
#[derive(Debug, Clone)]
pub struct Dependency {}

/// Builds a [`Dependency`]; every mistake is reported at once by [`DependencyBuilder::build`].
#[derive(Debug)]
pub struct DependencyBuilder {}

impl Dependency {
    /// Starts building the dependency called `name`.
    #[must_use]
    pub fn builder(_name: impl Into<String>) -> DependencyBuilder {
        todo!()
    }

    /// The dependency's name, as in logs and metrics.
    #[must_use]
    pub fn name(&self) -> &str {
        todo!()
    }

    /// Calls the dependency: `operation` makes one attempt each time it is called.
    ///
    /// # Errors
    /// [`CallError`] says which guard refused or how the last attempt failed.
    pub async fn call<T, E, F, Fut>(
        &self,
        _repeatable: Repeatable,
        _operation: F,
    ) -> Result<T, CallError<E>>
    where
        E: Classify,
        F: FnMut(Attempt) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        todo!()
    }
}

impl DependencyBuilder {
    /// Longest that one attempt may take.
    #[must_use]
    pub fn attempt_timeout(self, _timeout: Duration) -> Self {
        todo!()
    }
}
