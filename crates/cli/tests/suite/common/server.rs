//! `tallow serve` under test, and requests to it.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Home;
use serde_json::Value;
use tallow_support::PATIENCE;

/// A server under test; it is killed if the test does not stop it.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// Log lines from before it served.
    pub(crate) log: String,
    pub(crate) home: Home,
}

impl Server {
    pub(crate) fn start(flags: &[&str]) -> Server {
        let home = Home::new();
        let command = home.command(&[&["serve", "demo", "--port", "0"], flags].concat());
        Server::of(home, command)
    }

    pub(crate) fn of(home: Home, mut command: Command) -> Server {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (mut log, mut before) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server ended before it served");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.trim().trim_end_matches("/v1").to_owned();
            }
            before += &line;
        };
        // Drains the log, so that the server never blocks on it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { child, address, log: before, home }
    }

    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> TcpStream {
        self.request_as("", method, path, body)
    }

    /// A request with an API key.
    pub(crate) fn request_as(&self, key: &str, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let (host, length) = (&self.address, body.len());
        let key = if key.is_empty() { String::new() } else { format!("X-Api-Key: {key}\r\n") };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{key}");
        let kind = format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{kind}{body}").as_bytes()).unwrap();
        stream
    }

    /// Status and body of an answer.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        answer(self.request("GET", path, ""))
    }

    pub(crate) fn complete(&self, body: &Value) -> TcpStream {
        self.request("POST", "/v1/completions", &body.to_string())
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Waits until nothing runs, and no page is in use.
    pub(crate) fn comes_to_rest(&self) {
        let begun = Instant::now();
        while ["vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"]
            .iter()
            .any(|name| self.metric(name) > 0.0)
        {
            assert!(begun.elapsed() < PATIENCE, "pages are still in use");
        }
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: `kill` takes no pointers. The child is ours and has not been waited for, so its pid is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self, within: Duration) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < within, "the server did not end within {within:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { unchunked(body) } else { body.to_owned() })
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text += &rest[..size];
        body = &rest[size + 2..];
    }
    text
}

pub(crate) fn whole(stream: TcpStream) -> Value {
    let (status, body) = answer(stream);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}
