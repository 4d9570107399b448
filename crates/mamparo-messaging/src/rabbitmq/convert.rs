//! Messages as AMQP properties and back.
//!
//! | ours | on the wire |
//! |---|---|
//! | id, kind | `message_id`, `type` |
//! | key, first exchange, first routing key | headers `x-key`, `x-exchange`, `x-routing-key` |
//! | headers named in [`PROPERTIES`] | the property of that name |
//! | other headers | headers, as text |
//! | always | delivery mode 2 (persistent), `timestamp`, `content_type` (`application/json` when unsaid) |
//!
//! The message of a publisher that is none of ours is read without complaint. A missing id is
//! derived from everything that stays the same when it is delivered again: see [`derived_id`].

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use mamparo_core::message::headers::{self, Headers};
use mamparo_core::time::WallTime;
use sha2::{Digest as _, Sha256};

use crate::Message;

/// Carries [`Message::key`].
pub(crate) const KEY: &str = "x-key";
/// Carries [`Message::exchange`].
pub(crate) const EXCHANGE: &str = "x-exchange";
/// Carries [`Message::routing_key`].
pub(crate) const ROUTING_KEY: &str = "x-routing-key";

/// Headers that are AMQP properties on the wire. They survive a retry as everything else does.
pub(crate) const PROPERTIES: [&str; 6] =
    ["content-type", "content-encoding", "correlation-id", "reply-to", "app-id", "priority"];

/// Longest name or short string in AMQP, in bytes.
const SHORT_MAX: usize = 255;

/// Most bytes of headers: they go into one frame, of 128 KiB by default, and a larger one makes the
/// broker close the whole connection. The rest is room for the properties beside them.
pub(crate) const HEADER_BYTES_MAX: usize = 120 * 1_024;

/// A message ready to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// The message for the wire, or why AMQP can't carry it.
pub(super) fn outgoing(
    exchange: &str,
    routing_key: &str,
    message: &Message,
    now: WallTime,
) -> Result<Outgoing, String> {
    let mut carried = headers::carried(&message.headers);
    let mut properties = BasicProperties::default()
        .with_message_id(short("the message id", &message.id)?)
        .with_type(short("the message type", &message.kind)?)
        .with_timestamp(u64::try_from(now.unix_millis() / 1_000).unwrap_or_default())
        .with_content_type("application/json".into())
        .with_delivery_mode(2);
    for name in PROPERTIES {
        let Some(value) = headers::get(&carried, name) else { continue };
        let with = |value| short(name, value);
        properties = match name {
            "content-type" => properties.with_content_type(with(value)?),
            "content-encoding" => properties.with_content_encoding(with(value)?),
            "correlation-id" => properties.with_correlation_id(with(value)?),
            "reply-to" => properties.with_reply_to(with(value)?),
            "app-id" => properties.with_app_id(with(value)?),
            _ => match value.trim().parse() {
                Ok(priority) => properties.with_priority(priority),
                // No priority at all, so it stays a header.
                Err(_) => continue,
            },
        };
        headers::remove(&mut carried, name);
    }
    let own =
        [(KEY, &message.key), (EXCHANGE, &message.exchange), (ROUTING_KEY, &message.routing_key)];
    for (name, value) in own {
        if value.is_empty() {
            headers::remove(&mut carried, name);
        } else {
            headers::set(&mut carried, name, value);
        }
    }
    let bytes: usize = carried.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    if bytes > HEADER_BYTES_MAX {
        return Err(format!("its headers take {bytes} bytes; at most {HEADER_BYTES_MAX} fit"));
    }
    let mut table = FieldTable::default();
    for (name, value) in carried {
        table.insert(
            short("a header's name", &name)?,
            AMQPValue::LongString(LongString::from(value)),
        );
    }
    Ok(Outgoing {
        exchange: short("the exchange", exchange)?,
        routing_key: short("the routing key", routing_key)?,
        properties: properties.with_headers(table),
    })
}

fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text)
        .map_err(|_| format!("{what} has {} bytes; AMQP allows {SHORT_MAX}", text.len()))
}

/// A delivery as our message, whoever published it.
pub(super) fn incoming(
    exchange: &str,
    routing_key: &str,
    properties: &BasicProperties,
    body: Vec<u8>,
) -> Message {
    let mut read = Headers::new();
    let mut own = [None, None, None];
    for (name, value) in properties.headers().iter().flatten() {
        let name = name.as_str();
        match [KEY, EXCHANGE, ROUTING_KEY].iter().position(|own| own.eq_ignore_ascii_case(name)) {
            Some(place) => own[place] = Some(text_of(value)),
            None if headers::travels(name) => {
                read.insert(name.to_owned(), text_of(value));
            }
            None => {}
        }
    }
    let [key, first_exchange, first_routing_key] = own;
    let key = key.unwrap_or_default();
    let exchange = first_exchange.unwrap_or_else(|| exchange.to_owned());
    let routing_key = first_routing_key.unwrap_or_else(|| routing_key.to_owned());
    let values = [
        text(properties.content_type()).filter(|kind| kind != "application/json"),
        text(properties.content_encoding()),
        text(properties.correlation_id()),
        text(properties.reply_to()),
        text(properties.app_id()),
        properties.priority().map(|priority| priority.to_string()),
    ];
    for (name, value) in PROPERTIES.into_iter().zip(values) {
        if let Some(value) = value {
            headers::set(&mut read, name, value);
        }
    }
    let kind = text(properties.kind()).unwrap_or_else(|| routing_key.clone());
    let timestamp = *properties.timestamp();
    let mut message =
        Message { id: String::new(), kind, key, exchange, routing_key, headers: read, body };
    message.id = text(properties.message_id()).unwrap_or_else(|| derived_id(&message, timestamp));
    message
}

