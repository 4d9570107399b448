//! Why a broker ended a connection, a channel or a consumer: what its code means and what helps.
//!
//! Codes are AMQP 0-9-1's reply codes (specification 1.2); the texts are RabbitMQ's.

/// What an end means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The connection broke: reset, refused, or no sign of life for two heartbeats.
    Disconnected,
    /// The broker ended the connection by order: a shutdown, or an operator (320).
    Forced,
    /// There is no such queue or exchange (404).
    NotFound,
    /// Wrong user or password, or a permission is missing (403).
    Refused,
    /// Somebody else has it exclusively (405).
    Locked,
    /// A message was in hand for longer than the broker's consumer timeout (406).
    AckTimeout,
    /// A delivery was settled that the channel does not know (406).
    UnknownTag,
    /// A queue or exchange exists with other arguments than ours (406).
    Mismatch,
    /// The message is larger than the broker allows (406).
    TooLarge,
    /// Another condition was not met (406).
    Precondition,
    /// The broker ended the consumer: its queue was deleted or moved.
    Cancelled,
    /// The virtual host does not exist, or a limit of it is reached (402, 530).
    NotAllowed,
    /// The broker has too little memory, disk or connections (311, 506).
    Exhausted,
    /// One of the two programs sent what the other does not understand (501 to 505, 540).
    Protocol,
    /// The broker sent what our client can't read: a message with a string that is no UTF-8, say.
    Unreadable,
    /// The broker failed (541).
    Internal,
    /// We ended it ourselves.
    Closed,
    /// Anything else.
    Other,
}

impl Kind {
    /// What it means and what helps, as one clause.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Disconnected => "the connection to the broker broke; it is opened again",
            Self::Forced => "the broker was shut down or an operator closed the connection",
            Self::NotFound => "there is no such queue or exchange in this virtual host; declare it",
            Self::Refused => "check user, password and permissions in this virtual host",
            Self::Locked => "another connection has it exclusively",
            Self::AckTimeout => {
                "a message was in hand for longer than the broker's consumer_timeout; make the handler's \
                 time limit shorter or the broker's longer"
            }
            Self::UnknownTag => "a delivery was settled twice or on another channel",
            Self::Mismatch => {
                "it exists with other arguments; `mamparo topology plan` shows the difference and the way"
            }
            Self::TooLarge => {
                "the message is larger than the broker's max_message_size; send a reference instead of the \
                 content, or raise the limit"
            }
            Self::Precondition => "the broker's state does not allow it",
            Self::Cancelled => "the queue was deleted or moved to another node",
            Self::NotAllowed => "the virtual host does not exist or its limits are reached",
            Self::Exhausted => "the broker has too little memory, disk or connections",
            Self::Protocol => "broker and client do not understand each other",
            Self::Unreadable => {
                "a message's type, id or another short string is no UTF-8; it is read on a connection that \
                 mends it"
            }
            Self::Internal => "the broker failed; its log says why",
            Self::Closed => "it was closed on our side",
            Self::Other => "the broker's log may say more",
        }
    }

    /// Does the same operation have a chance again without anybody changing something?
    #[must_use]
    pub const fn passes(self) -> bool {
        match self {
            Self::Disconnected
            | Self::Forced
            | Self::Locked
            | Self::AckTimeout
            | Self::UnknownTag
            | Self::Cancelled
            | Self::Exhausted
            | Self::Unreadable
            | Self::Internal
            | Self::Closed
            | Self::Other => true,
            Self::NotFound
            | Self::Refused
            | Self::Mismatch
            | Self::TooLarge
            | Self::Precondition
            | Self::NotAllowed
            | Self::Protocol => false,
        }
    }
}

/// An end and its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closure {
    /// What it means.
    pub kind: Kind,
    /// The broker's reply code, if it gave one.
    pub code: Option<u16>,
    /// What the broker, or the operating system, said.
    pub text: String,
}

impl Closure {
    /// The end with this meaning and no code.
    #[must_use]
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, code: None, text: text.into() }
    }

    /// Reads a broker's reply.
    #[must_use]
    pub fn of_reply(code: u16, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind: kind_of(code, &text), code: Some(code), text }
    }
}

/// What a publish was refused for, and so will be the next of its kind: the others in flight only
/// shared its channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Culprit {
    /// Bodies of more bytes than this.
    LongerThan(u64),
    /// Publishes to this exchange; empty for the default one.
    To(String),
}

impl Culprit {
    /// Is it this publish?
    #[must_use]
    pub fn is(&self, exchange: &str, bytes: u64) -> bool {
        match self {
            Self::LongerThan(most) => bytes > *most,
            Self::To(refused) => refused == exchange,
        }
    }
}

impl Closure {
    /// Which publishes the broker closed the channel for, if it said so in words that we know.
    #[must_use]
    pub fn culprit(&self) -> Option<Culprit> {
        match self.kind {
            Kind::TooLarge => {
                let (_, most) = self.text.rsplit_once("max size ")?;
                most.trim().parse().ok().map(Culprit::LongerThan)
            }
            Kind::Refused => {
                let (_, rest) = self.text.split_once("exchange '")?;
                let (exchange, _) = rest.split_once('\'')?;
                let default = exchange == "amq.default";
                Some(Culprit::To(if default { String::new() } else { exchange.to_owned() }))
            }
            Kind::Disconnected
            | Kind::Forced
            | Kind::NotFound
            | Kind::Locked
            | Kind::AckTimeout
            | Kind::UnknownTag
            | Kind::Mismatch
            | Kind::Precondition
            | Kind::Cancelled
            | Kind::NotAllowed
            | Kind::Exhausted
            | Kind::Protocol
            | Kind::Unreadable
            | Kind::Internal
            | Kind::Closed
            | Kind::Other => None,
        }
    }
}

fn kind_of(code: u16, text: &str) -> Kind {
    match code {
        200 => Kind::Closed,
        311 | 506 => Kind::Exhausted,
        320 => Kind::Forced,
        402 | 530 => Kind::NotAllowed,
        403 => Kind::Refused,
        404 => Kind::NotFound,
        405 => Kind::Locked,
        406 => precondition(text),
        501..=505 | 540 => Kind::Protocol,
        541 => Kind::Internal,
        _ => Kind::Other,
    }
}

/// One code for many things: only its text tells them apart.
fn precondition(text: &str) -> Kind {
    let says = |words: &str| text.contains(words);
    if says("timed out") && says("acknowledgement") {
        Kind::AckTimeout
    } else if says("unknown delivery tag") {
        Kind::UnknownTag
    } else if says("inequivalent arg") {
        Kind::Mismatch
    } else if says("message size") {
        Kind::TooLarge
    } else {
        Kind::Precondition
    }
}

impl std::fmt::Display for Closure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.text.is_empty() { "no reason given" } else { &self.text })?;
        // RabbitMQ's own texts begin with the code's name; the number is what one searches for.
        if let Some(code) = self.code {
            write!(f, " ({code})")?;
        }
        write!(f, ": {}", self.kind.advice())
    }
}
