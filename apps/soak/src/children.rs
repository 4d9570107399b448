//! Child processes: started again each time that they die.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::SoakError;

/// One child: what it is and the process that plays it now.
#[derive(Debug)]
pub struct Actor {
    /// For people.
    pub name: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    process: Child,
}

impl Actor {
    /// Starts a child of this very program with `arguments` after `child`. Its log is appended to
    /// `folder/name.log`.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn start(
        name: &'static str,
        arguments: Vec<String>,
        folder: &Path,
    ) -> Result<Self, SoakError> {
        let log = folder.join(format!("{name}.log"));
        let process = spawn(&arguments, &log)?;
        Ok(Self { name, arguments, log, process })
    }

    /// The process id, while it lives.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Kills it with SIGKILL and starts it again.
    ///
    /// # Errors
    /// When it can't be started again.
    pub async fn kill_and_restart(&mut self) -> Result<(), SoakError> {
        self.process.kill().await?;
        self.process = spawn(&self.arguments, &self.log)?;
        Ok(())
    }

    /// Starts it again if it has ended by itself, which it does when it can't reach its servers at
    /// its start.
    ///
    /// # Errors
    /// As [`kill_and_restart`](Self::kill_and_restart).
    pub fn revive(&mut self) -> Result<bool, SoakError> {
        if self.process.try_wait()?.is_none() {
            return Ok(false);
        }
        self.process = spawn(&self.arguments, &self.log)?;
        Ok(true)
    }

    /// Waits until somebody else has killed it.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub async fn ended(&mut self) -> Result<(), SoakError> {
        // `wait` closes standard input first, which would stop the child in order.
        while self.process.try_wait()?.is_none() {
            crate::pause(5).await;
        }
        Ok(())
    }

    /// Has it end in order: its standard input ends.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub async fn stop(mut self) -> Result<(), SoakError> {
        drop(self.process.stdin.take());
        let limit = mamparo_call::clock::now().plus(std::time::Duration::from_secs(20));
        tokio::select! {
            ended = self.process.wait() => ended.map(drop).map_err(SoakError::Io),
            () = mamparo_call::clock::sleep_until(limit) => Err(SoakError::Hangs(self.name)),
        }
    }
}

fn spawn(arguments: &[String], log: &Path) -> Result<Child, SoakError> {
    let log = std::fs::File::options().create(true).append(true).open(log)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").args(arguments).kill_on_drop(true);
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn()?)
}
