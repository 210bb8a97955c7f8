//! Tokenizers from a GGUF file's `tokenizer.ggml` keys.

use std::collections::HashSet;
use std::path::Path;

use tallow_checkpoint::gguf::Metadata;
use tallow_checkpoint::{FileError, Result};

use super::added::{Added, AddedToken};
use super::bpe::{Bpe, Dialect, Options};
use super::charsmap::Charsmap;
use super::cut::{Cutter, Step as CutStep};
use super::decode::{Replace, Stage, Strip};
use super::frame::Frame;
use super::normalize::{Form, Normalizer, SentencePiece, Step};
use super::pre::{Alphabet, Pre};
use super::spm::Spm;
use super::unigram::{self, Unigram};
use super::vocab::{MOST_IDS, Vocab};
use super::wordpiece::{self, Marks, WordPiece};
use super::{Model, Parts, Tokenizer, ends, shorten};

/// Token type (`tokenizer.ggml.token_type`). Files number these from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    pub(super) fn from_number(number: i64) -> Kind {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            // Unknown numbers count as normal text tokens.
            _ => Kind::Normal,
        }
    }
}

/// Metadata lookups under the common prefix `tokenizer.ggml.`.
struct Keys<'a>(&'a Metadata);

impl<'a> Keys<'a> {
    fn name(key: &str) -> String {
        format!("tokenizer.ggml.{key}")
    }

    fn path(&self) -> &'a Path {
        self.0.path()
    }

    fn bad(&self, key: &str, why: impl std::fmt::Display) -> FileError {
        FileError::bad(self.path(), Keys::name(key), why)
    }

    fn flag(&self, key: &str, otherwise: bool) -> Result<bool> {
        Ok(self.0.bool(&Keys::name(key))?.unwrap_or(otherwise))
    }

    /// A token id, which must be less than `count`.
    fn id(&self, key: &str, count: usize) -> Result<Option<u32>> {
        let Some(id) = self.0.uint(&Keys::name(key))? else { return Ok(None) };
        match u32::try_from(id) {
            Ok(found) if (found as usize) < count => Ok(Some(found)),
            // Some writers use this for "none".
            Ok(u32::MAX) => Ok(None),
            _ => Err(self.bad(key, format_args!("is {id}, but there are {count} tokens"))),
        }
    }

    /// Per-token values, if the key exists; extra entries are dropped.
    fn each<T>(&self, key: &str, list: Option<Vec<T>>, count: usize) -> Result<Option<Vec<T>>> {
        let Some(mut list) = list else { return Ok(None) };
        if list.len() < count {
            return Err(self.bad(key, format_args!("has {} entries for {count} tokens", list.len())));
        }
        list.truncate(count);
        Ok(Some(list))
    }
}

/// Metadata of all tokenizer kinds: tokens, scores and token types.
struct Tokens {
    vocab: Vocab,
    scores: Option<Vec<f32>>,
    kinds: Vec<Kind>,
}

/// Tokens that text never becomes: control tokens and the unknown token.
pub(super) fn silent(kinds: &[Kind]) -> impl Iterator<Item = u32> {
    let special = |(kind, id)| matches!(kind, Kind::Control | Kind::Unknown).then_some(id);
    kinds.iter().copied().zip(0..).filter_map(special)
}

impl Tokens {
    fn read(keys: &Keys<'_>) -> Result<Tokens> {
        let name = Keys::name("tokens");
        let Some(texts) = keys.0.texts(&name)? else { return Err(keys.bad("tokens", "is missing")) };
        if texts.len() > MOST_IDS {
            return Err(keys.bad("tokens", format_args!("has {} tokens; {MOST_IDS} are taken", texts.len())));
        }
        let mut vocab = Vocab::default();
        vocab.reserve(texts.len());
        for (text, id) in texts.iter().zip(0..) {
            let empty;
            let text = match *text {
                "" => {
                    empty = format!("[EMPTY_{id}]");
                    &empty
                }
                text => text,
            };
            let clash = |clash| keys.bad("tokens", format_args!("token {id}, {:?}, {clash}", shorten(text)));
            vocab.add(id, text).map_err(clash)?;
        }
        let count = vocab.len();
        let scores = keys.each("scores", keys.0.floats(&Keys::name("scores"))?, count)?;
        if scores.iter().flatten().any(|score| score.is_nan()) {
            return Err(keys.bad("scores", "has a score that is not a number"));
        }
        let kinds = keys.each("token_type", keys.0.ints(&Keys::name("token_type"))?, count)?;
        let kinds: Vec<Kind> = match kinds {
            Some(kinds) => kinds.into_iter().map(Kind::from_number).collect(),
            None => vec![Kind::Normal; count],
        };
        vocab.silence(silent(&kinds));
        Ok(Tokens { vocab, scores, kinds })
    }
}

