//! The attacks. Each returns the size in bytes of its longest answer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::server::{Client, Log, answer};

/// Duration of continuous attacks.
const LONG: Duration = Duration::from_secs(8);
/// Bytes of text in a body that is about as long as allowed.
const LONGEST: usize = 15_000_000;

/// An attack.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) log: Log,
    /// Limit of the server's address space, in KiB.
    pub(super) space: Option<u64>,
    /// True if there is one large request at a time.
    pub(super) one: bool,
    pub(super) run: fn(&Client) -> io::Result<usize>,
}

const fn case(name: &'static str, one: bool, run: fn(&Client) -> io::Result<usize>) -> Case {
    Case { name, log: Log::Read, space: None, one, run }
}

pub(super) static CASES: &[Case] = &[
    case("nothing", true, |_| {
        std::thread::sleep(LONG);
        Ok(0)
    }),
    case("one text of 15 MB to tokenize", true, tokenize_longest),
    case("texts of 1 MB to tokenize", false, tokenize_many),
    case("16 slow readers of long answers", false, slow_readers),
    case("one prompt of 15 MB", true, one_prompt),
    case("4 clients with prompts of 15 MB", false, prompts),
    case("one chat of 15 MB", true, one_chat),
    case("a body of many values", true, many_values),
    case("64 bodies that stall", false, |server| stalled_bodies(server, 64, 1_000_000, 70_000)),
    case("60 bodies that stall at their last byte", false, |server| {
        stalled_bodies(server, 60, 16 << 20, (16 << 20) - 1)
    }),
    case("64 bodies that trickle", false, trickling_bodies),
    case("10,000 idle connections", false, idle_connections),
    case("128 answers with log-probabilities", true, log_probabilities),
    case("8 streams of log-probabilities that nobody reads", false, unread_streams),
    case("64 answers with log-probabilities, on 16 slots", false, many_log_probabilities),
    case("500 clients that vanish", false, vanishing),
    case("another schema in each request", false, new_schemas),
    case("schemas, grammars and expressions that cost too much", false, costly_structures),
    case("tools of 100 KB", false, many_tools),
    case("responses of 1 MB to be kept", false, kept_responses),
    Case {
        space: Some(800_000),
        ..case("one prompt of 15 MB, in 800 MB of address space", true, one_prompt)
    },
    Case { space: Some(800_000), ..case("one text of 15 MB to tokenize, in 800 MB", true, tokenize_longest) },
    Case { log: Log::Full, ..case("a log on a full disk", true, many_requests) },
    Case { log: Log::Unread, ..case("a log that nobody reads", true, many_requests) },
];

fn prompt(text: &str) -> String {
    format!("{{\"prompt\":\"{text}\",\"return_token_strs\":true}}")
}

/// Repeats `one` for a while, and returns the size of the longest answer.
fn for_long(mut one: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let (begun, mut longest) = (Instant::now(), 0);
    while begun.elapsed() < LONG {
        longest = longest.max(one()?);
    }
    Ok(longest)
}

/// The same with several clients at once; their answers' sizes add up.
fn at_once(clients: usize, one: impl Fn() -> io::Result<usize> + Sync) -> io::Result<usize> {
    std::thread::scope(|threads| {
        let all: Vec<_> = (0..clients).map(|_| threads.spawn(|| for_long(&one))).collect();
        let ends = all
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("a client failed"))));
        ends.sum()
    })
}

fn tokenize_longest(server: &Client) -> io::Result<usize> {
    let body = prompt(&"a".repeat(LONGEST));
    // It is refused before all of it is read, which a client that keeps writing may not notice.
    for_long(|| Ok(server.post("/tokenize", &body).map_or(0, |(_, length)| length)))
}

fn tokenize_many(server: &Client) -> io::Result<usize> {
    let body = prompt(&"a".repeat(1_000_000));
    at_once(8, || Ok(server.post("/tokenize", &body)?.1))
}

fn slow_readers(server: &Client) -> io::Result<usize> {
    let body = prompt(&"a".repeat(1_000_000));
    let mut clients: Vec<TcpStream> =
        (0..16).map(|_| server.ask("/tokenize", &body)).collect::<io::Result<_>>()?;
    for_long(|| {
        for client in &mut clients {
            // Clients that were dropped in favour of others read nothing more.
            let _ = client.read(&mut [0; 512]);
        }
        std::thread::sleep(Duration::from_millis(100));
        Ok(0)
    })
}

