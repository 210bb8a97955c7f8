//! A stand-in for the hub: the same protocol over plain sockets, with faults on demand.
//!
//! Large files are redirected to a second server, as on the hub, which shows who receives the token.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha2::Digest;
use tallow_hub::{Cache, Event, Hub, HubError, ModelRef, Ranges, Settings, Snapshot, Timing};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "hf_secret";

/// A request as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Ask {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// True if it requests the content of `file`.
    pub(crate) fn gets(&self, file: &str) -> bool {
        self.method == "GET" && self.path.ends_with(&format!("/{file}"))
    }
}

/// Fault to inject after a number of bytes of the body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Then {
    Close,
    /// Keep the connection open and send nothing.
    Hang,
    /// Send a space now and then, without end.
    Drip,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Say {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Stop after this many bytes of the body.
    pub(crate) stop: Option<(usize, Then)>,
    /// Send no content-length: the body ends with the connection.
    pub(crate) lengthless: bool,
}

pub(crate) fn say(status: u16, body: impl Into<Vec<u8>>) -> Say {
    Say { status, headers: Vec::new(), body: body.into(), stop: None, lengthless: false }
}

impl Say {
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Say {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn stop(self, after: usize, then: Then) -> Say {
        Say { stop: Some((after, then)), ..self }
    }
}

/// A server on its own port that records its requests.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Ask>>>,
    open: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(answer: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let open = Arc::new(AtomicBool::new(true));
        let (log, going, answer) = (asked.clone(), open.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if !going.load(Ordering::SeqCst) {
                    return;
                }
                let (log, going, answer) = (log.clone(), going.clone(), answer.clone());
                thread::spawn(move || serve(stream, &log, &going, &*answer));
            }
        });
        Server { url, asked, open }
    }

    pub(crate) fn asked(&self) -> Vec<Ask> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.open.store(false, Ordering::SeqCst);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Ask>>,
    open: &AtomicBool,
    answer: &dyn Fn(&Ask) -> Say,
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).take(64 << 10).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let header = |l: String| l.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()));
    let headers = lines.take_while(|l| !l.is_empty()).filter_map(header).collect();
    let ask = Ask { method, path, headers };
    log.lock().unwrap().push(ask.clone());
    let say = answer(&ask);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", say.status);
    for (name, value) in &say.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if !say.lengthless && !say.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-length")) {
        head += &format!("Content-Length: {}\r\n", say.body.len());
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if ask.method == "HEAD" {
        return Some(());
    }
    let (end, then) = say.stop.unwrap_or((say.body.len(), Then::Close));
    stream.write_all(&say.body[..end.min(say.body.len())]).ok()?;
    while then != Then::Close && open.load(Ordering::SeqCst) {
        thread::sleep(Duration::from_millis(10));
        if then == Then::Drip {
            stream.write_all(b" ").ok()?;
        }
    }
    Some(())
}

/// Changes an answer before it is sent. The last argument counts the requests with this method and path, from 1.
pub(crate) type Twist = Arc<dyn Fn(&Ask, Say, usize) -> Say + Send + Sync>;

/// A twist that does its own counting.
type Counted = dyn Fn(&Ask, Say) -> Say + Send + Sync;

/// A hub with one model, `org/m`.
pub(crate) struct StandIn {
    pub(crate) hub: Server,
    pub(crate) cdn: Server,
}

impl StandIn {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> StandIn {
        StandIn::twisted(files, |_, say, _| say)
    }

    /// Files of 1000 bytes and more are "large": redirected, and named by their SHA-256.
    pub(crate) fn twisted(
        files: &[(&str, &[u8])],
        twist: impl Fn(&Ask, Say, usize) -> Say + Send + Sync + 'static,
    ) -> StandIn {
        let files: BTreeMap<_, _> = files.iter().map(|(n, b)| (n.to_string(), b.to_vec())).collect();
        let twist = counted(Arc::new(twist));
        let (cdn_files, cdn_twist) = (files.clone(), twist.clone());
        let cdn = Server::start(move |ask| {
            let file = cdn_files.iter().find(|(name, _)| ask.path.ends_with(&format!("/{name}")));
            cdn_twist(ask, file.map_or(say(404, ""), |(_, content)| ranged(ask, content)))
        });
        let cdn_url = cdn.url.clone();
        let hub = Server::start(move |ask| twist(ask, hub_answer(ask, &files, &cdn_url)));
        StandIn { hub, cdn }
    }

    pub(crate) fn settings(&self) -> Settings {
        settings(&self.hub.url)
    }

    pub(crate) fn pull(&self, cache: &Cache, name: &str) -> Result<Snapshot, HubError> {
        pull(&self.settings(), cache, name, &mut |_| ())
    }

    /// Number of requests for the content of `file`, on both servers.
    pub(crate) fn downloads(&self, file: &str) -> usize {
        // A large file costs one request to each.
        self.hub.asked().iter().filter(|a| a.gets(file)).count()
    }

    /// The ranges that were requested of it.
    pub(crate) fn ranges(&self, file: &str) -> Vec<Option<String>> {
        let gets = self.cdn.asked().into_iter().filter(|a| a.gets(file));
        gets.map(|a| a.header("range").map(str::to_owned)).collect()
    }
}

fn counted(twist: Twist) -> Arc<Counted> {
    let counts = Mutex::new(BTreeMap::<String, usize>::new());
    Arc::new(move |ask, say| {
        let host = ask.header("host").unwrap_or_default();
        let n = {
            let mut counts = counts.lock().unwrap();
            let n = counts.entry(format!("{} {host} {}", ask.method, ask.path)).or_default();
            *n += 1;
            *n
        };
        twist(ask, say, n)
    })
}

