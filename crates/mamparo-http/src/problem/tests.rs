use super::*;
use mamparo_call::Classify;
use std::sync::Arc;

fn failed(source: HttpError) -> CallError<HttpError> {
    CallError::Failed {
        dependency: Arc::from("catalog"),
        failure: source.classify(),
        source,
        attempts: 1,
        gave_up: GiveUp::AttemptsSpent,
    }
}

fn status(status: StatusCode, retry_after: Option<Duration>) -> CallError<HttpError> {
    failed(HttpError::Status {
        status,
        retry_after,
        forbidden: false,
        hurried: false,
        problem: None,
        answer: None,
    })
}

fn refused(reason: Refusal, retry_after: Option<Duration>) -> CallError<HttpError> {
    CallError::Refused { dependency: Arc::from("catalog"), reason, retry_after, attempts: 0 }
}

/// Status, code, `Retry-After` and `upstreamStatus` of what the caller gets.
fn answer(error: &CallError<HttpError>) -> (u16, String, Option<String>, Option<u64>) {
    let problem = Problem::from(error);
    let upstream = problem.to_json().get("upstreamStatus").and_then(Value::as_u64);
    let code = problem.code().to_owned();
    let response = problem.into_response();
    let wait = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
    (response.status().as_u16(), code, wait, upstream)
}

#[test]
fn a_failed_call_becomes_an_answer_that_the_caller_understands() {
    let seconds = |count| Some(Duration::from_secs(count));
    let timed_out = CallError::TimedOut {
        dependency: Arc::from("catalog"),
        after: Duration::from_secs(2),
        retry_after: None,
        attempts: 1,
        gave_up: GiveUp::MayHaveRun,
    };
    let gone =
        |wait: &str| (503, codes::DEPENDENCY_UNAVAILABLE.to_owned(), Some(wait.into()), None);
    let broken = |status| (502, codes::DEPENDENCY_ERROR.to_owned(), None, Some(status));
    let late = (503, codes::DEADLINE_EXCEEDED.to_owned(), Some("1".to_owned()), None);
    let bug = (500, codes::INTERNAL_ERROR.to_owned(), None, None);
    let decode = serde_json::from_str::<u8>("x").unwrap_err();
    for (error, expected) in [
        (refused(Refusal::CircuitOpen, Some(Duration::from_millis(28_100))), gone("29")),
        (refused(Refusal::BulkheadFull, None), gone("1")),
        (refused(Refusal::RateLimited, Some(Duration::ZERO)), gone("1")),
        (refused(Refusal::Shed, None), gone("1")),
        (refused(Refusal::DeadlineExceeded, None), late.clone()),
        (failed(HttpError::TooLate), late),
        (timed_out, gone("1")),
        (status(StatusCode::SERVICE_UNAVAILABLE, seconds(7)), gone("7")),
        (status(StatusCode::TOO_MANY_REQUESTS, None), gone("1")),
        (status(StatusCode::GATEWAY_TIMEOUT, None), gone("1")),
        (status(StatusCode::INTERNAL_SERVER_ERROR, None), broken(500)),
        (status(StatusCode::NOT_FOUND, None), broken(404)),
        (status(StatusCode::FOUND, None), broken(302)),
        (failed(HttpError::Request { what: "no slash".to_owned() }), bug),
        (failed(HttpError::Decode { status: StatusCode::OK, source: decode }), broken(200)),
    ] {
        assert_eq!(answer(&error), expected, "{error:?}");
    }
}

#[test]
fn whoever_has_repeated_a_call_asks_its_caller_not_to() {
    let ended = |attempts, gave_up| {
        let CallError::Failed { dependency, source, failure, .. } =
            status(StatusCode::SERVICE_UNAVAILABLE, None)
        else {
            unreachable!("it is made so")
        };
        CallError::Failed { dependency, source, failure, attempts, gave_up }
    };
    for (error, says) in [
        (ended(1, GiveUp::AttemptsSpent), None),
        (ended(1, GiveUp::MayHaveRun), None),
        (ended(1, GiveUp::DeadlineTooNear), None),
        (ended(2, GiveUp::AttemptsSpent), Some("false")),
        (ended(1, GiveUp::BudgetSpent), Some("false")),
        (ended(1, GiveUp::ToldNotTo), Some("false")),
        (ended(1, GiveUp::CircuitOpen), Some("false")),
        (refused(Refusal::CircuitOpen, None), None),
    ] {
        let response = Problem::from(&error).into_response();
        let value = response.headers().get(SHOULD_RETRY).map(|value| value.to_str().unwrap());
        assert_eq!(value, says, "{error:?}");
        assert!(response.headers().contains_key(RETRY_AFTER), "people may come back: {error:?}");
    }
}

#[tokio::test]
async fn a_problem_is_a_document_with_its_media_type_and_request_id() {
    let context = Context { request_id: Some("r-1".into()), ..Context::default() };
    let problem = Problem::new(StatusCode::CONFLICT, "OUT_OF_STOCK")
        .title("Out of stock")
        .detail("2 left")
        .extension("available", 2)
        // An extension can't pose as a standard member.
        .extension("status", 200);
    let response = context.scope(async { problem.into_response() }).await;
    assert_eq!(response.status(), StatusCode::CONFLICT);
    assert_eq!(response.headers()[CONTENT_TYPE], codes::MEDIA_TYPE);
    assert!(response.headers().get(RETRY_AFTER).is_none());
    let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let expected = serde_json::json!({
        "type": "urn:mamparo:problem:out-of-stock", "title": "Out of stock", "status": 409,
        "code": "OUT_OF_STOCK", "detail": "2 left", "requestId": "r-1", "available": 2
    });
    assert_eq!(document, expected);
}

#[test]
fn an_internal_error_shows_nothing_of_the_inside() {
    let document = Problem::internal().extension("detail", "secret").to_json();
    let members: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(members, ["code", "status", "title", "type"]);
}

#[test]
fn every_code_has_its_own_slug() {
    let slugs: std::collections::BTreeSet<String> =
        codes::ALL.iter().map(|code| slug(code)).collect();
    assert_eq!(slugs.len(), codes::ALL.len());
    assert!(slugs.contains("dependency-unavailable"));
}
