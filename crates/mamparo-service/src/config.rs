//! Fail fast at the start: the whole policy file is right, or nothing starts.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use mamparo_topology::{PolicyFile, Problems};

use crate::Environment;

/// The exit code of a process whose configuration is unusable.
pub const UNUSABLE: u8 = 2;

/// Loads the policy file at `path` and puts the environment's overrides over it.
///
/// # Errors
/// Every mistake of the file and of the environment, together.
pub fn load(path: impl AsRef<Path>) -> Result<(PolicyFile, Environment), Problems> {
    join(mamparo_topology::load_one(path), Environment::read())
}

/// Like [`load`]; all mistakes go to stderr as one fatal message that names each key.
///
/// # Errors
/// The exit code 2, for `main` to return before anything has started.
pub fn load_or_report(path: impl AsRef<Path>) -> Result<(PolicyFile, Environment), ExitCode> {
    load(path).map_err(|problems| report(&problems))
}

/// Writes `problems` to stderr and answers the exit code 2: for settings, which the application
/// reads after the file was loaded, and before it starts anything.
#[must_use]
pub fn report(problems: &Problems) -> ExitCode {
    // The log isn't up yet, and the operator waits at the terminal. A stderr that is closed leaves
    // nobody to tell; the exit code still says it.
    let _ = std::io::stderr().write_all(fatal(problems).as_bytes());
    ExitCode::from(UNUSABLE)
}

/// The message that a process dies with.
#[must_use]
pub fn fatal(problems: &Problems) -> String {
    let count = problems.len();
    let noun = if count == 1 { "mistake" } else { "mistakes" };
    format!("fatal: the configuration has {count} {noun}; nothing was started\n{problems}\n")
}

fn join(
    policy: Result<PolicyFile, Problems>,
    environment: Result<Environment, Problems>,
) -> Result<(PolicyFile, Environment), Problems> {
    match (policy, environment) {
        (Ok(mut policy), Ok(environment)) => {
            environment.apply(&mut policy);
            Ok((policy, environment))
        }
        (Err(mut problems), Err(others)) => {
            problems.extend(others);
            Err(problems)
        }
        (Err(problems), Ok(_)) | (Ok(_), Err(problems)) => Err(problems),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_of_file_and_environment_come_together() {
        let file = mamparo_topology::parse("a.toml", "[service]\nname = 7\nowner = \"x\"\n");
        let environment = Environment::from_lookup(|name| match name {
            "MAMPARO_LISTEN" => Ok("here".to_owned()),
            _ => Err(std::env::VarError::NotPresent),
        });
        let problems = join(file, environment).unwrap_err();
        assert_eq!(
            fatal(&problems),
            "fatal: the configuration has 2 mistakes; nothing was started
a.toml:2: service.name: expected a string, found an integer
environment: MAMPARO_LISTEN: is not a socket address
  hint: an address and a port, for example 127.0.0.1:8080
"
        );
    }
}
