//! Tokenizers from unusual, broken and malicious files.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tallow_checkpoint::FileError;
use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::map::Mapping;
use tallow_support::shared;
use tallow_text::tokenizer::{Around, Shown, Special, TokenizeError, Tokenizer, Written};

const BARE: Special = Special::BARE;
const FULL: Special = Special { around: Around::Added, written: Written::Parsed };

/// A metadata value of a GGUF file made for a test.
enum Kv<'a> {
    Text(&'a str),
    Flag(bool),
    Uint(u32),
    Texts(Vec<&'a str>),
    Ints(Vec<i32>),
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

fn gguf_of(pairs: &[(&str, Kv<'_>)]) -> Result<Tokenizer, FileError> {
    let mut out = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.bytes());
    }
    fn list(out: &mut Vec<u8>, kind: u32, len: usize) {
        out.extend([9, kind].map(u32::to_le_bytes).concat());
        out.extend((len as u64).to_le_bytes());
    }
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        text(&mut out, &format!("tokenizer.ggml.{key}"));
        match value {
            Kv::Text(value) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, value);
            }
            Kv::Flag(value) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*value));
            }
            Kv::Uint(value) => out.extend([4, *value].map(u32::to_le_bytes).concat()),
            Kv::Texts(values) => {
                list(&mut out, 8, values.len());
                values.iter().for_each(|value| text(&mut out, value));
            }
            Kv::Ints(values) => {
                list(&mut out, 5, values.len());
                out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            }
            Kv::Floats(values) => {
                list(&mut out, 6, values.len());
                out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
            }
            Kv::Bytes(values) => {
                list(&mut out, 0, values.len());
                out.extend(values);
            }
        }
    }
    let mapping = Mapping::embedded("made.gguf", out.leak());
    Tokenizer::from_gguf(&Gguf::parse(Arc::new(mapping))?.meta)
}

/// Byte-level BPE vocabulary of letters and a few merges, with some keys replaced.
fn gpt2<'a>(mut changes: Vec<(&'a str, Kv<'a>)>) -> Result<Tokenizer, FileError> {
    let mut pairs = vec![
        ("model", Kv::Text("gpt2")),
        ("pre", Kv::Text("gpt-2")),
        ("tokens", Kv::Texts(vec!["a", "b", "c", "ab", "abc", "Ġ", "<end>"])),
        ("token_type", Kv::Ints(vec![1, 1, 1, 1, 1, 1, 3])),
        ("merges", Kv::Texts(vec!["a b", "ab c"])),
        ("eos_token_id", Kv::Uint(6)),
    ];
    pairs.retain(|(key, _)| !changes.iter().any(|(other, _)| other == key));
    pairs.append(&mut changes);
    gguf_of(&pairs)
}

/// SentencePiece vocabulary, likewise.
fn llama<'a>(mut changes: Vec<(&'a str, Kv<'a>)>) -> Result<Tokenizer, FileError> {
    let mut pairs = vec![
        ("model", Kv::Text("llama")),
        ("tokens", Kv::Texts(vec!["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab"])),
        ("token_type", Kv::Ints(vec![2, 3, 3, 1, 1, 1, 1, 1])),
        ("scores", Kv::Floats(vec![0.0, 0.0, 0.0, -4.0, -3.0, -3.0, -2.0, -1.0])),
    ];
    pairs.retain(|(key, _)| !changes.iter().any(|(other, _)| other == key));
    pairs.append(&mut changes);
    gguf_of(&pairs)
}

#[test]
fn small_gguf_vocabularies_work() {
    let tokenizer = gpt2(vec![]).unwrap();
    assert_eq!(tokenizer.encode("abc ab<end>", Special::RENDERED).unwrap(), [4, 5, 3, 6]);
    assert_eq!((tokenizer.eos(), tokenizer.vocab_size()), (Some(6), 7));
    let tokenizer = llama(vec![]).unwrap();
    assert_eq!(tokenizer.encode("ab", FULL).unwrap(), [1, 7]);
    assert_eq!(tokenizer.encode("zab", BARE).unwrap(), [3, 0, 6]);
    let tokenizer =
        llama(vec![("add_space_prefix", Kv::Flag(false)), ("add_eos_token", Kv::Flag(true))]).unwrap();
    assert_eq!(tokenizer.encode("ab", FULL).unwrap(), [1, 6, 2]);
}

