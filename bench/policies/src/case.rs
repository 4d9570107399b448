//! One row of the table: a loop over a call, and what the call is expected to say.

use std::fmt;
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;

use tower::{Service, ServiceExt as _};

/// Whose code a row measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Language, standard library and tokio.
    Base,
    /// tower and the crates of other people.
    Peer,
    /// This repository.
    Mamparo,
}

impl Owner {
    /// As in the output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Peer => "peer",
            Self::Mamparo => "mamparo",
        }
    }
}

/// What the call of a row is expected to say. Checked before and after measuring: a row called
/// "success" that fails fast would be the fastest of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// A value.
    Value,
    /// An error, of a guard or of the inner call.
    Error,
}

/// A loop on its way.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A row: makes as many calls one after the other as it is told. Two runs at once share one policy.
pub struct Case {
    /// The row's name, `owner.policy.way`.
    pub name: &'static str,
    /// Whose code it is.
    pub owner: Owner,
    expect: Expect,
    run: Box<dyn Fn(u64) -> Boxed<()> + Send + Sync>,
    once: Box<dyn Fn() -> Boxed<Expect> + Send + Sync>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Case {
    /// A row that calls `call` with 0, 1, 2 …
    ///
    /// `call` is a plain closure over what is shared, leaked if need be ([`shared`]): the loop is
    /// compiled for it, and the one box is around the loop, never around a call.
    pub fn calls<F, Fut, T, E>(name: &'static str, expect: Expect, call: F) -> Self
    where
        F: Fn(u64) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send,
        T: Send,
        E: Send,
    {
        let one = call.clone();
        Self {
            name,
            owner: owner_of(name),
            expect,
            run: Box::new(move |calls| {
                let call = call.clone();
                Box::pin(async move {
                    for number in 0..calls {
                        black_box(call(black_box(number)).await).ok();
                    }
                })
            }),
            once: Box::new(move || {
                let one = one.clone();
                Box::pin(async move { said(&one(0).await) })
            }),
        }
    }

    /// A row that calls a service: ready, then call. Each run has its own clone.
    pub fn service<S>(name: &'static str, expect: Expect, service: S) -> Self
    where
        S: Service<u64> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Response: Send,
        S::Error: Send,
    {
        let one = service.clone();
        Self {
            name,
            owner: owner_of(name),
            expect,
            run: Box::new(move |calls| {
                let mut service = service.clone();
                Box::pin(async move {
                    for number in 0..calls {
                        black_box(through(&mut service, black_box(number)).await).ok();
                    }
                })
            }),
            once: Box::new(move || {
                let mut one = one.clone();
                Box::pin(async move { said(&through(&mut one, 0).await) })
            }),
        }
    }

    /// Makes `calls` calls, one after the other.
    #[must_use]
    pub fn run(&self, calls: u64) -> Boxed<()> {
        (self.run)(calls)
    }

    /// Makes one call.
    ///
    /// # Errors
    /// When it does not say what the row is about.
    pub async fn check(&self) -> Result<(), String> {
        let said = (self.once)().await;
        if said == self.expect {
            return Ok(());
        }
        Err(format!("measure {}: it was to say {:?} and said {said:?}", self.name, self.expect))
    }
}

/// A value that lives as long as the program, as policies in a service do.
pub fn shared<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

async fn through<S: Service<u64>>(service: &mut S, number: u64) -> Result<S::Response, S::Error> {
    service.ready().await?.call(number).await
}

fn said<T, E>(result: &Result<T, E>) -> Expect {
    if result.is_ok() { Expect::Value } else { Expect::Error }
}

fn owner_of(name: &str) -> Owner {
    match name.split('.').next() {
        Some("mamparo") => Owner::Mamparo,
        Some("base" | "std" | "tokio") => Owner::Base,
        _ => Owner::Peer,
    }
}