/// Metadata that differs between the tokenizer kinds.
struct Dialed {
    model: Model,
    normalizer: Vec<Step>,
    cutter: Vec<CutStep>,
    stages: Vec<Stage>,
    /// Defaults of `add_bos_token` and `add_eos_token`.
    adds_bos: bool,
    adds_eos: bool,
    /// Defaults of `bos_token_id` and `eos_token_id`.
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file.
    pub fn from_gguf(meta: &Metadata) -> Result<Tokenizer> {
        let keys = Keys(meta);
        let Some(model) = meta.text("tokenizer.ggml.model")? else {
            return Err(keys.bad("model", "is missing: the file has no tokenizer"));
        };
        let tokens = Tokens::read(&keys)?;
        let count = tokens.vocab.len();
        let dialed = match model {
            "llama" => spm(&keys, &tokens)?,
            "gpt2" => bpe(&keys, &tokens, meta.text("tokenizer.ggml.pre")?)?,
            "gemma4" => bpe(&keys, &tokens, Some("gemma4"))?,
            "bert" => bert(&keys, &tokens)?,
            "t5" => unigram(&keys, &tokens)?,
            other => {
                let why = "llama, gpt2, gemma4, bert and t5 are known";
                return Err(FileError::unsupported(meta.path(), format_args!("tokenizer {other:?}"), why));
            }
        };
        let bos = keys.id("bos_token_id", count)?.or(dialed.bos);
        let eos = keys.id("eos_token_id", count)?.or(dialed.eos);
        let frame = match model {
            "bert" => {
                let sep = keys.id("seperator_token_id", count)?.or(tokens.vocab.id("[SEP]"));
                let sep = sep.ok_or_else(|| keys.bad("seperator_token_id", "is missing"))?;
                let bos = bos.ok_or_else(|| keys.bad("bos_token_id", "is missing"))?;
                Frame::around(&[bos], &[sep])
            }
            _ => {
                let around = |flag, key, id: Option<u32>, adds| match keys.flag(flag, adds)? {
                    false => Ok(Vec::new()),
                    true => id
                        .map(|id| vec![id])
                        .ok_or_else(|| keys.bad(key, format_args!("is missing, but {flag} is set"))),
                };
                let before = around("add_bos_token", "bos_token_id", bos, dialed.adds_bos)?;
                let after = around("add_eos_token", "eos_token_id", eos, dialed.adds_eos)?;
                Frame::around(&before, &after)
            }
        };
        let added = added(meta, &tokens)?;
        let named = added.iter().filter(|t| t.special).map(|t| (t.content.as_str(), t.id));
        // Tokens of type normal are text, even if they are named like an end token.
        let named = named.filter(|(_, id)| tokens.kinds[*id as usize] != Kind::Normal);
        let mut ends: std::collections::BTreeSet<u32> = ends::by_name(named).into_iter().chain(eos).collect();
        ends.extend(keys.id("eot_token_id", count)?);
        ends.extend(keys.id("eom_token_id", count)?);
        let Dialed { model, normalizer, cutter, stages, .. } = dialed;
        let (normalizer, cutter) = (Normalizer(normalizer), Cutter(cutter));
        let widest = model.widest(&tokens.vocab, &cutter);
        let vocab = tokens.vocab;
        let parts = Parts { vocab, added, normalizer, cutter, model, frame, stages, bos, eos, widest };
        Ok(Tokenizer { parts: parts.into(), ends: ends.into() })
    }
}

/// SentencePiece's byte-pair encoding (`llama`).
fn spm(keys: &Keys<'_>, tokens: &Tokens) -> Result<Dialed> {
    let Some(scores) = &tokens.scores else { return Err(keys.bad("scores", "is missing")) };
    let vocab = &tokens.vocab;
    let prefix = keys.flag("add_space_prefix", true)?;
    let unknown = keys.id("unknown_token_id", vocab.len())?.or_else(|| vocab.text(0).map(|_| 0));
    let mut normalizer = vec![Step::Text { pattern: " ".into(), with: "▁".into() }];
    let mut stages = spaces_and_bytes();
    if prefix {
        normalizer.push(Step::Prepend("▁".into()));
        stages.push(Stage::Strip(Strip::new(' ', 1, 0)));
    }
    let there = |id| vocab.text(id).map(|_| id);
    Ok(Dialed {
        model: Model::Spm(Spm::new(vocab, scores, unknown).into()),
        normalizer,
        cutter: Vec::new(),
        stages,
        adds_bos: true,
        adds_eos: false,
        bos: there(1),
        eos: there(2),
    })
}

