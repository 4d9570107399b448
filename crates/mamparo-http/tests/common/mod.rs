//! Servers on loopback sockets, real and scripted.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a module of several test files, each of which uses its part"
)]

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use mamparo_call::{Dependency, DependencyBuilder};
use mamparo_core::backoff::Backoff;
use mamparo_http::{Drained, HttpClient, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

#[expect(clippy::disallowed_methods, reason = "the test owns the handle and its runtime the task")]
pub fn spawn<F: Future<Output: Send> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    tokio::spawn(future)
}

/// A router that is served until `stop` is used or dropped.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    pub stop: oneshot::Sender<()>,
    pub ended: JoinHandle<std::io::Result<Drained>>,
}

pub async fn start(router: Router) -> Server {
    start_draining(router, Duration::from_secs(30)).await
}

pub async fn start_draining(router: Router, drain: Duration) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let ended = spawn(serve(listener, router, shutdown, drain));
    Server { address, stop, ended }
}

/// What the scripted server does with one connection's request.
#[derive(Debug, Clone)]
pub enum Act {
    /// Writes these bytes, then closes.
    Answer(String),
    /// Writes these bytes, then keeps the connection open and says no more.
    Stall(String),
    /// Closes without a byte.
    Close,
}

/// A TCP server that takes one request per connection, as text, and follows its script; after the
/// script it repeats the last act.
#[derive(Debug)]
pub struct Scripted {
    pub address: SocketAddr,
    pub requests: mpsc::UnboundedReceiver<String>,
}

pub async fn scripted(acts: Vec<Act>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, requests) = mpsc::unbounded_channel();
    spawn(async move {
        let mut stalled = Vec::new();
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let request = read_request(&mut stream).await;
            match &acts[number.min(acts.len() - 1)] {
                Act::Answer(text) => stream.write_all(text.as_bytes()).await.unwrap(),
                Act::Stall(text) => {
                    stream.write_all(text.as_bytes()).await.unwrap();
                    stalled.push(stream);
                }
                Act::Close => drop(stream),
            }
            if told.send(request).is_err() {
                return;
            }
        }
    });
    Scripted { address, requests }
}

/// Reads head and body by `content-length`.
pub async fn read_request(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").map_or(0, |text| text.parse().unwrap());
            if body.len() >= length {
                return text;
            }
        }
        let mut part = [0; 4096];
        let count = stream.read(&mut part).await.unwrap();
        assert!(count > 0, "the request broke off: {text}");
        read.extend_from_slice(&part[..count]);
    }
}

/// A header of a request in text.
pub fn header<'a>(request: &'a str, name: &str) -> Option<&'a str> {
    let head = request.split("\r\n\r\n").next().unwrap_or_default();
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

pub fn body(request: &str) -> &str {
    request.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// A whole answer in text.
pub fn answer(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n{body}")
}

/// Three attempts without noticeable waits, each limited to 5 s.
pub fn dependency(name: &str) -> DependencyBuilder {
    let no_wait = Backoff { base: Duration::from_micros(1), ..Backoff::default() };
    Dependency::builder(name).attempt_timeout(Duration::from_secs(5)).retry(3, no_wait)
}

pub fn client(address: SocketAddr, dependency: DependencyBuilder) -> HttpClient {
    HttpClient::new(&format!("http://{address}"), dependency.build().unwrap()).unwrap()
}

/// An answer to `send_text`: status, head and body.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answered {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// Checks that this is a problem document about itself, and gives its code.
    pub fn problem_code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status, "{self:?}");
        assert_eq!(document["requestId"].as_str(), self.header("x-request-id"), "{self:?}");
        assert!(document["type"].as_str().unwrap().starts_with("urn:mamparo:problem:"));
        document["code"].as_str().unwrap().to_owned()
    }
}

/// One request on a connection of its own, byte by byte as a stranger could write it.
pub async fn send_text(
    address: SocketAddr,
    first_line: &str,
    headers: &str,
    body: &str,
) -> Answered {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let text = format!(
        "{first_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\
         {headers}\r\n{body}"
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answered { status, head: head.to_owned(), body: body.to_owned() }
}
