//! Closed-loop clients of a server: each sends the next request as soon as the last one is answered.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::results::median;

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub clients: usize,
    pub requests: usize,
    /// Tokens of each prompt, and of each answer.
    pub prompt: usize,
    pub generated: usize,
}

/// Measurements of one load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Tokens of all answers together, per second.
    pub tokens_per_second: f64,
    /// Time to first token in milliseconds: median and 95th percentile.
    pub first: f64,
    pub first_95: f64,
}

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs the load against a server. An incomplete answer fails the whole run.
pub(super) fn drive(address: SocketAddr, load: Load, vocabulary: u32, seed: u64) -> Result<Outcome, String> {
    let (next, firsts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let client = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= load.requests {
                return Ok(());
            }
            let prompt = prompt(load.prompt, vocabulary, seed << 32 | number as u64);
            let first = ask(address, &prompt, load.generated)?;
            firsts.lock().map_err(|_| "a client failed")?.push(first.as_secs_f64() * 1e3);
        }
    };
    let begun = Instant::now();
    let ended: Result<(), String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..load.clients).map(|_| scope.spawn(client)).collect();
        clients.into_iter().try_for_each(|c| c.join().map_err(|_| "a client failed".to_owned())?)
    });
    ended?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut firsts = firsts.into_inner().map_err(|_| "a client failed")?;
    firsts.sort_by(f64::total_cmp);
    let first_95 = firsts.get((firsts.len() * 95).div_ceil(100).saturating_sub(1)).copied();
    Ok(Outcome {
        tokens_per_second: (load.requests * load.generated) as f64 / seconds,
        first: median(&firsts).ok_or("nothing was asked")?,
        first_95: first_95.ok_or("nothing was asked")?,
    })
}

/// A prompt with a unique beginning, so that no prefix cache helps. It is sent as token ids, so that it has the same
/// length on every server. Special tokens, at the ends of vocabularies, are avoided.
fn prompt(tokens: usize, vocabulary: u32, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        vocabulary / 4 + (x >> 33) as u32 % (vocabulary / 2).max(1)
    };
    (0..tokens).map(next).collect()
}

/// Sends one request and reads the whole answer. Returns the time to the first piece.
fn ask(address: SocketAddr, prompt: &[u32], generated: usize) -> Result<Duration, String> {
    let body = json!({
        "prompt": prompt,
        "max_tokens": generated,
        "temperature": 0,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let begun = Instant::now();
    let (status, lines) = post(address, "/v1/completions", &body.to_string()).map_err(|e| e.to_string())?;
    let (mut first, mut usage, mut said) = (None, Value::Null, String::new());
    for line in lines.lines() {
        let line = line.map_err(|e| format!("an answer broke off: {e}"))?;
        let Some(event) = line.strip_prefix("data:").map(str::trim).filter(|_| status == 200) else {
            said += &line;
            continue;
        };
        if event == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(event).map_err(|e| format!("{event:?} is no event: {e}"))?;
        if !event["error"].is_null() {
            return Err(format!("the server answered {}", event["error"]));
        }
        if event["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty()) {
            first.get_or_insert_with(|| begun.elapsed());
        }
        if event["usage"].is_object() {
            usage = event["usage"].clone();
        }
    }
    if status != 200 {
        return Err(format!("the server answered {status}: {said}"));
    }
    let counted = ["prompt_tokens", "completion_tokens"].map(|key| usage[key].as_u64().unwrap_or(0) as usize);
    if counted != [prompt.len(), generated] {
        let wanted = [prompt.len(), generated];
        return Err(format!("the server counted {counted:?} tokens of prompt and answer, not {wanted:?}"));
    }
    first.ok_or_else(|| "an answer has no text".to_owned())
}

/// Sends a request; its answer is read as it arrives.
fn post(address: SocketAddr, path: &str, body: &str) -> io::Result<(u16, Box<dyn BufRead>)> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
        body.len()
    );
    exchange(address, &head, body)
}

/// Whether the server reports that it is ready.
pub(super) fn is_ready(address: SocketAddr) -> bool {
    exchange(address, "GET /health HTTP/1.1\r\n", "").is_ok_and(|(status, _)| status == 200)
}

