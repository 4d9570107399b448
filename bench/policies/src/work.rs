//! The inner call: what stands behind every policy that is measured.

use std::fmt;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll};

use mamparo_call::{Classify, Failure};

/// What the inner call fails with where a row wants a failure. Transient and bad for health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("down")
    }
}

impl std::error::Error for Down {}

impl Classify for Down {
    fn classify(&self) -> Failure {
        Failure::TRANSIENT
    }
}

/// A failure that every policy passes on at once: alive, and pointless to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct No;

impl fmt::Display for No {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no")
    }
}

impl std::error::Error for No {}

impl Classify for No {
    fn classify(&self) -> Failure {
        Failure::PERMANENT
    }
}

/// An answer that is there at once.
///
/// # Errors
/// Never; the type is there because policies look at it.
pub async fn answer(number: u64) -> Result<u64, Down> {
    black_box(Ok(number))
}

/// An answer that takes one turn of the runtime, so that timers really are armed.
///
/// # Errors
/// Never.
pub async fn answer_later(number: u64) -> Result<u64, Down> {
    Yield(false).await;
    black_box(Ok(number))
}

/// A failure of the dependency that is there at once.
///
/// # Errors
/// Always.
pub async fn down(_number: u64) -> Result<u64, Down> {
    black_box(Err(Down))
}

/// A refusal of the dependency that is there at once.
///
/// # Errors
/// Always.
pub async fn no(_number: u64) -> Result<u64, No> {
    black_box(Err(No))
}

/// Pending once.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