pub(super) fn spaces_and_bytes() -> Vec<Stage> {
    vec![Stage::Replace(Replace::text("▁", " ")), Stage::byte_tokens(), Stage::Fuse(false)]
}

/// Byte-pair encoding by merges (`gpt2`, `gemma4`).
fn bpe(keys: &Keys<'_>, tokens: &Tokens, pre: Option<&str>) -> Result<Dialed> {
    let way = Pre::named(pre).ok_or_else(|| {
        let what = format_args!("tokenizer.ggml.pre {:?}", shorten(pre.unwrap_or_default()));
        FileError::unsupported(keys.path(), what, "this build does not know how that vocabulary cuts text")
    })?;
    let Some(merges) = keys.0.texts(&Keys::name("merges"))? else {
        return Err(keys.bad("merges", "is missing"));
    };
    let mut pairs = Vec::with_capacity(merges.len());
    for (i, merge) in merges.iter().enumerate() {
        // The left piece may itself be a space.
        let at = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
        match at.map(|(at, _)| (&merge[..at], &merge[at + 1..])) {
            Some((left, right)) if !right.is_empty() => pairs.push((left, right)),
            _ => {
                let why =
                    format_args!("entry {i}, {:?}, is not two tokens with a space between", shorten(merge));
                return Err(keys.bad("merges", why));
            }
        }
    }
    let spaces = way.alphabet == Alphabet::Spaces;
    let options =
        Options { bytes: spaces, words_first: way.words_first, dialect: Dialect::Gguf, ..Options::default() };
    let model = Bpe::new(&tokens.vocab, pairs.into_iter(), options)
        .map_err(|e| keys.bad("merges", format_args!("entry {}: {}", e.at, e.why)))?;
    let mut cutter = way.steps(keys.path())?;
    if !spaces {
        cutter.push(CutStep::ByteLevel { prefix: false, pattern: None });
    }
    Ok(Dialed {
        model: Model::Bpe(model.into()),
        normalizer: match spaces {
            true => vec![Step::Text { pattern: " ".into(), with: "▁".into() }],
            false if way.composes => vec![Step::Form(Form::Nfc)],
            false => Vec::new(),
        },
        cutter,
        stages: if spaces { spaces_and_bytes() } else { vec![Stage::Bytes(Default::default())] },
        adds_bos: way.adds_bos,
        adds_eos: false,
        bos: None,
        eos: None,
    })
}

/// WordPiece (`bert`), where tokens that start a word have the prefix `▁`.
fn bert(keys: &Keys<'_>, tokens: &Tokens) -> Result<Dialed> {
    let vocab = &tokens.vocab;
    let lower = keys.flag("normalizer.lowercase", true)?;
    let accents = keys.flag("normalizer.strip_accents", lower)?;
    let unknown = keys.id("unknown_token_id", vocab.len())?.or(vocab.id("[UNK]"));
    let marks = Marks { start: "▁", inner: "" };
    let model = WordPiece::new(vocab, marks, unknown, usize::MAX).map_err(|id| {
        keys.bad("tokens", format_args!("token {id} has more than {} bytes", wordpiece::LONGEST))
    })?;
    Ok(Dialed {
        model: Model::WordPiece(model.into()),
        normalizer: vec![Step::BertWords { accents, lower }],
        cutter: vec![CutStep::Delimiter(' ')],
        stages: vec![
            Stage::Replace(Replace::text("▁", " ")),
            Stage::Fuse(false),
            Stage::Strip(Strip::new(' ', 1, 0)),
        ],
        adds_bos: true,
        adds_eos: false,
        bos: vocab.id("[CLS]"),
        eos: None,
    })
}

/// A unigram model from scores and token types, as SentencePiece builds it.
pub(super) fn of_kinds(vocab: &Vocab, scores: &[f32], kinds: &[Kind], unknown: Option<u32>) -> Unigram {
    let kind = |id: u32| kinds[id as usize];
    // User-defined tokens have score 0, so that they are always preferred.
    let worth =
        |(score, id): (&f32, u32)| if kind(id) == Kind::UserDefined { 0.0 } else { f64::from(*score) };
    let worst = scores
        .iter()
        .zip(kinds)
        .filter(|(_, kind)| **kind == Kind::Normal)
        .map(|(score, _)| f64::from(*score));
    let worst = worst.fold(f64::from(f32::MAX), f64::min);
    let chosen = |id| matches!(kind(id), Kind::Normal | Kind::UserDefined | Kind::Unused);
    Unigram::new(vocab, scores.iter().zip(0..).map(worth).collect(), worst, unknown, chosen)
}

