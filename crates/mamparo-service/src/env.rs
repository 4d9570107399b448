//! The only room that reads environment variables.
//!
//! | variable | overrides | default |
//! |---|---|---|
//! | `MAMPARO_LOG` | the log filter, for example `info,mamparo_call=debug` | `info` |
//! | `MAMPARO_LOG_FORMAT` | `pretty` or `json`, on stderr | `pretty` |
//! | `MAMPARO_LISTEN` | `service.listen` of the policy file | what the file says |
//! | `MAMPARO_STORE` | `service.store` | what the file says |
//! | `MAMPARO_BROKER` | `service.broker` | what the file says |
//!
//! RabbitMQ's client library (`lapin`) logs every channel and connection that ends as an error, also what is
//! handled a moment later. mamparo says the same in its own words, once, with what it means. So the
//! library is left out of every filter that does not name it; `info,lapin=warn` lets it speak.
//!
//! An empty variable counts as not set. A wrong one is a mistake like one in the file, and is
//! reported together with those.

use std::env::VarError;
use std::net::SocketAddr;

use mamparo_topology::{Located, PolicyFile, Problem, Problems, check_broker, check_store};
use tracing_subscriber::EnvFilter;

/// The default log filter.
const LOG: &str = "info";

/// The filter, without the client library of RabbitMQ unless it names that.
fn without_client(filter: &str) -> String {
    if filter.contains("lapin") { filter.to_owned() } else { format!("{filter},lapin=off") }
}

/// The name that stands for a file in problems of the environment.
const FILE: &str = "environment";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object a line, for machines.
    Json,
}

/// What the environment says, read once at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// The log filter. Default `info,lapin=off`; a filter that does not name `lapin` gets `,lapin=off` too.
    pub log: String,
    /// How log lines look. Default pretty.
    pub log_format: LogFormat,
    /// Overrides `service.listen`.
    pub listen: Option<SocketAddr>,
    /// Overrides `service.store`.
    pub store: Option<String>,
    /// Overrides `service.broker`.
    pub broker: Option<String>,
}

impl Default for Environment {
    fn default() -> Self {
        Self {
            log: without_client(LOG),
            log_format: LogFormat::Pretty,
            listen: None,
            store: None,
            broker: None,
        }
    }
}

impl Environment {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// Every variable whose value is wrong.
    pub fn read() -> Result<Self, Problems> {
        #[expect(clippy::disallowed_methods, reason = "this is the one room that reads variables")]
        Self::from_lookup(|name| std::env::var(name))
    }

