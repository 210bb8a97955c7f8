//! [`Receipt`]: what repeats an answer, and the answer; and [`ReceiptLog`], the file of them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tallow_constraint::Grammar;
use tallow_engine::handle::{Done, EngineHandle, Finish, Request};
use tallow_engine::sampler::Sampling;

use crate::clock::unix_time;
use crate::constraint::ReasoningPart;

/// Version of the form of receipts.
const VERSION: u32 = 1;
/// Receipts that wait to be written.
const MAX_WAITING: usize = 1024;
/// Time that the last receipts have to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// Record of an answer with all that repeats it: a line of a file, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Receipt {
    /// Version of this form.
    pub receipt: u32,
    /// Id of the answer, as its client has it.
    pub id: String,
    /// Number of the choice among those of the answer.
    pub choice: usize,
    /// Time at which it was complete, in seconds since 1970.
    pub created: u64,
    /// The model, and how it computed.
    pub model: ReceiptModel,
    /// The request.
    pub request: ReceiptRequest,
    /// The answer.
    pub answer: ReceiptAnswer,
}

/// A model, and how it computes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiptModel {
    /// Its name on the command line.
    pub name: String,
    /// SHA-256 of its weights, in hexadecimal.
    pub digest: String,
    /// Type to which its weights are quantized when it is loaded, if they are.
    pub quant: Option<String>,
    /// Version and commit of the program.
    pub program: String,
    /// Device.
    pub device: String,
    /// Instruction set of the CPU.
    pub isa: String,
    /// Arithmetic: `fast` or `exact`.
    pub arithmetic: String,
    /// Type of the KV cache.
    pub kv: String,
    /// Context length.
    pub context: usize,
}

/// A request, as the engine has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiptRequest {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer.
    pub max_tokens: usize,
    /// Sampling parameters.
    pub sampling: ReceiptSampling,
    /// Stop strings.
    pub stops: Vec<String>,
    /// Stop tokens.
    pub stop_tokens: Vec<u32>,
    /// True if the model's end-of-generation tokens are ignored.
    pub ignore_end: bool,
    /// Special tokens that are in the text.
    pub shown: Vec<u32>,
    /// Name of the LoRA adapter, and its scale.
    pub adapter: Option<(String, f32)>,
    /// Grammar that the answer keeps to.
    pub grammar: Option<Grammar>,
    /// The reasoning in front of it, if there is a grammar or a limit.
    pub reasoning: Option<ReasoningPart>,
}

/// Sampling parameters, with the seed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiptSampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    bias: Vec<(u32, f32)>,
    seed: u64,
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiptAnswer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its text, before reasoning and calls of tools are told apart.
    pub text: String,
    /// `end`, `length`, or `stop` and the stop string.
    pub finish: String,
}

impl From<&Sampling> for ReceiptSampling {
    fn from(sampling: &Sampling) -> ReceiptSampling {
        let Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            bias,
            seed,
            // They change no token.
            logprobs: _,
        } = sampling.clone();
        ReceiptSampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            bias,
            seed,
        }
    }
}

impl From<&ReceiptSampling> for Sampling {
    fn from(receipt: &ReceiptSampling) -> Sampling {
        let ReceiptSampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            bias,
            seed,
        } = receipt.clone();
        Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            bias,
            seed,
            logprobs: None,
        }
    }
}

impl ReceiptRequest {
    /// The receipt of a request to an engine, with what its constraint is made of.
    fn new(
        request: &Request,
        constraint: (Option<Grammar>, Option<ReasoningPart>),
        engine: &EngineHandle,
    ) -> ReceiptRequest {
        let adapter = request.adapter.and_then(|used| {
            let adapters = engine.loras();
            Some((adapters.iter().find(|listed| listed.lora.id == used.id)?.name.clone(), used.scale))
        });
        let (grammar, reasoning) = constraint;
        ReceiptRequest {
            prompt: request.prompt.clone(),
            max_tokens: request.max_new,
            sampling: ReceiptSampling::from(&request.sampling),
            stops: request.stops.clone(),
            stop_tokens: request.stop_tokens.clone(),
            ignore_end: request.ignore_end,
            shown: request.shown.clone(),
            adapter,
            grammar,
            reasoning,
        }
    }

    /// The request, without adapter and constraint.
    pub fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            max_new: self.max_tokens,
            sampling: Sampling::from(&self.sampling),
            stops: self.stops.clone(),
            stop_tokens: self.stop_tokens.clone(),
            ignore_end: self.ignore_end,
            shown: self.shown.clone(),
            ..Request::default()
        }
    }
}

