//! Tokenizers from `tokenizer.model`, SentencePiece's Protocol Buffers message.

use std::collections::BTreeMap;
use std::path::Path;

use tallow_checkpoint::{FileError, Result};

use super::added::{Added, AddedToken};
use super::charsmap::Charsmap;
use super::config_files::{ConfigFiles, ending};
use super::cut::{Cutter, Prefix, Step as CutStep};
use super::decode::{Stage, Strip};
use super::frame::Frame;
use super::gguf::{Kind, of_kinds, silent, spaces_and_bytes};
use super::normalize::{Normalizer, SentencePiece, Step};
use super::protobuf::{Fields, Value};
use super::spm::Spm;
use super::unigram;
use super::vocab::{MOST_IDS, Vocab};
use super::{Model, Parts, Tokenizer, shorten};

/// The parts of the file that are used here.
struct File<'a> {
    pieces: Vec<(&'a str, f32, Kind)>,
    /// Model type: 1 is unigram, 2 BPE.
    model: u64,
    byte_fallback: bool,
    charsmap: &'a [u8],
    /// True if a space is put before a text (`add_dummy_prefix`).
    prefix: bool,
    /// True if spaces at the ends are dropped and runs of spaces collapsed (`remove_extra_whitespaces`).
    squeeze: bool,
    /// The ids of the unknown, BOS and EOS tokens. Negative if there is none.
    ids: [i64; 3],
}

/// Tokenizer classes that use the file's ids unchanged. Others put tokens before them, or skip some.
const CLASSES: [&str; 12] = [
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "MistralTokenizer",
    "MistralCommonTokenizer",
    "GemmaTokenizer",
    "T5Tokenizer",
    "BaichuanTokenizer",
    "InternLMTokenizer",
    "InternLM2Tokenizer",
    "YiTokenizer",
    "OrionTokenizer",
    "PreTrainedTokenizer",
];

