//! The only place of this crate that speaks to logs and metrics about policies.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `mamparo_http_client_requests_total` | counter | `service`, `dependency`, `outcome` |
//! | `mamparo_http_client_request_duration_seconds` | histogram | `service`, `dependency` |
//! | `mamparo_attempts_after_deadline_total` | counter, stays 0 | `service`, `dependency` |
//! | `mamparo_http_server_requests_total` | counter | `route`, `method`, `status` |
//! | `mamparo_http_server_request_duration_seconds` | histogram | `route`, `method` |
//! | `mamparo_http_server_refusals_total` | counter | `reason` |
//! | `mamparo_http_server_shed_total` | counter | `criticality` |
//! | `mamparo_http_server_levels_refused` | gauge, 0 to 5 | |
//! | `mamparo_http_server_panics_total` | counter | |
//! | `mamparo_idempotency_total` | counter | `outcome` |

use std::time::Duration;

use mamparo_call::{Dependency, clock};
use mamparo_core::call::shed::{Change, Criticality};
use mamparo_core::time::Moment;
use metrics::{counter, gauge, histogram};

/// The counter that must stay 0 is visible from the start, so that an alert has something to watch.
pub(crate) fn register_client(dependency: &Dependency) {
    after_deadline(dependency).increment(0);
}

pub(crate) fn sent_after_deadline(dependency: &Dependency) {
    after_deadline(dependency).increment(1);
    tracing::error!(dependency = dependency.name(), "a request left after its deadline");
}

fn after_deadline(dependency: &Dependency) -> metrics::Counter {
    let plan = dependency.plan();
    counter!(
        "mamparo_attempts_after_deadline_total",
        "service" => plan.service.clone(), "dependency" => plan.dependency.clone()
    )
}

/// One attempt under way. Dropped without an outcome, it was cut off: by its limit, or because
/// the caller is gone.
#[derive(Debug)]
pub(crate) struct Attempted<'a> {
    dependency: &'a Dependency,
    number: u32,
    started: Moment,
    outcome: &'static str,
}

impl<'a> Attempted<'a> {
    pub(crate) fn new(dependency: &'a Dependency, number: u32, started: Moment) -> Self {
        Self { dependency, number, started, outcome: "cut-off" }
    }

    /// It came to an end: `success`, or the reason why it did not.
    pub(crate) fn finished(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Attempted<'_> {
    fn drop(&mut self) {
        let plan = self.dependency.plan();
        let (service, dependency) = (plan.service.clone(), plan.dependency.clone());
        let took = clock::now().since(self.started);
        counter!(
            "mamparo_http_client_requests_total",
            "service" => service.clone(), "dependency" => dependency.clone(),
            "outcome" => self.outcome
        )
        .increment(1);
        histogram!(
            "mamparo_http_client_request_duration_seconds",
            "service" => service, "dependency" => dependency
        )
        .record(took);
        tracing::debug!(
            dependency = plan.dependency,
            outcome = self.outcome,
            took_ms = took.as_secs_f64() * 1e3,
            "http.request.resend_count" = resend_count(self.number),
            "request sent"
        );
    }
}

/// OpenTelemetry's attribute: 1 on the second send, and absent on the first.
const fn resend_count(number: u32) -> Option<u32> {
    if number > 1 { Some(number - 1) } else { None }
}

/// A request that the server's own guards turned away.
pub(crate) fn refused(reason: &'static str) {
    counter!("mamparo_http_server_refusals_total", "reason" => reason).increment(1);
    tracing::warn!(reason, "request refused");
}

/// A request that was refused to keep more important ones alive. Many are, when it happens, and a log
/// line for each would be work of the kind that is being saved: [`shedding`] logs the change.
pub(crate) fn shed(criticality: Criticality) {
    counter!("mamparo_http_server_refusals_total", "reason" => "shed").increment(1);
    counter!("mamparo_http_server_shed_total", "criticality" => criticality.slug()).increment(1);
}

/// Other levels are refused than before.
pub(crate) fn shedding(change: Change) {
    let levels = change.to.map_or(0, |level| level.index() + 1);
    gauge!("mamparo_http_server_levels_refused").set(levels as f64);
    let (from, to) = (change.from.map(Criticality::slug), change.to.map(Criticality::slug));
    tracing::warn!(from, to, "load shedding refuses up to another level");
}

/// A request that was answered, by whomever.
pub(crate) fn answered(route: &str, method: &http::Method, status: u16, took: Duration) {
    let (route, method) = (route.to_owned(), method_label(method));
    counter!(
        "mamparo_http_server_requests_total",
        "route" => route.clone(), "method" => method, "status" => status.to_string()
    )
    .increment(1);
    histogram!(
        "mamparo_http_server_request_duration_seconds",
        "route" => route, "method" => method
    )
    .record(took);
    tracing::debug!(status, took_ms = took.as_secs_f64() * 1e3, "request answered");
}

/// Methods are the caller's to invent, label values are not.
fn method_label(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "_OTHER",
    }
}

pub(crate) fn panicked(what: &str) {
    counter!("mamparo_http_server_panics_total").increment(1);
    tracing::error!(panic = what, "the handler panicked");
}

pub(crate) fn idempotency(outcome: &'static str) {
    counter!("mamparo_idempotency_total", "outcome" => outcome).increment(1);
    tracing::debug!(outcome, "idempotency key");
}

pub(crate) fn store_failed(error: &mamparo_store::StoreError) {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::error!(%error, cause, "the store failed the request");
}

pub(crate) fn unexpected(error: &dyn std::error::Error) {
    let cause = error.source().map(ToString::to_string);
    tracing::error!(%error, cause, "a call ended in a way that it can't");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::resend_count;

    /// The `mamparo_…` names in those lines that are documentation, or in those that are not.
    fn names(documentation: bool) -> BTreeSet<&'static str> {
        let source = include_str!("observe.rs").split("#[cfg(test)]").next().unwrap();
        source
            .lines()
            .filter(|line| line.starts_with("//!") == documentation)
            .flat_map(|line| {
                line.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_')
            })
            .filter(|word| word.starts_with("mamparo_") && word.len() > "mamparo_store".len())
            .collect()
    }

    #[test]
    fn the_first_send_is_no_resend() {
        assert_eq!([1, 2, 3].map(resend_count), [None, Some(1), Some(2)]);
    }

    #[test]
    fn the_table_of_metrics_and_the_code_name_the_same() {
        assert_eq!(names(true), names(false));
        assert_eq!(names(true).len(), 10);
    }
}
