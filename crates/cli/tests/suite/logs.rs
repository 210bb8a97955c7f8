//! The log of `tallow serve` under log failures, and the build's version information.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Home;
use serde_json::{Value, json};
use tallow_support::PATIENCE;

/// A server under test; it is killed if the test does not stop it.
struct Server {
    child: Child,
    address: String,
}

/// A server of the demo, its log reader, and the log up to the line with its address.
fn start(
    home: &Home,
    args: &[&str],
    change: impl Fn(&mut Command),
) -> (Server, BufReader<ChildStderr>, Vec<String>) {
    let mut command = home.command(&[&["serve", "--port", "0"], args].concat());
    change(&mut command);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut log, mut lines) = (BufReader::new(child.stderr.take().unwrap()), Vec::new());
    let address = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the server ended before it served: {lines:?}");
        lines.push(line.clone());
        if let Some((_, rest)) = line.split_once("http://") {
            break rest.split("/v1").next().unwrap().to_owned();
        }
    };
    (Server { child, address }, log, lines)
}

impl Server {
    /// Sends a request on its own connection; fails without an answer within a few seconds.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let kind = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn complete(&self) {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 3}).to_string();
        let (status, body) = self.ask("POST", "/v1/completions", &body);
        assert_eq!(status, 200, "{body}");
    }

    fn health(&self) -> Value {
        let begun = Instant::now();
        let (status, body) = self.ask("GET", "/health", "");
        assert_eq!(status, 200, "{body}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        serde_json::from_str(&body).unwrap()
    }

    fn problem(&self) -> String {
        let health = self.health();
        assert_eq!(health["status"], "ok");
        health["problems"][0].as_str().unwrap_or_default().to_owned()
    }

    /// Produces `lines` log lines: refused requests on one connection.
    fn chatter(&self, lines: usize) {
        let stream = self.connect();
        let (mut answers, mut stream) = (BufReader::new(stream.try_clone().unwrap()), stream);
        let asked =
            format!("GET /nowhere HTTP/1.1\r\nHost: localhost\r\nx-request-id: {}\r\n\r\n", "x".repeat(128));
        for _ in 0..lines {
            stream.write_all(asked.as_bytes()).unwrap();
            let mut length = 0;
            loop {
                let mut line = String::new();
                assert!(answers.read_line(&mut line).unwrap() > 0);
                let line = line.trim().to_lowercase();
                match line.strip_prefix("content-length: ") {
                    Some(n) => length = n.parse().unwrap(),
                    None if line.is_empty() => break,
                    None => {}
                }
            }
            answers.read_exact(&mut vec![0; length]).unwrap();
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: `kill` takes no pointers. The child is ours and has not been waited for, so its pid is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Terminates it, and checks that it exits successfully.
    fn stop(mut self) {
        self.signal(libc::SIGTERM);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A full pipe that nobody reads, as of a log driver that is stuck.
#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let (home, dropped) = (Home::new(), "vllm:log_lines_dropped_total");
    let (server, mut log, _) = start(&home, &["demo"], |_| {});
    // The pipe holds 64 KiB, the queue before it 1 MiB.
    server.chatter(6000);
    server.complete();
    assert!(server.problem().starts_with("the log is not being read"), "{}", server.problem());
    let (_, metrics) = server.ask("GET", "/metrics", "");
    let line = metrics.lines().find(|line| line.starts_with(dropped)).unwrap();
    assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() > 100.0, "{line}");
    // Once somebody reads, logging recovers and the number of lost lines is reported.
    let mut line = String::new();
    while !line.contains("could not be written before this") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0);
    }
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        log.read_to_string(&mut rest).map(|_| rest)
    });
    let begun = Instant::now();
    while server.health().get("problems").is_some() {
        assert!(begun.elapsed() < PATIENCE);
    }
    server.stop();
    assert!(reader.join().unwrap().unwrap().trim_end().ends_with("stopped"));
}

