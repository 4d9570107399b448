//! What a broker can do, by its kind and version: rules that changed from release to release.
//!
//! RabbitMQ says its version when a connection opens. Everything that depends on it is decided here,
//! as data, so that a version that is not at hand can be asked about too.

/// What kind of broker it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// The embedded one: queues as rows of a SQLite file.
    Embedded,
    /// RabbitMQ.
    RabbitMq,
}

/// A release, `3.10.8` say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number; 0 where there is none.
    pub patch: u32,
}

impl Version {
    /// A release.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads `3.10.8`, `4.1` or `4.3.0-rc.1`; what follows the numbers is left out. `None` when it does
    /// not begin with two numbers.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
        let mut parts = numbers.split('.').map(str::parse::<u32>);
        let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
        Some(Self { major, minor, patch: parts.next().and_then(Result::ok).unwrap_or(0) })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What a broker can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Its kind.
    pub engine: Engine,
    /// Its release; for the embedded one, 0.0.0.
    pub version: Version,
    /// Replicated queues that survive a node: RabbitMQ 3.8.
    pub quorum: bool,
    /// A waiting room keeps a message until its target has confirmed it: RabbitMQ 3.10, and every move of
    /// the embedded broker, which is one transaction.
    pub at_least_once: bool,
    /// Waits before it hands a rejected message out again: RabbitMQ 4.3.
    pub delayed_retry: bool,
    /// Hand-outs after which a quorum queue gives a message up although nobody asked for a limit: 20
    /// from RabbitMQ 4.0. Without a dead-letter target the message is then dropped.
    pub delivery_limit_default: Option<u32>,
    /// A queue's arguments can be changed while it lives. Not on RabbitMQ, where they are fixed by the
    /// first declaration.
    pub mutable_queues: bool,
}

impl Capabilities {
    /// Those of the embedded broker.
    #[must_use]
    pub const fn embedded() -> Self {
        Self {
            engine: Engine::Embedded,
            version: Version::new(0, 0, 0),
            quorum: false,
            at_least_once: true,
            delayed_retry: false,
            delivery_limit_default: None,
            mutable_queues: true,
        }
    }

    /// Those of a RabbitMQ release.
    #[must_use]
    pub fn rabbitmq(version: Version) -> Self {
        let from = |major, minor| version >= Version::new(major, minor, 0);
        Self {
            engine: Engine::RabbitMq,
            version,
            quorum: from(3, 8),
            at_least_once: from(3, 10),
            delayed_retry: from(4, 3),
            delivery_limit_default: from(4, 0).then_some(20),
            mutable_queues: false,
        }
    }
}

impl std::fmt::Display for Capabilities {
    /// `RabbitMQ 3.10.8`, `the embedded broker`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.engine {
            Engine::Embedded => f.write_str("the embedded broker"),
            Engine::RabbitMq => write!(f, "RabbitMQ {}", self.version),
        }
    }
}