fn one_prompt(server: &Client) -> io::Result<usize> {
    let body = format!("{{\"prompt\":\"{}\"}}", "a".repeat(LONGEST));
    for_long(|| expect(server.post("/v1/completions", &body)?, 400))
}

fn prompts(server: &Client) -> io::Result<usize> {
    let body = format!("{{\"prompt\":\"{}\"}}", "a".repeat(LONGEST));
    at_once(4, || Ok(server.post("/v1/completions", &body)?.1))
}

fn one_chat(server: &Client) -> io::Result<usize> {
    let text = "Once upon a time. ".repeat(LONGEST / 18);
    let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}");
    for_long(|| expect(server.post("/v1/chat/completions", &body)?, 400))
}

fn many_values(server: &Client) -> io::Result<usize> {
    for_long(|| {
        for value in ["{\"a\":[]}", "[{}]", "1", "\"\""] {
            let body =
                format!("{{\"prompt\":[{value}{}]}}", format!(",{value}").repeat((8 << 20) / value.len()));
            // Too many values are too large.
            expect(server.post("/v1/completions", &body)?, 413)?;
        }
        Ok(0)
    })
}

/// Asks for a short text of a structure.
fn structured(server: &Client, structure: &str) -> io::Result<(u16, usize)> {
    server.post("/v1/completions", &format!("{{\"prompt\":\"x\",\"max_tokens\":4,{structure}}}"))
}

fn new_schemas(server: &Client) -> io::Result<usize> {
    let number = std::sync::atomic::AtomicUsize::new(0);
    at_once(8, || {
        let next = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let schema = format!(
            "\"json_schema\":{{\"type\":\"object\",\"properties\":{{\"p{next}\":{{\"type\":\"string\"}},\"q\":{{\"enum\":[\"{next}\"]}}}},\
             \"required\":[\"p{next}\",\"q\"]}}"
        );
        // The queue may be full.
        Ok(structured(server, &schema)?.1)
    })
}

fn costly_structures(server: &Client) -> io::Result<usize> {
    let deep = format!("{}true{}", "{\"items\":".repeat(60), "}".repeat(60));
    let all = [
        "\"json_schema\":{\"$ref\":\"#\"}".to_owned(),
        "\"json_schema\":{\"$ref\":\"https://example.com/schema\"}".to_owned(),
        "\"json_schema\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1000000000}"
            .to_owned(),
        "\"json_schema\":{\"type\":\"string\",\"pattern\":\"^(((a{1,200}){1,200}){1,200})$\"}".to_owned(),
        "\"json_schema\":{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}".to_owned(),
        format!("\"json_schema\":{deep}"),
        "\"regex\":\"(a+)+(b|c{1,5000}){1,5000}$\"".to_owned(),
        "\"grammar\":\"root ::= root root | \\\"a\\\" | root\"".to_owned(),
        "\"grammar\":\"root ::= a\\na ::= (a | \\\"x\\\"){1,100000}\"".to_owned(),
    ];
    at_once(4, || {
        let mut longest = 0;
        for structure in &all {
            longest = longest.max(structured(server, structure)?.1);
        }
        Ok(longest)
    })
}

fn many_tools(server: &Client) -> io::Result<usize> {
    let one = |i: usize| {
        format!(
            "{{\"type\":\"function\",\"function\":{{\"name\":\"tool{i}\",\"description\":\"{}\",\"parameters\":{{\"type\":\"object\",\
             \"properties\":{{\"a{i}\":{{\"type\":\"string\"}}}}}}}}}}",
            "d".repeat(100)
        )
    };
    let tools: Vec<String> = (0..400).map(one).collect();
    let body = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"tool_choice\":\"required\",\"tools\":[{}]}}",
        tools.join(",")
    );
    // The demo model's template has no place for tools, or its context none for so many.
    at_once(4, || Ok(server.post("/v1/chat/completions", &body)?.1))
}

fn kept_responses(server: &Client) -> io::Result<usize> {
    let body = format!(
        "{{\"input\":\"x\",\"max_output_tokens\":1,\"metadata\":{{\"a\":\"{}\"}}}}",
        "m".repeat(1_000_000)
    );
    at_once(4, || Ok(server.post("/v1/responses", &body)?.1))
}