fn exchange(address: SocketAddr, head: &str, body: &str) -> io::Result<(u16, Box<dyn BufRead>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{head}Host: {address}\r\nConnection: close\r\n\r\n{body}").as_bytes())?;
    let mut from = BufReader::new(stream);
    let wrong =
        |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{what:?} is no head of an answer"));
    let first = head_line(&mut from)?;
    let status = first.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| wrong(&first))?;
    let (mut chunked, mut length) = (false, u64::MAX);
    loop {
        let line = head_line(&mut from)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| wrong(&line))?;
        match name.to_ascii_lowercase().as_str() {
            "transfer-encoding" => chunked = value.trim().eq_ignore_ascii_case("chunked"),
            "content-length" => length = value.trim().parse().map_err(|_| wrong(&line))?,
            _ => {}
        }
    }
    Ok((
        status,
        if chunked {
            Box::new(BufReader::new(Chunks { from, left: 0 }))
        } else {
            Box::new(from.take(length))
        },
    ))
}

/// A line without its line ending.
fn head_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.take(1 << 16).read_line(&mut line)?;
    match line.strip_suffix("\n") {
        Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A body in chunked transfer encoding.
struct Chunks<R> {
    from: R,
    /// Bytes of the current chunk that are still to come, including its CRLF.
    left: u64,
}

impl<R: BufRead> Read for Chunks<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let line = head_line(&mut self.from)?;
            let length = u64::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16);
            match length.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))? {
                0 => return Ok(0),
                length => self.left = length,
            }
        }
        let most = to.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.from.read(&mut to[..most])?;
        if read == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        if self.left == 0 {
            head_line(&mut self.from)?;
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const LOAD: Load = Load { clients: 2, requests: 5, prompt: 3, generated: 2 };

    /// A server that gives every client the same answer. Returns the outcome, and the bodies that it received.
    fn served(answer: &str, load: Load) -> (Result<Outcome, String>, Vec<Value>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| (0..load.requests).map(|_| answered(&listener, answer)).collect());
            (drive(address, load, 1000, 1), server.join().unwrap())
        })
    }

    fn answered(listener: &TcpListener, answer: &str) -> Value {
        let (mut stream, _) = listener.accept().unwrap();
        let mut from = BufReader::new(stream.try_clone().unwrap());
        let mut length = 0;
        loop {
            let line = head_line(&mut from).unwrap();
            if line.is_empty() {
                break;
            }
            length = line.strip_prefix("Content-Length: ").map_or(length, |n| n.parse().unwrap());
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    /// An answer in chunks that do not end at line ends.
    fn chunked(text: &str) -> String {
        let pieces = text
            .as_bytes()
            .chunks(17)
            .map(|piece| format!("{:X};x=y\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
            pieces.collect::<String>()
        )
    }

    #[test]
    fn answers_that_stream_are_measured() {
        let answer = chunked(
            "data: {\"choices\":[{\"text\":\"\"}]}\n\n: a comment\n\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n\
             data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
        );
        let (outcome, bodies) = served(&answer, LOAD);
        let outcome = outcome.unwrap();
        assert!(outcome.tokens_per_second > 0.0 && outcome.first > 0.0 && outcome.first <= outcome.first_95);
        assert_eq!(bodies.len(), 5);
        let prompts: Vec<&Value> = bodies.iter().map(|body| &body["prompt"]).collect();
        assert!(prompts.iter().all(|p| p.as_array().unwrap().len() == 3), "{prompts:?}");
        assert!((1..5).all(|i| !prompts[..i].contains(&prompts[i])), "{prompts:?}");
        assert_eq!(bodies[0]["ignore_eos"], true);
    }

    #[test]
    fn answers_that_are_not_whole_are_refused() {
        let one = Load { requests: 1, ..LOAD };
        let fails = |answer: &str| served(answer, one).0.unwrap_err();
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n";
        let short = fails(&chunked(usage));
        assert_eq!(short, "the server counted [3, 1] tokens of prompt and answer, not [3, 2]");
        let cut = chunked(usage);
        assert!(fails(&cut[..cut.len() - 12]).contains("broke off"));
        let refused = fails("HTTP/1.1 400 Bad Request\r\nContent-Length: 5\r\n\r\nwrong and more");
        assert_eq!(refused, "the server answered 400: wrong");
        let error = fails("HTTP/1.1 200 OK\r\n\r\ndata: {\"error\": \"full\"}\n");
        assert_eq!(error, "the server answered \"full\"");
        let silent = usage.replace(":1}", ":2}");
        assert_eq!(fails(&chunked(&silent)), "an answer has no text");
    }
}
