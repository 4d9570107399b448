//! Why one attempt failed, and what kind of failure that is.

use std::time::Duration;

use http::StatusCode;
use http::header::CONTENT_TYPE;
use mamparo_call::Classify;
use mamparo_core::outcome::{Failure, Health, Repeat, Sent, failure_of_status};

use super::Response;
use crate::problem::codes;

/// What came of an attempt that gave no usable answer, told apart by *phase*, never by a list of
/// error codes: what matters is whether any byte can have arrived.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The request can't be made at all (bad path, header or body): our own mistake.
    #[error("build request: {what}")]
    Request {
        /// What is wrong with it.
        what: String,
    },
    /// The deadline passed before the request was sent; nothing left the process.
    #[error("send request: the deadline passed before it left")]
    TooLate,
    /// No connection was made (refused, name not resolved, connect timeout): nothing was sent.
    #[error("connect")]
    Connect {
        /// The transport's error.
        #[source]
        source: reqwest::Error,
    },
    /// The connection failed after it was made, before an answer came: the request may have run.
    #[error("read answer")]
    Lost {
        /// The transport's error.
        #[source]
        source: reqwest::Error,
    },
    /// The status came and the body broke off: the request may have run, its answer is lost.
    #[error("read body of the {status} answer")]
    BodyLost {
        /// The status that had come.
        status: StatusCode,
        /// The transport's error.
        #[source]
        source: reqwest::Error,
    },
    /// The body is longer than is read ([`mamparo_core::limits::BODY_BYTES_MAX`], 1 MiB).
    #[error("read body of the {status} answer: more than {limit} bytes")]
    BodyTooLong {
        /// The status that had come.
        status: StatusCode,
        /// The most that is read.
        limit: usize,
    },
    /// An answer that is no success (a redirect is none either; it is never followed).
    #[error("call: answered {status}")]
    Status {
        /// The status.
        status: StatusCode,
        /// When to come back, as the answer's `Retry-After` or `grpc-retry-pushback-ms` says.
        retry_after: Option<Duration>,
        /// Does the answer say that the request must not be sent again (`x-should-retry: false`, or a
        /// pushback that is no wait)?
        forbidden: bool,
        /// Was the attempt given less than half of its usual limit? Then an answer that says that
        /// the time was up proves nothing ([`mamparo_core::call::deadline::is_verdict`]).
        hurried: bool,
        /// What the answer's problem document said, if it was one.
        problem: Option<Box<Upstream>>,
        /// The answer itself, for a gateway that passes it on; `None` when its body broke off.
        answer: Option<Box<Response>>,
    },
    /// A success whose body is not what was expected.
    #[error("decode the {status} answer")]
    Decode {
        /// The status.
        status: StatusCode,
        /// What the decoder said.
        #[source]
        source: serde_json::Error,
    },
}

/// The problem document of a failed answer, as far as it could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upstream {
    /// Its `type`; never dereferenced.
    pub kind: Option<String>,
    /// Its `code`.
    pub code: Option<String>,
    /// Its `detail`, for people.
    pub detail: Option<String>,
}

impl Upstream {
    /// Reads a problem document; members of a wrong type count as absent (RFC 9457 §3.1).
    pub(super) fn read(answer: &Response) -> Option<Box<Self>> {
        let media = answer.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let media = media.split(';').next().unwrap_or_default().trim();
        if !media.eq_ignore_ascii_case(codes::MEDIA_TYPE) {
            return None;
        }
        let document: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
        let text = |name: &str| document.get(name)?.as_str().map(str::to_owned);
        Some(Box::new(Self { kind: text("type"), code: text("code"), detail: text("detail") }))
    }
}

impl HttpError {
    /// The dependency's status, where one came.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::BodyLost { status, .. }
            | Self::BodyTooLong { status, .. }
            | Self::Status { status, .. }
            | Self::Decode { status, .. } => Some(*status),
            Self::Request { .. } | Self::TooLate | Self::Connect { .. } | Self::Lost { .. } => None,
        }
    }

    /// What the dependency has answered, word for word; `None` where no whole answer came.
    #[must_use]
    pub fn answer(&self) -> Option<&Response> {
        match self {
            Self::Status { answer, .. } => answer.as_deref(),
            Self::Request { .. }
            | Self::TooLate
            | Self::Connect { .. }
            | Self::Lost { .. }
            | Self::BodyLost { .. }
            | Self::BodyTooLong { .. }
            | Self::Decode { .. } => None,
        }
    }

    /// The code of the dependency's problem document, where it sent one.
    #[must_use]
    pub fn upstream_code(&self) -> Option<&str> {
        match self {
            Self::Status { problem, .. } => problem.as_ref()?.code.as_deref(),
            Self::Request { .. }
            | Self::TooLate
            | Self::Connect { .. }
            | Self::Lost { .. }
            | Self::BodyLost { .. }
            | Self::BodyTooLong { .. }
            | Self::Decode { .. } => None,
        }
    }

    /// A short, stable word for metrics and problem documents.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Request { .. } => "bad-request",
            Self::TooLate => "too-late",
            Self::Connect { .. } => "not-connected",
            Self::Lost { .. } => "connection-lost",
            Self::BodyLost { .. } => "body-lost",
            Self::BodyTooLong { .. } => "body-too-long",
            Self::Status { .. } => "status",
            Self::Decode { .. } => "undecodable",
        }
    }
}

impl Classify for HttpError {
    fn classify(&self) -> Failure {
        match self {
            // Our own mistake: no verdict on the dependency, and it will not get better.
            Self::Request { .. } => Failure {
                health: Health::Silent,
                repeat: Repeat::Never,
                sent: Sent::Nothing,
                ..Failure::PERMANENT
            },
            Self::TooLate => Failure::NEUTRAL,
            Self::Connect { .. } => Failure::NOT_SENT,
            Self::Lost { .. } | Self::BodyLost { .. } => Failure::UNKNOWN,
            // The dependency answered, and would answer the same again.
            Self::BodyTooLong { .. } | Self::Decode { .. } => Failure::PERMANENT,
            Self::Status { status, retry_after, forbidden, hurried, .. } => {
                let failure = failure_of_status(status.as_u16(), *retry_after);
                let said = self.upstream_code().map(|code| as_said(failure, code, *hurried));
                let failure = said.unwrap_or(failure);
                let repeat = if *forbidden { Repeat::Never } else { failure.repeat };
                Failure { repeat, ..failure }
            }
        }
    }
}

/// What the dependency's own code makes of the failure that its status stands for.
fn as_said(failure: Failure, code: &str, hurried: bool) -> Failure {
    let unknown = Failure { retry_after: failure.retry_after, ..Failure::UNKNOWN };
    match code {
        // A dependency that names one of *its* dependencies as the culprit is alive. If this
        // counted, one open circuit at the bottom would open all above it, and with them every
        // route that never needed the bottom.
        codes::DEPENDENCY_UNAVAILABLE => Failure { health: Health::Good, ..failure },
        // It gave up a moment before we would have: the same as our own timeout.
        codes::DEADLINE_EXCEEDED => {
            let health = if hurried { Health::Silent } else { Health::Bad };
            Failure { health, ..unknown }
        }
        // The first request with this key, one of our own attempts perhaps, is still running. The
        // same request gets its answer later; "no" would be a lie.
        codes::IDEMPOTENCY_KEY_IN_USE => Failure { health: Health::Good, ..unknown },
        _ => failure,
    }
}