    /// Reads variables by `lookup`, so that a test needs no real ones.
    ///
    /// # Errors
    /// Every variable whose value is wrong.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Result<String, VarError>,
    ) -> Result<Self, Problems> {
        let mut problems = Vec::new();
        let mut value = |name: &str| match lookup(name) {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(text),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                problems.push(Problem::of_key(FILE, 0, name, "is not UTF-8"));
                None
            }
        };
        let mut found = Self::default();
        let (log, format) = (value("MAMPARO_LOG"), value("MAMPARO_LOG_FORMAT"));
        let listen = value("MAMPARO_LISTEN");
        (found.store, found.broker) = (value("MAMPARO_STORE"), value("MAMPARO_BROKER"));

        let mut wrong = |name: &str, message: &str, hint: Option<String>| {
            let problem = Problem::of_key(FILE, 0, name, message);
            problems.push(match hint {
                Some(hint) => problem.with_hint(hint),
                None => problem,
            });
        };
        if let Some(log) = log {
            match EnvFilter::try_new(&log) {
                Ok(_) => found.log = without_client(&log),
                Err(error) => wrong("MAMPARO_LOG", &error.to_string(), None),
            }
        }
        match format.as_deref() {
            None => {}
            Some("pretty") => found.log_format = LogFormat::Pretty,
            Some("json") => found.log_format = LogFormat::Json,
            Some(other) => {
                let hint = "pretty or json".to_owned();
                wrong("MAMPARO_LOG_FORMAT", &format!("{other:?} is no format"), Some(hint));
            }
        }
        if let Some(text) = listen {
            match text.parse() {
                Ok(address) => found.listen = Some(address),
                Err(_) => {
                    let hint = "an address and a port, for example 127.0.0.1:8080".to_owned();
                    wrong("MAMPARO_LISTEN", "is not a socket address", Some(hint));
                }
            }
        }
        if let Some(Err(hint)) = found.store.as_deref().map(check_store) {
            wrong("MAMPARO_STORE", "is no address of a store", Some(hint));
        }
        if let Some(Err(hint)) = found.broker.as_deref().map(check_broker) {
            wrong("MAMPARO_BROKER", "is no address of a broker", Some(hint));
        }
        Problems::or(problems, found)
    }

    /// Puts the overrides over the values of the file.
    pub fn apply(&self, policy: &mut PolicyFile) {
        if let Some(listen) = self.listen {
            policy.service.listen = Located::nowhere(listen);
        }
        if let Some(store) = &self.store {
            policy.service.store = Some(Located::nowhere(store.clone()));
        }
        if let Some(broker) = &self.broker {
            policy.service.broker = Some(Located::nowhere(broker.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(pairs: &[(&str, &str)]) -> Result<Environment, Problems> {
        Environment::from_lookup(|name| {
            let found = pairs.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned()).ok_or(VarError::NotPresent)
        })
    }

    #[test]
    fn nothing_set_is_the_default_and_empty_is_not_set() {
        assert_eq!(lookup(&[]), Ok(Environment::default()));
        assert_eq!(lookup(&[("MAMPARO_LISTEN", "")]), Ok(Environment::default()));
    }

    #[test]
    fn overrides_reach_the_policy() {
        let environment = lookup(&[
            ("MAMPARO_LOG", "debug"),
            ("MAMPARO_LOG_FORMAT", "json"),
            ("MAMPARO_LISTEN", "0.0.0.0:9000"),
            ("MAMPARO_STORE", "sqlite:other.db"),
        ])
        .unwrap();
        let said = (environment.log.as_str(), environment.log_format);
        assert_eq!(said, ("debug,lapin=off", LogFormat::Json));
        let file = "[service]\nname = \"a\"\nowner = \"b\"\nbroker = \"sqlite:broker.db\"\n";
        let mut policy = mamparo_topology::parse("a.toml", file).unwrap();
        environment.apply(&mut policy);
        assert_eq!(policy.service.listen.to_string(), "0.0.0.0:9000");
        assert_eq!(policy.service.store.unwrap().value, "sqlite:other.db");
        assert_eq!(policy.service.broker.unwrap().value, "sqlite:broker.db");
    }

    #[test]
    fn the_client_library_of_rabbitmq_speaks_only_when_it_is_asked() {
        for (given, log) in [
            (None, "info,lapin=off"),
            (Some("warn"), "warn,lapin=off"),
            (Some("info,mamparo_call=debug"), "info,mamparo_call=debug,lapin=off"),
            (Some("info,lapin=warn"), "info,lapin=warn"),
        ] {
            let pairs: Vec<_> = given.into_iter().map(|given| ("MAMPARO_LOG", given)).collect();
            assert_eq!(lookup(&pairs).unwrap().log, log);
            assert!(EnvFilter::try_new(log).is_ok(), "{log}");
        }
    }

    #[test]
    fn all_wrong_variables_are_reported_together() {
        let problems = lookup(&[
            ("MAMPARO_LOG", "mamparo=loud"),
            ("MAMPARO_LOG_FORMAT", "xml"),
            ("MAMPARO_LISTEN", "here"),
            ("MAMPARO_STORE", "mysql:x"),
            ("MAMPARO_BROKER", "kafka:x"),
        ])
        .unwrap_err();
        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "MAMPARO_LOG",
                "MAMPARO_LOG_FORMAT",
                "MAMPARO_LISTEN",
                "MAMPARO_STORE",
                "MAMPARO_BROKER"
            ]
        );
        let text = problems.to_string();
        assert!(text.contains("environment: MAMPARO_LOG_FORMAT: \"xml\" is no format"), "{text}");
    }
}
