//! Where the demo's shop stands: a directory with every service's policy file and database, and a
//! port for each service.
//!
//! The files are the shop's own, with addresses filled in and clocks shortened; what runs is what
//! the files say, in this process or in another.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use mamparo::core::rng::{Rng, SeededRng};
use toml::{Table, Value};

use super::DemoError;
use super::engines::Engines;
use super::scenario::{SHORTENED, Scenario};
use crate::shop::{SERVICES, default_policy};

/// Ports are taken from below the range that outgoing connections get theirs from, so that a
/// service that comes back finds its port free.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Ports of one site: one that claims the others, and one for each service.
const BLOCK: u16 = 16;

const _: () = assert!(SERVICES.len() < BLOCK as usize, "every service has a port in the block");

/// The place.
#[derive(Debug)]
pub struct Site {
    dir: PathBuf,
    engines: Engines,
    ports: Ports,
}

impl Site {
    /// Writes all policy files for `scenario` into `dir`; the shop stands on `engines`.
    ///
    /// # Errors
    /// When a file can't be written, or no port is free.
    pub fn lay(
        dir: &Path,
        scenario: &Scenario,
        engines: &Engines,
        rng: &mut SeededRng,
    ) -> Result<Self, DemoError> {
        let (dir, engines) = (dir.to_owned(), engines.clone());
        let site = Self { dir, engines, ports: Ports::claim(rng)? };
        let limits: Vec<_> = SHORTENED.iter().chain(scenario.limits).collect();
        for service in SERVICES {
            let mut file = Table::new();
            if let Some(text) = default_policy(service) {
                file = text.parse().map_err(|error| broken(service, &error))?;
            }
            for (path, value) in site.places(service, &file)? {
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
        format!("http://127.0.0.1:{}", self.ports.of(service))
    }

    /// What it stands on.
    #[must_use]
    pub fn engines(&self) -> &Engines {
        &self.engines
    }

    /// Addresses of this site that stand in a service's file.
    fn places(&self, service: &str, file: &Table) -> Result<Vec<(String, String)>, DemoError> {
        let port = self.ports.of(service);
        let mut places = vec![("service/listen".to_owned(), format!("127.0.0.1:{port}"))];
        let section = |name: &str| file.get(name).and_then(Value::as_table);
        if section("service").is_some_and(|table| table.contains_key("store")) {
            places.push(("service/store".to_owned(), self.engines.store_of(service, &self.dir)?));
        }
        if section("service").is_some_and(|table| table.contains_key("broker")) {
            places.push(("service/broker".to_owned(), self.engines.broker_in(&self.dir)));
        }
        for dependency in section("dependencies").into_iter().flat_map(Table::keys) {
            places.push((format!("dependencies/{dependency}/url"), self.url(dependency)));
        }
        Ok(places)
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

/// A block of ports that belongs to one site until it is dropped.
///
/// Services come and go, so their ports are free at times; another shop on the same machine that
/// looked for free ports just then would take them. Listening on the first port of the block is the
/// claim to the rest of it: the system gives it to one site only, and takes it back from a dead one.
#[derive(Debug)]
struct Ports {
    first: u16,
    _claim: TcpListener,
}

impl Ports {
    /// A block that no other site has and nobody listens in.
    fn claim(rng: &mut SeededRng) -> Result<Self, DemoError> {
        let blocks = u64::from((PORTS.end - PORTS.start) / BLOCK);
        for _ in 0..1_000 {
            let block = u16::try_from(rng.up_to(blocks - 1)).unwrap_or_default();
            let first = PORTS.start + block * BLOCK;
            let Ok(claim) = TcpListener::bind((Ipv4Addr::LOCALHOST, first)) else { continue };
            let mut others = first + 1..first + BLOCK;
            if others.all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()) {
                return Ok(Self { first, _claim: claim });
            }
        }
        Err(DemoError::NoPort)
    }

    /// The port of `service`; the claim's own for what is no service.
    fn of(&self, service: &str) -> u16 {
        let place = SERVICES.iter().position(|each| *each == service).map_or(0, |place| place + 1);
        self.first + u16::try_from(place).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scenario::SCENARIOS;

    #[test]
    fn every_scenario_gives_policy_files_that_load() {
        for scenario in SCENARIOS {
            let dir = tempfile::tempdir().unwrap();
            let engines = Engines::default();
            let site = Site::lay(dir.path(), scenario, &engines, &mut SeededRng::new(1)).unwrap();
            let files: Vec<PathBuf> = SERVICES.iter().map(|service| site.policy(service)).collect();
            let loaded = mamparo::topology::load(&files);
            assert!(loaded.is_ok(), "{}: {}", scenario.name, loaded.unwrap_err());
        }
    }

    #[test]
    fn sites_with_the_same_seed_share_no_port_even_while_nobody_listens() {
        let sites: Vec<Ports> =
            (0..20).map(|_| Ports::claim(&mut SeededRng::new(7)).unwrap()).collect();
        let mut ports: Vec<u16> =
            sites.iter().flat_map(|site| SERVICES.map(|service| site.of(service))).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), sites.len() * SERVICES.len());
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
