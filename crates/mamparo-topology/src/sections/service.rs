//! `[service]`

use std::net::{Ipv4Addr, SocketAddr};

use super::{LONGEST, SHORTEST};
use crate::reader::Section;
use crate::{Located, ServiceSection};

pub(super) fn read(mut section: Section<'_, '_>) -> Option<ServiceSection> {
    let name = section.require::<String>("name");
    let owner = section.require::<String>("owner");
    let request_budget = section.within("request_budget", SHORTEST..=LONGEST);
    let listen = listen(&mut section);
    let store = address(&mut section, "store", check_store);
    let broker = address(&mut section, "broker", check_broker);
    for (key, value) in [("name", &name), ("owner", &owner)] {
        if value.as_ref().is_some_and(|value| value.trim().is_empty()) {
            section.complain(key, "is empty", None);
        }
    }
    section.finish();
    Some(ServiceSection { name: name?, owner: owner?, request_budget, listen, store, broker })
}

fn listen(section: &mut Section<'_, '_>) -> Located<SocketAddr> {
    let anywhere = Located::nowhere(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let Some(text) = section.get::<String>("listen") else { return anywhere };
    match text.parse() {
        Ok(address) => Located::at(text.line, address),
        Err(_) => {
            let hint = "write an address and a port, for example \"127.0.0.1:8080\"".to_owned();
            section.complain("listen", "is not a socket address", Some(hint));
            anywhere
        }
    }
}

fn address(
    section: &mut Section<'_, '_>,
    key: &'static str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Option<Located<String>> {
    let text = section.get::<String>(key)?;
    match check(&text) {
        Ok(()) => Some(text),
        Err(hint) => {
            let message = format!("{:?} is no address of a {key}", without_secret(&text));
            section.complain(key, &message, Some(hint));
            None
        }
    }
}

/// The address without user and password: whoever mistypes a scheme has written them, too.
fn without_secret(text: &str) -> String {
    match (text.split_once("://"), text.rfind('@')) {
        (Some((scheme, _)), Some(at)) => format!("{scheme}://…{}", &text[at..]),
        _ => text.to_owned(),
    }
}

/// Is `text` the address of a store: `sqlite:path`, `sqlite::memory:` or `postgres://…`?
///
/// # Errors
/// How to write one.
pub fn check_store(text: &str) -> Result<(), String> {
    check_scheme(text, &["sqlite:", "postgres://", "postgresql://"])
}

/// Is `text` the address of a broker: `sqlite:path`, `amqp://…` or `amqps://…`?
///
/// # Errors
/// How to write one.
pub fn check_broker(text: &str) -> Result<(), String> {
    check_scheme(text, &["sqlite:", "amqp://", "amqps://"])
}

fn check_scheme(text: &str, schemes: &[&str]) -> Result<(), String> {
    let fits = |scheme: &&str| text.starts_with(*scheme) && text.len() > scheme.len();
    if schemes.iter().any(fits) {
        return Ok(());
    }
    Err(format!("it begins with {}", schemes.join(" or ")))
}
