//! What keeps the client from sending again: a body that is gone, a server that says no.

mod common;

use std::time::Duration;

use common::{Act, answer, body, client, dependency, scripted};
use http::StatusCode;
use mamparo_call::{CallError, Context, clock};
use mamparo_core::call::pipeline::GiveUp;
use mamparo_http::HttpError;

/// Half an upload, or an empty one, that a second attempt sent would be worse than none.
#[tokio::test]
async fn policies_c25_a_body_that_can_be_read_once_is_sent_once_and_whole() {
    let busy = Act::Answer(answer("503 Service Unavailable", "connection: close\r\n", ""));
    let done = Act::Answer(answer("201 Created", "connection: close\r\n", "{}"));
    let mut server = scripted(vec![busy, done]).await;
    let client = client(server.address, dependency("uploads"));
    let upload = || client.post("/").idempotency_key("k").stream("0123456789".repeat(1_000));
    let request = upload();
    let copy = request.clone();
    let error = request.send().await.unwrap_err();
    let CallError::Failed { attempts, gave_up, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*attempts, *gave_up), (1, GiveUp::BodyNotReplayable), "whatever the key says");
    assert_eq!(body(&server.requests.recv().await.unwrap()), "0123456789".repeat(1_000));

    // A copy has nothing left to send, and says so instead of sending nothing.
    let error = copy.send().await.unwrap_err();
    assert!(matches!(error.cause(), Some(HttpError::Request { .. })), "{error:?}");
    assert_eq!(client.sent(), 1);

    assert_eq!(upload().send().await.unwrap().status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_server_that_says_no_to_another_attempt_is_obeyed() {
    for (headers, attempts, gave_up, wait) in [
        ("x-should-retry: false\r\n", 1, GiveUp::ToldNotTo, None),
        ("grpc-retry-pushback-ms: -1\r\n", 1, GiveUp::ToldNotTo, None),
        ("grpc-retry-pushback-ms: soon\r\nretry-after: 1\r\n", 1, GiveUp::ToldNotTo, Some(1_000)),
        ("x-should-retry: true\r\n", 3, GiveUp::AttemptsSpent, None),
        ("grpc-retry-pushback-ms: 3\r\n", 3, GiveUp::AttemptsSpent, Some(3)),
        // Of two waits the longer one, and that is more than the call has.
        (
            "grpc-retry-pushback-ms: 30000\r\nretry-after: 7\r\n",
            1,
            GiveUp::DeadlineTooNear,
            Some(30_000),
        ),
        (
            "grpc-retry-pushback-ms: 3\r\nretry-after: 60\r\n",
            1,
            GiveUp::DeadlineTooNear,
            Some(60_000),
        ),
    ] {
        let answer =
            answer("503 Service Unavailable", &format!("connection: close\r\n{headers}"), "");
        let server = scripted(vec![Act::Answer(answer)]).await;
        let client = client(server.address, dependency("catalog"));
        let context = Context::default().with_budget(clock::now(), Duration::from_secs(20));
        let error = context.scope(client.get("/").send()).await.unwrap_err();
        let CallError::Failed { failure, gave_up: reason, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((client.sent(), *reason), (attempts, gave_up), "{headers}");
        assert_eq!(failure.retry_after, wait.map(Duration::from_millis), "{headers}");
        assert!(!error.is_permanent(), "a later call may well work");
    }
}
