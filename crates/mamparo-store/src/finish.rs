//! Work that must come to its end although nobody waits for it any more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;

/// A future that goes on by itself when it is dropped before its end.
///
/// For BEGIN: the driver (sqlx 0.9) knows of a transaction only once the answer to its BEGIN has
/// come. A caller who is gone by then (a client hung up, a handler's time was over) would leave the
/// connection to the pool with a transaction open on the server, and the next user's statements
/// would never be committed. Carried to its end, it is rolled back like any that is dropped.
///
/// A server that has vanished never answers, and the connection's place in the pool would be gone for
/// good. So it may be given up after a limit, where whoever gets a connection whose transaction has
/// opened after all can do no harm: a relay's reports may be lost, because they are made again.
pub(crate) struct ToItsEnd<T: Send + 'static> {
    future: Option<Boxed<T>>,
    limit: Option<Duration>,
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T: Send + 'static> ToItsEnd<T> {
    /// Carries `future` to its end, for no longer than `limit` after it was dropped.
    pub(crate) fn new(future: Boxed<T>, limit: Option<Duration>) -> Self {
        Self { future: Some(future), limit }
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.future else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        // Without a runtime the connection is closed with it.
        let limit = self.limit;
        if let (Some(future), Ok(runtime)) = (self.future.take(), Handle::try_current()) {
            #[expect(
                clippy::disallowed_methods,
                reason = "a destructor can't wait; the pool does the same for its connections, and the \
                          task ends with the answer that it waits for"
            )]
            runtime.spawn(async move {
                match limit {
                    Some(limit) => drop(tokio::time::timeout(limit, future).await),
                    None => drop(future.await),
                }
            });
        }
    }
}
