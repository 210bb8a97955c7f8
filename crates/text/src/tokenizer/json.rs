//! Tokenizers from `tokenizer.json`.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tallow_checkpoint::{FileError, Result};

use super::added::{Added, AddedToken};
use super::bpe::{Bpe, Dialect, Options};
use super::config_files::ConfigFiles;
use super::cut::Cutter;
use super::decode::Stage;
use super::field::Field;
use super::files::read;
use super::frame::Frame;
use super::normalize::Normalizer;
use super::unigram::{self, Unigram};
use super::vocab::{MOST_IDS, Vocab};
use super::wordpiece::{self, Marks, WordPiece};
use super::{Model, Parts, Tokenizer, ends, shorten};

/// A `tokenizer.json`. The model is kept as raw JSON until its kind is known.
#[derive(serde::Deserialize)]
struct File<'a> {
    #[serde(default)]
    version: Value,
    #[serde(default)]
    added_tokens: Vec<Entry>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(serde::Deserialize)]
#[serde(default)]
struct Entry {
    id: u32,
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl Default for Entry {
    fn default() -> Entry {
        let (single_word, lstrip, rstrip, special) = (false, false, false, false);
        Entry { id: u32::MAX, content: String::new(), single_word, lstrip, rstrip, normalized: true, special }
    }
}

#[derive(serde::Deserialize)]
struct ModelFile<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    vocab: &'a RawValue,
    #[serde(borrow, default)]
    merges: Option<&'a RawValue>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<u32>,
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: Option<bool>,
    #[serde(default)]
    byte_fallback: Option<bool>,
    #[serde(default)]
    ignore_merges: Option<bool>,
    #[serde(default)]
    max_input_chars_per_word: Option<usize>,
}

fn text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|e| FileError::bad(path, "its text", e.utf8_error()))
}

/// The file of a folder that its tokenizer is read from.
enum Source {
    Json(PathBuf),
    Tekken(PathBuf),
    /// A SentencePiece model or a tiktoken vocabulary.
    Model(PathBuf),
    Merges {
        vocab: PathBuf,
        merges: PathBuf,
    },
    Words(PathBuf),
}

impl Source {
    fn find(folder: &Path) -> Option<Source> {
        let there = |name: &str| Some(folder.join(name)).filter(|path| path.exists());
        let model = || MODELS.into_iter().find_map(there).or_else(|| ending(folder, ".tiktoken"));
        let merges = || Some(Source::Merges { vocab: there("vocab.json")?, merges: there("merges.txt")? });
        (there("tokenizer.json").map(Source::Json))
            .or_else(|| there("tekken.json").map(Source::Tekken))
            .or_else(|| model().map(Source::Model))
            .or_else(merges)
            .or_else(|| there("vocab.txt").map(Source::Words))
    }
}

/// Names of SentencePiece and tiktoken files.
const MODELS: [&str; 3] = ["tokenizer.model", "tiktoken.model", "spiece.model"];

/// The first file of a folder whose name ends with `end`, in alphabetical order.
fn ending(folder: &Path, end: &str) -> Option<PathBuf> {
    let names = std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok().map(|e| e.path()));
    names.filter(|path| path.to_string_lossy().ends_with(end)).min()
}

/// The merges of a `tokenizer.json`, in rank order.
pub(super) fn merges(path: &Path) -> Result<Vec<(String, String)>> {
    let bad = |field: &str, e: serde_json::Error| FileError::bad(path, field, e);
    let json = read(path)?;
    let file: File<'_> = serde_json::from_slice(&json).map_err(|e| bad("its JSON", e))?;
    let model: ModelFile<'_> = serde_json::from_str(file.model.get()).map_err(|e| bad("model", e))?;
    let Some(merges) = model.merges else { return Ok(Vec::new()) };
    let merges: Vec<Merge<'_>> = serde_json::from_str(merges.get()).map_err(|e| bad("model.merges", e))?;
    Ok(merges.into_iter().filter_map(|Merge(pair)| pair.map(|(a, b)| (a.0.into(), b.0.into()))).collect())
}

impl Tokenizer {
    /// True if the folder has a file that a tokenizer can be read from.
    pub fn is_in(folder: &Path) -> bool {
        Source::find(folder).is_some()
    }

