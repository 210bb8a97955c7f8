//! Pre-tokenizers of byte-pair vocabularies in GGUF files, by name (`tokenizer.ggml.pre`).
//!
//! The patterns are those of the models' own `tokenizer.json` files, in the order in which they are applied.
//! Contractions are spelled out instead of matched case-insensitively, so that `'ſ` is not one.

use std::path::Path;

use tallow_checkpoint::{FileError, Result};

use super::cut::{self, GPT2, Step};

/// A pre-tokenizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pre {
    /// Each pattern splits the words that the previous ones left.
    patterns: &'static [&'static str],
    pub(super) alphabet: Alphabet,
    /// True if a word that is a token is used without merging (`ignore_merges`).
    pub(super) words_first: bool,
    /// Default of `add_bos_token`.
    pub(super) adds_bos: bool,
    /// True if text is normalised to NFC before it is split. GGUF files do not store it, and llama.cpp does not do it;
    /// the models' own tokenizers do, and the models were trained on their output.
    pub(super) composes: bool,
}

/// The alphabet in which the vocabulary's tokens are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Byte-level: each byte as a character.
    Bytes,
    /// Text with `▁` for spaces; characters without a token become byte tokens.
    Spaces,
}

pub(super) const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_ASIAN: &str = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
pub(super) const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const HAN_KANA: &str = r"[一-龥぀-ゟ゠-ヿ]+";
/// The range in the middle starts far before its ideographs. White space within it is excluded, as in other readers of
/// GGUF files.
const HAN_HANGUL: &str = r"[一-龥\x{800}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-一가-\x{D7FF}]+";
const DIGITS_BY_THREE_FROM_THE_RIGHT: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
const LINES: &str = r"[^\n]+|[\n]+";
/// Letters of scripts with two cases, with an optional space in front.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

/// One name of each pre-tokenizer of byte-level vocabularies, the best known first.
pub(super) const NAMES: [&str; 26] = [
    "llama-bpe",
    "qwen2",
    "deepseek-r1-qwen",
    "gpt-2",
    "gpt-4o",
    "tekken",
    "deepseek-v3",
    "deepseek-llm",
    "deepseek-coder",
    "qwen35",
    "starcoder",
    "dbrx",
    "glm4",
    "falcon",
    "tiny_aya",
    "laguna",
    "minicpm5",
    "seed-coder",
    "bailingmoe",
    "exaone-moe",
    "jais-2",
    "youtu",
    "bloom",
    "viking",
    "superbpe",
    "default",
];

/// A byte-level pre-tokenizer with the most common settings.
const fn bytes(patterns: &'static [&'static str]) -> Pre {
    Pre { patterns, alphabet: Alphabet::Bytes, words_first: false, adds_bos: false, composes: false }
}

impl Pre {
    /// The pre-tokenizer of this name. A file without a name predates the names and has `default`.
    pub(super) fn named(name: Option<&str>) -> Option<Pre> {
        Some(match name.unwrap_or("default") {
            "default" => bytes(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v2-es" | "jina-v2-de" | "jina-v1-en"
            | "jina-v2-code" | "roberta-bpe" | "gigachat" | "a.x-4.0" | "mellum" | "modern-bert"
            | "exaone4" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" => bytes(&[GPT2]),
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" | "jina-v5-nano" => Pre { words_first: true, adds_bos: true, ..bytes(&[LLAMA3]) },
            "dbrx" | "smaug-bpe" | "chatglm-bpe" => bytes(&[LLAMA3]),
            "glm4" | "glm5" => Pre { words_first: true, ..bytes(&[LLAMA3]) },
            "qwen2" => Pre { composes: true, ..bytes(&[QWEN2]) },
            "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan" | "solar-open"
            | "grok-2" => bytes(&[QWEN2]),
            "qwen35" => Pre { composes: true, ..bytes(&[QWEN35]) },
            "laguna" => bytes(&[LINES, QWEN2]),
            "minicpm5" => Pre { words_first: true, ..bytes(&[r"\p{N}{1,3}", MINICPM5]) },
            "seed-coder" => bytes(&[SEED_CODER]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => bytes(&[BAILING]),
            "exaone-moe" => bytes(&[EXAONE_MOE]),
            "jais-2" => bytes(&[JAIS2]),
            "tekken" => Pre { words_first: true, adds_bos: true, ..bytes(&[TEKKEN]) },
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => bytes(&[GPT4O]),
            "tiny_aya" | "cohere2moe" => bytes(&[DIGITS_BY_THREE_FROM_THE_RIGHT, GPT4O]),
            "youtu" => Pre { words_first: true, ..bytes(&[YOUTU_ASIAN, YOUTU]) },
            "deepseek-llm" => {
                bytes(&["[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟、-。]+", r"\s+$", HAN_HANGUL, r"\p{N}+"])
            }
            "deepseek-coder" => bytes(&["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_HANGUL, r"\p{N}"]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                bytes(&[r"\p{N}{1,3}", HAN_KANA, DEEPSEEK3])
            }
            "falcon" => bytes(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
            | "mellum2" => bytes(&[r"\p{N}", GPT2]),
            "bloom" | "poro-chat" | "gpt3-finnish" => bytes(&[BLOOM]),
            "viking" => bytes(&[BLOOM, r"\p{N}"]),
            "superbpe" => bytes(&[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
            "chameleon" => Pre {
                adds_bos: true,
                ..bytes(&[
                    "<sentinel:[0-9]+>",
                    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                    r"([\t\n]|    |  )",
                    r"\p{N}",
                    r"[\p{P}!-/:-@\[-`{-~]",
                    GPT2,
                ])
            },
            "gemma4" | "granite-embed-multi-311m" => {
                Pre { adds_bos: true, alphabet: Alphabet::Spaces, ..bytes(&[LINES]) }
            }
            "sarvam-moe" => Pre { alphabet: Alphabet::Spaces, ..bytes(&[LINES]) },
            _ => return None,
        })
    }

    /// The steps of this pre-tokenizer.
    pub(super) fn steps(self, path: &Path) -> Result<Vec<Step>> {
        let wrong = |why| FileError::bad(path, "tokenizer.ggml.pre", why);
        self.patterns.iter().map(|pattern| cut::isolate(pattern, wrong)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        for name in [
            "default",
            "deepseek-llm",
            "deepseek-coder",
            "deepseek-v3",
            "falcon",
            "jais-2",
            "tiny_aya",
            "youtu",
            "superbpe",
            "chameleon",
            "viking",
            "exaone-moe",
            "laguna",
            "minicpm5",
            "qwen35",
            "tekken",
            "gpt-4o",
            "bailingmoe",
            "seed-coder",
            "starcoder",
            "llama-bpe",
            "gemma4",
        ] {
            Pre::named(Some(name)).unwrap().steps(Path::new("x")).unwrap();
        }
        assert!(Pre::named(Some("unheard-of")).is_none());
    }
}
