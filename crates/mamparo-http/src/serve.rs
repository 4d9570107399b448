//! Serving until told to stop, and stopping without cutting anyone off.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use mamparo_call::clock;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every accepted request got its answer.
    Completely,
    /// Some were still unanswered when the time for draining was over. They end with the process.
    CutOff,
}

/// Serves `router` on `listener` until `shutdown` completes, then drains for at most `drain`.
///
/// Draining means: no new connections; idle ones are closed at once, so that kept-alive
/// connections hold nothing up; requests that were accepted are answered with
/// `connection: close`.
///
/// # Errors
/// What the listener said.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
    drain: Duration,
) -> io::Result<Drained> {
    let (stopping, stopped) = oneshot::channel();
    let signal = async move {
        shutdown.await;
        // Nobody listens when the server has ended by itself, and then nobody needs to.
        let _ = stopping.send(());
    };
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, service).with_graceful_shutdown(signal);
    let patience = async move {
        match stopped.await {
            Ok(()) => clock::sleep_until(clock::now().plus(drain)).await,
            Err(_ended_by_itself) => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = server.into_future() => ended.map(|()| Drained::Completely),
        () = patience => {
            tracing::warn!(?drain, "requests were still unanswered when draining was over");
            Ok(Drained::CutOff)
        }
    }
}
