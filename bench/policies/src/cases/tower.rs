//! tower's own middleware. It has no breaker, so its stack has three layers.

use std::future::{Ready, ready};
use std::sync::Arc;

use tower::retry::Policy;
use tower::retry::budget::{Budget as _, TpsBudget};
use tower::{ServiceBuilder, service_fn};

use super::{LONG, SLOTS};
use crate::case::{Case, Expect};
use crate::work::{answer, answer_later, no};

pub(super) fn cases() -> Vec<Case> {
    let value = Expect::Value;
    let build = ServiceBuilder::new;
    let stack = |attempts| build().concurrency_limit(SLOTS).retry(Attempts(attempts)).timeout(LONG);
    let budget = Arc::new(TpsBudget::default());
    vec![
        Case::service("tower.timeout", value, build().timeout(LONG).service(service_fn(answer))),
        Case::service("tower.retry", value, build().retry(Attempts(3)).service(service_fn(answer))),
        Case::service(
            "tower.retry.budget",
            value,
            build().retry(Budgeted(budget)).service(service_fn(answer)),
        ),
        Case::service(
            "tower.concurrency_limit",
            value,
            build().concurrency_limit(SLOTS).service(service_fn(answer)),
        ),
        Case::service("tower.stack", value, stack(3).service(service_fn(answer))),
        Case::service("tower.stack.yield", value, stack(3).service(service_fn(answer_later))),
        Case::service("tower.stack.error", Expect::Error, stack(1).service(service_fn(no))),
    ]
}

/// At most so many attempts. In the row with an error one attempt is all, so that it costs one call.
#[derive(Debug, Clone)]
struct Attempts(usize);

impl<T, E> Policy<u64, T, E> for Attempts {
    type Future = Ready<()>;

    fn retry(&mut self, _request: &mut u64, result: &mut Result<T, E>) -> Option<Self::Future> {
        if result.is_ok() || self.0 <= 1 {
            return None;
        }
        self.0 -= 1;
        Some(ready(()))
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}

/// Repeats as the budget allows, and pays in on success.
#[derive(Debug, Clone)]
struct Budgeted(Arc<TpsBudget>);

impl<T, E> Policy<u64, T, E> for Budgeted {
    type Future = Ready<()>;

    fn retry(&mut self, _request: &mut u64, result: &mut Result<T, E>) -> Option<Self::Future> {
        if result.is_ok() {
            self.0.deposit();
            return None;
        }
        self.0.withdraw().then(|| ready(()))
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}
