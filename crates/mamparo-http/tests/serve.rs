//! Stopping: accepted requests are answered, idle connections hold nothing up.

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use common::{Server, send_text, spawn, start, start_draining};
use mamparo_http::Drained;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

/// A route that tells when it was entered and answers when it is let go.
struct Held {
    entered: Arc<Notify>,
    release: Arc<Semaphore>,
    router: Router,
}

fn held() -> Held {
    let (entered, release) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (told, gate) = (Arc::clone(&entered), Arc::clone(&release));
    let handler = move || {
        let (told, gate) = (Arc::clone(&told), Arc::clone(&gate));
        async move {
            told.notify_one();
            drop(gate.acquire().await);
            "answered"
        }
    };
    Held { entered, release, router: Router::new().route("/", get(handler)) }
}

#[tokio::test]
async fn an_accepted_request_is_answered_before_the_end() {
    let held = held();
    let Server { address, stop, ended } = start(held.router).await;
    let request = spawn(send_text(address, "GET /", "", ""));
    held.entered.notified().await;
    stop.send(()).unwrap();
    // Refused from now on: wait for that as the sign that stopping has begun.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!ended.is_finished());
    held.release.add_permits(1);
    assert_eq!(request.await.unwrap().body, "answered");
    assert_eq!(ended.await.unwrap().unwrap(), Drained::Completely);
}

#[tokio::test]
async fn kept_alive_and_silent_connections_hold_nothing_up() {
    let held = held();
    held.release.add_permits(10);
    let Server { address, stop, ended } = start(held.router).await;
    let silent = TcpStream::connect(address).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut read = String::new();
    while !read.ends_with("answered") {
        let mut part = [0; 1024];
        let count = idle.read(&mut part).await.unwrap();
        assert!(count > 0);
        read.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    stop.send(()).unwrap();
    assert_eq!(ended.await.unwrap().unwrap(), Drained::Completely);
    drop((silent, idle));
}

#[tokio::test]
async fn draining_ends_when_its_time_is_over() {
    let held = held();
    let Server { address, stop, ended } = start_draining(held.router, Duration::ZERO).await;
    let request = spawn(send_text(address, "GET /", "", ""));
    held.entered.notified().await;
    stop.send(()).unwrap();
    assert_eq!(ended.await.unwrap().unwrap(), Drained::CutOff);
    request.abort();
}
