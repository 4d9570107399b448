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
    /// RabbitMQ.
    Amqp(AmqpAddress),
}

/// A RabbitMQ address. Neither `Display` nor `Debug` shows user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct AmqpAddress {
    url: String,
}

impl AmqpAddress {
    /// The whole address, password included.
    pub(crate) fn secret(&self) -> &str {
        &self.url
    }
}

impl std::fmt::Display for AmqpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&without_secret(&self.url))
    }
}

impl std::fmt::Debug for AmqpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AmqpAddress({self})")
    }
}

impl BrokerAddress {
    /// Reads an address.
    ///
    /// RabbitMQ's is `amqp://USER:PASSWORD@HOST:PORT/VHOST`, or `amqps://…` over TLS. User and
    /// password default to `guest`, the port to 5672 (5671 over TLS), the virtual host to `/`, which
    /// is written `%2f`.
    ///
    /// # Errors
    /// [`MessagingError::Address`] when the scheme is unknown or a part is missing. The text never
    /// repeats a password that stands in the address.
    pub fn parse(text: &str) -> Result<Self, MessagingError> {
        let refuse = |why| Err(MessagingError::Address { address: without_secret(text), why });
        let amqp = ["amqp://", "amqps://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        if let Some(rest) = amqp {
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            let place = place.split_once('?').map_or(place, |(place, _)| place);
            let (host, vhost) = place.split_once('/').map_or((place, None), |(h, v)| (h, Some(v)));
            return match (host, vhost) {
                ("", _) => refuse("the host is missing; write amqp://USER:PASSWORD@HOST:5672/%2f"),
                (host, _) if host.starts_with('[') => {
                    refuse("an IPv6 address needs a host name; write amqp://HOST:5672/%2f")
                }
                (_, Some("")) => {
                    refuse("the virtual host is empty; the default one, /, is written as /%2f")
                }
                _ => Ok(Self::Amqp(AmqpAddress { url: text.to_owned() })),
            };
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
            Self::Memory | Self::Amqp(_) => None,
        }
    }
}

impl std::fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("sqlite::memory:"),
            Self::Amqp(address) => write!(f, "{address}"),
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
    fn rabbitmq_keeps_its_password_to_itself() {
        let address = BrokerAddress::parse("amqp://shop:s3cret@mq:5672/%2f").unwrap();
        assert_eq!(address.to_string(), "amqp://…@mq:5672/%2f");
        assert_eq!(address.path(), None);
        assert!(!format!("{address:?}").contains("s3cret"));
        for fine in ["amqp://mq", "amqps://mq:5671/shop?heartbeat=5", "amqp://u:p@w/d@mq/%2f"] {
            assert!(matches!(BrokerAddress::parse(fine), Ok(BrokerAddress::Amqp(_))), "{fine}");
        }
    }

    #[test]
    fn half_a_rabbitmq_address_says_what_is_missing() {
        for (wrong, says) in [
            ("amqp://", "host is missing"),
            ("amqp://u:s3cret@/%2f", "host is missing"),
            ("amqp://u:s3cret@mq:5672/", "written as /%2f"),
            ("amqp://u:s3cret@[::1]:5672", "host name"),
        ] {
            let text = BrokerAddress::parse(wrong).unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains("s3cret"), "{wrong}: {text}");
        }
    }
}
