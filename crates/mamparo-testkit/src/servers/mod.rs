//! Throwaway servers: PostgreSQL and RabbitMQ on free ports of the loopback, with data in a
//! temporary folder, gone when dropped.
//!
//! They come from the system's packages, or from a Docker engine. A missing one is an error that
//! says how to get it; nothing is ever skipped for the lack of a server.

mod docker;
mod packages;
mod postgres;
mod rabbitmq;
mod shared;

pub use docker::Docker;
pub use packages::install_on_ci;
pub use postgres::{Durability, Postgres};
pub use rabbitmq::RabbitMq;
pub use shared::{AMQP_URL, POSTGRES_URL, amqp_url, postgres_url};

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long a server may take to answer after its start: slow disks and two busy cores included.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Pause between two looks at a server that is starting or stopping.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A free port of the loopback. Somebody else may take it before its server does; starting then
/// fails and says so.
fn free_port() -> Result<u16, String> {
    let port = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port());
    port().map_err(|error: io::Error| format!("find a free port: {error}"))
}

/// A new folder for one server. Not under a user's home: the server's own user must reach it.
fn folder(kind: &str) -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("mamparo-{kind}-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&path).map_err(|error| format!("make {}: {error}", path.display()))?;
    Ok(path)
}

/// Is this process root? Then a server runs as its package's user where it insists on that.
fn is_root() -> bool {
    output("id", &["-u"]).is_ok_and(|id| id.trim() == "0")
}

/// The newest folder that matches `parent/prefix*` and has `file` in it.
fn newest(parent: &str, prefix: &str, file: &str) -> Option<PathBuf> {
    let found = std::fs::read_dir(parent).ok()?.flatten().map(|entry| entry.path());
    let named = found.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    });
    named.map(|path| path.join(file)).filter(|path| path.exists()).max()
}

/// Runs `program` to its end; its standard output, or what it said instead.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    run(Command::new(program).args(arguments))
}

fn run(command: &mut Command) -> Result<String, String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("run {shown}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("run {shown}: {}", said.trim()))
    }
}

/// A command as a line for `sh`, with its environment.
fn line(command: &Command) -> String {
    let quoted = |text: &OsStr| format!("'{}'", text.to_string_lossy().replace('\'', r"'\''"));
    let mut words = vec!["env".to_owned()];
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    words.extend(set.map(|(name, value)| format!("{}={}", name.display(), quoted(value))));
    words.push(quoted(command.get_program()));
    words.extend(command.get_args().map(quoted));
    words.join(" ")
}

/// `program` as `user`, where one is given.
fn as_user(program: &Path, user: Option<&str>) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--init-groups"]).arg(program);
    command
}

/// A server's process, which ends with ours at the latest, however ours ends.
#[derive(Debug)]
struct Running {
    process: Child,
    /// Waits for the end of its standard input, which only we hold, then kills the server.
    guard: Child,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self, String> {
        let shown = command.get_program().to_string_lossy().into_owned();
        let mut process = command.spawn().map_err(|error| format!("start {shown}: {error}"))?;
        let script = format!("cat; kill -KILL {}", process.id());
        let mut guard = Command::new("sh");
        guard.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::null());
        match guard.stderr(Stdio::null()).spawn() {
            Ok(guard) => Ok(Self { process, guard }),
            Err(error) => {
                process.kill().ok();
                process.wait().ok();
                Err(format!("guard {shown}: {error}"))
            }
        }
    }

    /// Sends a signal and waits for the end.
    fn end(mut self, signal: &str) -> Result<(), String> {
        // The guard first: later, the number may be somebody else's.
        self.guard.kill().ok();
        self.guard.wait().ok();
        output("kill", &[&format!("-{signal}"), &self.process.id().to_string()])?;
        let ended = self.process.wait();
        ended.map(drop).map_err(|error| format!("wait for a server's end: {error}"))
    }
}

/// Waits until `ready` says yes, or the process has ended, or the limit is over.
fn wait_for(what: &str, server: &mut Running, ready: impl Fn() -> bool) -> Result<(), String> {
    let mut waited = Duration::ZERO;
    while !ready() {
        if let Ok(Some(status)) = server.process.try_wait() {
            return Err(format!("start {what}: it ended with {status}"));
        }
        if waited >= START_LIMIT {
            return Err(format!("start {what}: no answer within {START_LIMIT:?}"));
        }
        pause(LOOK_AGAIN);
        waited += LOOK_AGAIN;
    }
    Ok(())
}

/// The last lines of a log, for an error.
fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(15).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[expect(clippy::disallowed_methods, reason = "no runtime: this thread has nothing else to do")]
fn pause(length: Duration) {
    std::thread::sleep(length);
}
