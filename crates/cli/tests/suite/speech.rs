//! `tallow transcribe`, a served speech model, and `tallow run` with an encoder-decoder (T5).

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use crate::common::Home;
use serde_json::Value;
use tallow_support::{listener, reader};

fn home() -> Home {
    let home = Home::new();
    listener(&home.path().join("ears"));
    reader(&home.path().join("eyes"));
    home.file("sound.wav", sound(3.1));
    home
}

/// A frequency-modulated tone of `seconds`, as a 16-bit WAV file.
fn sound(seconds: f32) -> Vec<u8> {
    let count = (seconds * 16000.0) as usize;
    let sample = |n: usize| {
        let t = n as f32 / 16000.0;
        let pitch = 300.0 + 200.0 * (t * 7.0).sin();
        (8000.0 * (t * 5.0).sin().abs() * (t * pitch * std::f32::consts::TAU).sin()) as i16
    };
    let data: Vec<u8> = (0..count).flat_map(|n| sample(n).to_le_bytes()).collect();
    let mut file = [&b"RIFF"[..], &(36 + data.len() as u32).to_le_bytes(), b"WAVEfmt "].concat();
    file.extend([16, 0, 0, 0, 1, 0, 1, 0]);
    file.extend([16000u32.to_le_bytes(), 32000u32.to_le_bytes()].concat());
    file.extend([2, 0, 16, 0]);
    file.extend([&b"data"[..], &(data.len() as u32).to_le_bytes()].concat());
    [file, data].concat()
}

/// A server of the speech model.
struct Server(Child, String);

impl Server {
    fn start(home: &Home) -> Server {
        let mut command =
            home.command(&["serve", "ears", "--port", "0", "--slots", "3", "--alias", "whisper-1"]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server ended before it served");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.trim().trim_end_matches("/v1").to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server(child, address)
    }

    fn send(&self, path: &str, kind: &str, body: &[u8]) -> (u16, String, String) {
        self.send_of(path, kind, body, body.len())
    }

    /// Sends a request with a `content-length` of `length`.
    fn send_of(&self, path: &str, kind: &str, body: &[u8], length: usize) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.1);
        let kind = format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(&[head.as_bytes(), kind.as_bytes(), body].concat()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let kind = head.lines().find_map(|l| l.strip_prefix("content-type: ")).unwrap_or_default();
        (head[9..12].parse().unwrap(), kind.to_owned(), body.to_owned())
    }

