//! RabbitMQ from the system's packages.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Running, as_user, folder, free_port, line, newest, run, tail, wait_for};

/// A RabbitMQ node of our own: user `guest`, password `guest`, virtual host `/`.
#[derive(Debug)]
pub struct RabbitMq {
    folder: PathBuf,
    program: PathBuf,
    port: u16,
    distribution: u16,
    epmd: u16,
    process: Option<Running>,
}

const MISSING: &str = "find RabbitMQ: no /usr/lib/rabbitmq/lib/rabbitmq_server-*
    hint: as root `apt-get install rabbitmq-server` (Debian, Ubuntu) or `dnf install rabbitmq-server` (Fedora),
    or give a broker's address in MAMPARO_AMQP_URL";

/// Small limits, so that a test's broker neither claims the machine nor stops because of it.
const CONFIG: &str = "vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
loopback_users.guest = true
log.file.level = warning
";

impl RabbitMq {
    /// Starts an empty node.
    ///
    /// # Errors
    /// When the package is missing (with how to get it) or the node does not come up.
    pub fn start() -> Result<Self, String> {
        let program = program().ok_or(MISSING)?;
        let folder = folder("rabbitmq")?;
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))
        };
        write("rabbitmq.conf", CONFIG)?;
        write("plugins", "[].\n")?;
        let ports = (free_port()?, free_port()?, free_port()?);
        let (port, distribution, epmd) = ports;
        let mut node = Self { folder, program, port, distribution, epmd, process: None };
        node.spawn()?;
        Ok(node)
    }

    /// The address for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Runs `rabbitmqctl` against the node, `["list_queues"]` say; what it printed.
    ///
    /// # Errors
    /// What it said when it failed.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.program.with_file_name("rabbitmqctl"));
        self.environment(&mut command);
        run(command.arg("--quiet").args(arguments))
    }

    /// The same as a line for `sh`, for those who are told what to run: `["stop_app"]` cuts every
    /// client off and refuses new ones until `["start_app"]`.
    #[must_use]
    pub fn ctl_line(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(self.program.with_file_name("rabbitmqctl"));
        self.environment(&mut command);
        line(command.arg("--quiet").args(arguments))
    }

    /// The address of another virtual host of the node, made and open to `guest`.
    ///
    /// # Errors
    /// What `rabbitmqctl` said.
    pub fn url_of(&self, host: &str) -> Result<String, String> {
        self.ctl(&["add_vhost", host])?;
        self.ctl(&["set_permissions", "-p", host, "guest", ".*", ".*", ".*"])?;
        Ok(format!("amqp://guest:guest@127.0.0.1:{}/{host}", self.port))
    }

    /// Kills the node as a crash does; [`restart`](Self::restart) brings it back.
    ///
    /// # Errors
    /// When the signal could not be sent.
    pub fn kill(&mut self) -> Result<(), String> {
        self.end("KILL")
    }

    /// Ends the node in order.
    ///
    /// # Errors
    /// When the signal could not be sent.
    pub fn stop(&mut self) -> Result<(), String> {
        self.end("TERM")
    }

    /// Starts the node again on its data and port; ends it first if it runs.
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

    /// Everything of the node lies in its own folder, its Erlang name server included: nothing is
    /// shared with a node that the machine may run.
    fn environment(&self, command: &mut Command) {
        let at = |name: &str| self.folder.join(name);
        command
            .env("HOME", &self.folder)
            .env("RABBITMQ_NODENAME", format!("mamparo-{}@localhost", self.port))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_LOG_BASE", at("logs"))
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", at("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins"))
            // The start script then becomes the node, so that a signal to the one is one to the other.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            // Erlang's schedulers spin while they wait, which on two cores is half of the machine.
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+sbwt none +sbwtdcpu none +sbwtdio none")
            .current_dir(&self.folder);
    }

    fn spawn(&mut self) -> Result<(), String> {
        let log = self.folder.join("console.log");
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(|error| format!("open {}: {error}", log.display()))?;
        let mut command = as_user(&self.program, None);
        self.environment(&mut command);
        let again = file.try_clone().map_err(|error| format!("open {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        let mut process = Running::start(&mut command)?;
        let came = wait_for("RabbitMQ", &mut process, || speaks_amqp(self.port));
        self.process = Some(process);
        came.map_err(|error| format!("{error}\n{}", tail(&log)))
    }

    /// The name server is a daemon of its own and outlives its nodes.
    fn end_name_server(&self) {
        let epmd = Path::new("/usr/bin/epmd");
        let mut command = Command::new(epmd);
        command.args(["-port", &self.epmd.to_string(), "-kill"]);
        // Without a node it refuses nothing; when it is gone already all is well.
        run(&mut command).ok();
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill().ok();
        self.end_name_server();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Is the package there?
pub(super) fn is_installed() -> bool {
    program().is_some()
}

fn program() -> Option<PathBuf> {
    newest("/usr/lib/rabbitmq/lib", "rabbitmq_server-", "sbin/rabbitmq-server")
}

/// Does it answer to the protocol's header? The port is open a good while before the node is up.
fn speaks_amqp(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let limit = Some(Duration::from_secs(2));
    let mut first = [0_u8; 1];
    stream.set_read_timeout(limit).is_ok()
        && stream.write_all(b"AMQP\x00\x00\x09\x01").is_ok()
        && stream.read_exact(&mut first).is_ok()
        && first == [1]
}
