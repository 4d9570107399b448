//! Broker addresses: `sqlite:PATH` for the embedded one, `amqp://…` for RabbitMQ.

use std::path::{Path, PathBuf};

use crate::MessagingError;

/// Where a broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerAddress {
    /// The embedded broker in this SQLite file, shared by every process that opens it.
    File(PathBuf),
    /// The embedded broker in memory, for tests.
    Memory,
}

impl BrokerAddress {
    /// Reads an address.
    ///
    /// # Errors
    /// [`MessagingError::Address`]: RabbitMQ is not in this build, or the scheme is unknown. The
    /// text never repeats a password that stands in the address.
    pub fn parse(text: &str) -> Result<Self, MessagingError> {
        let refuse = |why| Err(MessagingError::Address { address: without_secret(text), why });
        if text.starts_with("amqp://") || text.starts_with("amqps://") {
            return refuse(
                "RabbitMQ is not in this build yet; use the embedded broker, sqlite:PATH",
            );
        }
        match text.strip_prefix("sqlite:").map(|rest| rest.trim_start_matches("//")) {
            Some("") => refuse("the path is missing; write sqlite:PATH"),
            Some(":memory:") => Ok(Self::Memory),
            Some(path) => Ok(Self::File(PathBuf::from(path))),
            None => refuse("use sqlite:PATH (embedded) or amqp://… (RabbitMQ)"),
        }
    }

    /// The file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Memory => None,
        }
    }
}

impl std::fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("sqlite::memory:"),
        }
    }
}

/// The address without user and password.
fn without_secret(text: &str) -> String {
    match (text.split_once("://"), text.rfind('@')) {
        (Some((scheme, _)), Some(at)) => format!("{scheme}://…{}", &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_memory_and_nothing_else_is_embedded() {
        let file = BrokerAddress::parse("sqlite:data/broker.db").unwrap();
        assert_eq!(file.path(), Some(Path::new("data/broker.db")));
        assert_eq!(file.to_string(), "sqlite:data/broker.db");
        let absolute = BrokerAddress::parse("sqlite:///var/broker.db").unwrap();
        assert_eq!(absolute.path(), Some(Path::new("/var/broker.db")));
        assert_eq!(BrokerAddress::parse("sqlite::memory:").unwrap(), BrokerAddress::Memory);
        for wrong in ["", "sqlite:", "broker.db", "kafka://x"] {
            assert!(BrokerAddress::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn rabbitmq_is_refused_in_words_and_without_its_password() {
        let text = BrokerAddress::parse("amqp://shop:s3cret@mq:5672/%2f").unwrap_err().to_string();
        assert!(text.contains("RabbitMQ is not in this build"), "{text}");
        assert!(text.contains("@mq:5672") && !text.contains("s3cret"), "{text}");
    }
}
