//! An HTTP client that exposes every byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use tallow_support::PATIENCE;

use super::HasAddress;

/// A server's answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// For an error: message, type, param and code, which must be the only fields.
    pub(crate) fn error(&self) -> (String, String, Option<String>, Option<String>) {
        let body = self.json();
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        let error = body["error"].as_object().unwrap();
        assert_eq!(error.len(), 4, "{body}");
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (text("message").unwrap(), text("type").unwrap(), text("param"), text("code"))
    }

    /// For an error: the field it names.
    pub(crate) fn param(&self) -> Option<String> {
        self.error().2
    }

    /// For a stream: the data of each event. The stream must end with a blank line.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        assert!(text.ends_with("\n\n"), "{text:?}");
        let lines = text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':'));
        lines
            .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?}")).to_owned())
            .collect()
    }

    /// For a complete stream: its chunks.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// A request before it is sent.
pub(crate) struct RequestBuilder {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

pub(crate) fn ask(method: &str, path: &str) -> RequestBuilder {
    let headers = vec![("host".to_owned(), "localhost".to_owned())];
    RequestBuilder { method: method.into(), path: path.into(), headers, body: Vec::new() }
}

pub(crate) fn post(path: &str, body: impl ToString) -> RequestBuilder {
    ask("POST", path).with("content-type", "application/json").body(body.to_string())
}

impl RequestBuilder {
    /// Sets a header, replacing any of that name.
    pub(crate) fn with(mut self, name: &str, value: &str) -> RequestBuilder {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> RequestBuilder {
        self.body = body.into();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            out += &format!("{name}: {value}\r\n");
        }
        out += &format!("content-length: {}\r\n\r\n", self.body.len());
        [out.into_bytes(), self.body.clone()].concat()
    }

    /// Sends it, and returns the connection for the answer.
    pub(crate) fn send(&self, server: &impl HasAddress) -> TcpStream {
        let mut stream = connect(server);
        stream.write_all(&self.bytes()).unwrap();
        stream
    }

    /// Sends it, and waits for the whole answer.
    pub(crate) fn get(self, server: &impl HasAddress) -> Reply {
        read(self.with("connection", "close").send(server))
    }
}

pub(crate) fn connect(server: &impl HasAddress) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends raw bytes, and waits for the answer.
pub(crate) fn raw(server: &impl HasAddress, bytes: &[u8]) -> Reply {
    let mut stream = connect(server);
    // A server that refuses early may not read all of it.
    let _ = stream.write_all(bytes);
    read(stream)
}

/// Reads until the connection ends.
pub(crate) fn read(mut stream: TcpStream) -> Reply {
    let mut all = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => all.extend(&piece[..n]),
            // What was received before the reset counts.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset && !all.is_empty() => break,
            Err(e) => panic!("{e} after {:?}", String::from_utf8_lossy(&all)),
        }
        if complete(&all) {
            break;
        }
    }
    parse(&all)
}

/// Reads until `text` has been received.
pub(crate) fn read_until(stream: &mut TcpStream, text: &str) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&all).contains(text) {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "ended after {:?}", String::from_utf8_lossy(&all));
        all.extend(&piece[..n]);
    }
    all
}

/// True if `all` is a complete answer with a `content-length`.
fn complete(all: &[u8]) -> bool {
    let Some(end) = all.windows(4).position(|w| w == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| all.len() >= end + 4 + length.parse::<usize>().unwrap())
}

pub(crate) fn parse(all: &[u8]) -> Reply {
    let end = all.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no HTTP: {:?}", String::from_utf8_lossy(all)));
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<_> = lines.map(header).collect();
    let body = &all[end + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    Reply { status, headers, body: if chunked { unchunk(body) } else { body.to_vec() } }
}

fn unchunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let Some(end) = body.windows(2).position(|w| w == b"\r\n") else { return out };
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return out;
        }
        out.extend(&body[end + 2..end + 2 + length]);
        body = &body[end + 4 + length..];
    }
}