    /// Reads a folder's tokenizer: its `tokenizer.json`, or else one of the other vocabulary files.
    /// `tokenizer_config.json`, `added_tokens.json` and `special_tokens_map.json` supplement it.
    pub fn from_folder(folder: &Path) -> Result<Tokenizer> {
        let Some(source) = Source::find(folder) else {
            let why = "is missing: fetch tokenizer.json from where the model is from (tokenizer.model, tekken.json, a tiktoken \
                       file, vocab.json with merges.txt, and vocab.txt are read too)";
            return Err(FileError::bad(folder, "tokenizer.json", why));
        };
        let configs = ConfigFiles::read(folder)?;
        match source {
            Source::Json(path) => {
                let config = Some(&configs.config).filter(|config| !config.is_null());
                Tokenizer::from_json(&path, &read(&path)?, config)
            }
            Source::Tekken(path) => Tokenizer::from_tekken(&path, &read(&path)?, &configs),
            Source::Model(path) => {
                let bytes = read(&path)?;
                // A SentencePiece message begins with the key of field 1 (0x0A), which is no base64 character of a
                // tiktoken file.
                match bytes.first() {
                    Some(b'\n') => Tokenizer::from_sentencepiece(&path, &bytes, &configs),
                    _ => Tokenizer::from_tiktoken(&path, &bytes, &configs),
                }
            }
            Source::Merges { vocab, merges } => {
                Tokenizer::from_merges(&vocab, &read(&vocab)?, &text(&merges)?, &configs)
            }
            Source::Words(path) => Tokenizer::from_words(&path, &text(&path)?, &configs),
        }
    }

    /// Reads the bytes of a `tokenizer.json`. `config`, the `tokenizer_config.json` next to it, names the BOS and EOS
    /// tokens; without it BOS is taken from the template and EOS found by name. `path` is for error messages.
    pub fn from_json(path: &Path, json: &[u8], config: Option<&Value>) -> Result<Tokenizer> {
        let bad = |field: &str, e: serde_json::Error| FileError::bad(path, field, e);
        let file: File<'_> = serde_json::from_slice(json).map_err(|e| bad("its JSON", e))?;
        let field = |name, value| Field::new(path, name, value);
        let version = field("version", &file.version);
        if !version.is_null() && version.text()? != "1.0" {
            return Err(version.unsupported(format_args!("{}", file.version)));
        }
        let mut model: ModelFile<'_> = serde_json::from_str(file.model.get()).map_err(|e| bad("model", e))?;
        let mut vocab = model.vocab(path)?;
        let normalizer = Normalizer::read(&field("normalizer", &file.normalizer))?;
        let added = added(path, file.added_tokens, &vocab, &normalizer)?;
        vocab.silence(added.iter().filter(|token| token.special).map(|token| token.id));
        let frame = Frame::read(&field("post_processor", &file.post_processor))?;
        for id in frame.tokens() {
            if added.get(id).is_none() && vocab.text(id).is_none() {
                return Err(
                    field("post_processor", &Value::Null).bad(format_args!("token {id} does not exist"))
                );
            }
        }
        let model = model.build(path, &vocab, &added)?;
        let named = |key: &str| {
            let token = config?.get(key)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            added.id(text).or_else(|| vocab.id(text))
        };
        let first = frame.before().next().filter(|id| added.get(*id).is_some_and(|t| t.special));
        let by_name = ends::by_name(added.iter().map(|token| (token.content.as_str(), token.id)));
        let (bos, eos) = (named("bos_token").or(first), named("eos_token").or(by_name.first().copied()));
        let cutter = Cutter::read(&field("pre_tokenizer", &file.pre_tokenizer))?;
        let parts = Parts {
            widest: model.widest(&vocab, &cutter),
            cutter,
            stages: Stage::read_all(&field("decoder", &file.decoder))?,
            vocab,
            added,
            normalizer,
            model,
            frame,
            bos,
            eos,
        };
        Ok(Tokenizer {
            parts: parts.into(),
            ends: std::sync::Arc::new(by_name.into_iter().chain(eos).collect()),
        })
    }
}

