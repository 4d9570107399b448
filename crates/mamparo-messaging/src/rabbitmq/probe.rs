//! Which release answers: the client library reads the broker's properties and keeps them to itself,
//! so the beginning of a handshake is held once, on a connection that is then dropped. The broker
//! logs it as a client that left early.

use std::time::Duration;

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use lapin::protocol::{AMQPClass, connection::AMQPMethod, parse_class};
use lapin::tcp::AMQPUriTcpExt as _;
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use mamparo_call::clock;
use mamparo_core::message::capabilities::{Capabilities, Version};
use mamparo_core::message::closure::{Closure, Kind};

/// Type, channel and length before a frame's content; one byte after it.
const FRAME_HEAD: usize = 7;

/// A longer greeting is none.
const GREETING_MAX: usize = 64 * 1_024;

/// The capabilities of the broker at `uri`.
pub(super) async fn capabilities(uri: &AMQPUri, limit: Duration) -> Result<Capabilities, Closure> {
    let until = clock::instant_of(clock::now().plus(limit));
    match tokio::time::timeout_at(until, greeting(uri)).await {
        Ok(Ok(content)) => read(&content),
        Ok(Err(error)) => Err(Closure::new(Kind::Disconnected, error.to_string())),
        Err(_) => Err(Closure::new(Kind::Disconnected, format!("no answer within {limit:?}"))),
    }
}

/// The content of the broker's first frame.
async fn greeting(uri: &AMQPUri) -> std::io::Result<Vec<u8>> {
    let runtime = lapin::runtime::default_runtime().map_err(std::io::Error::other)?;
    let mut stream = uri.connect_async(&runtime).await?;
    stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
    stream.flush().await?;
    let mut head = [0_u8; FRAME_HEAD];
    stream.read_exact(&mut head).await?;
    let [kind, _, _, a, b, c, d] = head;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if kind != 1 || length > GREETING_MAX {
        return Err(std::io::Error::other("what answers there does not speak AMQP 0-9-1"));
    }
    let mut content = vec![0_u8; length];
    stream.read_exact(&mut content).await?;
    Ok(content)
}

fn read(content: &[u8]) -> Result<Capabilities, Closure> {
    let start = match parse_class(content) {
        Ok((_, AMQPClass::Connection(AMQPMethod::Start(start)))) => start,
        _ => return Err(Closure::new(Kind::Protocol, "the broker's greeting can't be read")),
    };
    of_properties(&start.server_properties).ok_or_else(|| {
        let text = "the broker does not say its release, or is not RabbitMQ";
        Closure::new(Kind::Protocol, text)
    })
}

fn of_properties(properties: &FieldTable) -> Option<Capabilities> {
    let text = |name: &str| properties.inner().get(name)?.as_long_string().map(ToString::to_string);
    let rabbit = text("product")?.eq_ignore_ascii_case("rabbitmq");
    rabbit.then(|| Version::parse(&text("version")?)).flatten().map(Capabilities::rabbitmq)
}

#[cfg(test)]
mod tests {
    use lapin::types::{AMQPValue, LongString};

    use super::*;

    fn properties(pairs: &[(&str, &str)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in pairs {
            table.insert((*name).into(), AMQPValue::LongString(LongString::from(*value)));
        }
        table
    }

    #[test]
    fn the_release_is_read_and_anything_else_is_none() {
        let rabbit = properties(&[("product", "RabbitMQ"), ("version", "4.3.0-rc.1")]);
        assert_eq!(of_properties(&rabbit).unwrap().version, Version::new(4, 3, 0));
        for wrong in [
            properties(&[]),
            properties(&[("product", "RabbitMQ")]),
            properties(&[("product", "RabbitMQ"), ("version", "newest")]),
            properties(&[("product", "LavinMQ"), ("version", "2.1.0")]),
        ] {
            assert!(of_properties(&wrong).is_none(), "{wrong:?}");
        }
        for garbage in [&b""[..], b"\x00\x0a", b"\x00\x0a\x00\x0a\x00\x09\xff\xff\xff\xff"] {
            assert!(read(garbage).is_err());
        }
    }
}
