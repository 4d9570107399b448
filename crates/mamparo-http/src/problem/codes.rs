//! The codes that mamparo itself answers with. An application adds its own (`OUT_OF_STOCK`).

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// 503: a dependency is down, slow or protected by its policies; come back later.
pub const DEPENDENCY_UNAVAILABLE: &str = "DEPENDENCY_UNAVAILABLE";
/// 502: a dependency gave a final answer that is no success.
pub const DEPENDENCY_ERROR: &str = "DEPENDENCY_ERROR";
/// 503: the caller's time is up, or too little of it is left to start.
pub const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";
/// 503: the service can't reach its own database, or is being stopped.
pub const SERVICE_UNAVAILABLE: &str = "SERVICE_UNAVAILABLE";
/// 503: there is too much to do, and other requests matter more.
pub const SHED: &str = "SHED";
/// 429: too many requests of this client.
pub const RATE_LIMITED: &str = "RATE_LIMITED";
/// 404: no such route.
pub const NOT_FOUND: &str = "NOT_FOUND";
/// 405: the route exists, this method of it does not.
pub const METHOD_NOT_ALLOWED: &str = "METHOD_NOT_ALLOWED";
/// 400: the request can't be read (JSON syntax, path, query).
pub const MALFORMED_REQUEST: &str = "MALFORMED_REQUEST";
/// 413: the body is longer than is read.
pub const PAYLOAD_TOO_LARGE: &str = "PAYLOAD_TOO_LARGE";
/// 415: the body is no JSON, by its content type.
pub const UNSUPPORTED_MEDIA_TYPE: &str = "UNSUPPORTED_MEDIA_TYPE";
/// 422: the request can be read, and what it says can't be accepted.
pub const VALIDATION_FAILED: &str = "VALIDATION_FAILED";
/// 400: the route needs an `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_MISSING: &str = "IDEMPOTENCY_KEY_MISSING";
/// 400: the `Idempotency-Key` is none.
pub const IDEMPOTENCY_KEY_MALFORMED: &str = "IDEMPOTENCY_KEY_MALFORMED";
/// 422: the key was used for another request.
pub const IDEMPOTENCY_KEY_MISMATCH: &str = "IDEMPOTENCY_KEY_MISMATCH";
/// 409: the first request with this key is still running.
pub const IDEMPOTENCY_KEY_IN_USE: &str = "IDEMPOTENCY_KEY_IN_USE";
/// 500: a bug; the request id finds it in the log.
pub const INTERNAL_ERROR: &str = "INTERNAL_ERROR";

/// All of them, for documentation and its test.
pub const ALL: [&str; 17] = [
    DEPENDENCY_UNAVAILABLE,
    DEPENDENCY_ERROR,
    DEADLINE_EXCEEDED,
    SERVICE_UNAVAILABLE,
    SHED,
    RATE_LIMITED,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    MALFORMED_REQUEST,
    PAYLOAD_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    VALIDATION_FAILED,
    IDEMPOTENCY_KEY_MISSING,
    IDEMPOTENCY_KEY_MALFORMED,
    IDEMPOTENCY_KEY_MISMATCH,
    IDEMPOTENCY_KEY_IN_USE,
    INTERNAL_ERROR,
];
