//! A successful answer, read to its end.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::HttpError;

/// A 2xx answer with its whole body.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status, always 2xx.
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
