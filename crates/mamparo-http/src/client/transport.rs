//! Puts one attempt on the wire and reads its answer to the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use mamparo_call::clock;
use mamparo_core::limits;
use mamparo_core::time::Moment;

use super::error::Upstream;
use super::{HttpError, Response};
use crate::pushback::{self, Pushback};
use crate::retry_after;

/// Longest that a TCP connect may take. A healthy one takes a round trip; a lost SYN is sent again
/// after one second, so this sees neither twice. The attempt's own limit usually ends it earlier.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an idle connection is kept. Below the usual 60 s and more of servers and balancers, so
/// that we close first and rarely write to a connection that the other side is just closing.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// A connection pool with its counters.
#[derive(Debug)]
pub(super) struct Transport {
    http: reqwest::Client,
    sent: AtomicU64,
    sent_after_deadline: AtomicU64,
}

impl Transport {
    pub(super) fn new() -> Result<Self, HttpError> {
        // No redirects: the answer would be another host's. No proxy of the environment: a
        // dependency is where the policy file says. No retries: that is one layer's job, and not
        // this one's.
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(POOL_IDLE)
            .build()
            .map_err(|error| HttpError::Request { what: format!("http client: {error}") })?;
        Ok(Self { http, sent: AtomicU64::new(0), sent_after_deadline: AtomicU64::new(0) })
    }

    /// Requests handed to the network since the start.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Those of them whose deadline had passed by then.
    pub(super) fn sent_after_deadline(&self) -> u64 {
        self.sent_after_deadline.load(Ordering::Relaxed)
    }

    /// Sends `request` and reads the whole answer; a failed one is [`HttpError::Status`] with
    /// `hurried`. Says through `late` whether the deadline had passed when it left.
    pub(super) async fn send(
        &self,
        request: reqwest::Request,
        deadline: Option<Moment>,
        hurried: bool,
        late: impl FnOnce(),
    ) -> Result<Response, HttpError> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        if deadline.is_some_and(|deadline| clock::now() >= deadline) {
            self.sent_after_deadline.fetch_add(1, Ordering::Relaxed);
            late();
        }
        let answer = self.http.execute(request).await.map_err(|source| {
            if source.is_connect() {
                HttpError::Connect { source }
            } else if source.is_builder() {
                HttpError::Request { what: source.to_string() }
            } else {
                HttpError::Lost { source }
            }
        })?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let received = clock::wall();
        let body = read_body(status, answer).await;
        if status.is_success() {
            return Ok(Response { status, headers, body: body? });
        }
        // The status has said it all. A body that can't be read only costs us the explanation.
        let pushback = pushback::parse(&headers);
        let forbidden = pushback == Some(Pushback::Never);
        let retry_after = match pushback {
            // Of two waits the longer one keeps both promises.
            Some(Pushback::After(wait)) => retry_after::parse(&headers, received).max(Some(wait)),
            Some(Pushback::Never) | None => retry_after::parse(&headers, received),
        };
        let answer = body.ok().map(|body| Box::new(Response { status, headers, body }));
        let problem = answer.as_deref().and_then(Upstream::read);
        Err(HttpError::Status { status, retry_after, forbidden, hurried, problem, answer })
    }
}

async fn read_body(status: StatusCode, mut answer: reqwest::Response) -> Result<Bytes, HttpError> {
    let limit = limits::BODY_BYTES_MAX;
    let mut body = BytesMut::new();
    while let Some(chunk) =
        answer.chunk().await.map_err(|source| HttpError::BodyLost { status, source })?
    {
        if body.len().saturating_add(chunk.len()) > limit {
            return Err(HttpError::BodyTooLong { status, limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_leaves_too_late_is_counted_as_that() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let transport = Transport::new().unwrap();
        let request = || {
            let url = reqwest::Url::parse(&format!("http://{address}/")).unwrap();
            reqwest::Request::new(http::Method::GET, url)
        };
        let in_time = clock::now().plus(Duration::from_secs(60));
        let mut told = false;
        let outcome = transport.send(request(), Some(in_time), false, || told = true).await;
        assert!(matches!(outcome, Err(HttpError::Connect { .. })), "{outcome:?}");
        assert_eq!((transport.sent(), transport.sent_after_deadline(), told), (1, 0, false));

        let outcome = transport.send(request(), Some(Moment::ORIGIN), false, || told = true).await;
        assert!(outcome.is_err());
        assert_eq!((transport.sent(), transport.sent_after_deadline(), told), (2, 1, true));
    }
}
