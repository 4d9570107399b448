//! What RabbitMQ says when something exists with other arguments: the only way to read them over AMQP.
//!
//! Declaring what exists with other arguments closes the channel with 406 and a text that names *one*
//! argument, what was sent and what is there. So a driver declares with the policy's arguments, adopts
//! what the text says is there and declares again, until the broker agrees: then everything that differs
//! is known, and nothing was changed.

use super::plan::{Difference, Theirs};
use super::{Argument, Arguments};

/// Most arguments that are adopted for one queue. RabbitMQ compares about twenty; more rounds than that
/// are a broker that does not speak as we think.
pub const ROUNDS_MAX: u32 = 32;

/// One inequivalent argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// `x-message-ttl`, or `durable`, `auto_delete`, `type`.
    pub key: String,
    /// What is there, as it is written; with its type where the broker says it.
    pub theirs: Present,
}

/// How a value stands in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Present {
    /// A value, and its AMQP type when the text says it.
    Text(String, Option<String>),
    /// `none`.
    NotSet,
    /// The text ends before it.
    CutOff,
}

/// Reads a 406 text, `… inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '10000' but
/// current is '30000'` say. `None` when it is about something else.
#[must_use]
pub fn read(text: &str) -> Option<Mismatch> {
    let after = text.split_once("inequivalent arg '")?.1;
    let (key, rest) = after.split_once('\'')?;
    let key = key.to_owned();
    let Some((_, current)) = rest.rsplit_once(" but current is ") else {
        return Some(Mismatch { key, theirs: Present::CutOff });
    };
    Some(Mismatch { key, theirs: present(current) })
}

/// `none`, `'30000'` or `the value '30000' of type 'long'`.
fn present(text: &str) -> Present {
    let text = text.trim_end();
    if text == "none" {
        return Present::NotSet;
    }
    let (value, kind) = match text.strip_prefix("the value ") {
        Some(rest) => match rest.rsplit_once(" of type ") {
            Some((value, kind)) => (value, Some(kind)),
            None => (rest, None),
        },
        None => (text, None),
    };
    let unquoted = |text: &str| {
        text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')).map(str::to_owned)
    };
    match (unquoted(value), kind) {
        // The type may be cut off and the value whole.
        (Some(value), kind) => Present::Text(value, kind.and_then(unquoted)),
        (None, _) => Present::CutOff,
    }
}

/// The arguments of one queue as far as they are known: the policy's, with what is there adopted one by
/// one.
#[derive(Debug, Clone)]
pub struct Probe {
    ours: Arguments,
    /// What to declare with next.
    arguments: Arguments,
    durable: bool,
    auto_delete: bool,
    found: Vec<Difference>,
}

/// What to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Declare again.
    Again,
    /// No more can be learnt: the text was cut off, or said the same thing twice.
    Stop,
}

impl Probe {
    /// A probe that begins with the policy's arguments.
    #[must_use]
    pub fn new(ours: &Arguments) -> Self {
        let (durable, auto_delete) = (true, false);
        Self {
            ours: ours.clone(),
            arguments: ours.clone(),
            durable,
            auto_delete,
            found: Vec::new(),
        }
    }

    /// What to declare with.
    #[must_use]
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    /// Whether to declare as durable.
    #[must_use]
    pub fn durable(&self) -> bool {
        self.durable
    }

    /// Whether to declare as deleted with its last consumer.
    #[must_use]
    pub fn auto_delete(&self) -> bool {
        self.auto_delete
    }

    /// Takes up what the broker said.
    pub fn tell(&mut self, mismatch: &Mismatch) -> Next {
        let Mismatch { key, theirs } = mismatch;
        if self.found.iter().any(|difference| difference.key == *key) {
            return Next::Stop;
        }
        let ours = match key.as_str() {
            "durable" => Some(Argument::Flag(true)),
            "auto_delete" => Some(Argument::Flag(false)),
            key => self.ours.get(key).cloned(),
        };
        let theirs = match theirs {
            Present::Text(text, kind) => Theirs::Value(value(text, kind.as_deref(), ours.as_ref())),
            Present::NotSet => Theirs::NotSet,
            Present::CutOff => Theirs::CutOff,
        };
        let next = self.adopt(key, &theirs);
        self.found.push(Difference { key: key.clone(), ours, theirs });
        next
    }

    fn adopt(&mut self, key: &str, theirs: &Theirs) -> Next {
        match (key, theirs) {
            ("durable", Theirs::Value(Argument::Flag(flag))) => self.durable = *flag,
            ("auto_delete", Theirs::Value(Argument::Flag(flag))) => self.auto_delete = *flag,
            ("durable" | "auto_delete", _) | (_, Theirs::CutOff) => return Next::Stop,
            (_, Theirs::Value(value)) => {
                self.arguments.insert(key.to_owned(), value.clone());
            }
            (_, Theirs::NotSet) => {
                self.arguments.remove(key);
            }
        }
        Next::Again
    }

    /// Has anything been found to differ?
    #[must_use]
    pub fn found(&self) -> bool {
        !self.found.is_empty()
    }

    /// All that differs.
    #[must_use]
    pub fn into_differences(self) -> Vec<Difference> {
        self.found
    }
}

/// A value with the type that the broker says, else that of ours, else the one that it looks like.
fn value(text: &str, kind: Option<&str>, ours: Option<&Argument>) -> Argument {
    let number = || text.parse().ok().map(Argument::Number);
    let flag = || text.parse().ok().map(Argument::Flag);
    let typed = match (kind, ours) {
        (Some("longstr"), _) | (None, Some(Argument::Text(_))) => None,
        (Some("bool"), _) => flag(),
        (Some(_), _) | (None, Some(Argument::Number(_))) => number(),
        (None, Some(Argument::Flag(_)) | None) => flag().or_else(number),
    };
    typed.unwrap_or_else(|| Argument::Text(text.to_owned()))
}
