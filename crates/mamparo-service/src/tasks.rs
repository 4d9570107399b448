//! The only place that spawns.
//!
//! A task has a name, a role that says when it stops, and an owner: the service. A panic in any
//! task, and an unexpected end of an essential one, ends the process loudly. Nobody finds out days
//! later that the watchdog has been gone since Tuesday.

use std::any::Any;
use std::collections::BTreeMap;
use std::error::Error;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{ServiceError, observe};

/// What a task does for the service, which says when it is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Answers requests: stopped first, and awaited while requests in flight are finished.
    Server,
    /// Handles messages: stopped when no request is left, and awaited while messages are settled.
    Consumer,
    /// Relay, watchdog, jobs: stopped when no message is left, since messages feed the relay.
    Worker,
}

/// How a task ends: `()`, or a result whose error is logged.
pub trait TaskEnd: sealed::Sealed {
    /// The error, if it is one.
    #[doc(hidden)]
    fn into_error(self) -> Option<Box<dyn Error + Send + Sync>>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}

impl TaskEnd for () {
    fn into_error(self) -> Option<Box<dyn Error + Send + Sync>> {
        None
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> TaskEnd for Result<(), E> {
    fn into_error(self) -> Option<Box<dyn Error + Send + Sync>> {
        self.err().map(Into::into)
    }
}

/// The tasks of one service. Cheap to clone; clones are the same tasks.
#[derive(Debug, Clone)]
pub struct Tasks {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    service: String,
    servers: Group,
    consumers: Group,
    workers: Group,
    /// The first task that was lost, until somebody takes it.
    lost: Mutex<Option<ServiceError>>,
    /// Set with the first lost task.
    any_lost: CancellationToken,
}

#[derive(Debug, Default)]
struct Group {
    stop: CancellationToken,
    tracker: TaskTracker,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    tasks: BTreeMap<u64, (String, AbortHandle)>,
}

impl Tasks {
    /// No tasks yet, of the service called `service`.
    #[must_use]
    pub fn new(service: impl Into<String>) -> Self {
        let shared = Shared {
            service: service.into(),
            servers: Group::default(),
            consumers: Group::default(),
            workers: Group::default(),
            lost: Mutex::new(None),
            any_lost: CancellationToken::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Spawns a task that must run until its token is cancelled. Ending earlier, failing or
    /// panicking ends the process.
    ///
    /// Must be called inside a tokio runtime.
    pub fn spawn_essential<F, T>(
        &self,
        role: Role,
        name: impl Into<String>,
        task: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = T> + Send + 'static,
        T: TaskEnd,
    {
        self.start(role, name.into(), true, task);
    }

    /// Spawns a task that may end. An error that it ends with is logged; a panic ends the process.
    ///
    /// Must be called inside a tokio runtime.
    pub fn spawn<F, T>(
        &self,
        role: Role,
        name: impl Into<String>,
        task: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = T> + Send + 'static,
        T: TaskEnd,
    {
        self.start(role, name.into(), false, task);
    }

    /// The token that is cancelled when tasks of `role` are to stop.
    #[must_use]
    pub fn stop_token(&self, role: Role) -> CancellationToken {
        self.group(role).stop.clone()
    }

    /// The names of the tasks of `role` that still run.
    #[must_use]
    pub fn running(&self, role: Role) -> Vec<String> {
        let running = lock(&self.group(role).running);
        running.tasks.values().map(|(name, _)| name.clone()).collect()
    }

    /// Asks the tasks of `role` to stop.
    pub(crate) fn stop(&self, role: Role) {
        self.group(role).stop.cancel();
    }

    /// Completes when no task of `role` runs any more.
    pub(crate) async fn ended(&self, role: Role) {
        let group = self.group(role);
        group.tracker.close();
        group.tracker.wait().await;
    }

    /// Aborts what is left of `role`: its time is over, and pools are about to close.
    pub(crate) fn abort(&self, role: Role) -> Vec<String> {
        let running = std::mem::take(&mut lock(&self.group(role).running).tasks);
        running
            .into_values()
            .map(|(name, handle)| {
                handle.abort();
                name
            })
            .collect()
    }

    /// Completes with the first task that was lost.
    pub(crate) async fn lost(&self) -> ServiceError {
        self.shared.any_lost.cancelled().await;
        match self.take_lost() {
            Some(error) => error,
            // It was taken already; there is no second first.
            None => std::future::pending().await,
        }
    }

    /// The first task that was lost, if any was and nobody took it.
    pub(crate) fn take_lost(&self) -> Option<ServiceError> {
        lock(&self.shared.lost).take()
    }

    fn group(&self, role: Role) -> &Group {
        match role {
            Role::Server => &self.shared.servers,
            Role::Consumer => &self.shared.consumers,
            Role::Worker => &self.shared.workers,
        }
    }

    fn start<F, T>(
        &self,
        role: Role,
        name: String,
        essential: bool,
        task: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) where
        F: Future<Output = T> + Send + 'static,
        T: TaskEnd,
    {
        let (tasks, group) = (self.clone(), self.group(role));
        let stop = group.stop.clone();
        // The lock is held until the task stands in the list, so that it can't leave it before.
        let mut running = lock(&group.running);
        let id = running.next;
        running.next += 1;
        let listed = name.clone();
        let handle = group.tracker.spawn(async move {
            let work = AssertUnwindSafe(async { task(stop.clone()).await.into_error() });
            let end = work.catch_unwind().await;
            tasks.ended_with(&name, essential && !stop.is_cancelled(), end);
            lock(&tasks.group(role).running).tasks.remove(&id);
        });
        running.tasks.insert(id, (listed, handle.abort_handle()));
    }

    fn ended_with(
        &self,
        name: &str,
        needed: bool,
        end: Result<Option<Box<dyn Error + Send + Sync>>, Box<dyn Any + Send>>,
    ) {
        let task = name.to_owned();
        let error = match end {
            Err(panic) => {
                ServiceError::TaskPanicked { task, message: panic_message(panic.as_ref()) }
            }
            Ok(Some(source)) if needed => ServiceError::TaskFailed { task, source },
            Ok(Some(error)) => {
                return observe::task_failed(&self.shared.service, name, error.as_ref());
            }
            Ok(None) if needed => ServiceError::TaskEnded { task },
            Ok(None) => return,
        };
        observe::lost(&self.shared.service, &error);
        lock(&self.shared.lost).get_or_insert(error);
        self.shared.any_lost.cancel();
    }
}

/// What a panic said, where it said it in words.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

/// A panic elsewhere doesn't make these lists wrong: each change to them is one statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