#[test]
fn a_server_whose_log_is_stuck_ends_when_it_is_told_to() {
    let home = Home::new();
    let (server, log, _) = start(&home, &["demo"], |_| {});
    server.chatter(1000);
    server.stop();
    drop(log);
}

#[test]
fn a_log_whose_reader_is_gone_ends_nothing() {
    let home = Home::new();
    let (server, log, _) = start(&home, &["demo"], |_| {});
    drop(log);
    server.complete();
    server.complete();
    let begun = Instant::now();
    while !server.problem().starts_with("the log cannot be written: Broken pipe") {
        assert!(begun.elapsed() < PATIENCE, "{}", server.health());
    }
    server.stop();
}

/// Every write to the log fails, from the first line on.
#[test]
fn a_log_on_a_full_disk_ends_nothing() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else {
        eprintln!("skipped: there is no /dev/full");
        return;
    };
    let home = Home::new();
    // The address cannot be read from the log.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = home.command(&["serve", "demo", "--port", &port.to_string()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).spawn().unwrap();
    let server = Server { child, address: format!("127.0.0.1:{port}") };
    let begun = Instant::now();
    while TcpStream::connect(&server.address).is_err() {
        assert!(begun.elapsed() < PATIENCE, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    while server.ask("GET", "/ready", "").0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "it is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.complete();
    assert!(
        server.problem().starts_with("the log cannot be written: No space left on device"),
        "{}",
        server.health()
    );
    server.stop();
}

#[test]
fn a_log_for_programs_is_json() {
    let home = Home::new();
    let (server, mut log, mut lines) = start(&home, &["demo", "--log-format", "json", "-v"], |_| {});
    server.complete();
    server.stop();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    lines.extend(rest.lines().map(str::to_owned));
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        let text = |name: &str| line[name].as_str().unwrap();
        assert!(["error", "warn", "info", "debug"].contains(&text("level")), "{line}");
        assert!(text("target").starts_with("tallow") && !text("message").is_empty(), "{line}");
        assert!(
            text("time").starts_with("20") && text("time").ends_with('Z') && text("time").len() == 24,
            "{line}"
        );
    }
    let request = lines.iter().find(|line| line["status"] == 200).unwrap();
    assert_eq!((&request["path"], &request["model"]), (&json!("/v1/completions"), &json!("demo")));
    assert_eq!((&request["completion_tokens"], &request["finish"]), (&json!(3), &json!("length")));
    assert!(request["prompt_tokens"].as_u64().unwrap() > 2 && request["total_ms"].as_f64().unwrap() > 0.0);
    assert!(lines.iter().any(|line| line["level"] == "debug"), "-v shows more");
}

