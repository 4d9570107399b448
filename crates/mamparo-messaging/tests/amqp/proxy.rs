//! A TCP relay in front of the broker that can fall silent, cut every connection and refuse new ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::common::spawn;

#[derive(Debug)]
pub struct Proxy {
    pub url: String,
    state: Arc<State>,
    accept: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    /// The broker's answers wait.
    held: watch::Sender<bool>,
    /// Counts cuts; a connection ends when it changes.
    cuts: watch::Sender<u64>,
    refuse: AtomicBool,
    refused: AtomicUsize,
    opened: AtomicUsize,
}

impl Proxy {
    /// In front of the broker at `url`.
    pub async fn start(url: &str) -> Self {
        let (before, place) = url.rsplit_once('@').unwrap();
        let (server, vhost) = place.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            held: watch::Sender::new(false),
            cuts: watch::Sender::new(0),
            refuse: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            opened: AtomicUsize::new(0),
        });
        let (server, shared) = (server.to_owned(), Arc::clone(&state));
        let accept = spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.refuse.load(Ordering::SeqCst) {
                    shared.refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                shared.opened.fetch_add(1, Ordering::SeqCst);
                let server = TcpStream::connect(&server).await.unwrap();
                spawn(carry(client, server, Arc::clone(&shared)));
            }
        });
        Self { url: format!("{before}@127.0.0.1:{port}/{vhost}"), state, accept }
    }

    /// From now on nothing of what the broker says arrives.
    pub fn hold(&self) {
        self.state.held.send_replace(true);
    }

    /// What was held arrives.
    pub fn release(&self) {
        self.state.held.send_replace(false);
    }

    /// Ends every connection, without a word, and the silence.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
        self.release();
    }

    pub fn refuse(&self, yes: bool) {
        self.state.refuse.store(yes, Ordering::SeqCst);
    }

    pub fn refused(&self) -> usize {
        self.state.refused.load(Ordering::SeqCst)
    }

    pub fn opened(&self) -> usize {
        self.state.opened.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let mut cuts = state.cuts.subscribe();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let up = async {
        tokio::io::copy(&mut from_client, &mut to_server).await.ok();
    };
    let down = async {
        let (mut held, mut buffer) = (state.held.subscribe(), vec![0_u8; 64 * 1_024]);
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            held.wait_for(|held| !held).await.ok();
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = cuts.changed() => {}
    }
}