/// The added tokens. One that is also in the vocabulary has its id there.
fn added(path: &Path, entries: Vec<Entry>, vocab: &Vocab, normalizer: &Normalizer) -> Result<Added> {
    let mut tokens: Vec<AddedToken> = Vec::new();
    let mut ids = std::collections::HashMap::new();
    for (i, entry) in entries.into_iter().enumerate() {
        let bad = |why: String| FileError::bad(path, format_args!("added_tokens[{i}]"), why);
        if entry.content.is_empty() {
            continue;
        }
        let id = vocab.id(&entry.content).unwrap_or(entry.id);
        let name = shorten(&entry.content);
        if id as usize >= MOST_IDS {
            return Err(bad(format!("{name:?} has the id {id}; ids are below {MOST_IDS}")));
        }
        if let Some(other) = vocab.text(id).filter(|text| *text != entry.content) {
            return Err(bad(format!(
                "{name:?} has the id {id}, which is {:?} in the vocabulary",
                shorten(other)
            )));
        }
        let normalized = match entry.normalized {
            true => Some(normalizer.run(&entry.content).map_err(|e| bad(e.to_string()))?.into_owned()),
            false => None,
        };
        let token = AddedToken {
            id,
            content: entry.content,
            special: entry.special,
            single_word: entry.single_word,
            lstrip: entry.lstrip,
            rstrip: entry.rstrip,
            normalized,
            verbatim: false,
        };
        match ids.insert(id, tokens.len()) {
            None => tokens.push(token),
            // A duplicate of the same token: the last entry wins.
            Some(at) if tokens[at].content == token.content => {
                ids.insert(id, at);
                tokens[at] = token;
            }
            Some(at) => {
                return Err(bad(format!(
                    "{name:?} and {:?} both have the id {id}",
                    shorten(&tokens[at].content)
                )));
            }
        }
    }
    Added::new(tokens).map_err(|why| FileError::bad(path, "added_tokens", why))
}

