//! Where the demo's shop stands: a directory with every service's policy file and database, and a
//! port for each service.
//!
//! The files are the shop's own, with addresses filled in and clocks shortened; what runs is what
//! the files say, in this process or in another.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use mamparo::core::rng::{Rng, SeededRng};
use toml::{Table, Value};

use super::DemoError;
use super::scenario::{SHORTENED, Scenario};
use crate::shop::{SERVICES, default_policy};

/// Ports are taken from below the range that outgoing connections get theirs from, so that a
/// service that comes back finds its port free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The place.
#[derive(Debug)]
pub struct Site {
    dir: PathBuf,
    ports: BTreeMap<&'static str, u16>,
}

impl Site {
    /// Writes all policy files for `scenario` into `dir`.
    ///
    /// # Errors
    /// When a file can't be written, or no port is free.
    pub fn lay(dir: &Path, scenario: &Scenario, rng: &mut SeededRng) -> Result<Self, DemoError> {
        let mut site = Self { dir: dir.to_owned(), ports: BTreeMap::new() };
        for service in SERVICES {
            let port = free_port(rng, &site.ports)?;
            site.ports.insert(service, port);
        }
        let limits: Vec<_> = SHORTENED.iter().chain(scenario.limits).collect();
        for service in SERVICES {
            let mut file = Table::new();
            if let Some(text) = default_policy(service) {
                file = text.parse().map_err(|error| broken(service, &error))?;
            }
            for (path, value) in site.places(service, &file) {
                set(&mut file, &path, value);
            }
            for (_, path, value) in limits.iter().filter(|(of, ..)| *of == service) {
                set(&mut file, path, (*value).to_owned());
            }
            let text = toml::to_string(&file).map_err(|error| broken(service, &error))?;
            let path = site.policy(service);
            std::fs::write(&path, text)
                .map_err(|source| DemoError::File { path: path.display().to_string(), source })?;
        }
        Ok(site)
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A service's policy file.
    #[must_use]
    pub fn policy(&self, service: &str) -> PathBuf {
        self.dir.join(format!("{service}.toml"))
    }

    /// A service's base address.
    #[must_use]
    pub fn url(&self, service: &str) -> String {
        format!("http://127.0.0.1:{}", self.ports.get(service).copied().unwrap_or_default())
    }

    /// The broker's address, as policy files have it.
    #[must_use]
    pub fn broker(&self) -> String {
        format!("sqlite:{}", self.dir.join("broker.db").display())
    }

    /// Addresses of this site that stand in a service's file.
    fn places(&self, service: &str, file: &Table) -> Vec<(String, String)> {
        let port = self.ports.get(service).copied().unwrap_or_default();
        let mut places = vec![("service/listen".to_owned(), format!("127.0.0.1:{port}"))];
        let section = |name: &str| file.get(name).and_then(Value::as_table);
        if section("service").is_some_and(|table| table.contains_key("store")) {
            let path = self.dir.join(format!("{service}.db"));
            places.push(("service/store".to_owned(), format!("sqlite:{}", path.display())));
        }
        if section("service").is_some_and(|table| table.contains_key("broker")) {
            places.push(("service/broker".to_owned(), self.broker()));
        }
        for dependency in section("dependencies").into_iter().flat_map(Table::keys) {
            places.push((format!("dependencies/{dependency}/url"), self.url(dependency)));
        }
        places
    }
}

/// Sets the key at `path` (parts divided by `/`), making tables on the way.
fn set(table: &mut Table, path: &str, value: String) {
    match path.split_once('/') {
        None => {
            table.insert(path.to_owned(), Value::String(value));
        }
        Some((head, rest)) => {
            let below = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(below) = below {
                set(below, rest, value);
            }
        }
    }
}

fn broken(service: &str, error: &dyn std::error::Error) -> DemoError {
    DemoError::Policy { service: service.to_owned(), why: error.to_string() }
}

/// A port that nobody listens on and no other service of the shop has.
fn free_port(rng: &mut SeededRng, taken: &BTreeMap<&'static str, u16>) -> Result<u16, DemoError> {
    for _ in 0..1_000 {
        let offset = rng.up_to(u64::from(PORTS.end - PORTS.start - 1));
        let port = PORTS.start + u16::try_from(offset).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !taken.values().any(|other| *other == port) && TcpListener::bind(address).is_ok() {
            return Ok(port);
        }
    }
    Err(DemoError::NoPort)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scenario::SCENARIOS;

    #[test]
    fn every_scenario_gives_policy_files_that_load() {
        for scenario in SCENARIOS {
            let dir = tempfile::tempdir().unwrap();
            let site = Site::lay(dir.path(), scenario, &mut SeededRng::new(1)).unwrap();
            let files: Vec<PathBuf> = SERVICES.iter().map(|service| site.policy(service)).collect();
            let loaded = mamparo::topology::load(&files);
            assert!(loaded.is_ok(), "{}: {}", scenario.name, loaded.unwrap_err());
        }
    }

    #[test]
    fn shortened_clocks_name_keys_that_exist() {
        for (service, path, _) in SHORTENED.iter().chain(SCENARIOS.iter().flat_map(|s| s.limits)) {
            let mut at: Value = default_policy(service).unwrap().parse::<Table>().unwrap().into();
            for part in path.split('/') {
                at = at.get(part).unwrap_or_else(|| panic!("{service}: no {path}")).clone();
            }
        }
    }

    #[test]
    fn the_shops_own_files_load_as_they_are() {
        for service in SERVICES {
            let text = default_policy(service).unwrap();
            let loaded = mamparo::topology::parse(&format!("{service}.toml"), text);
            assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
        }
    }
}
