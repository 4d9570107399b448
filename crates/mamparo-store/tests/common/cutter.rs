//! A TCP proxy in front of PostgreSQL that cuts a connection around its COMMIT.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Where the next connection that commits is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nowhere.
    Never = 0,
    /// The server never sees the COMMIT.
    Before = 1,
    /// The server has it, the client never sees the answer.
    After = 2,
}

/// The proxy; ends with its value.
pub(crate) struct Cutter {
    address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    cut: AtomicU8,
    cuts: AtomicUsize,
}

impl Cutter {
    /// A proxy to the server of `url`, and the same database's address through it.
    pub(crate) async fn start(url: &str) -> (Self, String) {
        let at = url.rfind('@').map_or_else(|| url.find("://").unwrap() + 3, |at| at + 1);
        let end = url[at..].find('/').map_or(url.len(), |slash| at + slash);
        let server = url[at..end].to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { cut: AtomicU8::new(0), cuts: AtomicUsize::new(0) });
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&state);
        #[expect(clippy::disallowed_methods, reason = "the set ends with the cutter")]
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let upstream = TcpStream::connect(&server).await.unwrap();
                connections.spawn(carry(client, upstream, Arc::clone(&shared)));
            }
        });
        let through = format!("{}{address}{}", &url[..at], &url[end..]);
        (Self { address, state, _tasks: tasks }, through)
    }

    /// Cuts the next connection that commits there.
    pub(crate) fn cut(&self, cut: Cut) {
        self.state.cut.store(cut as u8, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub(crate) fn cuts(&self) -> usize {
        self.state.cuts.load(Ordering::SeqCst)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, state: Arc<State>) {
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => {
                    let commits = up[..n].windows(7).any(|bytes| bytes == b"COMMIT\0");
                    let cut = if commits { state.cut.swap(0, Ordering::SeqCst) } else { 0 };
                    if cut == Cut::Before as u8 {
                        state.cuts.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    server.write_all(&up[..n]).await.unwrap();
                    if cut == Cut::After as u8 {
                        state.cuts.fetch_add(1, Ordering::SeqCst);
                        // The client goes first; the server notices once it has answered.
                        drop(client);
                        let _answer = server.read(&mut down).await;
                        return;
                    }
                }
            },
            read = server.read(&mut down) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => if client.write_all(&down[..n]).await.is_err() { return },
            },
        }
    }
}