    /// Value of one of the server's metrics.
    fn metric(&self, name: &str) -> f64 {
        let mut stream = TcpStream::connect(&self.1).unwrap();
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.1);
        stream.write_all(head.as_bytes()).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let line =
            page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{')));
        let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    fn form(&self, path: &str, fields: &[(&str, &str)], file: &[u8]) -> (u16, String, String) {
        let mut body = Vec::new();
        for (name, value) in fields {
            body.extend(
                format!("--b0\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes(),
            );
        }
        body.extend(b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
        body.extend(file);
        body.extend(b"\r\n--b0--\r\n");
        self.send(path, "multipart/form-data; boundary=b0", &body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_sound_of_several_windows_becomes_text_in_every_form() {
    let home = home();
    let run = |more: &[&str]| home.run(&[&["transcribe", "-m", "ears", "sound.wav"], more].concat()).ok();
    let verbose: Value = serde_json::from_str(&run(&["--format", "verbose-json"])).unwrap();
    let segments = verbose["segments"].as_array().unwrap();
    assert!(segments.len() > 1 && (verbose["duration"].as_f64().unwrap() - 3.1).abs() < 0.001, "{verbose}");
    let mut last = 0.0;
    for segment in segments {
        let [seek, start, end] = ["seek", "start", "end"].map(|key| segment[key].as_f64().unwrap());
        assert!(
            seek / 100.0 <= start + 0.01 && start >= last - 0.5 && start <= end && end <= 3.6,
            "{segment}"
        );
        last = start;
    }
    let texts: Vec<&str> = segments.iter().map(|s| s["text"].as_str().unwrap().trim()).collect();
    assert_eq!(run(&[]).lines().collect::<Vec<_>>(), texts);
    let whole: String = segments.iter().map(|s| s["text"].as_str().unwrap()).collect();
    let json: Value = serde_json::from_str(&run(&["--format", "json"])).unwrap();
    assert_eq!((json["text"].as_str().unwrap(), &json["text"]), (whole.trim(), &verbose["text"]));
    assert_eq!(run(&["--format", "srt"]).matches(" --> ").count(), texts.len());
    assert!(run(&["--format", "vtt"]).starts_with("WEBVTT\n\n00:00:0"));
    assert!(run(&["--timestamps"]).lines().all(|line| line.starts_with("[00:00:0") && line.contains("] ")));
    let german: Value =
        serde_json::from_str(&run(&["--format", "verbose-json", "--language", "german"])).unwrap();
    assert_eq!(german["language"], "german");
    let english: Value =
        serde_json::from_str(&run(&["--format", "verbose-json", "--task", "translate"])).unwrap();
    assert_eq!((&english["language"], &english["task"]), (&"english".into(), &"translate".into()));
}

#[test]
fn many_clients_get_what_one_gets() {
    let home = home();
    let server = Server::start(&home);
    let alone = home.run(&["transcribe", "-m", "ears", "sound.wav", "--format", "verbose-json"]).ok();
    let file = sound(3.1);
    let ask = |format: &str| {
        server.form("/v1/audio/transcriptions", &[("model", "whisper-1"), ("response_format", format)], &file)
    };
    let answers: Vec<_> = std::thread::scope(|s| {
        let asked: Vec<_> = (0..6).map(|_| s.spawn(|| ask("verbose_json"))).collect();
        asked.into_iter().map(|a| a.join().unwrap()).collect()
    });
    let alone: Value = serde_json::from_str(&alone).unwrap();
    for (status, kind, body) in answers {
        assert_eq!((status, kind.as_str()), (200, "application/json"), "{body}");
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), alone);
    }
    assert_eq!(ask("vtt").1, "text/vtt; charset=utf-8");
    // They are counted as requests for text are.
    for name in
        ["prompt_tokens_total", "generation_tokens_total", "iteration_tokens_total_count", "steps_total"]
    {
        assert!(server.metric(&format!("vllm:{name}")) >= 7.0, "{name}");
    }
    for name in ["num_requests_running", "kv_cache_usage_perc", "failed_steps_total", "page_faults_total"] {
        assert_eq!(server.metric(&format!("vllm:{name}")), 0.0, "{name}");
    }
    let translated = server.form("/v1/audio/translations", &[("temperature", "0.2")], &file);
    assert_eq!(translated.0, 200, "{}", translated.2);
    assert!(serde_json::from_str::<Value>(&translated.2).unwrap()["text"].is_string());
}

#[test]
fn wrong_requests_are_refused_in_the_interface_s_words() {
    let home = home();
    let server = Server::start(&home);
    let (to, good) = ("/v1/audio/transcriptions", sound(0.1));
    let ask = |fields: &[(&str, &str)], file: &[u8]| server.form(to, fields, file);
    let said = [
        ask(&[("model", "gpt")], &good),
        ask(&[], b""),
        ask(&[], b"no sound at all"),
        ask(&[("language", "klingon")], &good),
        ask(&[("response_format", "xml")], &good),
        ask(&[("temperature", "hot")], &good),
        ask(&[("timestamp_granularities[]", "word"), ("response_format", "verbose_json")], &good),
        ask(&[("colour", "red")], &good),
        server.send(to, "application/json", b"{}"),
        server.send(to, "multipart/form-data; boundary=b0", b"--b0\r\n"),
        server.send("/v1/chat/completions", "application/json", b"{}"),
    ];
    let said: String = said.iter().map(|(status, _, body)| format!("{status} {body}\n")).collect();
    insta::assert_snapshot!(said);
    // A too large body is refused before it is sent.
    let (status, ..) = server.send_of(to, "multipart/form-data; boundary=b0", b"", 26 << 20);
    assert_eq!(status, 413);
}

#[test]
fn a_prompt_is_read_and_answered() {
    let home = home();
    let run = |more: &[&str]| home.run(&[&["run", "eyes", "the cat sat"], more].concat()).ok();
    let answer = run(&["-n", "12"]);
    assert!(answer.trim().len() > 3, "{answer:?}");
    assert_eq!(run(&["-n", "12"]), answer);
    assert!(answer.starts_with(run(&["-n", "4"]).trim_end_matches('\n')));
    assert_ne!(home.run(&["run", "eyes", "a dog", "-n", "12"]).ok(), answer);
}

#[test]
fn what_they_are_is_shown() {
    let home = home();
    let shown = home.run(&["show", "ears"]).ok() + &home.run(&["show", "eyes"]).ok();
    insta::assert_snapshot!(shown);
    assert!(home.run(&["show", "ears", "--tensors"]).ok().contains("model.encoder.conv1.weight"));
    assert!(home.run(&["doctor", "ears"]).ok().contains("ears would take"));
}

#[test]
fn several_files_and_a_pipe_are_transcribed_in_turn() {
    let home = home();
    let opus = include_bytes!("../../../../tests/goldens/sound/voice.opus");
    home.file("voice.opus", &opus[..]);
    let one = home.run(&["transcribe", "ears", "sound.wav"]).ok();
    let two = home.run(&["transcribe", "ears", "voice.opus"]).ok();
    let both = home.run(&["transcribe", "ears", "sound.wav", "voice.opus"]).ok();
    assert_eq!(both, format!("==> sound.wav <==\n{one}\n==> voice.opus <==\n{two}"));
    // The same through a pipe, for every container.
    for (name, want) in [("sound.wav", one), ("voice.opus", two)] {
        let mut command = home.command(&["transcribe", "ears", "-"]);
        command.stdin(std::fs::File::open(home.path().join(name)).unwrap()).stderr(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), want, "{name}");
    }
    // JSON: one object per file.
    let json = home.run(&["transcribe", "ears", "sound.wav", "voice.opus", "--format", "json"]).ok();
    let objects = serde_json::Deserializer::from_str(&json).into_iter::<Value>();
    assert_eq!(objects.filter(|object| object.as_ref().unwrap()["text"].is_string()).count(), 2);
}

#[test]
fn refusals_say_what_to_do() {
    let home = home();
    home.file("text.txt", "hello");
    let long = "word ".repeat(600);
    let said = [
        home.run(&["run", "ears", "hello"]),
        home.run(&["run", "eyes", &long]),
        home.run(&["run", "eyes", "--system", "be kind", "hello"]),
        home.run(&["serve", "eyes", "--port", "0"]),
        home.run(&["serve", "ears", "--port", "0", "--temperature", "1"]),
        home.run(&["embed", "-m", "ears", "hello"]),
        home.run(&["transcribe", "-m", "eyes", "sound.wav"]),
        home.run(&["transcribe", "-m", "demo", "sound.wav"]),
        home.run(&["transcribe", "-m", "ears", "text.txt"]),
        home.run(&["transcribe", "-m", "ears", "nothing.wav"]),
        home.run(&["transcribe", "-m", "ears", "sound.wav", "--language", "klingon"]),
        home.run(&["transcribe", "ears", "sound.wav", "sound.wav", "--format", "srt"]),
        home.run(&["transcribe", "ears", "-", "-"]),
        home.run(&["transcribe", "ears", "."]),
        home.run(&["transcribe", "-m", "ears", "sound.wav", "--timestamps", "--format", "srt"]),
        home.run(&["perplexity", "ears", "text.txt"]),
    ];
    insta::assert_snapshot!(said.map(|did| did.failed()).concat());
}