impl<'a> File<'a> {
    fn parse(bytes: &'a [u8]) -> std::result::Result<File<'a>, String> {
        let mut file = File {
            pieces: Vec::new(),
            model: 1,
            byte_fallback: false,
            charsmap: &[],
            prefix: true,
            squeeze: true,
            ids: [0, 1, 2],
        };
        for field in Fields::new(bytes) {
            match field? {
                (1, Value::Bytes(piece)) => {
                    let at = file.pieces.len();
                    if at >= MOST_IDS {
                        return Err(format!("has more than {MOST_IDS} pieces"));
                    }
                    file.pieces.push(parse_piece(piece).map_err(|why| format!("piece {at} {why}"))?);
                }
                (2, Value::Bytes(trainer)) => {
                    for field in Fields::new(trainer) {
                        match field? {
                            (3, Value::Number(model)) => file.model = model,
                            (35, Value::Number(flag)) => file.byte_fallback = flag != 0,
                            // Negative ids are stored as 64-bit two's complement.
                            (at @ 40..=42, Value::Number(id)) => file.ids[at as usize - 40] = id as i64,
                            _ => {}
                        }
                    }
                }
                (3, Value::Bytes(normalizer)) => {
                    for field in Fields::new(normalizer) {
                        match field? {
                            (2, Value::Bytes(table)) => file.charsmap = table,
                            (3, Value::Number(flag)) => file.prefix = flag != 0,
                            (4, Value::Number(flag)) => file.squeeze = flag != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if file.pieces.is_empty() { Err("has no pieces".into()) } else { Ok(file) }
    }

    fn id(&self, which: usize) -> Option<u32> {
        let id = u32::try_from(self.ids[which]).ok()?;
        ((id as usize) < self.pieces.len()).then_some(id)
    }
}

fn parse_piece(bytes: &[u8]) -> std::result::Result<(&str, f32, Kind), String> {
    let (mut text, mut score, mut kind) = ("", 0.0, Kind::Normal);
    for field in Fields::new(bytes) {
        match field? {
            (1, Value::Bytes(piece)) => {
                text = std::str::from_utf8(piece).map_err(|e| format!("is not UTF-8: {e}"))?;
            }
            (2, Value::Float(number)) => score = number,
            (3, Value::Number(number)) => kind = Kind::from_number(i64::try_from(number).unwrap_or(1)),
            _ => {}
        }
    }
    match (text.is_empty(), score.is_nan()) {
        (true, _) => Err("has no text".into()),
        (_, true) => Err("has a score that is not a number".into()),
        _ => Ok((text, score, kind)),
    }
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.model`. What it lacks comes from the files next to it, or from the tokenizer
    /// class.
    pub(super) fn from_sentencepiece(path: &Path, bytes: &[u8], configs: &ConfigFiles) -> Result<Tokenizer> {
        if configs.class().is_some_and(|class| !CLASSES.contains(&class)) {
            return Err(configs.unknown_class(path));
        }
        let bad = |why: String| FileError::bad(path, "the vocabulary", why);
        let file = File::parse(bytes).map_err(bad)?;
        let mut vocab = Vocab::default();
        vocab.reserve(file.pieces.len());
        for ((text, ..), id) in file.pieces.iter().zip(0..) {
            vocab.add(id, text).map_err(|clash| bad(format!("token {id}, {:?}, {clash}", shorten(text))))?;
        }
        let kinds: Vec<Kind> = file.pieces.iter().map(|(.., kind)| *kind).collect();
        let scores: Vec<f32> = file.pieces.iter().map(|(_, score, _)| *score).collect();
        vocab.silence(silent(&kinds));
        let mut tokens = BTreeMap::new();
        for ((text, _, kind), id) in file.pieces.iter().zip(0..) {
            let special = matches!(kind, Kind::Control | Kind::Unknown);
            if special || *kind == Kind::UserDefined {
                let content = (*text).to_owned();
                tokens
                    .insert(id, AddedToken { id, content, special, verbatim: true, ..AddedToken::default() });
            }
        }
        configs.add_to(&mut tokens, |text| vocab.id(text))?;
        let model = file.model(&vocab, &scores, &kinds).map_err(|why| bad(why.into()))?;
        let (normalizer, cutter, stages) = file.steps(configs).map_err(bad)?;
        let added =
            Added::new(tokens.into_values().collect()).map_err(|why| bad(format!("its tokens {why}")))?;
        let named = |name, id| configs.named(name).and_then(|text| added.id(text).or(vocab.id(text))).or(id);
        let (bos, eos) = (named("bos_token", file.id(1)), named("eos_token", file.id(2)));
        let t5 = configs.class() == Some("T5Tokenizer");
        let around = |flag: &str, otherwise: bool, id: Option<u32>| {
            id.filter(|_| configs.flag(flag).unwrap_or(otherwise)).into_iter().collect::<Vec<_>>()
        };
        let before = around("add_bos_token", !t5, bos);
        let frame = Frame::around(&before, &around("add_eos_token", t5, eos));
        let (eos, ends) = ending(added.iter(), eos);
        let widest = model.widest(&vocab, &cutter);
        let parts = Parts { vocab, added, normalizer, cutter, model, frame, stages, bos, eos, widest };
        Ok(Tokenizer { parts: parts.into(), ends: ends.into() })
    }
}

impl File<'_> {
    fn model(
        &self,
        vocab: &Vocab,
        scores: &[f32],
        kinds: &[Kind],
    ) -> std::result::Result<Model, &'static str> {
        let unknown = self.id(0);
        match self.model {
            1 => {
                if vocab.iter().any(|(_, text)| text.len() > unigram::LONGEST) {
                    return Err("has a piece of more than 1024 bytes");
                }
                let model = of_kinds(vocab, scores, kinds, unknown);
                let model = if self.byte_fallback { model.with_bytes(vocab) } else { model };
                Ok(Model::Unigram(model.into()))
            }
            2 => {
                let model = Spm::new(vocab, scores, unknown);
                Ok(Model::Spm(if self.byte_fallback { model } else { model.fusing() }.into()))
            }
            _ => Err(
                "is of whole words or single characters, which is not supported; fetch the model's tokenizer.json",
            ),
        }
    }

    /// The normaliser, pre-tokenizer and decoder.
    fn steps(&self, configs: &ConfigFiles) -> std::result::Result<(Normalizer, Cutter, Vec<Stage>), String> {
        let prefix = configs.flag("add_prefix_space").unwrap_or(self.prefix);
        let table = match self.charsmap {
            [] => None,
            bytes => Some(Charsmap::parse(bytes).map_err(|why| format!("its table of characters {why}"))?),
        };
        let mut stages = spaces_and_bytes();
        if prefix {
            stages.push(Stage::Strip(Strip::new(' ', 1, 0)));
        }
        if table.is_some() || self.squeeze {
            let step = SentencePiece { table, prefix, squeeze: self.squeeze };
            return Ok((Normalizer(vec![Step::SentencePiece(step)]), Cutter::default(), stages));
        }
        let mut normalizer = vec![Step::Text { pattern: " ".into(), with: "▁".into() }];
        let mut cutter = Vec::new();
        // Newer tokenizers (`legacy` false) put no space after a special token.
        match prefix {
            true if configs.flag("legacy") == Some(false) => {
                cutter.push(CutStep::Metaspace { space: '▁', prefix: Prefix::First, split: false });
            }
            true => normalizer.push(Step::Prepend("▁".into())),
            false => {}
        }
        Ok((Normalizer(normalizer), Cutter(cutter), stages))
    }
}