#[test]
fn bad_gguf_vocabularies_are_refused_by_name() {
    let texts = |texts: &[&'static str]| Kv::Texts(texts.to_vec());
    let long: &str = "x".repeat(2000).leak();
    let cases: Vec<(Result<Tokenizer, FileError>, &str)> = vec![
        (gguf_of(&[]), "tokenizer.ggml.model: is missing"),
        (gpt2(vec![("model", Kv::Text("plamo2"))]), "tokenizer \"plamo2\" is not supported"),
        (gpt2(vec![("model", Kv::Uint(3))]), "tokenizer.ggml.model: is not text"),
        (gpt2(vec![("pre", Kv::Text("unheard-of"))]), "tokenizer.ggml.pre \"unheard-of\" is not supported"),
        (gpt2(vec![("tokens", Kv::Ints(vec![1]))]), "tokenizer.ggml.tokens: is not an array of texts"),
        (gpt2(vec![("tokens", Kv::Flag(true))]), "tokenizer.ggml.tokens: is not an array"),
        (
            gpt2(vec![("tokens", texts(&["a", "b", "a", "c", "d", "e", "f"]))]),
            "token 2, \"a\", is also token 0",
        ),
        (gpt2(vec![("merges", Kv::Floats(vec![1.0]))]), "tokenizer.ggml.merges: is not an array of texts"),
        (
            gpt2(vec![("merges", texts(&["a b", "ab"]))]),
            "tokenizer.ggml.merges: entry 1, \"ab\", is not two tokens",
        ),
        (gpt2(vec![("merges", texts(&["a "]))]), "tokenizer.ggml.merges: entry 0"),
        (
            gpt2(vec![("token_type", Kv::Ints(vec![1]))]),
            "tokenizer.ggml.token_type: has 1 entries for 7 tokens",
        ),
        (
            gpt2(vec![("eos_token_id", Kv::Uint(7))]),
            "tokenizer.ggml.eos_token_id: is 7, but there are 7 tokens",
        ),
        (
            gpt2(vec![("add_bos_token", Kv::Flag(true))]),
            "tokenizer.ggml.bos_token_id: is missing, but add_bos_token is set",
        ),
        (gpt2(vec![("add_bos_token", Kv::Uint(1))]), "tokenizer.ggml.add_bos_token: is not true or false"),
        (
            llama(vec![("scores", Kv::Floats(vec![0.0; 3]))]),
            "tokenizer.ggml.scores: has 3 entries for 8 tokens",
        ),
        (
            llama(vec![("scores", Kv::Floats(vec![f32::NAN; 8]))]),
            "tokenizer.ggml.scores: has a score that is not a number",
        ),
        (llama(vec![("scores", Kv::Ints(vec![0; 8]))]), "tokenizer.ggml.scores: is not an array of floats"),
        (llama(vec![("model", Kv::Text("bert"))]), "tokenizer.ggml.seperator_token_id: is missing"),
        (
            llama(vec![("model", Kv::Text("t5")), ("precompiled_charsmap", Kv::Bytes(vec![9, 0, 0, 0, 1]))]),
            "tokenizer.ggml.precompiled_charsmap: says that its trie has 9 bytes, where 1 follow",
        ),
        (
            llama(vec![
                ("model", Kv::Text("t5")),
                ("tokens", Kv::Texts(vec!["a", "b", "c", "d", "e", "f", "g", long])),
            ]),
            "tokenizer.ggml.tokens: token 7 has 2000 bytes; 1024 are taken",
        ),
    ];
    for (loaded, want) in cases {
        let message = loaded.expect_err(want).to_string();
        assert!(
            message.starts_with("made.gguf: ") && message.contains(want),
            "{message}\nshould have: {want}"
        );
    }
}

#[test]
fn odd_gguf_vocabularies_are_read_with_care() {
    // No end-of-sequence token is known.
    let tokenizer = gguf_of(&[
        ("model", Kv::Text("gpt2")),
        ("tokens", Kv::Texts(vec!["a", "b"])),
        ("merges", Kv::Texts(vec![])),
    ])
    .unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.bos(), tokenizer.ends().count()), (None, None, 0));
    // Merges whose parts are not tokens are ignored, or are intermediate steps to tokens.
    let merges = Kv::Texts(vec!["b c", "a bc", "c c"]);
    let tokenizer = gpt2(vec![("merges", merges)]).unwrap();
    assert_eq!(tokenizer.encode("abc", BARE).unwrap(), [4]);
    assert_eq!(tokenizer.encode("bccc", BARE).unwrap(), [1, 2, 2, 2]);
    // A token with empty text never occurs in a text but keeps its id.
    let tokenizer = gpt2(vec![("tokens", Kv::Texts(vec!["a", "b", "c", "ab", "abc", "", "<end>"]))]).unwrap();
    assert_eq!(tokenizer.token_text(5), Some("[EMPTY_5]"));
    // A byte-level vocabulary that lacks a byte's token drops that character.
    assert_eq!(tokenizer.encode("a!b", BARE).unwrap(), [0, 1]);
    // A vocabulary without an unknown token reports an error.
    let tokens = Kv::Texts(vec!["[CLS]", "[SEP]", "▁a", "b"]);
    let bert = gguf_of(&[("model", Kv::Text("bert")), ("tokens", tokens)]);
    let bert = gguf_of(&[
        ("model", Kv::Text("bert")),
        ("tokens", Kv::Texts(vec!["[CLS]", "[SEP]", "▁a", "b"])),
        ("token_type", Kv::Ints(vec![3, 3, 1, 1])),
    ])
    .or(bert)
    .unwrap();
    assert_eq!(bert.encode("ab", FULL).unwrap(), [0, 2, 3, 1]);
    let error = bert.encode("ab zz", BARE).unwrap_err();
    assert_eq!(error, TokenizeError::NoUnknown { text: "zz".into() });
}