#[test]
fn nonsense_about_the_log_is_refused() {
    let home = Home::new();
    let run = |variable: &str, value: &str, args: &[&str]| {
        let mut command = home.command(&[&["tokenize", "-m", "demo", "hi"], args].concat());
        command.env(variable, value);
        crate::common::did(command, b"")
    };
    let said = run("TALLOW_LOG", "garbage===", &[]).failed();
    insta::assert_snapshot!(said, @r#"error: the variable TALLOW_LOG is "garbage===": there is no part "garbage"; there are tallow, tallow_audio, tallow_core, tallow_cpu, tallow_cuda, tallow_engine, tallow_hub, tallow_models, tallow_quant, tallow_server, tallow_wgpu"#);
    let said = run("TALLOW_LOG", "loud", &["--log-level", "debug"]).failed();
    insta::assert_snapshot!(said, @r#"error: the variable TALLOW_LOG is "loud": "loud" is no level; there are off, error, warn, info, debug and trace. Parts of the program can have one of their own, as in info,tallow_server=debug"#);
    assert!(run("TALLOW_LOG_FORMAT", "xml", &[]).failed().contains("there are plain and json"));
    for wrong in [&["--log-level", "loud"][..], &["--log-format", "xml"], &["-q", "-v"]] {
        let did = run("TALLOW_LOG", "", wrong);
        assert_eq!(did.code, Some(2), "{did:?}");
    }
}

/// `run` logs nothing by default, and more on request.
#[test]
fn run_says_as_much_as_is_asked_for() {
    let home = Home::new();
    let run = |more: &[&str], level: &str| {
        let args = [&["run", "demo", "-n", "4", "--temperature", "0", "Once"], more].concat();
        let mut command = home.command(&args);
        command.env("TALLOW_LOG", level);
        let did = crate::common::did(command, b"");
        assert_eq!(did.code, Some(0), "{did:?}");
        did.err
    };
    assert_eq!(run(&[], ""), "");
    assert_eq!(run(&["-q"], "debug"), "");
    assert!(run(&["-v"], "").contains("tokens"), "how fast it went");
    for debug in [run(&["-vv"], ""), run(&["--log-level", "debug"], ""), run(&[], "debug")] {
        assert!(debug.contains("DEBUG") && debug.contains("prompt tokens"), "{debug}");
        assert!(!debug.contains("TRACE"), "{debug}");
    }
    assert!(run(&[], "tallow_engine=trace").contains("TRACE a step of 1 sequences"));
}

/// `nohup` and scripts start the program with ignored signals, which must stay ignored.
#[test]
fn signals_that_are_ignored_stay_ignored() {
    let home = Home::new();
    // The test runner's own dispositions are inherited and may be either, so they are set here.
    let with = |how: libc::sighandler_t| {
        move |command: &mut Command| {
            // SAFETY: only async-signal-safe calls are made between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    libc::signal(libc::SIGHUP, how);
                    libc::signal(libc::SIGINT, how);
                    Ok(())
                });
            }
        }
    };
    let (server, mut log, _) = start(&home, &["demo"], with(libc::SIG_IGN));
    let reader = std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    server.signal(libc::SIGHUP);
    server.signal(libc::SIGINT);
    std::thread::sleep(Duration::from_millis(200));
    server.complete();
    server.stop();
    reader.join().unwrap().unwrap();
    // Signals that are not ignored end the server.
    for signal in [libc::SIGHUP, libc::SIGINT] {
        let (mut server, mut log, _) = start(&home, &["demo"], with(libc::SIG_DFL));
        server.signal(signal);
        std::io::copy(&mut log, &mut std::io::sink()).unwrap();
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

/// The checked-out commit, if this is a repository.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"]);
    let output = git.stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git");
    root.exists().then(|| String::from_utf8(output.stdout).unwrap()[..10].to_owned())
}

#[test]
fn the_build_is_named_everywhere() {
    let home = Home::new();
    let version = env!("CARGO_PKG_VERSION");
    let named = commit().map_or(version.to_owned(), |commit| format!("{version} ({commit})"));
    assert_eq!(home.run(&["--version"]).ok(), format!("tallow {named}\n"));
    assert!(home.run(&["doctor"]).ok().starts_with(&format!("tallow {named} on ")));
    let bench = home.run(&["bench", "-m", "demo", "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl"]).ok();
    let bench: Value = serde_json::from_str(&bench).unwrap();
    assert_eq!(bench["build_commit"], commit().unwrap_or("unknown".into()));
    let (server, log, _) = start(&home, &["demo"], |_| {});
    let body: Value = serde_json::from_str(&server.ask("GET", "/version", "").1).unwrap();
    assert_eq!((body["version"].as_str(), body["commit"].as_str()), (Some(version), commit().as_deref()));
    drop(log);
}

/// The log uses the model id that requests use.
#[test]
fn a_folder_is_logged_under_its_id() {
    let home = Home::new();
    tallow_support::listener(&home.path().join("m/ears"));
    let (server, _log, lines) = start(&home, &["m/ears"], |_| {});
    assert!(lines.last().unwrap().contains(" serving ears on http://"), "{lines:?}");
    let models: Value = serde_json::from_str(&server.ask("GET", "/v1/models", "").1).unwrap();
    assert_eq!(models["data"][0]["id"], "ears");
}
