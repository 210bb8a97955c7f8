//! Tokenizers from lists of byte strings with ranks: tiktoken files and `tekken.json`.

use std::collections::BTreeMap;
use std::path::Path;

use tallow_checkpoint::{FileError, Result};

use super::added::{Added, AddedToken};
use super::config_files::{ConfigFiles, ending};
use super::cut::{Cutter, Step as CutStep, isolate};
use super::decode::Stage;
use super::frame::Frame;
use super::normalize::{Form, Normalizer, Step, base64};
use super::pre::{KIMI, LLAMA3, QWEN2};
use super::spm::Spm;
use super::unicode::char_of;
use super::vocab::{MOST_IDS, Vocab};
use super::{Model, Parts, Tokenizer};

/// Settings that a rank list does not contain.
struct Reading<'a> {
    /// The pre-tokenizer pattern.
    pattern: &'a str,
    composes: bool,
    /// The id of rank 0.
    first: u32,
    adds_bos: bool,
    tokens: BTreeMap<u32, AddedToken>,
}

/// Special tokens that a release defines without listing them in a file.
#[derive(Clone, Copy)]
enum Unsaid {
    /// The 256 special tokens of Llama 3.
    Llama3,
    /// Kimi's 256 special tokens, with placeholder names for those that the config does not name.
    Kimi,
    /// The special tokens of the first Qwen.
    Qwen,
}

impl Unsaid {
    /// The special tokens, with ids from `count` on.
    fn tokens(self, count: u32) -> Vec<(u32, String)> {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let names: Vec<String> = match self {
            Unsaid::Llama3 => {
                let reserved = |i: u32| format!("<|reserved_special_token_{i}|>");
                let mut names = named(&["<|begin_of_text|>", "<|end_of_text|>"]);
                names.extend((0..4).map(reserved));
                names.extend(named(&["<|start_header_id|>", "<|end_header_id|>"]));
                names.extend([reserved(4), "<|eot_id|>".into()]);
                names.extend((5..251).map(reserved));
                names
            }
            Unsaid::Kimi => (0..256).map(|i| format!("<|reserved_token_{}|>", count + i)).collect(),
            Unsaid::Qwen => {
                let mut names = named(&["<|endoftext|>", "<|im_start|>", "<|im_end|>"]);
                names.extend((0..205).map(|i| format!("<|extra_{i}|>")));
                names
            }
        };
        (count..).zip(names).collect()
    }
}

impl Tokenizer {
    /// Reads the bytes of a tiktoken file: on each line a token in base64 and its rank. The pattern and the special
    /// tokens depend on the class in `tokenizer_config.json`; a file of 128,000 tokens without a class is Llama 3's.
    pub(super) fn from_tiktoken(path: &Path, bytes: &[u8], configs: &ConfigFiles) -> Result<Tokenizer> {
        let bad = |line: usize, why: &str| FileError::bad(path, format_args!("line {line}"), why);
        let mut list = Vec::new();
        for (line, text) in (1..).zip(bytes.split(|b| *b == b'\n')) {
            let text = std::str::from_utf8(text).map_err(|_| bad(line, "is not UTF-8"))?.trim();
            if text.is_empty() {
                continue;
            }
            let pair =
                text.split_once(' ').and_then(|(token, rank)| Some((base64(token)?, rank.parse().ok()?)));
            list.push(pair.ok_or_else(|| bad(line, "is not a token in base64 and its rank"))?);
            if list.len() > MOST_IDS {
                return Err(bad(line, "is one token too many"));
            }
        }
        let count = list.len() as u32;
        let (pattern, composes, unsaid) = match configs.class() {
            None if count == 128_000 => (LLAMA3, false, Unsaid::Llama3),
            Some("TikTokenTokenizer") => (KIMI, false, Unsaid::Kimi),
            Some("QWenTokenizer") => (QWEN2, true, Unsaid::Qwen),
            _ => return Err(configs.unknown_class(path)),
        };
        let mut tokens: BTreeMap<u32, AddedToken> = unsaid
            .tokens(count)
            .into_iter()
            .map(|(id, content)| (id, AddedToken::special(id, &content)))
            .collect();
        configs.add_to(&mut tokens, |_| None)?;
        let adds_bos = matches!(unsaid, Unsaid::Llama3);
        let bos = if adds_bos { "<|begin_of_text|>" } else { "[BOS]" };
        let reading = Reading { pattern, composes, first: 0, adds_bos, tokens };
        of_ranks(path, list, reading, configs, bos)
    }