#[test]
fn a_token_of_ten_megabytes_does_no_harm() {
    let long: &str = "a".repeat(10_000_000).leak();
    let text = "a".repeat(3_000_000);
    let tokens = || Kv::Texts(vec!["a", "b", "c", "ab", "abc", "Ġ", "<end>", long]);
    let tokenizer = gpt2(vec![("tokens", tokens()), ("token_type", Kv::Ints(vec![1; 8]))]).unwrap();
    assert_eq!(tokenizer.encode(&text, BARE).unwrap().len(), text.len());
    assert_eq!(tokenizer.encode(long, BARE).unwrap().len(), long.len(), "no merges lead there");
    assert_eq!(tokenizer.token_bytes(7).unwrap().len(), long.len());
    let tokenizer = llama(vec![
        ("tokens", Kv::Texts(vec!["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁ab", long])),
        ("token_type", Kv::Ints(vec![1; 9])),
        ("scores", Kv::Floats(vec![0.0; 9])),
    ])
    .unwrap();
    assert_eq!(tokenizer.encode(&text, BARE).unwrap().len(), text.len() + 1);
    // As a user-defined token it would have to be searched for in every text, so it is refused.
    let message =
        gpt2(vec![("tokens", tokens()), ("token_type", Kv::Ints(vec![4; 8]))]).unwrap_err().to_string();
    assert!(message.contains("tokenizer.ggml.tokens: are 10000015 bytes long together"), "{message}");
}

/// A `tokenizer.json` with a small vocabulary.
fn small() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 5, "content": "<end>", "special": true, "normalized": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "?": 4}, "merges": ["a b"]},
    })
}

fn json_of(value: &Value) -> Result<Tokenizer, FileError> {
    Tokenizer::from_json(Path::new("made.json"), value.to_string().as_bytes(), None)
}

#[test]
fn a_small_json_vocabulary_works() {
    let tokenizer = json_of(&small()).unwrap();
    assert_eq!(tokenizer.encode("ab z<end>", FULL).unwrap(), [3, 4, 5]);
    assert_eq!(tokenizer.decode(&[3, 5, 0], Shown::Text), "ab a");
    let config = json!({"eos_token": {"content": "<end>"}, "bos_token": "a"});
    let bytes = small().to_string();
    let tokenizer = Tokenizer::from_json(Path::new("x"), bytes.as_bytes(), Some(&config)).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), Some(5)));
    assert!(tokenizer.ends_generation(5));
}

