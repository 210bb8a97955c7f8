//! `cargo xtask openai-client`: the server against OpenAI's own Python client.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::server::{Server, build, step};

/// Pinned client version, so that results are reproducible.
const CLIENT: &str = "openai==3.52.0";

/// Builds the program, installs the client in a folder of its own, starts the server and runs the client.
pub(crate) fn run(root: &Path) -> ExitCode {
    match try_run(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("openai-client: {why}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(root: &Path) -> Result<(), String> {
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
    build(root)?;
    let (_server, base) = Server::start(root, &[], &[])?;
    step(Command::new(&python).arg(root.join("tests/clients/openai_client.py")).arg(&base))
}
