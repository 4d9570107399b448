//! What travels with a request through tasks: its deadline, its ids, its caller.
//!
//! The context is task-local. Servers open it at the edge, consumers open it per message, and every
//! outgoing call reads it. Nobody passes deadlines by hand, so nobody forgets to.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mamparo_core::call::shed::Criticality;
use mamparo_core::time::Moment;
use pin_project_lite::pin_project;

tokio::task_local! {
    /// All but the deadline, which each attempt narrows.
    static CURRENT: Context;
}

thread_local! {
    /// The deadline of the future that this thread polls at the moment. A number of its own, so that
    /// an attempt narrows it without touching the reference counts of the ids.
    static DEADLINE: Cell<Option<Moment>> = const { Cell::new(None) };
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
    /// How much the request matters: under load the least important is refused first, here and in
    /// every service that is called for it. Work of less importance that a request sets off (a
    /// prefetch, say) runs in a context that says so.
    pub criticality: Criticality,
}

impl Context {
    /// The current task's context; an empty one outside of any.
    #[must_use]
    pub fn current() -> Self {
        let context = CURRENT.try_with(Self::clone).unwrap_or_default();
        Self { deadline: Self::current_deadline(), ..context }
    }

    /// The current task's deadline, without cloning the rest.
    #[must_use]
    #[inline]
    pub fn current_deadline() -> Option<Moment> {
        DEADLINE.get()
    }

    /// How much the current task's request matters, without cloning the rest.
    #[must_use]
    pub fn current_criticality() -> Criticality {
        CURRENT.try_with(|context| context.criticality).unwrap_or_default()
    }

    /// Runs `future` in this context.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        let deadline = self.deadline;
        CURRENT.scope(self, Scoped { future, deadline }).await
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

/// Runs `work` with `deadline` as the current one and puts the present one back, after a panic too.
#[inline]
pub(crate) fn with_deadline<T>(deadline: Option<Moment>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Moment>);
    impl Drop for Restore {
        #[inline]
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _restore = Restore(DEADLINE.replace(deadline));
    work()
}

pin_project! {
    /// A future with a deadline of its own for whatever it calls.
    struct Scoped<F> {
        #[pin]
        future: F,
        deadline: Option<Moment>,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        with_deadline(*this.deadline, || this.future.poll(cx))
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

    #[tokio::test]
    async fn tasks_that_take_turns_on_a_thread_keep_their_own_deadlines() {
        let task = |millis| {
            Context::default().with_deadline(Moment::from_millis(millis)).scope(async move {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                    assert_eq!(Context::current_deadline(), Some(Moment::from_millis(millis)));
                }
            })
        };
        tokio::join!(task(1), task(2), async {
            tokio::task::yield_now().await;
            assert_eq!(Context::current_deadline(), None);
        });
    }

    #[test]
    fn a_panic_leaves_no_deadline_behind() {
        let caught = std::panic::catch_unwind(|| {
            with_deadline(Some(Moment::ORIGIN), || assert_eq!(1, 2, "a bug"));
        });
        caught.expect_err("it panicked");
        assert_eq!(Context::current_deadline(), None);
    }
}