#[test]
fn bad_json_vocabularies_are_refused_by_name() {
    let cases = [
        ("/version", json!("2.0"), "version: \"2.0\" is not supported"),
        ("/model/type", json!("Ouija"), "model.type \"Ouija\" is not supported"),
        ("/model/vocab", json!({"a": 0, "b": 0}), "model.vocab: \"b\": 0 is also the id of \"a\""),
        (
            "/model/vocab",
            json!({"a": 4_000_000_000u32}),
            "model.vocab: \"a\": 4000000000 is above the highest id",
        ),
        ("/model/vocab", json!({"a": -1}), "model.vocab: invalid value"),
        ("/model/vocab", json!({"a": "b"}), "model.vocab: invalid type"),
        ("/model/vocab", json!(["a"]), "model.vocab: invalid type"),
        ("/model/merges", json!(["a b", "b z"]), "model.merges[1]: \"z\" is not in the vocabulary"),
        ("/model/merges", json!(["b c"]), "model.merges[0]: \"bc\" is not in the vocabulary"),
        ("/model/merges", json!(["a b c"]), "model.merges: \"a b c\" is not two tokens"),
        ("/model/merges", json!([["a"]]), "model.merges: a merge is of two tokens"),
        ("/model/merges", json!([7]), "model.merges: invalid type"),
        ("/model/merges", json!(null), "model.merges: is missing"),
        ("/model/dropout", json!(0.5), "model.dropout is not supported"),
        (
            "/added_tokens/0/id",
            json!(1),
            "added_tokens[0]: \"<end>\" has the id 1, which is \"b\" in the vocabulary",
        ),
        ("/added_tokens/0/id", json!(4_294_967_295u32), "added_tokens[0]: \"<end>\" has the id 4294967295"),
        ("/added_tokens/0/content", json!(3), "its JSON: invalid type"),
        (
            "/added_tokens/1",
            json!({"id": 5, "content": "x"}),
            "added_tokens[1]: \"x\" and \"<end>\" both have the id 5",
        ),
        ("/normalizer", json!({"type": "Spell"}), "normalizer \"Spell\" is not supported"),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "Strip"}]}),
            "normalizer.normalizers[0].strip_left: should be true or false",
        ),
        (
            "/normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "!"}),
            "normalizer.precompiled_charsmap: is not base64",
        ),
        (
            "/normalizer",
            json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""}),
            "normalizer.pattern.Regex: ",
        ),
        ("/normalizer", json!(7), "normalizer.type: should be text"),
        ("/pre_tokenizer", json!({"type": "Saw"}), "pre-tokenizer \"Saw\" is not supported"),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "a{1,1000000000}"}, "behavior": "Isolated", "invert": false}),
            "pre_tokenizer.pattern.Regex: ",
        ),
        (
            "/post_processor",
            json!({"type": "BertProcessing", "sep": ["x", 9], "cls": ["y", 5]}),
            "post_processor: token 9 does not exist",
        ),
        (
            "/post_processor",
            json!({"type": "TemplateProcessing", "single": []}),
            "post_processor.single: has the text 0 times, not once",
        ),
        ("/decoder", json!({"type": "Encoder"}), "decoder \"Encoder\" is not supported"),
        (
            "/model",
            json!({"type": "Unigram", "unk_id": 3, "vocab": [["a", 0.0]]}),
            "model.unk_id: is 3, but there are 1 tokens",
        ),
        ("/model", json!({"type": "Unigram", "vocab": [["a"]]}), "model.vocab: "),
    ];
    for (place, value, want) in cases {
        let mut file = small();
        let (parent, key) = place.rsplit_once('/').unwrap();
        match file.pointer_mut(parent).unwrap() {
            Value::Array(list) => list.push(value),
            object => object[key] = value,
        }
        let message = json_of(&file).expect_err(want).to_string();
        assert!(
            message.starts_with("made.json: ") && message.contains(want),
            "{message}\nshould have: {want}"
        );
    }
    let deep = [r#"{"version":"1.0","normalizer":"#, &"[".repeat(100_000)].concat();
    let nested = format!(r#"{{"model":{}1{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    for bytes in [&b""[..], b"{", b"null", b"\xff\xfe", b"{}", deep.as_bytes(), nested.as_bytes()] {
        let message = Tokenizer::from_json(Path::new("made.json"), bytes, None).unwrap_err().to_string();
        assert!(message.starts_with("made.json: "), "{message}");
    }
    assert!(
        Tokenizer::from_folder(Path::new("/nowhere")).unwrap_err().to_string().contains("tokenizer.json")
    );
}

