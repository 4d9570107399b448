//! The header names of the edges, in one place.

use http::HeaderName;

/// The request's id, the same from the edge to the last message.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// W3C trace context: trace id, parent span id, flags.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// W3C trace context: vendors' baggage, passed on untouched.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// What the caller still waits, in whole milliseconds, relative to the moment of sending.
pub const REQUEST_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-request-timeout-ms");
/// The same as Envoy says it.
pub const ENVOY_TIMEOUT_MS: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// The attempt's number, counted from one.
pub const ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");
/// How long a gRPC server wants to be left alone, in whole milliseconds; negative for ever (gRFC A6).
pub const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// `false` on an answer that the client must not ask for again.
pub const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Who asked, as the edge has established it. Only for hops inside the system.
pub const CLIENT_ID: HeaderName = HeaderName::from_static("x-client-id");
/// How much the request matters: a slug of [`mamparo_core::call::shed::Criticality`].
pub const CRITICALITY: HeaderName = HeaderName::from_static("x-criticality");
/// The key by which a receiver recognises a repetition (draft-ietf-httpapi-idempotency-key-header).
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// `true` on an answer that was given before and is replayed.
pub const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// What is left of a rate limit (draft-ietf-httpapi-ratelimit-headers).
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The rate limit itself (draft-ietf-httpapi-ratelimit-headers).
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// How the caches on the way handled the request (RFC 9211).
pub const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
