//! Store addresses: `sqlite:PATH` for a file, `postgres://…` for a server.

use std::fmt;
use std::path::PathBuf;

use crate::StoreError;

/// Where a store is. What it shows of itself never has a password in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// An SQLite file: `sqlite:PATH` or `sqlite://PATH`.
    File(PathBuf),
    /// An SQLite database in memory, for tests: `sqlite::memory:`.
    Memory,
    /// A PostgreSQL database: `postgres://USER:PASSWORD@HOST:PORT/DATABASE` (or `postgresql://…`).
    Postgres(PostgresUrl),
}

/// The address of a PostgreSQL database. Shown, printed and logged without its password.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl StoreAddress {
    /// Reads an address.
    ///
    /// # Errors
    /// [`StoreError::Address`] for an unknown scheme or an address without a path or host. The text
    /// never repeats a password that stands in the address.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let refuse = |why| Err(StoreError::Address { address: without_secret(text), why });
        for scheme in ["postgres://", "postgresql://"] {
            match text.strip_prefix(scheme) {
                Some("") => return refuse("the host is missing; write postgres://HOST/DATABASE"),
                Some(_) => return Ok(Self::Postgres(PostgresUrl(text.to_owned()))),
                None => {}
            }
        }
        let path = text.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
        match path {
            Some("") => refuse("the path is missing; write sqlite:PATH"),
            Some(":memory:") => Ok(Self::Memory),
            Some(path) => Ok(Self::File(PathBuf::from(path))),
            None => refuse("use sqlite:PATH, sqlite::memory: or postgres://…"),
        }
    }
}

impl PostgresUrl {
    /// The address with its password, for connecting only.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("sqlite::memory:"),
            Self::Postgres(url) => write!(f, "{url}"),
        }
    }
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_secret(&self.0))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", without_secret(&self.0))
    }
}

/// The address without user, password and parameters: a password may stand among those, too.
fn without_secret(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    if scheme == "sqlite" {
        return text.to_owned();
    }
    let (rest, parameters) = match rest.split_once('?') {
        // An unescaped `?` in a password: what stands before it is no host either.
        Some((before, after)) => match after.rfind('@') {
            Some(at) => (&after[at..], ""),
            None => (before, "?…"),
        },
        None => (rest, ""),
    };
    match rest.rfind('@') {
        Some(at) => format!("{scheme}://…{}{parameters}", &rest[at..]),
        None => format!("{scheme}://{rest}{parameters}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (address, path) in [
            ("sqlite:orders.db", "orders.db"),
            ("sqlite:/var/lib/orders.db", "/var/lib/orders.db"),
            ("sqlite:///var/lib/orders.db", "/var/lib/orders.db"),
            ("sqlite://orders.db", "orders.db"),
        ] {
            let read = StoreAddress::parse(address).unwrap();
            assert_eq!(read, StoreAddress::File(PathBuf::from(path)), "{address}");
        }
        assert_eq!(StoreAddress::parse("sqlite::memory:").unwrap(), StoreAddress::Memory);
        for address in ["postgres://localhost/orders", "postgresql://shop@db:5432/orders"] {
            let read = StoreAddress::parse(address).unwrap();
            assert!(matches!(read, StoreAddress::Postgres(_)), "{address}");
        }
        for address in ["", "sqlite:", "orders.db", "postgres://", "mysql://db/orders", "SQLITE:a"]
        {
            assert!(StoreAddress::parse(address).is_err(), "{address}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        for (address, shown) in [
            ("postgres://shop:s3cret@db:5432/orders", "postgres://…@db:5432/orders"),
            ("postgres://shop:s3@cret@db/orders", "postgres://…@db/orders"),
            ("postgres://db/orders?user=shop&password=s3cret", "postgres://db/orders?…"),
            ("postgres://shop:s3?cret@db/orders", "postgres://…@db/orders"),
            ("postgres://localhost/orders", "postgres://localhost/orders"),
        ] {
            let read = StoreAddress::parse(address).unwrap();
            assert_eq!(read.to_string(), shown);
            assert!(!format!("{read:?}").contains("cret"), "{read:?}");
        }
        let refused = StoreAddress::parse("mysql://shop:s3cret@db/orders").unwrap_err();
        assert!(!refused.to_string().contains("s3cret"), "{refused}");
    }
}