#[test]
fn arbitrary_bytes_are_refused_or_work() {
    let folder = shared("tokenizer-bert").map(|folder| std::fs::read(folder.join("tokenizer.json")).unwrap());
    let whole = small().to_string().into_bytes();
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        // A file with a few bytes changed.
        prop::collection::vec((0..whole.len(), any::<u8>()), 1..6).prop_map(move |changes| {
            let mut bytes = whole.clone();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            bytes
        }),
    ];
    let config = ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&bytes, |bytes| {
            if let Ok(tokenizer) = Tokenizer::from_json(Path::new("x"), &bytes, None) {
                let ids = tokenizer.encode("ab c <end> é\n", FULL).unwrap_or_default();
                tokenizer.decode(&ids, Shown::All);
            }
            Ok(())
        })
        .unwrap();
    // A real file truncated anywhere.
    for len in (0..folder.as_ref().map_or(0, Vec::len)).step_by(40_000) {
        let bytes = &folder.as_ref().unwrap()[..len];
        assert!(Tokenizer::from_json(Path::new("x"), bytes, None).is_err());
    }
}

/// A folder for one test.
fn folder(name: &str, files: &[(&str, Vec<u8>)]) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("tallow-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder
}

fn of_folder(name: &str, files: &[(&str, Vec<u8>)]) -> Result<Tokenizer, FileError> {
    let folder = folder(name, files);
    let tokenizer = Tokenizer::from_folder(&folder);
    std::fs::remove_dir_all(folder).unwrap();
    tokenizer
}

/// The reference's ids for a vocabulary's texts, all with special tokens parsed: (text, without BOS/EOS, with them).
fn golden(folder: &Path) -> Vec<(String, Vec<u32>, Vec<u32>)> {
    let ids =
        |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let file = tallow_support::json(&folder.join("golden.json"));
    let case = |case: &Value| {
        (case["text"].as_str().unwrap().to_owned(), ids(&case["ids"]), ids(&case["ids_with_special"]))
    };
    file["cases"].as_array().unwrap().iter().map(case).collect()
}

/// The bytes of a byte-level vocabulary's token.
fn bytes_of(token: &str) -> Vec<u8> {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others: Vec<u32> = (0..256).filter(|b| !plain(b)).collect();
    let byte = |c: char| if c as u32 >= 256 { others[c as usize - 256] } else { c as u32 };
    token.chars().map(|c| byte(c) as u8).collect()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, b| bits << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        let letter =
            |i: usize| if i <= group.len() { LETTERS[(bits >> (18 - 6 * i)) as usize & 63] } else { b'=' };
        out.extend((0..4).map(|i| char::from(letter(i))));
    }
    out
}

/// The `tokenizer.model` files that the models were released with.
#[test]
fn sentencepiece_files_give_the_reference_ids() {
    for name in ["tokenizer-llama2", "tokenizer-mistral"] {
        let Some(shared) = shared(name) else { return };
        let files = ["tokenizer.model", "tokenizer_config.json"];
        let files = files.map(|file| (file, std::fs::read(shared.join(file)).unwrap()));
        let tokenizer = of_folder(name, &files).unwrap();
        let other = Tokenizer::from_folder(&shared).unwrap();
        // Skip texts with literal special tokens: the `tokenizer.json` finds only some of them, a quirk of its own.
        for (text, ids, full) in golden(&shared).into_iter().filter(|(text, ..)| !text.contains('<')) {
            let written = Written::Parsed;
            let bare = tokenizer.encode(&text, Special { around: Around::Omitted, written }).unwrap();
            assert_eq!(bare, ids, "{name} {text:?}");
            assert_eq!(tokenizer.encode(&text, FULL).unwrap(), full, "{name} {text:?}");
            assert_eq!(tokenizer.decode(&ids, Shown::All), other.decode(&ids, Shown::All), "{name} {text:?}");
        }
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)), "{name}");
        assert_eq!(tokenizer.vocab_size(), other.vocab_size());
        assert!(tokenizer.is_special(1) && tokenizer.ends_generation(2));
    }
}

