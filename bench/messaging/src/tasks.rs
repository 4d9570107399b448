//! Tasks beside the measured one. Each is awaited by the measurement that began it.

use std::future::Future;

use tokio::task::JoinHandle;

use crate::{Error, Result};

/// A task whose end its owner awaits with [`Task::end`]. Dropped before that, it is cut off, so that a
/// measurement that failed leaves nothing running behind the next one.
#[derive(Debug)]
pub(crate) struct Task<T>(Option<JoinHandle<T>>);

impl<T> Task<T> {
    /// What the task returned.
    pub(crate) async fn end(mut self) -> Result<T> {
        let Some(handle) = self.0.as_mut() else { return Err(Error::from("await a task twice")) };
        let ended = handle.await;
        self.0 = None;
        Ok(ended?)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take() {
            handle.abort();
        }
    }
}

/// Begins a task.
#[expect(clippy::disallowed_methods, reason = "the measurement that spawns it awaits it")]
pub(crate) fn begin<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    Task(Some(tokio::spawn(future)))
}
