//! The `techcorp` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    techcorp::cli::main()
}
