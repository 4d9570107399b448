//! The tower layers. Their policies are shared by reference, as the rows of the combinators share
//! them.

use mamparo_call::Repeatable;
use mamparo_call::policy::{RetryPolicy, TimeoutPolicy};
use mamparo_call::tower::{Cloned, RetryLayer, TimeoutLayer};
use tower::{Layer as _, service_fn};

use super::super::LONG;
use super::retry;
use crate::case::{Case, Expect, shared};
use crate::work::{answer, answer_later};

pub(super) fn cases() -> Vec<Case> {
    let value = Expect::Value;
    let timeout = TimeoutLayer::new(shared(TimeoutPolicy::new(LONG)));
    let replay = Cloned(Repeatable::Idempotent);
    let retry = RetryLayer::new(shared(RetryPolicy::new(retry())), replay);
    vec![
        Case::service("mamparo.deadline.layer", value, timeout.layer(service_fn(answer))),
        Case::service(
            "mamparo.deadline.layer.yield",
            value,
            timeout.layer(service_fn(answer_later)),
        ),
        Case::service("mamparo.retry.layer", value, retry.layer(service_fn(answer))),
    ]
}
