//! `cargo xtask openai-client`: the server against OpenAI's own Python client.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

/// The client that is installed, so that the result is the same tomorrow.
const CLIENT: &str = "openai==3.52.0";

/// Stops the server, whatever happens.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // If it has ended already, so much the better.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the program, installs the client in a folder of its own, starts the one and runs the other.
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
    step(Command::new("cargo").args(["build", "--release", "--quiet", "-p", "tallow"]).current_dir(root))?;
    let mut command = Command::new(root.join("target/release/tallow"));
    command
        .args(["serve", "demo", "--port", "0", "--slots", "8"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = Server(command.spawn().map_err(|e| format!("the server does not start: {e}"))?);
    let log = server.0.stderr.take().ok_or("the server has no log")?;
    let mut lines = BufReader::new(log).lines();
    let base = loop {
        let line = lines.next().ok_or("the server ended before it served")?.map_err(|e| e.to_string())?;
        if let Some(at) = line.find("http://") {
            break line[at..].trim_end().trim_end_matches("/v1").to_owned();
        }
    };
    // It must never wait for somebody to read its log.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("server: {line}")));
    step(Command::new(&python).arg(root.join("tests/clients/openai_client.py")).arg(&base))
}

fn step(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(e) => Err(format!("{command:?} does not start: {e}")),
    }
}