fn hub_answer(ask: &Ask, files: &BTreeMap<String, Vec<u8>>, cdn: &str) -> Say {
    let not_found = |code| say(404, "").with("X-Error-Code", code);
    let path = ask.path.split('?').next().unwrap();
    let Some(rest) = path.strip_prefix("/api/models/") else {
        let Some(rest) = path.strip_prefix("/org/m/resolve/") else { return not_found("RepoNotFound") };
        let (commit, name) = rest.split_once('/').unwrap();
        let name = name.replace("%20", " ");
        if commit != COMMIT && commit != "main" {
            return not_found("RevisionNotFound");
        }
        let Some(content) = files.get(&name) else { return not_found("EntryNotFound") };
        let etag = format!("\"{}\"", etag(content));
        return if content.len() < 1000 {
            ranged(ask, content).with("ETag", etag).with("X-Repo-Commit", COMMIT)
        } else {
            say(302, "")
                .with("Location", format!("{cdn}/signed/{name}"))
                .with("X-Repo-Commit", COMMIT)
                .with("X-Linked-ETag", etag)
                .with("X-Linked-Size", content.len())
        };
    };
    match rest {
        "org/m/revision/main" | "org/m/revision/v1" | "org/m/revision/refs%2Fpr%2F1" => {
            say(200, listing(files.keys()))
        }
        r if r == format!("org/m/revision/{COMMIT}") => say(200, listing(files.keys())),
        r if r.starts_with("org/m/") => not_found("RevisionNotFound"),
        _ => not_found("RepoNotFound"),
    }
}

pub(crate) fn listing(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let siblings: Vec<_> =
        names.into_iter().map(|n| serde_json::json!({ "rfilename": n.as_ref() })).collect();
    serde_json::json!({ "id": "org/m", "sha": COMMIT, "siblings": siblings, "gated": false }).to_string()
}

/// The hub's ETag of a content.
pub(crate) fn etag(content: &[u8]) -> String {
    if content.len() < 1000 {
        let mut hash = sha1::Sha1::new_with_prefix(format!("blob {}\0", content.len()));
        hash.update(content);
        hex(&hash.finalize())
    } else {
        hex(&sha2::Sha256::digest(content))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A file, or a range of it.
fn ranged(ask: &Ask, content: &[u8]) -> Say {
    let number = |text: &str| text.parse::<usize>().ok();
    let range = ask.header("range").and_then(|r| r.strip_prefix("bytes=")?.split_once('-'));
    match range.and_then(|(start, last)| Some((number(start)?, number(last)))) {
        None => say(200, content),
        Some((start, last)) if start < content.len() => {
            let end = last.map_or(content.len(), |last| content.len().min(last + 1));
            let range = format!("bytes {start}-{}/{}", end - 1, content.len());
            say(206, &content[start..end]).with("Content-Range", range)
        }
        Some(_) => say(416, ""),
    }
}

/// Settings that split even small files into ranges, four at once.
pub(crate) fn in_pieces(url: &str) -> Settings {
    let ranges = Ranges { connections: 4, least: 50_000, most: 200_000 };
    Settings { ranges, ..settings(url) }
}

pub(crate) fn settings(url: &str) -> Settings {
    let timing = Timing {
        connect: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        tries: 3,
        first_wait: Duration::from_millis(5),
        longest_wait: Duration::from_secs(10),
    };
    Settings { endpoint: url.to_owned(), token: Some(TOKEN.to_owned()), timing, ..Settings::default() }
}

pub(crate) fn pull(
    settings: &Settings,
    cache: &Cache,
    name: &str,
    watch: &mut dyn FnMut(Event),
) -> Result<Snapshot, HubError> {
    let mut watch = |event: Event<'_>| {
        watch(event);
        ControlFlow::Continue(())
    };
    Hub::new(cache.clone(), settings)?.pull(&ModelRef::parse(name)?, &mut watch)
}

/// An empty cache, removed when the returned folder is dropped.
pub(crate) fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path());
    (folder, cache)
}

/// Pseudo-random bytes.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// An error's text without the ports of this run.
pub(crate) fn text(error: HubError, stand_in: &StandIn) -> String {
    let host = |url: &str| url.trim_start_matches("http://").to_owned();
    error.to_string().replace(&host(&stand_in.hub.url), "HUB").replace(&host(&stand_in.cdn.url), "CDN")
}

/// A SOCKS 5 proxy without authentication, for IPv4 addresses.
pub(crate) struct Socks {
    pub(crate) address: String,
    served: Arc<Mutex<usize>>,
}

impl Socks {
    pub(crate) fn start() -> Socks {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = Arc::new(Mutex::new(0));
        let count = served.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = count.clone();
                thread::spawn(move || relay(stream, &count));
            }
        });
        Socks { address, served }
    }

    pub(crate) fn connections(&self) -> usize {
        *self.served.lock().unwrap()
    }
}

fn relay(mut client: TcpStream, count: &Mutex<usize>) -> Option<()> {
    let mut head = [0; 2];
    client.read_exact(&mut head).ok()?;
    let mut methods = vec![0; usize::from(head[1])];
    client.read_exact(&mut methods).ok()?;
    client.write_all(&[5, 0]).ok()?;
    let mut request = [0; 10];
    client.read_exact(&mut request).ok()?;
    assert_eq!(request[..4], [5, 1, 0, 1], "a connection to an IPv4 address");
    let ip = std::net::Ipv4Addr::new(request[4], request[5], request[6], request[7]);
    let mut server = TcpStream::connect((ip, u16::from_be_bytes([request[8], request[9]]))).ok()?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    *count.lock().unwrap() += 1;
    let (mut up, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || std::io::copy(&mut up, &mut to));
    std::io::copy(&mut server, &mut client).ok()?;
    let _ = client.shutdown(std::net::Shutdown::Both);
    Some(())
}
