//! [`Server`]: the program, serving, for tests that drive it from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server process, killed on drop.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Serves a model with a program, arguments and variables. Returns its address, too.
    pub(crate) fn start(
        program: &Path,
        model: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<(Server, String), String> {
        let mut command = Command::new(program);
        command
            .args(["serve", model, "--port", "0"])
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut server = Server(command.spawn().map_err(|e| format!("the server does not start: {e}"))?);
        let log = server.0.stderr.take().ok_or("the server has no log")?;
        let mut lines = BufReader::new(log).lines();
        let base = loop {
            let line = lines.next().ok_or("the server ended before it served")?.map_err(|e| e.to_string())?;
            if let Some(at) = line.find("http://127.") {
                break line[at..].trim_end().trim_end_matches("/v1").to_owned();
            }
        };
        // Drains the log, so that the server never blocks on it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("server: {line}")));
        Ok((server, base))
    }
}

/// Runs a command that must succeed.
pub(crate) fn step(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(e) => Err(format!("{command:?} does not start: {e}")),
    }
}
