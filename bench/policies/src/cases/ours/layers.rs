//! The tower layers. Their policies are shared by `&'static` reference, as the rows of the combinators
//! share them; a clone of a policy costs one more reference count a call.

use mamparo_call::Repeatable;
use mamparo_call::policy::{
    BreakerPolicy, BulkheadPolicy, RateLimitPolicy, RetryPolicy, TimeoutPolicy,
};
use mamparo_call::tower::{
    BreakerLayer, BulkheadLayer, Cloned, RateLimitLayer, RetryLayer, TimeoutLayer,
};
use tower::{Layer as _, ServiceBuilder, service_fn};

use super::super::LONG;
use super::{breaker, bulkhead, rate, retry, tripped};
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later, no};

/// Every request may be sent again.
const REPLAY: Cloned = Cloned(Repeatable::Idempotent);

pub(super) fn cases() -> Vec<Case> {
    let value = Expect::Value;
    let timeout = TimeoutLayer::new(shared(TimeoutPolicy::new(LONG)));
    let retries = RetryLayer::new(shared(RetryPolicy::new(retry())), REPLAY);
    let slots = BulkheadLayer::new(shared(BulkheadPolicy::new(bulkhead())));
    let closed = BreakerLayer::new(shared(BreakerPolicy::new(breaker())));
    let owned = BreakerLayer::new(BreakerPolicy::new(breaker()));
    let open = BreakerLayer::new(shared(tripped()));
    let limit = RateLimitLayer::new(shared(RateLimitPolicy::new(rate())));
    let inner = || service_fn(answer);
    let mut cases = vec![
        Case::service("mamparo.deadline.layer", value, timeout.layer(inner())),
        Case::service(
            "mamparo.deadline.layer.yield",
            value,
            timeout.layer(service_fn(answer_later)),
        ),
        Case::service("mamparo.retry.layer", value, retries.layer(inner())),
        Case::service("mamparo.bulkhead.layer", value, slots.layer(inner())),
        Case::service("mamparo.breaker.layer", value, closed.layer(inner())),
        Case::service("mamparo.breaker.layer.owned", value, owned.layer(inner())),
        Case::service("mamparo.open.layer", Expect::Error, open.layer(inner())),
        Case::service("mamparo.rate_limit.layer", value, limit.layer(inner())),
    ];
    cases.extend(stacks());
    cases
}

/// Bulkhead > breaker > retry > timeout.
fn stacks() -> Vec<Case> {
    macro_rules! stack {
        ($breaker:expr, $inner:expr) => {
            ServiceBuilder::new()
                .layer(BulkheadLayer::new(shared(BulkheadPolicy::new(bulkhead()))))
                .layer(BreakerLayer::new(shared($breaker)))
                .layer(RetryLayer::new(shared(RetryPolicy::new(retry())), REPLAY))
                .layer(TimeoutLayer::new(shared(TimeoutPolicy::new(LONG))))
                .service(service_fn($inner))
        };
    }
    let closed = || BreakerPolicy::new(breaker());
    let value = Expect::Value;
    vec![
        Case::service("mamparo.stack.layers", value, stack!(closed(), answer)),
        Case::service("mamparo.stack.layers.yield", value, stack!(closed(), answer_later)),
        Case::service("mamparo.stack.layers.error", Expect::Error, stack!(closed(), no)),
        Case::service("mamparo.stack.layers.open", Expect::Error, stack!(tripped(), answer)),
    ]
}