impl ReceiptAnswer {
    /// Takes the next token, and the text that came with it.
    pub fn push(&mut self, token: u32, text: &str) {
        self.tokens.push(token);
        self.text += text;
    }

    /// Takes the end.
    pub fn end(&mut self, done: &Done) {
        self.text += &done.text;
        self.finish = match &done.reason {
            Finish::End => "end".to_owned(),
            Finish::Length => "length".to_owned(),
            Finish::Stop(stop) => format!("stop {stop}"),
        };
    }
}

/// Receipts of a model's answers.
#[derive(Clone, Debug)]
pub struct Receipts {
    model: Arc<ReceiptModel>,
    log: Arc<ReceiptLog>,
}

impl Receipts {
    /// Receipts of a model, which go to a log.
    pub fn new(model: ReceiptModel, log: Arc<ReceiptLog>) -> Receipts {
        Receipts { model: Arc::new(model), log }
    }

    /// Begins the receipt of a choice.
    pub(crate) fn begin(
        &self,
        (id, choice): (&str, usize),
        request: &Request,
        constraint: (Option<Grammar>, Option<ReasoningPart>),
        engine: &EngineHandle,
    ) -> ReceiptDraft {
        let receipt = Receipt {
            receipt: VERSION,
            id: id.to_owned(),
            choice,
            created: 0,
            model: (*self.model).clone(),
            request: ReceiptRequest::new(request, constraint, engine),
            answer: ReceiptAnswer::default(),
        };
        ReceiptDraft { receipt: Box::new(receipt), log: self.log.clone() }
    }
}

/// The receipt of an answer that is not complete yet.
#[derive(Debug)]
pub(crate) struct ReceiptDraft {
    receipt: Box<Receipt>,
    log: Arc<ReceiptLog>,
}

impl ReceiptDraft {
    pub(crate) fn push(&mut self, token: u32, text: &str) {
        self.receipt.answer.push(token, text);
    }

    /// Writes it.
    pub(crate) fn end(mut self, done: &Done) {
        self.receipt.answer.end(done);
        self.receipt.created = unix_time();
        self.log.write(self.receipt);
    }
}

/// A file of receipts. A thread of its own writes it, so that a slow disk holds up no answer.
#[derive(Debug)]
pub struct ReceiptLog {
    sender: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

/// Message to the thread that writes.
#[derive(Debug)]
enum Entry {
    Receipt(Box<Receipt>),
    /// Tells that all before it is written.
    End(SyncSender<()>),
}

impl ReceiptLog {
    /// Begins a file in a folder, which is made if it is missing. Nobody else can read it.
    pub fn create(folder: &Path) -> io::Result<ReceiptLog> {
        std::fs::create_dir_all(folder)?;
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let name = format!("receipts-{}-{}.jsonl", unix_time(), std::process::id());
        let file = options.open(folder.join(name))?;
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let lost = Arc::<AtomicU64>::default();
        let counted = lost.clone();
        std::thread::Builder::new()
            .name("receipts".into())
            .spawn(move || write_all(file, &receiver, &counted))?;
        Ok(ReceiptLog { sender, lost })
    }

    fn write(&self, receipt: Box<Receipt>) {
        if self.sender.try_send(Entry::Receipt(receipt)).is_err() {
            count_lost(&self.lost, "the disk is too slow for them");
        }
    }

    /// Waits until all receipts are written, but not for a disk that hangs.
    pub fn finish(&self) {
        let (sender, written) = sync_channel(1);
        if self.sender.try_send(Entry::End(sender)).is_err() || written.recv_timeout(PATIENCE).is_err() {
            tracing::warn!("the last receipts may not be written: the disk is too slow for them");
        }
    }
}

/// Writes receipts until all senders are gone.
fn write_all(mut file: File, entries: &Receiver<Entry>, lost: &AtomicU64) {
    for entry in entries {
        let receipt = match entry {
            Entry::Receipt(receipt) => receipt,
            Entry::End(sender) => {
                // Nobody waits any more if this fails.
                let _ = sender.send(());
                continue;
            }
        };
        let written = serde_json::to_vec(&receipt).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        if let Err(why) = written {
            count_lost(lost, &why.to_string());
        }
    }
}

/// Counts a receipt that was not written; says so when the count has doubled.
fn count_lost(lost: &AtomicU64, why: &str) {
    let n = lost.fetch_add(1, Ordering::Relaxed) + 1;
    if n.is_power_of_two() {
        tracing::warn!("{n} receipts could not be written so far: {why}");
    }
}
