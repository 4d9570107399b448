//! The headers that tie a request to the one that caused it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use mamparo_call::Context;
use mamparo_core::call::shed::Criticality;
use mamparo_core::time::Moment;

use crate::trace_context::Traceparent;
use crate::{headers, ids};

/// What every attempt of one call carries alike.
#[derive(Debug)]
pub(super) struct Carried {
    request_id: String,
    trace: Traceparent,
    tracestate: Option<Arc<str>>,
    client: Option<Arc<str>>,
    criticality: Criticality,
}

impl Carried {
    /// From the context; a call outside of any request starts its own id and trace.
    pub(super) fn of(context: &Context) -> Self {
        let request_id =
            context.request_id.as_ref().map_or_else(ids::new_request_id, |id| id.to_string());
        let parent = context.traceparent.as_deref().and_then(Traceparent::parse);
        Self {
            request_id,
            trace: parent.unwrap_or_else(Traceparent::root),
            // The state belongs to the trace: without a parent there is none to pass on.
            tracestate: parent.and_then(|_| context.tracestate.clone()),
            client: context.client.clone(),
            criticality: context.criticality,
        }
    }

    pub(super) fn write(
        &self,
        to: &mut HeaderMap,
        number: u32,
        deadline: Option<Moment>,
        now: Moment,
    ) {
        let mut put = |name: HeaderName, text: &str| {
            // Ids come validated from the edge; one that can't be a header is simply not sent.
            if let Ok(value) = HeaderValue::from_str(text) {
                to.insert(name, value);
            }
        };
        put(headers::REQUEST_ID, &self.request_id);
        put(headers::TRACEPARENT, &self.trace.child().to_string());
        if let Some(state) = &self.tracestate {
            put(headers::TRACESTATE, state);
        }
        if let Some(client) = &self.client {
            put(headers::CLIENT_ID, client);
        }
        put(headers::CRITICALITY, self.criticality.slug());
        put(headers::ATTEMPT, &number.to_string());
        if let Some(deadline) = deadline {
            put(headers::REQUEST_TIMEOUT_MS, &whole_millis(now.until(deadline)).to_string());
        }
    }
}

/// Rounded down: never promise a callee more time than there is.
fn whole_millis(left: Duration) -> u64 {
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}