/// SentencePiece's unigram model (`t5`).
fn unigram(keys: &Keys<'_>, tokens: &Tokens) -> Result<Dialed> {
    let Tokens { vocab, scores: Some(scores), kinds } = tokens else {
        return Err(keys.bad("scores", "is missing"));
    };
    if let Some((id, text)) = vocab.iter().find(|(_, text)| text.len() > unigram::LONGEST) {
        let why = format_args!("token {id} has {} bytes; {} are taken", text.len(), unigram::LONGEST);
        return Err(keys.bad("tokens", why));
    }
    let table = match keys.0.ints(&Keys::name("precompiled_charsmap"))? {
        None => None,
        Some(bytes) => {
            // Some files store the bytes as signed integers.
            let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte as u8).collect();
            Some(Charsmap::parse(&bytes).map_err(|why| keys.bad("precompiled_charsmap", why))?)
        }
    };
    let prefix = keys.flag("add_space_prefix", false)?;
    let squeeze = keys.flag("remove_extra_whitespaces", false)?;
    let unknown = keys.id("unknown_token_id", vocab.len())?.or_else(|| vocab.text(2).map(|_| 2));
    let model = of_kinds(vocab, scores, kinds, unknown);
    let mut stages = vec![Stage::Replace(Replace::text("▁", " ")), Stage::Fuse(false)];
    if prefix {
        stages.push(Stage::Strip(Strip::new(' ', 1, 0)));
    }
    Ok(Dialed {
        model: Model::Unigram(model.into()),
        normalizer: vec![Step::SentencePiece(SentencePiece { table, prefix, squeeze })],
        cutter: Vec::new(),
        stages,
        adds_bos: false,
        adds_eos: true,
        bos: None,
        eos: vocab.text(1).map(|_| 1),
    })
}

/// Names of control tokens that some files mark as text.
const CONTROL_NAMES: [&str; 27] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
    "<PAD>",
    "<reponame>",
    "<REPO>",
];

/// The tokens that are matched in the text itself: control, unknown and user-defined tokens.
fn added(meta: &Metadata, tokens: &Tokens) -> Result<Added> {
    let steers: HashSet<u32> = {
        let known = |name: &&'static str| Some((*name, tokens.vocab.id(name)?));
        let control = CONTROL_NAMES.iter().filter_map(known).map(|(_, id)| id);
        ends::by_name(ends::NAMES.iter().filter_map(known)).into_iter().chain(control).collect()
    };
    let strips = Strips::of(meta)?;
    let token = |(id, text): (u32, &str)| {
        let special =
            matches!(tokens.kinds[id as usize], Kind::Control | Kind::Unknown) || steers.contains(&id);
        if !special && tokens.kinds[id as usize] != Kind::UserDefined {
            return None;
        }
        let (lstrip, rstrip) = strips.sides(text);
        let content = text.to_owned();
        Some(AddedToken { id, content, special, lstrip, rstrip, verbatim: true, ..AddedToken::default() })
    };
    let found = tokens.vocab.iter().filter_map(token).collect();
    Added::new(found).map_err(|why| FileError::bad(meta.path(), "tokenizer.ggml.tokens", why))
}

/// The special tokens that consume white space. GGUF files do not store it, so it depends on the model's name.
enum Strips {
    None,
    /// The mask token consumes the white space before it.
    Mask(&'static str),
    /// Phi-3: all but `<unk>`, `<s>` and `<|endoftext|>` consume the white space after them.
    Phi3,
}

impl Strips {
    fn of(meta: &Metadata) -> Result<Strips> {
        let text = |key| Ok::<_, FileError>(meta.text(key)?.unwrap_or_default().to_lowercase());
        let (name, arch, pre) =
            (text("general.name")?, text("general.architecture")?, text("tokenizer.ggml.pre")?);
        let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        Ok(
            if has(&pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
                || has(&arch, &["nomic-bert-moe", "jina-bert-v3"])
            {
                Strips::Mask("<mask>")
            } else if has(&name, &["phi-3", "phi3"]) {
                Strips::Phi3
            } else if has(&name, &["modern-bert"]) {
                Strips::Mask("[MASK]")
            } else {
                Strips::None
            },
        )
    }

    /// True if the token consumes the white space before it (`lstrip`) and after it (`rstrip`).
    fn sides(&self, text: &str) -> (bool, bool) {
        match self {
            Strips::None => (false, false),
            Strips::Mask(mask) => (text == *mask, false),
            Strips::Phi3 => (false, !["<unk>", "<s>", "<|endoftext|>"].contains(&text)),
        }
    }
}