/// The protobuf message of a SentencePiece model: pieces with scores and kinds, the model type, and the normalizer's
/// character map.
fn sentencepiece(
    pieces: &[(&str, f32, u8)],
    model: u8,
    fallback: bool,
    table: &[u8],
    flags: [bool; 2],
) -> Vec<u8> {
    fn number(out: &mut Vec<u8>, mut n: usize) {
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
    }
    fn bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
        out.push(field << 3 | 2);
        number(out, bytes.len());
        out.extend(bytes);
    }
    let mut file = Vec::new();
    for (text, score, kind) in pieces {
        let mut piece = Vec::new();
        bytes(&mut piece, 1, text.as_bytes());
        piece.push(2 << 3 | 5);
        piece.extend(score.to_le_bytes());
        piece.extend([3 << 3, *kind]);
        bytes(&mut file, 1, &piece);
    }
    // Field 35 has a two-byte key.
    bytes(&mut file, 2, &[3 << 3, model, 0x98, 0x02, u8::from(fallback)]);
    let mut normalizer = Vec::new();
    bytes(&mut normalizer, 2, table);
    normalizer.extend([3 << 3, u8::from(flags[0]), 4 << 3, u8::from(flags[1])]);
    bytes(&mut file, 3, &normalizer);
    file
}

/// T5's vocabulary as the file it was released with: a unigram model with a precompiled character map. The ids are
/// those of the `sentencepiece` library (`tools/goldens/sentencepiece.py`).
#[test]
fn unigram_files_give_the_ids_of_the_library() {
    let Some(shared) = shared("tokenizer-t5") else { return };
    let golden = tallow_support::json(&tallow_support::golden("sentencepiece").join("t5.json"));
    let tokenizer = of_folder(
        "t5",
        &[
            ("spiece.model", t5(&shared)),
            ("tokenizer_config.json", br#"{"tokenizer_class": "T5Tokenizer"}"#.to_vec()),
        ],
    )
    .unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 40);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let want: Vec<u32> =
            case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode(text, BARE).unwrap(), want, "{text:?}");
    }
    assert_eq!((tokenizer.adds_bos(), tokenizer.encode("a", FULL).unwrap().last()), (false, Some(&1)));
}

/// The file that T5's `tokenizer.json` was converted from, without its added tokens.
fn t5(shared: &Path) -> Vec<u8> {
    let file = tallow_support::json(&shared.join("tokenizer.json"));
    let encoded = file["normalizer"]["precompiled_charsmap"].as_str().unwrap();
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    for group in encoded.trim_end_matches('=').as_bytes().chunks(4) {
        let six = |c: &u8| letters.iter().position(|l| l == c).unwrap() as u32;
        let bits = group.iter().fold(0, |bits, c| bits << 6 | six(c)) << (6 * (4 - group.len()));
        bytes.extend(&bits.to_be_bytes()[1..group.len()]);
    }
    let vocab = file["model"]["vocab"].as_array().unwrap();
    let pieces: Vec<(&str, f32, u8)> = vocab[..32_000]
        .iter()
        .map(|pair| (pair[0].as_str().unwrap(), pair[1].as_f64().unwrap() as f32))
        .map(|(text, score)| {
            (
                text,
                score,
                match text {
                    "<unk>" => 2,
                    "<pad>" | "</s>" => 3,
                    _ => 1,
                },
            )
        })
        .collect();
    // pad_id 0, eos_id 1, unk_id 2, as set in the trainer spec.
    let mut file = sentencepiece(&pieces, 1, false, &bytes, [true, true]);
    file.extend([2 << 3 | 2, 18, 0xc0, 2, 2, 0xc8, 2]);
    file.extend([0xff; 9]);
    file.extend([1, 0xd0, 2, 1]);
    file
}