fn text(property: &Option<ShortString>) -> Option<String> {
    property.as_ref().map(ToString::to_string).filter(|text| !text.is_empty())
}

/// The id of a message that has none: `derived-` and the first 32 hexadecimal digits of the SHA-256
/// of exchange, routing key, type, key, timestamp, headers (the broker's own left out) and body.
///
/// It is the same each time the message is delivered, so the inbox knows it again. Two messages that
/// agree in all of this are one to it; a publisher that means two sets `message_id`.
fn derived_id(message: &Message, timestamp: Option<u64>) -> String {
    let mut hash = Sha256::new();
    let mut feed = |part: &[u8]| {
        // The length first, so that no two lists of parts look alike.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    };
    feed(message.exchange.as_bytes());
    feed(message.routing_key.as_bytes());
    feed(message.kind.as_bytes());
    feed(message.key.as_bytes());
    feed(&timestamp.unwrap_or_default().to_be_bytes());
    for (name, value) in &message.headers {
        feed(name.as_bytes());
        feed(value.as_bytes());
    }
    feed(&message.body);
    let mut id = String::from("derived-");
    for byte in hash.finalize().iter().take(16) {
        id.push_str(&format!("{byte:02x}"));
    }
    id
}

/// Any header value as text. Bytes that are no UTF-8 become U+FFFD, arrays and tables JSON.
pub(super) fn text_of(value: &AMQPValue) -> String {
    match json_of(value) {
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        json @ (serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_)) => json.to_string(),
    }
}

fn json_of(value: &AMQPValue) -> serde_json::Value {
    use serde_json::Value;
    match value {
        AMQPValue::Boolean(yes) => (*yes).into(),
        AMQPValue::ShortShortInt(n) => (*n).into(),
        AMQPValue::ShortShortUInt(n) => (*n).into(),
        AMQPValue::ShortInt(n) => (*n).into(),
        AMQPValue::ShortUInt(n) => (*n).into(),
        AMQPValue::LongInt(n) => (*n).into(),
        AMQPValue::LongUInt(n) => (*n).into(),
        AMQPValue::LongLongInt(n) => (*n).into(),
        AMQPValue::Float(n) => number(f64::from(*n)),
        AMQPValue::Double(n) => number(*n),
        AMQPValue::DecimalValue(n) => Value::String(format!("{}e-{}", n.value, n.scale)),
        AMQPValue::Timestamp(seconds) => (*seconds).into(),
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(json_of).collect(),
        AMQPValue::FieldTable(table) => {
            let pairs = table.into_iter().map(|(name, value)| (name.to_string(), json_of(value)));
            Value::Object(pairs.collect())
        }
        AMQPValue::Void => Value::Null,
        AMQPValue::ShortString(text) => text.to_string().into(),
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into(),
        AMQPValue::ByteArray(bytes) => String::from_utf8_lossy(bytes.as_slice()).into(),
    }
}

/// NaN and the infinities are no JSON numbers.
fn number(n: f64) -> serde_json::Value {
    serde_json::Number::from_f64(n).map_or_else(|| n.to_string().into(), serde_json::Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_lacks_are_text() {
        for (n, text) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf"), (0.25, "0.25")] {
            assert_eq!(text_of(&AMQPValue::Double(n)), text);
        }
        let price = lapin::types::DecimalValue { scale: 2, value: 1999 };
        assert_eq!(text_of(&AMQPValue::DecimalValue(price)), "1999e-2");
        assert_eq!(text_of(&AMQPValue::ByteArray(vec![0xff].into())), "\u{fffd}");
    }

    #[test]
    fn messages_that_differ_in_their_key_alone_have_ids_of_their_own() {
        let read = |key: &str| {
            let mut table = FieldTable::default();
            table.insert(KEY.into(), AMQPValue::LongString(key.into()));
            let properties = BasicProperties::default().with_headers(table);
            incoming("events", "order.created", &properties, b"{}".to_vec()).id
        };
        assert_eq!(read("o-1"), read("o-1"));
        assert_ne!(read("o-1"), read("o-2"));
    }

    #[test]
    fn a_derived_id_differs_when_anything_does() {
        let read = |routing_key: &str, name: &str, body: &str, timestamp: u64| {
            let mut table = FieldTable::default();
            table.insert(name.into(), AMQPValue::LongLongInt(1));
            // What the broker adds from one delivery to the next.
            table.insert("x-delivery-count".into(), AMQPValue::LongLongInt(3));
            let properties =
                BasicProperties::default().with_headers(table).with_timestamp(timestamp);
            incoming("events", routing_key, &properties, body.as_bytes().to_vec()).id
        };
        let id = read("a", "n", "{}", 1);
        assert_eq!(id.len(), "derived-".len() + 32);
        assert_eq!(id, read("a", "n", "{}", 1));
        for other in [
            read("b", "n", "{}", 1),
            read("a", "m", "{}", 1),
            read("a", "n", "{ }", 1),
            read("a", "n", "{}", 2),
        ] {
            assert_ne!(id, other);
        }
    }
}
