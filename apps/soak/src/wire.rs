//! A wire between a child and a server that can be cut, and that can kill the child at its n-th
//! write: before the server has seen it, or just after.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::SoakError;

/// When a child dies relative to its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    /// The server never sees it.
    Before,
    /// The server has it; the child never learns.
    After,
}

/// The write at which a child is killed.
#[derive(Debug, Clone, Copy)]
pub struct Trap {
    /// Which write, from 1 on.
    pub at: u32,
    /// Before or after.
    pub moment: Moment,
    /// The child's process id.
    pub process: u32,
}

#[derive(Debug, Default)]
struct Counter {
    writes: u32,
    trap: Option<Trap>,
    sprung: bool,
}

/// A forwarded port.
#[derive(Debug)]
pub struct Wire {
    url: String,
    cuts: watch::Sender<u32>,
    counter: Arc<Mutex<Counter>>,
    /// Ends when the wire is dropped.
    _forwarding: JoinSet<()>,
}

impl Wire {
    /// Forwards to the server of `url`.
    ///
    /// # Errors
    /// When the address has no host and port, or no port is free.
    pub async fn open(url: &str) -> Result<Self, SoakError> {
        let target = server_of(url).ok_or_else(|| SoakError::Address(url.to_owned()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let local = listener.local_addr()?.to_string();
        let (cuts, seen) = watch::channel(0);
        let counter = Arc::new(Mutex::new(Counter::default()));
        let forwarded = forward(listener, target.clone(), seen, Arc::clone(&counter));
        let mut forwarding = JoinSet::new();
        #[expect(clippy::disallowed_methods, reason = "the set ends with the wire")]
        forwarding.spawn(forwarded);
        let url = url.replacen(&target, &local, 1);
        Ok(Self { url, cuts, counter, _forwarding: forwarding })
    }

    /// The address of this end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Cuts every connection. New ones get through.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Sets a trap; counting starts at this moment.
    pub fn set(&self, trap: Trap) {
        let mut counter = self.counter.lock().unwrap_or_else(PoisonError::into_inner);
        *counter = Counter { writes: 0, trap: Some(trap), sprung: false };
    }

    /// Has the trap killed its child?
    #[must_use]
    pub fn sprung(&self) -> bool {
        self.counter.lock().unwrap_or_else(PoisonError::into_inner).sprung
    }
}

/// `host:port` of an address with a user in front and a path behind.
fn server_of(url: &str) -> Option<String> {
    let rest = url.split_once("://")?.1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let server = rest.split(['/', '?']).next()?;
    server.contains(':').then(|| server.to_owned())
}

async fn forward(
    listener: TcpListener,
    target: String,
    cuts: watch::Receiver<u32>,
    counter: Arc<Mutex<Counter>>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let (target, cuts, counter) = (target.clone(), cuts.clone(), Arc::clone(&counter));
                #[expect(clippy::disallowed_methods, reason = "the set ends with the wire")]
                connections.spawn(connection(client, target, cuts, counter));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(
    client: TcpStream,
    target: String,
    mut cuts: watch::Receiver<u32>,
    counter: Arc<Mutex<Counter>>,
) {
    cuts.mark_unchanged();
    let Ok(target) = target.parse::<SocketAddr>() else { return };
    let Ok(server) = TcpStream::connect(target).await else { return };
    // Delays of Nagle's would be our own doing, not the client's.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0_u8; 64 * 1024];
        while let Ok(read) = from_client.read(&mut buffer).await {
            if read == 0 || !write(&counter, &mut to_server, &buffer[..read]).await {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
        _ = cuts.changed() => {}
    }
}

/// Passes one write on, and springs the trap when it is the one.
async fn write(
    counter: &Mutex<Counter>,
    server: &mut tokio::net::tcp::OwnedWriteHalf,
    bytes: &[u8],
) -> bool {
    let due = {
        let mut counter = counter.lock().unwrap_or_else(PoisonError::into_inner);
        counter.writes += 1;
        let due = counter.trap.filter(|trap| trap.at == counter.writes);
        counter.sprung |= due.is_some();
        due
    };
    if let Some(trap) = due.filter(|trap| trap.moment == Moment::Before) {
        kill(trap.process).await;
        return false;
    }
    let written = server.write_all(bytes).await.is_ok();
    if let Some(trap) = due {
        kill(trap.process).await;
    }
    written
}

/// `kill -9` of a child of ours.
async fn kill(process: u32) {
    let mut command = tokio::process::Command::new("kill");
    // It may be dead already, which is what was wanted.
    command.args(["-KILL", &process.to_string()]).status().await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_an_address_is_what_stands_between_user_and_path() {
        for (url, server) in [
            ("postgres://postgres@127.0.0.1:5432/db", Some("127.0.0.1:5432")),
            ("amqp://guest:gu@est@127.0.0.1:5672/%2f", Some("127.0.0.1:5672")),
            ("amqp://127.0.0.1:5672", Some("127.0.0.1:5672")),
            ("sqlite:a.db", None),
            ("postgres://db/x", None),
        ] {
            assert_eq!(server_of(url).as_deref(), server, "{url}");
        }
    }

    #[tokio::test]
    async fn a_wire_forwards_until_it_is_cut() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let wire = Wire::open(&format!("x://{}", server.local_addr().unwrap())).await.unwrap();
        let address = server_of(wire.url()).unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut buffer = [0_u8; 5];
        accepted.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
        wire.cut();
        assert_eq!(client.read(&mut buffer).await.unwrap_or(0), 0);
    }
}
