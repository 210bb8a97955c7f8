//! Shared by these tests: a tiny tokenizer, a served engine, and a client that exposes every byte.

pub(crate) mod agent;
pub(crate) mod bodies;
pub(crate) mod client;
pub(crate) mod log;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallow_engine::handle::{Command, Done, EngineHandle, Event, Finish, Info, Request, Timings};
use tallow_engine::sampler::Sampling;
use tallow_engine::service::Message;
use tallow_engine::sim::{self, Script};
use tallow_server::{LogHealth, ModelCard, Models, Served, Settings};
use tallow_support::PATIENCE;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::{Special, Tokenizer};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// Tokens after the 256 bytes: words that no text is tokenized to (there are no merges), and special tokens.
pub(crate) const WORDS: [&str; 8] = ["Hello", " world", "!", " How", " are", " you", "<s>", "<|im_start|>"];
pub(crate) const BOS: u32 = 262;
pub(crate) const START: u32 = 263;
pub(crate) const END: u32 = 264;
pub(crate) const VOCAB: usize = 265;

/// The characters that stand for bytes in byte-level BPE vocabularies.
fn byte_characters() -> Vec<char> {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let character = |b: u32| match plain(&b) {
        true => b,
        false => {
            next += 1;
            next - 1
        }
    };
    (0..256).map(character).map(|c| char::from_u32(c).unwrap()).collect()
}

/// Byte-level vocabulary with a few words and special tokens. Prompts begin with `<s>`.
pub(crate) fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The same with more special tokens, from [`VOCAB`] on.
pub(crate) fn tokenizer_with(more: &[&str]) -> Tokenizer {
    let bytes = byte_characters();
    let mut vocab: serde_json::Map<String, Value> =
        bytes.iter().enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
    for (i, word) in WORDS[..6].iter().enumerate() {
        let written: String = word.bytes().map(|b| bytes[b as usize]).collect();
        // Single characters are in the vocabulary already.
        let written = if vocab.contains_key(&written) { format!("{written}{written}") } else { written };
        vocab.insert(written, (256 + i).into());
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false,
               "lstrip": false, "rstrip": false})
    };
    let mut added = vec![special(BOS, "<s>"), special(START, "<|im_start|>"), special(END, "<|im_end|>")];
    added.extend(more.iter().zip(VOCAB as u32..).map(|(content, id)| special(id, content)));
    let file = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    Tokenizer::from_json(Path::new("tokenizer.json"), file.to_string().as_bytes(), None).unwrap()
}

/// The tokens of a text, one per byte.
pub(crate) fn bytes(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Special::BARE).unwrap()
}

/// "Hello world!!" and the end-of-sequence token.
pub(crate) fn hello() -> Vec<u32> {
    vec![256, 257, 258, END]
}

pub(crate) fn templates() -> ChatTemplates {
    let source = "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\
                  {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ extra }}";
    let config = json!({"chat_template": source, "bos_token": "<s>"});
    ChatTemplates::from_config(Path::new("config.json"), &config, None).unwrap().unwrap()
}

pub(crate) fn info() -> Info {
    Info {
        names: vec!["tiny".into(), "alias".into()],
        tokenizer: tokenizer(),
        vocab: VOCAB,
        context: 256,
        slots: 4,
        queue: 8,
        queue_timeout: None,
        page_len: 16,
        pages: 64,
        swa_pages: 0,
        state_rows: 0,
        sampling: Sampling::default(),
        adapter_room: 0,
    }
}

pub(crate) fn script(reply: &[u32]) -> Script {
    Script { reply: reply.to_vec(), pace: Duration::from_millis(1), breaks_after: None, dies_after: None }
}

/// An engine that answers each request with the events that `say` returns.
pub(crate) fn scripted_engine(
    info: Info,
    say: impl Fn(&Request) -> Vec<Event> + Send + 'static,
) -> EngineHandle {
    let (handle, commands, alive) = EngineHandle::new(info);
    std::thread::spawn(move || {
        while let Ok(Message::Take(Command::Submit(mut submission))) = commands.recv() {
            say(&submission.request).into_iter().for_each(|event| submission.listener.tell(event));
        }
        drop(alive);
    });
    handle
}

/// An engine that ends every answer at once, and the requests it received.
pub(crate) fn recording_engine(info: Info) -> (EngineHandle, std::sync::mpsc::Receiver<Request>) {
    let (send, requests) = std::sync::mpsc::channel();
    let handle = scripted_engine(info, move |request| {
        let _ = send.send(request.clone());
        vec![Event::Done(done(request.prompt.len()))]
    });
    (handle, requests)
}

pub(crate) fn done(prompt_tokens: usize) -> Done {
    let timings = Timings::default();
    Done { text: String::new(), reason: Finish::End, prompt_tokens, cached_tokens: 0, new_tokens: 0, timings }
}

/// Something with a server's address.
pub(crate) trait HasAddress {
    fn address(&self) -> SocketAddr;
}

impl HasAddress for TestServer {
    fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) handle: EngineHandle,
    pub(crate) log: Arc<LogHealth>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

/// Parts of a server, before it starts.
pub(crate) struct ServerBuilder {
    pub(crate) handle: EngineHandle,
    pub(crate) templates: Option<ChatTemplates>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) card: ModelCard,
    pub(crate) settings: Settings,
    pub(crate) bind: &'static str,
}

impl ServerBuilder {
    pub(crate) fn new(handle: EngineHandle) -> ServerBuilder {
        let templates = Some(templates());
        ServerBuilder {
            handle,
            templates,
            max_tokens: None,
            card: ModelCard::default(),
            settings: Settings::default(),
            bind: "127.0.0.1:0",
        }
    }

    pub(crate) fn start(self) -> TestServer {
        let ServerBuilder { handle, templates, max_tokens, card, settings, bind } = self;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(bind)).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            Served { handle: handle.clone(), templates, tool_format: None, max_tokens, receipts: None };
        let log = settings.log.clone();
        let stopped = async { drop(stopped.await) };
        let models = Models::one(served, card);
        let served = runtime.spawn(tallow_server::serve(listener, models, settings, stopped));
        TestServer { address, handle, log, runtime, stop: Some(stop), served: Some(served) }
    }
}

/// A served simulated engine that answers with these tokens.
pub(crate) fn start_server(reply: &[u32]) -> TestServer {
    ServerBuilder::new(sim::start(info(), script(reply))).start()
}

impl TestServer {
    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until the server has ended.
    pub(crate) fn join(&mut self) {
        let served = self.served.take().unwrap();
        let within = async { tokio::time::timeout(PATIENCE, served).await };
        self.runtime.block_on(within).expect("it ends in time").unwrap().unwrap();
    }

    /// The error with which the server failed to start.
    pub(crate) fn failed(&mut self) -> std::io::Error {
        let served = self.served.take().unwrap();
        self.runtime.block_on(served).unwrap().unwrap_err()
    }

    /// Waits until no request is admitted any more.
    pub(crate) fn wait_free(&self) {
        wait(|| self.handle.taken() == 0, "all places are free");
    }
}

pub(crate) fn wait(until: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !until() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
