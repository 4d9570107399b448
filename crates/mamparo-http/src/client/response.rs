//! An answer, read to its end.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::HttpError;

/// An answer with its whole body. What a call hands back as a success is always a 2xx.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, at most [`mamparo_core::limits::BODY_BYTES_MAX`] bytes (1 MiB).
    pub body: Bytes,
}

impl Response {
    /// The body as JSON.
    ///
    /// # Errors
    /// [`HttpError::Decode`], which is permanent: the dependency would answer the same again.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        serde_json::from_slice(&self.body)
            .map_err(|source| HttpError::Decode { status: self.status, source })
    }
}
