//! Work that ends in every way there is, and who drops it at every await.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mamparo_call::Failure;

use crate::support::Broken;

/// How work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Works,
    Fails,
    Panics,
}

/// Work that is pending that often, and then ends.
#[derive(Debug, Clone, Copy)]
pub struct Work(pub u32, pub End);

impl Work {
    pub fn all() -> impl Iterator<Item = Self> {
        let ends = [End::Works, End::Fails, End::Panics];
        (0..4).flat_map(move |pendings| ends.map(|end| Self(pendings, end)))
    }

    pub async fn run(self) -> Result<(), Broken> {
        let mut left = self.0;
        poll_fn(|_| {
            let ready = left == 0;
            left = left.saturating_sub(1);
            if ready { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        match self.1 {
            End::Works => Ok(()),
            End::Fails => Err(Broken(Failure::TRANSIENT)),
            End::Panics => panic!("a bug of the work"),
        }
    }
}

/// What was seen of a future before it was dropped.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen<T> {
    Pending,
    Ended(T),
    Panicked,
}

impl<T> Seen<T> {
    /// Without what it ended with.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ended(_) => "ended",
            Self::Panicked => "panicked",
        }
    }
}

pub fn poll_once<F: Future>(future: &mut Pin<Box<F>>) -> Seen<F::Output> {
    let cx = &mut Context::from_waker(Waker::noop());
    match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(Poll::Pending) => Seen::Pending,
        Ok(Poll::Ready(output)) => Seen::Ended(output),
        Err(_) => Seen::Panicked,
    }
}

/// Polls at most `polls` times, with time between the polls, and drops the future.
pub async fn poll_and_drop<F: Future>(future: F, polls: u32, between: Duration) -> Seen<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..polls {
        match poll_once(&mut future) {
            Seen::Pending => tokio::time::advance(between).await,
            end @ (Seen::Ended(_) | Seen::Panicked) => return end,
        }
    }
    Seen::Pending
}
