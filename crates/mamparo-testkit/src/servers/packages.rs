//! Installing what is missing, on machines that belong to CI.

use std::process::{Command, Stdio};

use super::{is_root, postgres, rabbitmq};

/// On CI (`ci`), as root and with apt-get, installs the packages that are not there. A developer's
/// machine is the developer's: there a missing server is an error that says what to install.
pub fn install_on_ci(ci: bool) {
    let wanted =
        [(postgres::is_installed(), "postgresql"), (rabbitmq::is_installed(), "rabbitmq-server")];
    let missing: Vec<_> =
        wanted.iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
    if missing.is_empty() || !ci || !is_root() {
        return;
    }
    let install = ["install", "--yes", "--no-install-recommends"];
    for arguments in [vec!["update"], [&install[..], &missing[..]].concat()] {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        // Packages start their services where something listens for that. Ours are started apart.
        command.env("RUNLEVEL", "1").stdin(Stdio::null());
        // Whether it worked shows when a server is started.
        command.status().ok();
    }
}
