//! Tokenizers from `vocab.json` and `merges.txt`, or from `vocab.txt`: the predecessors of `tokenizer.json`.
//!
//! As the reference implementation does, they are converted to a `tokenizer.json`, depending on the tokenizer class.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tallow_checkpoint::{FileError, Result};

use super::Tokenizer;
use super::added::AddedToken;
use super::config_files::ConfigFiles;
use super::pre::QWEN2;

const CLIP: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

impl Tokenizer {
    /// Reads the bytes of a `vocab.json` and the text of the `merges.txt` next to it.
    pub(super) fn from_merges(
        path: &Path,
        vocab: &[u8],
        merges: &str,
        configs: &ConfigFiles,
    ) -> Result<Tokenizer> {
        let prefix = configs.flag("add_prefix_space").unwrap_or(false);
        let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex});
        let split = |pattern: &str, behavior: &str, invert: bool| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert});
        let sequence = |name: &str, parts: Value| json!({"type": "Sequence", name: parts});
        let mut file =
            json!({"version": "1.0", "decoder": byte_level(true), "pre_tokenizer": byte_level(true)});
        let mut model = json!({"type": "BPE"});
        match configs.class() {
            // The hand-written JSON above is for these classes, which are only read here: GPT-2's pre-tokenizer.
            None | Some("GPT2Tokenizer" | "CodeGenTokenizer") => {}
            Some("Qwen2Tokenizer") => {
                file["normalizer"] = json!({"type": "NFC"});
                let parts = json!([split(QWEN2, "Isolated", false), byte_level(false)]);
                file["pre_tokenizer"] = sequence("pretokenizers", parts);
            }
            Some("RobertaTokenizer" | "BartTokenizer" | "LongformerTokenizer" | "LEDTokenizer") => {
                file["post_processor"] = json!({"type": "RobertaProcessing"});
            }
            Some("CLIPTokenizer") => {
                let squeeze = json!({"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "});
                file["normalizer"] =
                    sequence("normalizers", json!([{"type": "NFC"}, squeeze, {"type": "Lowercase"}]));
                let parts = json!([split(CLIP, "Removed", true), byte_level(false)]);
                file["pre_tokenizer"] = sequence("pretokenizers", parts);
                file["post_processor"] = json!({"type": "RobertaProcessing"});
                model["end_of_word_suffix"] = "</w>".into();
                model["unk_token"] = configs.named("unk_token").unwrap_or("<|endoftext|>").into();
            }
            _ => return Err(configs.unknown_class(path)),
        }
        let merges: Vec<&str> = merges.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        model["merges"] = merges.into_iter().filter(|line| !line.starts_with("#version")).collect();
        let vocab = std::str::from_utf8(vocab).map_err(|e| FileError::bad(path, "its JSON", e))?;
        let ids: BTreeMap<String, u32> =
            serde_json::from_str(vocab).map_err(|e| FileError::bad(path, "its JSON", e))?;
        if file["post_processor"].is_object() {
            let pair = |named: &[&str], otherwise: &str| {
                let text = named.iter().find_map(|name| configs.named(name)).unwrap_or(otherwise);
                json!([text, ids.get(text)])
            };
            file["post_processor"]["cls"] = pair(&["cls_token", "bos_token"], "<s>");
            file["post_processor"]["sep"] = pair(&["sep_token", "eos_token"], "</s>");
        } else if configs.flag("add_bos_token") == Some(true)
            && let Some(bos) = configs.named("bos_token")
        {
            let of = |kind: &str, id: &str| json!({kind: {"id": id, "type_id": 0}});
            file["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": [of("SpecialToken", bos), of("Sequence", "A")],
                "pair": [],
                "special_tokens": {bos: {"id": bos, "ids": [ids.get(bos)], "tokens": [bos]}},
            });
        }
        finish(path, file, model, vocab, configs, |text| ids.get(text).copied())
    }

    /// Reads the text of BERT's `vocab.txt`: one token per line.
    pub(super) fn from_words(path: &Path, text: &str, configs: &ConfigFiles) -> Result<Tokenizer> {
        if !matches!(
            configs.class(),
            None | Some("BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer")
        ) {
            return Err(configs.unknown_class(path));
        }
        let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
        let words: Vec<&str> = lines.map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
        let ids: BTreeMap<&str, usize> = words.iter().copied().zip(0..).collect();
        let token = |name: &str, otherwise: &'static str| configs.named(name).unwrap_or(otherwise).to_owned();
        let pair = |text: String| json!([text, ids.get(text.as_str())]);
        let lower = configs.flag("do_lower_case").unwrap_or(true);
        let file = json!({
            "version": "1.0",
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": true,
                "handle_chinese_chars": configs.flag("tokenize_chinese_chars").unwrap_or(true),
                "strip_accents": configs.flag("strip_accents"),
                "lowercase": lower,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {
                "type": "BertProcessing",
                "cls": pair(token("cls_token", "[CLS]")),
                "sep": pair(token("sep_token", "[SEP]")),
            },
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        });
        let model = json!({
            "type": "WordPiece",
            "unk_token": token("unk_token", "[UNK]"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        });
        let vocab = serde_json::to_string(&ids).map_err(|e| FileError::bad(path, "its tokens", e))?;
        let known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
        let id_of = |text: &str| ids.get(text).and_then(|id| u32::try_from(*id).ok());
        let mut file = file;
        file["added_tokens"] =
            known.iter().filter_map(|text| Some(entry(&AddedToken::special(id_of(text)?, text)))).collect();
        finish(path, file, model, &vocab, configs, id_of)
    }
}

/// Assembles a `tokenizer.json` and reads it. `vocab` is JSON already.
fn finish(
    path: &Path,
    mut file: Value,
    model: Value,
    vocab: &str,
    configs: &ConfigFiles,
    id_of: impl Fn(&str) -> Option<u32>,
) -> Result<Tokenizer> {
    let mut tokens = BTreeMap::new();
    configs.add_to(&mut tokens, id_of)?;
    let mut entries = file["added_tokens"].as_array().cloned().unwrap_or_default();
    entries.retain(|entry| !tokens.keys().any(|id| entry["id"] == *id));
    entries.extend(tokens.values().map(entry));
    file["added_tokens"] = entries.into();
    let mut model = model.to_string();
    model.truncate(model.len() - 1);
    let mut text = file.to_string();
    text.truncate(text.len() - 1);
    let text = format!(r#"{text},"model":{model},"vocab":{vocab}}}}}"#);
    Tokenizer::from_json(path, text.as_bytes(), Some(&configs.config))
}

/// An added token as an `added_tokens` entry of `tokenizer.json`.
fn entry(token: &AddedToken) -> Value {
    json!({
        "id": token.id,
        "content": token.content,
        "special": token.special,
        "single_word": token.single_word,
        "lstrip": token.lstrip,
        "rstrip": token.rstrip,
        "normalized": false,
    })
}
