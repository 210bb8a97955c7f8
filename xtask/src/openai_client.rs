//! `cargo xtask openai-client`: the server against OpenAI's own Python client.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::program::program;
use crate::server::{Server, step};

/// Pinned client version, so that results are reproducible.
const CLIENT: &str = "openai==3.52.0";

/// Installs the client in a folder of its own, starts the server and runs the client. The server is `given`, or is
/// built.
pub(crate) fn run(root: &Path, given: Option<&Path>) -> ExitCode {
    match try_run(root, given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("openai-client: {why}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path, given: Option<&Path>) -> Result<(), String> {
    let venv = root.join("target/openai-client");
    let python = venv.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        step(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    step(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        CLIENT,
    ]))?;
    let (_server, base) = Server::start(&program(root, given)?, &[], &[])?;
    step(Command::new(&python).arg(root.join("tests/clients/openai_client.py")).arg(&base))
}
