//! `cargo xtask browser`: the server's own page, and OpenAI's JavaScript client from other pages, in a real browser.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::program::program;
use crate::server::{Server, step};

/// Pinned versions of the client, and of what judges contrast, names and roles, so that results are reproducible.
const PACKAGES: [&str; 2] = ["openai@7.57.0", "axe-core@4.14.1"];
/// Possible names of the browser.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const KEY: &str = "sk-browser";

/// Installs the packages in a folder of their own, starts servers, and drives them from a browser. The server is `given`, or
/// is built. With `picture` the page is photographed into that file.
pub(crate) fn run(root: &Path, given: Option<&Path>, picture: Option<&Path>) -> ExitCode {
    let browser = BROWSERS.into_iter().find(|name| is_there(name));
    let (Some(browser), true, true) = (browser, is_there("node"), is_there("npm")) else {
        println!(
            "browser: skipped: it needs Chromium, Node and npm (on Debian: apt-get install chromium nodejs npm)"
        );
        return ExitCode::SUCCESS;
    };
    match try_run(root, given, browser, picture) {
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

fn try_run(root: &Path, given: Option<&Path>, browser: &str, picture: Option<&Path>) -> Result<(), String> {
    let (folder, scripts) = (root.join("target/browser"), root.join("tests/clients"));
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let install = ["install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"];
    step(Command::new("npm").args(install).args(PACKAGES).arg("--prefix").arg(&folder))?;
    let program = program(root, given)?;
    let key = [("TALLOW_API_KEY", KEY)];
    {
        println!("-- the page");
        let speech = folder.join("whisper");
        tallow_support::listener(&speech);
        let speech = speech.to_str().ok_or("the path of the folder is not text")?;
        let (_server, base) = Server::start(&program, "demo", &[speech, "--slots", "4"], &key)?;
        let mut page = Command::new("node");
        page.arg(scripts.join("page.mjs")).arg(browser).arg(folder.join("node_modules/axe-core"));
        page.args([&base, KEY, "whisper"]).arg(root.join("tests/goldens/sound/voice.opus"));
        step(page.args(picture))?;
    }
    println!("-- OpenAI's client");
    let port = free_port()?;
    let origin = format!("http://chat.example:{port}");
    let (_server, base) =
        Server::start(&program, "demo", &["--slots", "8", "--allow-origin", &origin], &key)?;
    let mut client = Command::new("node");
    client.arg(scripts.join("browser.mjs")).arg(browser).arg(folder.join("node_modules/openai"));
    step(client.args([&base, KEY, &port.to_string()]))
}

/// A port for the pages; the server has to know it before anybody listens there.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no port is free: {e}"))
}
