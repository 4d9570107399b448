//! What travels with a request through tasks: its deadline, its ids, its caller.
//!
//! The context is task-local. Servers open it at the edge, consumers open it per message, and every
//! outgoing call reads it. Nobody passes deadlines by hand, so nobody forgets to.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mamparo_core::time::Moment;

tokio::task_local! {
    static CURRENT: Context;
}

/// The context of the request or message that is being worked on.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// When the caller stops waiting; `None` when nobody waits.
    pub deadline: Option<Moment>,
    /// `x-request-id`: the same from the edge to the last message.
    pub request_id: Option<Arc<str>>,
    /// W3C `traceparent` of the current span.
    pub traceparent: Option<Arc<str>>,
    /// W3C `tracestate`, passed on untouched.
    pub tracestate: Option<Arc<str>>,
    /// Who asked, as the edge has established it; the scope of idempotency keys and rate limits.
    pub client: Option<Arc<str>>,
}

impl Context {
    /// The current task's context; an empty one outside of any.
    #[must_use]
    pub fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or_default()
    }

    /// The current task's deadline, without cloning the rest.
    #[must_use]
    pub fn current_deadline() -> Option<Moment> {
        CURRENT.try_with(|context| context.deadline).ok().flatten()
    }

    /// Runs `future` in this context.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// This context with a deadline that is no later than `moment`: deadlines only shrink.
    #[must_use]
    pub fn with_deadline(mut self, moment: Moment) -> Self {
        self.deadline = Some(self.deadline.map_or(moment, |present| present.min(moment)));
        self
    }

    /// This context with at most `budget` left from `now`.
    #[must_use]
    pub fn with_budget(self, now: Moment, budget: Duration) -> Self {
        self.with_deadline(now.plus(budget))
    }

    /// What is left at `now`; `None` without a deadline.
    #[must_use]
    pub fn left(&self, now: Moment) -> Option<Duration> {
        self.deadline.map(|deadline| now.until(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn deadlines_only_shrink_and_follow_the_task() {
        let now = Moment::from_millis(1_000);
        let outer = Context::default().with_budget(now, Duration::from_secs(5));
        outer
            .scope(async {
                let inner = Context::current().with_budget(now, Duration::from_secs(9));
                assert_eq!(inner.left(now), Some(Duration::from_secs(5)));
                let inner = inner.with_budget(now, Duration::from_secs(2));
                inner
                    .scope(async {
                        let left = Context::current().left(now);
                        assert_eq!(left, Some(Duration::from_secs(2)));
                    })
                    .await;
                assert_eq!(Context::current().left(now), Some(Duration::from_secs(5)));
            })
            .await;
        assert_eq!(Context::current_deadline(), None);
    }
}