fn stalled_bodies(server: &Client, count: usize, length: usize, sent: usize) -> io::Result<usize> {
    let start = vec![b' '; sent];
    let held: Vec<TcpStream> = std::thread::scope(|threads| {
        let one = || {
            let mut stream = server.connect()?;
            stream.write_all(server.head("POST", "/v1/completions", length).as_bytes())?;
            // Clients for which there is no room are not read.
            stream.set_write_timeout(Some(LONG))?;
            let _ = stream.write_all(&start);
            Ok(stream)
        };
        let all: Vec<_> = (0..count).map(|_| threads.spawn(one)).collect();
        all.into_iter().filter_map(|one| one.join().ok()).collect::<io::Result<_>>()
    })?;
    let begun = Instant::now();
    let body = format!("{{\"prompt\":\"{}\"}}", "a".repeat(91_000));
    expect(server.post("/v1/completions", &body)?, 400)?;
    if begun.elapsed() > Duration::from_secs(5) {
        return Err(io::Error::other(format!("a body of 91 KB took {:?}", begun.elapsed())));
    }
    std::thread::sleep(LONG);
    drop(held);
    Ok(0)
}

fn trickling_bodies(server: &Client) -> io::Result<usize> {
    let mut clients = Vec::new();
    for _ in 0..64 {
        let mut stream = server.connect()?;
        stream.write_all(server.head("POST", "/v1/completions", 1 << 20).as_bytes())?;
        clients.push(stream);
    }
    for_long(|| {
        clients.iter_mut().for_each(|client| drop(client.write_all(b"  ")));
        std::thread::sleep(Duration::from_millis(50));
        Ok(0)
    })
}

fn idle_connections(server: &Client) -> io::Result<usize> {
    let mut clients = Vec::new();
    for i in 0..10_000 {
        let mut stream = server.connect()?;
        if i % 2 == 0 {
            // Half of a request head. Writing fails for clients that were dropped.
            let _ = stream.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: loc");
        }
        clients.push(stream);
    }
    std::thread::sleep(LONG);
    Ok(0)
}

fn log_probabilities(server: &Client) -> io::Result<usize> {
    let body = |n: usize, tokens: usize| {
        format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}],\"n\":{n},\"max_tokens\":{tokens},\"logprobs\":true,\
             \"top_logprobs\":20,\"ignore_eos\":true}}"
        )
    };
    expect(server.post("/v1/chat/completions", &body(128, 500))?, 400)?;
    let (status, length) = server.post("/v1/chat/completions", &body(12, 300))?;
    expect((status, length), 200)
}

fn many_log_probabilities(server: &Client) -> io::Result<usize> {
    let body = "{\"prompt\":\"Once\",\"max_tokens\":200,\"logprobs\":5,\"ignore_eos\":true}";
    at_once(64, || expect(server.post("/v1/completions", body)?, 200))
}

fn unread_streams(server: &Client) -> io::Result<usize> {
    let body = "{\"prompt\":\"Once\",\"n\":1,\"max_tokens\":1000,\"logprobs\":5,\"ignore_eos\":true,\"stream\":true}";
    let held: Vec<TcpStream> =
        (0..8).map(|_| server.ask("/v1/completions", body)).collect::<io::Result<_>>()?;
    std::thread::sleep(LONG);
    drop(held);
    Ok(0)
}

fn vanishing(server: &Client) -> io::Result<usize> {
    let body = "{\"prompt\":\"Once\",\"max_tokens\":1000,\"ignore_eos\":true}";
    for _ in 0..500 {
        drop(server.ask("/v1/completions", body)?);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(0)
}

fn many_requests(server: &Client) -> io::Result<usize> {
    let body = "{\"prompt\":\"Once\",\"max_tokens\":0}";
    // Each leaves a log line, even if it is refused: more than a pipe holds.
    for _ in 0..3000 {
        answer(server.ask("/v1/completions", body)?)?;
    }
    Ok(0)
}

/// The length of an answer, which must have the status `wanted`.
fn expect((status, length): (u16, usize), wanted: u16) -> io::Result<usize> {
    match status == wanted {
        true => Ok(length),
        false => Err(io::Error::other(format!("the answer is {status}, and should be {wanted}"))),
    }
}
