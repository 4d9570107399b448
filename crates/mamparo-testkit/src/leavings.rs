//! Queues that a test makes on a broker which outlives it.
//!
//! A broker from outside keeps what it is given. Only `mamparo-messaging` may name a client for it, and
//! a destructor can't wait for one; so the few frames of AMQP 0-9-1 that delete a queue stand here.

use std::io::{Error, Read as _, Result, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// What a policy makes beside its queue, and the archive of its dead letters.
const BESIDE: [&str; 4] = ["", ".dlq", ".retry", ".archive"];

/// A broker that says nothing for so long is gone, and its queues with it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Queues that are deleted with this value, also when the test panics; with what is in them, and
/// whoever consumes them. On other brokers than `amqp://…` it does nothing.
#[derive(Debug)]
pub struct Leavings {
    url: String,
    queues: Vec<String>,
}

impl Leavings {
    /// None yet, on the broker at `url`.
    #[must_use]
    pub fn on(url: &str) -> Self {
        Self { url: url.to_owned(), queues: Vec::new() }
    }

    /// The queue and what a policy makes beside it. None of them needs to exist.
    #[must_use]
    pub fn queue(mut self, name: &str) -> Self {
        self.queues.extend(BESIDE.map(|suffix| format!("{name}{suffix}")));
        self
    }

    fn delete(&self) -> Result<()> {
        let Some(rest) = self.url.strip_prefix("amqp://") else { return Ok(()) };
        let odd = || Error::other("write amqp://USER:PASSWORD@HOST:PORT/VHOST");
        let (login, place) = rest.rsplit_once('@').ok_or_else(odd)?;
        let (user, password) = login.split_once(':').ok_or_else(odd)?;
        let (host, vhost) = place.split_once('/').ok_or_else(odd)?;
        let mut wire = Wire(TcpStream::connect(host)?);
        wire.0.set_read_timeout(Some(PATIENCE))?;
        wire.0.set_write_timeout(Some(PATIENCE))?;
        wire.0.write_all(b"AMQP\0\0\x09\x01")?;
        wire.answer()?;
        let login = format!("\0{user}\0{password}");
        let length = u32::try_from(login.len()).map_err(Error::other)?.to_be_bytes();
        let start = [&[0; 4], &short("PLAIN")[..], &length, login.as_bytes(), &short("en_US")];
        wire.say(0, [10, 11], &start.concat())?;
        // Channels and the size of frames as the broker proposes them, and no heartbeats.
        let tune = wire.answer()?;
        let proposed = tune.get(4..10).ok_or_else(|| Error::other("no proposal"))?;
        wire.say(0, [10, 31], &[proposed, &[0, 0]].concat())?;
        let vhost = vhost.replace("%2f", "/").replace("%2F", "/");
        wire.say(0, [10, 40], &[&short(&vhost)[..], &[0, 0]].concat())?;
        wire.answer()?;
        wire.say(1, [20, 10], &[0])?;
        wire.answer()?;
        for queue in &self.queues {
            wire.say(1, [50, 40], &[&[0, 0], &short(queue)[..], &[0]].concat())?;
            wire.answer()?;
        }
        wire.say(0, [10, 50], &[0, 200, 0, 0, 0, 0, 0])?;
        wire.answer().map(drop)
    }
}

impl Drop for Leavings {
    fn drop(&mut self) {
        // A broker that is gone has taken them with it.
        self.delete().ok();
    }
}

fn short(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap_or(u8::MAX);
    let text = text.as_bytes().iter().take(length.into());
    std::iter::once(&length).chain(text).copied().collect()
}

/// Frames of methods.
struct Wire(TcpStream);

impl Wire {
    fn say(&mut self, channel: u8, [class, method]: [u8; 2], arguments: &[u8]) -> Result<()> {
        let length = u32::try_from(arguments.len() + 4).map_err(Error::other)?.to_be_bytes();
        let head = [&[1, 0, channel][..], &length, &[0, class, 0, method]].concat();
        self.0.write_all(&[&head[..], arguments, &[0xce]].concat())
    }

    /// Class, method and arguments of what the broker says next.
    fn answer(&mut self) -> Result<Vec<u8>> {
        let mut head = [0; 7];
        self.0.read_exact(&mut head)?;
        let [_, _, _, a, b, c, d] = head;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).map_err(Error::other)?;
        let mut content = vec![0; length + 1];
        self.0.read_exact(&mut content)?;
        Ok(content)
    }
}
