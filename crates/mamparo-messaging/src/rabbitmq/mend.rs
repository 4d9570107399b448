//! Short strings that are no UTF-8, made readable before the client library sees them.
//!
//! AMQP allows any bytes in a message's `type`, `message-id`, routing key and other short strings, and
//! RabbitMQ carries them. The client library ends the connection over the first one, so such a message
//! would come again at every connection and keep all behind it from being read. A connection that is
//! mended runs through a relay of this process: in each string that is no UTF-8 the first wrong byte
//! becomes a zero byte, which no consumer takes ([`handling`](crate::consumer)), and any other loses its
//! highest bit, so that ids of random bytes still differ. Lengths stay, and so does everything else.

use std::net::{Ipv4Addr, SocketAddr};

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use lapin::tcp::{AMQPUriTcpExt as _, AsyncTcpStream};
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Type, channel and length before a frame's content; one byte after it.
const FRAME_HEAD: usize = 7;

/// Longer frames are none; RabbitMQ's have 128 KiB at most unless it is told otherwise.
const FRAME_MAX: usize = 16 * 1_024 * 1_024;

/// Tables in tables; deeper ones stay as they are.
const DEPTH_MAX: u32 = 16;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1_024;

/// `basic.deliver`: class 60, method 60.
const DELIVER: [u8; 4] = [0, 60, 0, 60];

/// Properties of a content header, from its highest flag down. The last one is the cluster's id.
const PROPERTIES: [Property; 14] = [
    Property::Short,    // content type
    Property::Short,    // content encoding
    Property::Table,    // headers
    Property::Bytes(1), // delivery mode
    Property::Bytes(1), // priority
    Property::Short,    // correlation id
    Property::Short,    // reply to
    Property::Short,    // expiration
    Property::Short,    // message id
    Property::Bytes(8), // timestamp
    Property::Short,    // type
    Property::Short,    // user id
    Property::Short,    // app id
    Property::Short,    // cluster id
];

#[derive(Debug, Clone, Copy)]
enum Property {
    Short,
    Table,
    Bytes(usize),
}

/// The relay of a mended connection, which ends with it.
#[derive(Debug)]
pub(super) struct Mending {
    _relay: JoinSet<()>,
}

/// A connection to `uri` whose deliveries can be read whatever they say.
pub(super) async fn connect(
    uri: AMQPUri,
    properties: ConnectionProperties,
) -> lapin::Result<(Connection, Mending)> {
    let runtime = lapin::runtime::default_runtime()?;
    let broker = uri.connect_async(&runtime).await?;
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let address = listener.local_addr()?;
    let mut relay = JoinSet::new();
    #[expect(
        clippy::disallowed_methods,
        reason = "the set belongs to the connection and is aborted with it; its end is the connection's"
    )]
    relay.spawn(async move {
        // The one that comes is us: nobody else knows of the port, and a second one is not let in. A
        // stranger who is faster talks to a broker that asks for a password.
        if let Ok((client, _)) = listener.accept().await {
            drop(listener);
            carry(client, broker).await;
        }
    });
    let opened = Connection::connector(
        uri,
        runtime,
        async move |_, runtime| Ok(AsyncTcpStream::connect(&runtime, address).await?),
        properties,
    );
    Ok((opened.await?, Mending { _relay: relay }))
}