/// tiktoken files: Llama 3's vocabulary as in its first release, and as in Mistral's (tekken) releases.
#[test]
fn ranks_of_byte_strings_give_the_reference_ids() {
    let Some(shared) = shared("tokenizer-llama3") else { return };
    let file = tallow_support::json(&shared.join("tokenizer.json"));
    let vocab = file["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<(u64, String)> =
        vocab.iter().map(|(text, id)| (id.as_u64().unwrap(), base64(&bytes_of(text)))).collect();
    // Special tokens have no ranks.
    tokens.retain(|(rank, _)| *rank < 128_000);
    tokens.sort_unstable();
    assert_eq!(tokens.len(), 128_000);
    let lines: String = tokens.iter().map(|(rank, token)| format!("{token} {rank}\n")).collect();
    let tiktoken = of_folder("tiktoken", &[("tokenizer.model", lines.into_bytes())]).unwrap();
    let pattern = file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].as_str().unwrap();
    let entries: Vec<Value> = tokens
        .iter()
        .map(|(rank, token)| json!({"rank": rank, "token_bytes": token, "token_str": null}))
        .collect();
    let tekken = json!({
        "config": {"pattern": pattern, "num_vocab_tokens": 128_000, "default_vocab_size": 129_000,
                   "default_num_special_tokens": 1000, "version": "v3"},
        "vocab": entries,
    });
    let tekken = of_folder("tekken", &[("tekken.json", tekken.to_string().into_bytes())]).unwrap();
    for (text, ids, full) in golden(&shared) {
        assert_eq!(
            tiktoken.encode(&text, Special { around: Around::Omitted, written: Written::Parsed }).unwrap(),
            ids,
            "{text:?}"
        );
        assert_eq!(tiktoken.encode(&text, FULL).unwrap(), full, "{text:?}");
        if ids.iter().all(|id| *id < 128_000) {
            let moved: Vec<u32> = ids.iter().map(|id| id + 1000).collect();
            assert_eq!(tekken.encode(&text, BARE).unwrap(), moved, "{text:?}");
            assert_eq!(tekken.decode(&moved, Shown::All), tiktoken.decode(&ids, Shown::All), "{text:?}");
        }
    }
    assert_eq!(tiktoken.id_of("<|eot_id|>"), Some(128_009));
    assert_eq!(tiktoken.id_of("<|reserved_special_token_250|>"), Some(128_255));
    assert!(tiktoken.ends_generation(128_009) && tiktoken.bos() == Some(128_000));
    assert_eq!((tekken.bos(), tekken.eos(), tekken.vocab_size()), (Some(1), Some(2), 129_000));
    assert_eq!(tekken.encode("[INST]a[/INST]<SPECIAL_999>", FULL).unwrap(), [1, 3, 1064, 4, 999]);
}

/// Byte-level BPE as `vocab.json` and `merges.txt`, the predecessors of `tokenizer.json`.
#[test]
fn vocabularies_with_merges_give_the_reference_ids() {
    for (name, class) in [
        ("tokenizer-qwen2.5", "Qwen2Tokenizer"),
        ("tokenizer-roberta", "RobertaTokenizer"),
        ("tokenizer-clip", "CLIPTokenizer"),
    ] {
        let Some(shared) = shared(name) else { return };
        let file = tallow_support::json(&shared.join("tokenizer.json"));
        let merge = |merge: &Value| match merge {
            Value::String(text) => text.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        };
        let merges: Vec<String> = file["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
        let added: serde_json::Map<String, Value> = file["added_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| (token["id"].to_string(), token.clone()))
            .collect();
        let config = json!({
            "tokenizer_class": class,
            "added_tokens_decoder": added,
            "bos_token": match class {
                "CLIPTokenizer" => json!("<|startoftext|>"),
                "RobertaTokenizer" => json!("<s>"),
                _ => Value::Null,
            },
            "eos_token": if class == "RobertaTokenizer" { "</s>" } else { "<|endoftext|>" },
        });
        let tokenizer = of_folder(
            name,
            &[
                ("vocab.json", file["model"]["vocab"].to_string().into_bytes()),
                ("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")).into_bytes()),
                ("tokenizer_config.json", config.to_string().into_bytes()),
            ],
        )
        .unwrap();
        for (text, ids, full) in golden(&shared) {
            let written = Written::Parsed;
            let bare = tokenizer.encode(&text, Special { around: Around::Omitted, written }).unwrap();
            assert_eq!(bare, ids, "{name} {text:?}");
            assert_eq!(tokenizer.encode(&text, FULL).unwrap(), full, "{name} {text:?}");
        }
    }
}

#[test]
fn a_list_of_words_gives_the_reference_ids() {
    let Some(shared) = shared("tokenizer-bert") else { return };
    let words = std::fs::read(shared.join("vocab.txt")).unwrap();
    let tokenizer = of_folder("bert", &[("vocab.txt", words)]).unwrap();
    for (text, ids, full) in golden(&shared) {
        let written = Written::Parsed;
        let bare = tokenizer.encode(&text, Special { around: Around::Omitted, written }).unwrap();
        assert_eq!(bare, ids, "{text:?}");
        assert_eq!(tokenizer.encode(&text, FULL).unwrap(), full, "{text:?}");
    }
}

