//! A message as consumers see it.

use mamparo_call::Context;
use mamparo_core::message::delivery::Answer;
use mamparo_core::message::headers::{self, Headers};
use mamparo_store::outbox::Event;
use mamparo_store::queue::QueueMessage;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::MessagingError;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Unique, kept over retries, dead letters and replays; what the inbox deduplicates by.
    pub id: String,
    /// The event type, `order.created` say. Dispatch on this, never on the routing key.
    pub kind: String,
    /// What order is kept by, the order's id say; empty for none.
    pub key: String,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The routing key it was first published with.
    pub routing_key: String,
    /// Its headers.
    pub headers: Headers,
    /// The body, untouched.
    pub body: Vec<u8>,
}

impl Message {
    /// The body as JSON.
    ///
    /// # Errors
    /// [`Answer::Undecodable`], so that a handler can pass it on with `?`: a body that can't be
    /// read once can't be read five times.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Answer> {
        serde_json::from_slice(&self.body).map_err(|error| Answer::Undecodable {
            reason: format!("decode {} as JSON: {error}", self.kind),
        })
    }

    /// A header's value, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        headers::get(&self.headers, name)
    }

    /// The context that this message is handled in: the request and trace that it belongs to.
    #[must_use]
    pub fn context(&self) -> Context {
        Context {
            request_id: self.header(headers::REQUEST_ID).map(Into::into),
            traceparent: self.header(headers::TRACEPARENT).map(Into::into),
            tracestate: self.header(headers::TRACESTATE).map(Into::into),
            ..Context::default()
        }
    }
}

/// An outbox event of type `kind` about `key`, with `payload` as its JSON body and the request id
/// and trace of the current [`Context`] as headers.
///
/// # Errors
/// [`MessagingError::Encode`] when `payload` is not JSON (a map with keys that are no strings, say).
pub fn event(kind: &str, key: &str, payload: &impl Serialize) -> Result<Event, MessagingError> {
    let body = serde_json::to_vec(payload)
        .map_err(|source| MessagingError::Encode { kind: kind.to_owned(), source })?;
    let mut event = Event::new(kind, key, body);
    let context = Context::current();
    let carried = [
        (headers::REQUEST_ID, context.request_id),
        (headers::TRACEPARENT, context.traceparent),
        (headers::TRACESTATE, context.tracestate),
    ];
    for (name, value) in carried {
        if let Some(value) = value {
            event.headers.insert(name.to_owned(), value.to_string());
        }
    }
    Ok(event)
}

impl Message {
    /// The message that carries `event`: published to `exchange` with its type as routing key.
    #[must_use]
    pub fn from_event(event: Event, exchange: &str) -> Self {
        Self {
            routing_key: event.kind.clone(),
            exchange: exchange.to_owned(),
            id: event.id,
            kind: event.kind,
            key: event.key,
            headers: event.headers,
            body: event.body,
        }
    }

    /// This message with other headers.
    #[must_use]
    pub fn with_headers(&self, headers: Headers) -> Self {
        Self { headers, ..self.clone() }
    }
}

impl From<QueueMessage> for Message {
    fn from(row: QueueMessage) -> Self {
        let QueueMessage { id, kind, exchange, routing_key, key, headers, body } = row;
        Self { id, kind, key, exchange, routing_key, headers, body }
    }
}

impl From<Message> for QueueMessage {
    fn from(message: Message) -> Self {
        let Message { id, kind, key, exchange, routing_key, headers, body } = message;
        Self { id, kind, exchange, routing_key, key, headers, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_event_carries_the_request_and_trace_that_caused_it() {
        let context = Context {
            request_id: Some("r-1".into()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            ..Context::default()
        };
        let event = context
            .scope(async { event("order.created", "o-1", &serde_json::json!({"id": 1})) })
            .await
            .unwrap();
        let message = Message::from_event(event, "events");
        assert_eq!(message.routing_key, "order.created");
        assert_eq!(message.context().request_id.as_deref(), Some("r-1"));
        assert!(message.context().traceparent.is_some());
        assert_eq!(message.decode::<serde_json::Value>().unwrap()["id"], 1);
    }

    #[test]
    fn lesson_k08_a_body_that_cannot_be_read_is_undecodable_at_once() {
        let message = Message::from_event(Event::new("x", "k", b"{nope".to_vec()), "events");
        let answer = message.decode::<serde_json::Value>().unwrap_err();
        assert!(matches!(answer, Answer::Undecodable { .. }), "{answer:?}");
    }
}