/// Carries bytes both ways until one side ends. What fails ends the connection, which says so.
async fn carry<S>(client: TcpStream, broker: S)
where
    S: futures_util::io::AsyncRead + futures_util::io::AsyncWrite,
{
    client.set_nodelay(true).ok();
    let ((mut from_client, mut to_client), (mut from_broker, mut to_broker)) =
        (client.into_split(), broker.split());
    let up = async {
        let mut chunk = vec![0_u8; CHUNK];
        while let Ok(count @ 1..) = from_client.read(&mut chunk).await {
            let sent = to_broker.write_all(chunk.get(..count).unwrap_or_default()).await;
            if sent.is_err() || to_broker.flush().await.is_err() {
                break;
            }
        }
    };
    let down = async {
        let (mut chunk, mut mender) = (vec![0_u8; CHUNK], Mender::default());
        while let Ok(count @ 1..) = from_broker.read(&mut chunk).await {
            let mended = mender.feed(chunk.get(..count).unwrap_or_default());
            if to_client.write_all(&mended).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// Mends what a broker says, in pieces of any size.
#[derive(Debug, Default)]
struct Mender {
    /// The beginning of a frame whose end has not come.
    pending: Vec<u8>,
    /// What came is not in frames: it goes on as it is.
    raw: bool,
}

impl Mender {
    /// What may go on now.
    fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(bytes);
        let mut whole = 0;
        while !self.raw {
            let Some(frame) = self.pending.get_mut(whole..) else { break };
            let &mut [kind, _, _, a, b, c, d, ..] = frame else { break };
            let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            // Method, header, body, heartbeat.
            self.raw = !matches!(kind, 1 | 2 | 3 | 8) || length > FRAME_MAX;
            let Some(content) = frame.get_mut(FRAME_HEAD..).filter(|_| !self.raw) else { break };
            if content.len() <= length {
                break;
            }
            let mut content = Content { bytes: &mut content[..length], at: 0 };
            // What does not look as it should is left to the client library.
            match kind {
                1 => content.delivery(),
                2 => content.properties(),
                _ => None,
            };
            whole += FRAME_HEAD + length + 1;
        }
        if self.raw {
            return std::mem::take(&mut self.pending);
        }
        let rest = self.pending.split_off(whole);
        std::mem::replace(&mut self.pending, rest)
    }
}

/// The content of a frame. Methods answer `None` when it is not what they expect.
#[derive(Debug)]
struct Content<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Content<'_> {
    fn take(&mut self, count: usize) -> Option<&mut [u8]> {
        let from = self.at;
        self.at = from.checked_add(count).filter(|end| *end <= self.bytes.len())?;
        self.bytes.get_mut(from..self.at)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn length(&mut self) -> Option<usize> {
        let &mut [a, b, c, d] = self.take(4)? else { return None };
        usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()
    }

    fn short(&mut self) -> Option<()> {
        let length = self.byte()?;
        mend(self.take(length.into())?);
        Some(())
    }

    /// Consumer, tag, redelivered, exchange, routing key.
    fn delivery(&mut self) -> Option<()> {
        if *self.take(4)? != DELIVER {
            return None;
        }
        self.short()?;
        self.take(9)?;
        self.short()?;
        self.short()
    }

    /// Class, weight and size of the body, then flags and the properties that they name.
    fn properties(&mut self) -> Option<()> {
        self.take(12)?;
        let &mut [high, low] = self.take(2)? else { return None };
        let flags = u16::from_be_bytes([high, low]);
        for (place, property) in PROPERTIES.iter().enumerate() {
            if flags & (0x8000 >> place) == 0 {
                continue;
            }
            match *property {
                Property::Short => self.short()?,
                Property::Table => self.table(0)?,
                Property::Bytes(count) => drop(self.take(count)?),
            }
        }
        Some(())
    }

    fn table(&mut self, depth: u32) -> Option<()> {
        let end = self.length()?.checked_add(self.at)?;
        while self.at < end {
            self.short()?;
            self.value(depth)?;
        }
        Some(())
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        let count = match self.byte()? {
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'L' | b'l' | b'd' | b'T' => 8,
            b'S' | b'x' => self.length()?,
            b'F' if depth < DEPTH_MAX => return self.table(depth + 1),
            b'A' if depth < DEPTH_MAX => {
                let end = self.length()?.checked_add(self.at)?;
                while self.at < end {
                    self.value(depth + 1)?;
                }
                return Some(());
            }
            _ => return None,
        };
        self.take(count).map(drop)
    }
}

/// The text with a zero byte where it first is no UTF-8, and without any other byte that is none.
fn mend(text: &mut [u8]) {
    let mut mask = 0;
    while let Err(error) = std::str::from_utf8(text) {
        if let Some(wrong) = text.get_mut(error.valid_up_to()) {
            *wrong &= mask;
        }
        mask = 0x7f;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_utf_8_changes_and_random_ids_stay_apart() {
        for (before, after) in [
            (&b"order.created"[..], &b"order.created"[..]),
            ("añadido €".as_bytes(), "añadido €".as_bytes()),
            (b"a\xf1adido", b"a\0adido"),
            (b"\xff\xfe\x80\xc3", b"\0~\0C"),
            (b"id \x91\xb2", b"id \x002"),
            (b"id \x91\xb3", b"id \x003"),
            (b"", b""),
        ] {
            let mut text = before.to_vec();
            mend(&mut text);
            assert_eq!(text, after);
        }
    }

    fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&[kind, 0, 1], &length[..], content, &[0xce]].concat()
    }

    fn short(word: &[u8]) -> Vec<u8> {
        [&[u8::try_from(word.len()).unwrap()], word].concat()
    }

    fn long(content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[..], content].concat()
    }

    /// A delivery with `word` in every short string and `text` in its only long one, as a broker sends it.
    fn delivery(word: &[u8], text: &[u8]) -> Vec<u8> {
        let word = &short(word)[..];
        let tag = &[0, 0, 0, 0, 0, 0, 0, 7, 1][..];
        let method = [&[0, 60, 0, 60][..], word, tag, word, word].concat();
        let inner = long(&[word, b"d", &[0; 8]].concat());
        let array = long(&[b"F", &inner[..], b"V"].concat());
        let headers = long(
            &[word, b"A", &array, &short(b"long"), b"S", &long(text), word, b"t\x01"].concat(),
        );
        let size = &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2][..];
        let before =
            [size, b"\xff\xfc", word, word, &headers, b"\x02\x01", word, word, word].concat();
        let header = [&before[..], word, &[0; 8], word, word, word, word].concat();
        [frame(1, &method), frame(2, &header), frame(3, b"{\xff"), frame(8, b"")].concat()
    }

    #[test]
    fn every_short_string_is_mended_wherever_the_bytes_are_cut() {
        // A long string may hold any bytes.
        for (given, expected) in [
            (delivery("añadido".as_bytes(), b"\xe1"), delivery("añadido".as_bytes(), b"\xe1")),
            (delivery(b"pl\xe1in \xff", b"\xe1"), delivery(b"pl\0in \x7f", b"\xe1")),
        ] {
            for cut in 0..=given.len() {
                let mut mender = Mender::default();
                let mut got = mender.feed(&given[..cut]);
                got.extend(mender.feed(&given[cut..]));
                assert_eq!(got, expected, "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_frame_goes_on_as_it_is() {
        for bytes in [
            &b"AMQP\0\0\x09\x01 and more"[..],
            b"\x01\0\0\xff\xff\xff\xff",
            b"HTTP/1.1 400\r\n\r\n",
        ] {
            assert_eq!(Mender::default().feed(bytes), bytes);
        }
        // Frames whose content is no delivery or is cut off.
        for content in [&b""[..], b"\0\x3c\0\x3c\xff", b"\0\x3c\0\0\0\0\0\0\0\0\0\0\xff\xff\xff"] {
            for kind in [1, 2] {
                let bytes = frame(kind, content);
                assert_eq!(Mender::default().feed(&bytes), bytes);
            }
        }
    }
}
