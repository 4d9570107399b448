//! A service that writes down every breach of tower's contract by whoever stands in front of it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use mamparo_call::Failure;
use tower::Service;

use crate::support::Broken;

/// What all clones of a [`Probe`] write into.
#[derive(Debug, Default)]
pub struct Book {
    breaches: Mutex<Vec<&'static str>>,
    /// What was asked of the service, in order.
    pub requests: Mutex<Vec<Request>>,
    /// How often `poll_ready` is pending before it is ready.
    pub stalls: AtomicU32,
    /// Calls that fail before the next one works.
    pub failures: AtomicU32,
    /// Calls that never end before the next one works.
    pub hangs: AtomicU32,
    /// `poll_ready` fails from here on.
    pub broken: AtomicU32,
}

impl Book {
    pub fn breach(&self, what: &'static str) {
        self.breaches.lock().unwrap().push(what);
    }

    /// The contract was kept, and the service was called that often.
    #[track_caller]
    pub fn kept(&self, calls: usize) {
        assert_eq!(*self.breaches.lock().unwrap(), Vec::<&str>::new());
        assert_eq!(self.requests.lock().unwrap().len(), calls);
    }
}

/// A request whose body is there once; a replay has to be made on purpose.
#[derive(Debug, PartialEq, Eq)]
pub struct Request(pub Vec<u8>);

/// A response that nobody can clone.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub body: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
enum Readiness {
    Unasked,
    Ready,
    Failed,
}

/// The service. Its clones have to be asked for a readiness of their own.
#[derive(Debug)]
pub struct Probe {
    pub book: Arc<Book>,
    readiness: Readiness,
    stalls: u32,
}

impl Probe {
    pub fn new(book: &Arc<Book>) -> Self {
        let stalls = book.stalls.load(Ordering::SeqCst);
        Self { book: Arc::clone(book), readiness: Readiness::Unasked, stalls }
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        Self::new(&self.book)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.readiness == Readiness::Ready {
            self.book.breach("a readiness was thrown away");
        }
    }
}

impl Service<Request> for Probe {
    type Response = Response;
    type Error = Broken;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        if self.readiness == Readiness::Failed {
            self.book.breach("asked again after its readiness failed");
        }
        if self.book.broken.load(Ordering::SeqCst) > 0 {
            self.readiness = Readiness::Failed;
            return Poll::Ready(Err(Broken(Failure::PERMANENT)));
        }
        if self.stalls > 0 {
            self.stalls -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.readiness = Readiness::Ready;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Answer {
        if self.readiness != Readiness::Ready {
            self.book.breach("called without being ready");
        }
        self.readiness = Readiness::Unasked;
        self.stalls = self.book.stalls.load(Ordering::SeqCst);
        let body = request.0.clone();
        self.book.requests.lock().unwrap().push(request);
        let one = |left: &AtomicU32| {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok()
        };
        let hangs = one(&self.book.hangs);
        let fails = !hangs && one(&self.book.failures);
        let answer = if fails { Err(Broken(Failure::TRANSIENT)) } else { Ok(Response { body }) };
        Answer { answer: Some(answer), polls: 0, hangs }
    }
}

/// Pending once, then there.
#[derive(Debug)]
pub struct Answer {
    answer: Option<Result<Response, Broken>>,
    polls: u32,
    hangs: bool,
}

impl Future for Answer {
    type Output = Result<Response, Broken>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.hangs {
            return Poll::Pending;
        }
        self.polls += 1;
        if self.polls == 1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.answer.take().expect("polled after its end"))
    }
}
