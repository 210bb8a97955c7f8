//! [`Server`]: the program under attack, and its clients.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Timeout after which anything counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Path of the server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    /// Discarded.
    Read,
    /// Into a pipe that nobody reads.
    Unread,
    /// To a full disk.
    Full,
}

/// API keys of the attacking and the healthy clients, so that the server can tell them apart.
const KEYS: [&str; 2] = ["attacker", "healthy"];

/// A running server; it is killed when this is dropped.
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
}

/// A server's address and the API key of the client.
#[derive(Clone, Copy)]
pub(super) struct Client {
    address: SocketAddr,
    key: &'static str,
}

impl Server {
    /// Starts the program, with its address space limited to `space` KiB if given.
    pub(super) fn start(program: &Path, flags: &[&str], log: Log, space: Option<u64>) -> io::Result<Server> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let limit = space.map_or(String::new(), |kib| format!("ulimit -v {kib}; "));
        let port = address.port().to_string();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}exec \"$0\" \"$@\"")]).arg(program);
        command.args(["serve", "demo", "--port", &port, "--device", "cpu"]).args(flags);
        command.env("TALLOW_API_KEY", KEYS.join(","));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(match log {
            Log::Read | Log::Unread => Stdio::piped(),
            Log::Full => File::options().write(true).open("/dev/full")?.into(),
        });
        let mut child = command.spawn()?;
        if log == Log::Read
            && let Some(mut pipe) = child.stderr.take()
        {
            std::thread::spawn(move || io::copy(&mut pipe, &mut io::sink()));
        }
        let mut server = Server { child, address };
        let begun = Instant::now();
        while !matches!(server.healthy().get("/ready"), Ok(200)) {
            if let Some(status) = server.child.try_wait()? {
                return Err(io::Error::other(format!("the server ended before it served: {status}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(io::Error::other("the server does not become ready"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    pub(super) fn attacker(&self) -> Client {
        Client { address: self.address, key: KEYS[0] }
    }

    pub(super) fn healthy(&self) -> Client {
        Client { address: self.address, key: KEYS[1] }
    }

    /// True if it is still running.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A value in KiB of the process's `/proc` status.
    fn memory(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Resident memory now, in MiB.
    pub(super) fn resident(&self) -> u64 {
        self.memory("VmRSS") >> 10
    }

    /// Peak resident memory since the last reset, in MiB.
    pub(super) fn peak(&self) -> u64 {
        self.memory("VmHWM") >> 10
    }

    pub(super) fn reset_peak(&self) {
        // Where this is not permitted, peaks are those of the whole run, which are never lower.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5");
    }
}

impl Client {
    pub(super) fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The head of a request.
    pub(super) fn head(&self, method: &str, path: &str, length: usize) -> String {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             authorization: Bearer {}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n",
            self.key
        )
    }

    /// Sends a request, and returns the connection for the answer.
    pub(super) fn ask(&self, path: &str, body: &str) -> io::Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.write_all(self.head("POST", path, body.len()).as_bytes())?;
        // A server that refuses early may not read all of it.
        let _ = stream.write_all(body.as_bytes());
        Ok(stream)
    }

    /// Sends a request, and waits for the status and length of the answer.
    pub(super) fn post(&self, path: &str, body: &str) -> io::Result<(u16, usize)> {
        answer(self.ask(path, body)?)
    }

    fn get(&self, path: &str) -> io::Result<u16> {
        let mut stream = self.connect()?;
        stream.write_all(self.head("GET", path, 0).as_bytes())?;
        answer(stream).map(|(status, _)| status)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Status and length of an answer.
pub(super) fn answer(mut stream: TcpStream) -> io::Result<(u16, usize)> {
    let (mut start, mut length, mut piece) = (Vec::new(), 0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => {
                length += n;
                start.extend(&piece[..n.min(16_usize.saturating_sub(start.len()))]);
            }
            // What was received before the error counts.
            Err(_) if length > 0 => break,
            Err(e) => return Err(e),
        }
    }
    let status = std::str::from_utf8(&start).ok().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no HTTP: {start:?}")))?;
    Ok((status, length))
}

/// A stream: its choices as they were sent, and the longest time between two of them.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    pub(super) said: Vec<String>,
    pub(super) gap: Duration,
}

/// Reads a stream to its end.
pub(super) fn streamed(server: Client, body: &str) -> io::Result<Streamed> {
    let mut out = Streamed::default();
    // HTTP/1.0 has no chunked encoding to be decoded.
    let head = server.head("POST", "/v1/completions", body.len()).replace("HTTP/1.1", "HTTP/1.0");
    let mut stream = server.connect()?;
    stream.write_all((head + body).as_bytes())?;
    let lines = BufReader::new(stream).lines();
    let mut last = None;
    for line in lines {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            out.gap = out.gap.max(now - last);
        }
        if data == "[DONE]" {
            out.said.push(data.to_owned());
            return Ok(out);
        }
        let event: Value = serde_json::from_str(data).map_err(io::Error::other)?;
        out.said.push(event["choices"].to_string());
    }
    Err(io::Error::other("the stream has no end"))
}