#[test]
fn folders_without_a_tokenizer_and_with_a_bad_one_are_refused() {
    let class =
        |class: &str| ("tokenizer_config.json", format!(r#"{{"tokenizer_class": "{class}"}}"#).into_bytes());
    let pieces = [("<unk>", 0.0, 2), ("a", -1.0, 1)];
    let model = |kind| ("tokenizer.model", sentencepiece(&pieces, kind, false, &[], [true, false]));
    let tekken = |special: u64| {
        let config = json!({"pattern": "a", "default_vocab_size": 10, "default_num_special_tokens": special});
        ("tekken.json", json!({"config": config, "vocab": []}).to_string().into_bytes())
    };
    let doubled = sentencepiece(&[("a", 0.0, 1), ("a", 0.0, 1)], 2, false, &[], [true, false]);
    let cases = [
        (vec![], "tokenizer.json: is missing: fetch tokenizer.json from where the model is from"),
        (vec![("merges.txt", vec![])], "tokenizer.json: is missing"),
        (
            vec![("tokenizer.model", vec![])],
            "a vocabulary of this kind whose tokenizer_config.json does not name its class",
        ),
        (vec![("tokenizer.model", b"\n\x7fabc".to_vec())], "the vocabulary: ends within a field"),
        (vec![("tokenizer.model", b"\n\x00".to_vec())], "the vocabulary: piece 0 has no text"),
        (vec![("tokenizer.model", doubled)], "the vocabulary: token 1, \"a\", is also token 0"),
        (vec![model(3)], "the vocabulary: is of whole words or single characters"),
        (
            vec![model(1), class("XLMRobertaTokenizer")],
            "class \"XLMRobertaTokenizer\" in this kind of file is not supported",
        ),
        (vec![("qwen.tiktoken", b"YQ== 0\nb?\n".to_vec())], "line 2: is not a token in base64 and its rank"),
        (
            vec![("qwen.tiktoken", b"YQ== 0\n".to_vec()), class("QWenTokenizer")],
            "has no token for the byte 0",
        ),
        (vec![("a.tiktoken", b"YQ== 0\n".to_vec()), class("Other")], "fetch the model's tokenizer.json"),
        (vec![tekken(11)], "config.default_vocab_size: is less than its 11 special tokens"),
        (vec![tekken(4_000_000_000)], "config.default_num_special_tokens: is 4000000000"),
        (vec![("tekken.json", b"{}".to_vec())], "its JSON: missing field"),
        (
            vec![("vocab.json", b"{}".to_vec()), ("merges.txt", b"a b".to_vec())],
            "\"a\" is not in the vocabulary",
        ),
        (vec![("vocab.json", b"[]".to_vec()), ("merges.txt", vec![])], "its JSON: invalid type"),
        (
            vec![("vocab.json", b"{}".to_vec()), ("merges.txt", vec![]), class("Other")],
            "\"Other\" in this kind of file",
        ),
    ];
    for (i, (files, want)) in cases.into_iter().enumerate() {
        let message = of_folder(&format!("bad-{i}"), &files).expect_err(want).to_string();
        assert!(message.contains(want), "{message}\nshould have: {want}");
    }
}

#[test]
fn arbitrary_messages_are_refused_or_work() {
    let pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("▁", -3.0, 1),
        ("a", -2.0, 1),
        ("▁a", -1.0, 1),
        ("<0x0A>", 0.0, 6),
    ];
    let whole = sentencepiece(&pieces, 2, true, &[], [true, true]);
    let folder = folder("arbitrary", &[]);
    let path = folder.join("tokenizer.model");
    let changes = prop::collection::vec((0..whole.len(), any::<u8>()), 1..4);
    let config = ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&(changes, 0..whole.len()), |(changes, len)| {
            let mut bytes = whole.clone();
            changes.into_iter().for_each(|(at, byte)| bytes[at] = byte);
            for bytes in [&bytes[..], &bytes[..len]] {
                std::fs::write(&path, bytes).unwrap();
                if let Ok(tokenizer) = Tokenizer::from_folder(&folder) {
                    let ids = tokenizer.encode("a  <s> é\n", FULL).unwrap_or_default();
                    tokenizer.decode(&ids, Shown::All);
                }
            }
            Ok(())
        })
        .unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}