impl ModelFile<'_> {
    /// The model's type. Old files lack it, so it is inferred from the members that are present.
    fn kind(&self) -> &str {
        match self.kind.as_deref() {
            Some(kind) => kind,
            None if self.merges.is_some() => "BPE",
            None if self.vocab.get().trim_start().starts_with('[') => "Unigram",
            None if self.max_input_chars_per_word.is_some() => "WordPiece",
            None => "WordLevel",
        }
    }

    fn vocab(&self, path: &Path) -> Result<Vocab> {
        let bad = |why: &dyn fmt::Display| FileError::bad(path, "model.vocab", why);
        let mut vocab = Vocab::default();
        if self.kind() == "Unigram" {
            let list: Vec<(Cow<'_, str>, f64)> =
                serde_json::from_str(self.vocab.get()).map_err(|e| bad(&e))?;
            for ((text, _), id) in list.iter().zip(0..) {
                if text.len() > unigram::LONGEST {
                    let why = format!("token {id} has {} bytes; {} are taken", text.len(), unigram::LONGEST);
                    return Err(bad(&why));
                }
                vocab.add_twin(id, text).map_err(|clash| bad(&format_args!("token {id}: {clash}")))?;
            }
            return Ok(vocab);
        }
        let Pairs(pairs) = serde_json::from_str(self.vocab.get()).map_err(|e| bad(&e))?;
        vocab.reserve(pairs.len());
        for (Text(text), id) in &pairs {
            let clash = |clash| bad(&format_args!("{:?}: {id} {clash}", shorten(text)));
            vocab.add(*id, text).map_err(clash)?;
        }
        Ok(vocab)
    }

    fn build(&mut self, path: &Path, vocab: &Vocab, added: &Added) -> Result<Model> {
        let bad = |field: &str, why: &dyn fmt::Display| FileError::bad(path, field, why);
        let unknown = self.unk_token.as_ref().and_then(|text| vocab.id(text).or_else(|| added.id(text)));
        let inner = self.continuing_subword_prefix.take();
        match self.kind() {
            "BPE" => {
                if self.dropout.is_some_and(|p| p != 0.0) {
                    let why = "it would make the same text have different tokens each time; set it to null";
                    return Err(FileError::unsupported(path, "model.dropout", why));
                }
                let Some(merges) = self.merges else { return Err(bad("model.merges", &"is missing")) };
                let merges: Vec<Merge<'_>> =
                    serde_json::from_str(merges.get()).map_err(|e| bad("model.merges", &e))?;
                let options = Options {
                    unknown,
                    fuse: self.fuse_unk == Some(true),
                    bytes: self.byte_fallback == Some(true),
                    words_first: self.ignore_merges == Some(true),
                    inner: inner.unwrap_or_default(),
                    last: self.end_of_word_suffix.take().unwrap_or_default(),
                    dialect: Dialect::TokenizerJson,
                };
                let pairs = merges.iter().filter_map(|Merge(pair)| pair.as_ref());
                let bpe = Bpe::new(vocab, pairs.map(|(a, b)| (&*a.0, &*b.0)), options);
                let bpe = bpe.map_err(|e| bad(&format!("model.merges[{}]", e.at), &e.why))?;
                Ok(Model::Bpe(bpe.into()))
            }
            "WordPiece" => {
                let inner = inner.unwrap_or_else(|| "##".into());
                let marks = Marks { start: "", inner: &inner };
                let most = self.max_input_chars_per_word.unwrap_or(100);
                let pieces = WordPiece::new(vocab, marks, unknown, most).map_err(|id| {
                    let why = format!("token {id} has more than {} bytes", wordpiece::LONGEST);
                    bad("model.vocab", &why)
                })?;
                Ok(Model::WordPiece(pieces.into()))
            }
            "WordLevel" => Ok(Model::WordLevel { unknown }),
            "Unigram" => {
                let list: Vec<(Cow<'_, str>, f64)> =
                    serde_json::from_str(self.vocab.get()).map_err(|e| bad("model.vocab", &e))?;
                let scores: Vec<f64> = list.into_iter().map(|(_, score)| score).collect();
                if let Some(id) = self.unk_id.filter(|id| *id as usize >= scores.len()) {
                    let why = format!("is {id}, but there are {} tokens", scores.len());
                    return Err(bad("model.unk_id", &why));
                }
                let worst = scores.iter().copied().fold(f64::INFINITY, f64::min);
                let unigram = Unigram::new(vocab, scores, worst, self.unk_id, |_| true);
                let bytes = self.byte_fallback == Some(true);
                Ok(Model::Unigram(if bytes { unigram.with_bytes(vocab) } else { unigram }.into()))
            }
            other => {
                let why = "BPE, Unigram, WordPiece and WordLevel are known";
                Err(FileError::unsupported(path, format_args!("model.type {other:?}"), why))
            }
        }
    }
}

/// A JSON string, copied only if it contains escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// An object of token texts and ids, in file order.
struct Pairs<'a>(Vec<(Text<'a>, u32)>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Pairs<'de>, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tokens and their ids")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Pairs<'de>, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Each)
    }
}

/// A merge: `"a b"` or `["a", "b"]`. A `#version` line is `None`.
struct Merge<'a>(Option<(Text<'a>, Text<'a>)>);

impl Merge<'_> {
    fn split<E: Error>(text: &str) -> std::result::Result<Option<(&str, &str)>, E> {
        if text.starts_with("#version") {
            return Ok(None);
        }
        let pair = text.split_once(' ').filter(|(_, b)| !b.contains(' '));
        let why = || E::custom(format_args!("{:?} is not two tokens with a space between", shorten(text)));
        pair.map(Some).ok_or_else(why)
    }
}

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Merge<'de>, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens with a space between, or a list of two")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> std::result::Result<Merge<'de>, E> {
                Ok(Merge(Merge::split(text)?.map(|(a, b)| (Text(a.into()), Text(b.into())))))
            }

            fn visit_str<E: Error>(self, text: &str) -> std::result::Result<Merge<'de>, E> {
                let owned = |text: &str| Text(Cow::Owned(text.to_owned()));
                Ok(Merge(Merge::split(text)?.map(|(a, b)| (owned(a), owned(b)))))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> std::result::Result<Merge<'de>, S::Error> {
                let pair = (seq.next_element()?, seq.next_element()?);
                let ((Some(a), Some(b)), None) = (pair, seq.next_element::<String>()?) else {
                    return Err(S::Error::custom("a merge is of two tokens"));
                };
                Ok(Merge(Some((a, b))))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
