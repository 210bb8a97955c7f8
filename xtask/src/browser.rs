//! `cargo xtask browser`: the server against OpenAI's own JavaScript client, from pages in a real browser.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::program::program;
use crate::server::{Server, step};

/// Pinned client version, so that results are reproducible.
const CLIENT: &str = "openai@7.57.0";
/// Possible names of the browser.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const KEY: &str = "sk-browser";

/// Installs the client in a folder of its own, starts the server, and runs the client in a browser. The server is `given`,
/// or is built.
pub(crate) fn run(root: &Path, given: Option<&Path>) -> ExitCode {
    let browser = BROWSERS.into_iter().find(|name| is_there(name));
    let (Some(browser), true, true) = (browser, is_there("node"), is_there("npm")) else {
        println!(
            "browser: skipped: it needs Chromium, Node and npm (on Debian: apt-get install chromium nodejs npm)"
        );
        return ExitCode::SUCCESS;
    };
    match try_run(root, given, browser) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("browser: {why}");
            ExitCode::FAILURE
        }
    }
}

fn is_there(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

fn try_run(root: &Path, given: Option<&Path>, browser: &str) -> Result<(), String> {
    let folder = root.join("target/browser");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let install = ["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", CLIENT, "--prefix"];
    step(Command::new("npm").args(install).arg(&folder))?;
    let program = program(root, given)?;
    let port = free_port()?;
    let origin = format!("http://chat.example:{port}");
    let (_server, base) = Server::start(
        &program,
        "demo",
        &["--slots", "8", "--allow-origin", &origin],
        &[("TALLOW_API_KEY", KEY)],
    )?;
    let mut client = Command::new("node");
    client
        .arg(root.join("tests/clients/browser.mjs"))
        .args([browser])
        .arg(folder.join("node_modules/openai"));
    step(client.args([&base, KEY, &port.to_string()]))
}

/// A port for the pages; the server has to know it before anybody listens there.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no port is free: {e}"))
}
