//! PostgreSQL from the system's packages.

use std::fs::File;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Running, as_user, folder, free_port, is_root, newest, output, run, tail, wait_for};

/// What a commit is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// `fsync = on`: what a benchmark must pay for.
    Synced,
    /// `fsync = off`: survives `kill -9` of the server, not of the machine. For tests.
    Fast,
}

/// A PostgreSQL server of our own: superuser `postgres`, no password, database `postgres`.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    port: u16,
    durability: Durability,
    process: Option<Running>,
}

const MISSING: &str = "find PostgreSQL: no `postgres` under /usr/lib/postgresql, /usr/pgsql-* or in PATH
    hint: as root `apt-get install postgresql` (Debian, Ubuntu) or `dnf install postgresql-server` (Fedora),
    or give a server's address in MAMPARO_POSTGRES_URL";

impl Postgres {
    /// Starts a server with an empty cluster.
    ///
    /// # Errors
    /// When the package is missing (with how to get it) or the server does not come up.
    pub fn start(durability: Durability) -> Result<Self, String> {
        let initdb = binary("initdb").ok_or(MISSING)?;
        let folder = folder("postgres")?;
        if let Some(user) = user() {
            run(Command::new("chown").arg(user).arg(&folder))?;
        }
        let data = folder.join("data");
        let mut init = as_user(&initdb, user());
        init.arg("-D").arg(&data).args(["-U", "postgres", "-A", "trust", "-E", "UTF8"]);
        init.args(["--no-sync", "--locale=C"]).current_dir(&folder);
        run(&mut init)?;
        let mut server = Self { folder, port: free_port()?, durability, process: None };
        server.spawn()?;
        Ok(server)
    }

    /// A program of the package, `pgbench` or `pg_dump` say.
    ///
    /// # Errors
    /// When it is not installed, with how to get it.
    pub fn program(name: &str) -> Result<PathBuf, String> {
        binary(name).ok_or_else(|| format!("find `{name}`\n{MISSING}"))
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The address of another database of the server.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Kills every process of the server at once, as a crash does. [`restart`](Self::restart) brings
    /// it back with what was committed.
    ///
    /// # Errors
    /// When the signal could not be sent.
    pub fn kill(&mut self) -> Result<(), String> {
        // `immediate`: no checkpoint, no goodbye; recovery on the next start. A bare SIGKILL of the
        // parent would leave its children with the shared memory.
        self.end("QUIT")
    }

    /// A line for `sh` that crashes the server: it kills the processes that serve its clients, and
    /// the server then recovers by itself, as after a power cut.
    #[must_use]
    pub fn crash_line(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        Some(format!("pkill -KILL -P {}", process.process.id()))
    }

    /// Ends the server in order, cutting its clients off.
    ///
    /// # Errors
    /// When the signal could not be sent.
    pub fn stop(&mut self) -> Result<(), String> {
        self.end("INT")
    }

    /// Starts the server again on its data and port; ends it first if it runs.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart(&mut self) -> Result<(), String> {
        self.stop()?;
        self.spawn()
    }

    fn end(&mut self, how: &str) -> Result<(), String> {
        self.process.take().map_or(Ok(()), |process| process.end(how))
    }

    fn spawn(&mut self) -> Result<(), String> {
        let postgres = binary("postgres").ok_or(MISSING)?;
        let log = self.folder.join("log");
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(|error| format!("open {}: {error}", log.display()))?;
        let mut command = as_user(&postgres, user());
        command.arg("-D").arg(self.folder.join("data")).arg("-k").arg(&self.folder);
        command.args(["-p", &self.port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        let mut settings = vec!["max_connections=400", "shared_buffers=256MB", "max_wal_size=2GB"];
        if self.durability == Durability::Fast {
            settings.extend(["fsync=off", "full_page_writes=off"]);
        }
        for setting in settings {
            command.args(["-c", setting]);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let mut process = Running::start(&mut command)?;
        let ready = binary("pg_isready");
        let up = || match &ready {
            Some(ready) => output(
                &ready.to_string_lossy(),
                &["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()],
            )
            .is_ok(),
            None => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
        };
        let came = wait_for("PostgreSQL", &mut process, up);
        self.process = Some(process);
        came.map_err(|error| format!("{error}\n{}", tail(&log)))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The data goes with it, so there is nothing to say goodbye for.
        self.kill().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Is the package there?
pub(super) fn is_installed() -> bool {
    binary("initdb").is_some()
}

/// PostgreSQL refuses to run as root; its package brings a user.
fn user() -> Option<&'static str> {
    is_root().then_some("postgres")
}

fn binary(name: &str) -> Option<PathBuf> {
    let packaged = newest("/usr/lib/postgresql", "", &format!("bin/{name}"));
    let packaged = packaged.or_else(|| newest("/usr", "pgsql-", &format!("bin/{name}")));
    packaged.or_else(|| {
        let found = output("sh", &["-c", &format!("command -v {name}")]).ok()?;
        Some(Path::new(found.trim()).to_path_buf())
    })
}