    /// Reads the bytes of a `tekken.json`, where special tokens come before all others.
    pub(super) fn from_tekken(path: &Path, bytes: &[u8], configs: &ConfigFiles) -> Result<Tokenizer> {
        #[derive(serde::Deserialize)]
        struct File {
            config: Config,
            vocab: Vec<Entry>,
            #[serde(default)]
            special_tokens: Option<Vec<Special>>,
        }
        #[derive(serde::Deserialize)]
        struct Config {
            pattern: String,
            default_vocab_size: u32,
            default_num_special_tokens: u32,
        }
        #[derive(serde::Deserialize)]
        struct Entry {
            rank: u32,
            token_bytes: String,
        }
        #[derive(serde::Deserialize)]
        struct Special {
            rank: u32,
            token_str: String,
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| FileError::bad(path, "its JSON", e))?;
        let Config { pattern, default_vocab_size, default_num_special_tokens: first } = file.config;
        let bad = |field: &str, why: String| FileError::bad(path, field, why);
        if first as usize > MOST_IDS {
            return Err(bad(
                "config.default_num_special_tokens",
                format!("is {first}; {MOST_IDS} are taken"),
            ));
        }
        let Some(count) = default_vocab_size.checked_sub(first) else {
            return Err(bad("config.default_vocab_size", format!("is less than its {first} special tokens")));
        };
        let mut list = Vec::new();
        for entry in file.vocab.into_iter().filter(|entry| entry.rank < count) {
            let Entry { rank, token_bytes } = entry;
            let bytes = base64(&token_bytes).ok_or_else(|| bad("vocab", format!("{rank} is not base64")))?;
            list.push((bytes, rank));
        }
        // Special tokens that the file does not name are named by their id.
        let names = file.special_tokens.map(|all| all.into_iter().map(|s| (s.rank, s.token_str)).collect());
        let mut names: BTreeMap<u32, String> =
            names.unwrap_or_else(|| (0..).zip(TEKKEN.map(str::to_owned)).collect());
        names.retain(|id, _| *id < first);
        let name = |id: u32| names.get(&id).cloned().unwrap_or_else(|| format!("<SPECIAL_{id}>"));
        let tokens = (0..first).map(|id| (id, AddedToken::special(id, &name(id)))).collect();
        let reading = Reading { pattern: &pattern, composes: false, first, adds_bos: true, tokens };
        of_ranks(path, list, reading, configs, "<s>")
    }
}

/// The special tokens of `tekken.json` files that do not list any.
const TEKKEN: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

fn of_ranks(
    path: &Path,
    list: Vec<(Vec<u8>, u32)>,
    reading: Reading<'_>,
    configs: &ConfigFiles,
    bos: &str,
) -> Result<Tokenizer> {
    let bad = |why: String| FileError::bad(path, "the vocabulary", why);
    let Reading { pattern, composes, first, adds_bos, tokens } = reading;
    let mut vocab = Vocab::default();
    vocab.reserve(list.len());
    for (bytes, rank) in list {
        let id = rank.checked_add(first).ok_or_else(|| bad(format!("has the rank {rank}")))?;
        let text: String = bytes.into_iter().map(char_of).collect();
        vocab.add(id, &text).map_err(|clash| bad(format!("the token of rank {rank} {clash}")))?;
    }
    let byte = |byte: &u8| vocab.id(char_of(*byte).encode_utf8(&mut [0; 4])).is_none();
    if let Some(byte) = (0..=255).find(byte) {
        return Err(bad(format!("has no token for the byte {byte}")));
    }
    let added = Added::new(tokens.into_values().collect()).map_err(|why| bad(format!("its tokens {why}")))?;
    let named = |name: &str| configs.named(name).and_then(|text| added.id(text));
    let bos = named("bos_token").or_else(|| added.id(bos));
    let (eos, ends) = ending(added.iter(), named("eos_token"));
    let before: Vec<u32> =
        bos.filter(|_| configs.flag("add_bos_token").unwrap_or(adds_bos)).into_iter().collect();
    let cut = isolate(pattern, |why| bad(format!("its pattern {why}")))?;
    let cutter = Cutter(vec![cut, CutStep::ByteLevel { prefix: false, pattern: None }]);
    let normalizer = Normalizer(if composes { vec![Step::Form(Form::Nfc)] } else { Vec::new() });
    let model = Model::Spm(Spm::of_ranks(&vocab).into());
    let widest = model.widest(&vocab, &cutter);
    let (frame, stages) = (Frame::around(&before, &[]), vec![Stage::Bytes(Default::default())]);
    let parts = Parts { vocab, added, normalizer, cutter, model, frame, stages, bos, eos, widest };
    Ok(Tokenizer { parts: parts.into(), ends: ends.into() })
}
