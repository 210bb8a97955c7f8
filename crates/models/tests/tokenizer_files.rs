//! Tokenizers from files that are odd, broken, or made to do harm.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use tallow_models::LoadError;
use tallow_models::formats::gguf::Gguf;
use tallow_models::formats::map::Mapping;
use tallow_models::tokenizer::{Around, Shown, Special, TokenizeError, Tokenizer, Written};
use tallow_support::shared;

const BARE: Special = Special::BARE;
const FULL: Special = Special { around: Around::Added, written: Written::Parsed };

/// A value in a GGUF file made for a test.
enum Kv<'a> {
    Text(&'a str),
    Flag(bool),
    Uint(u32),
    Texts(Vec<&'a str>),
    Ints(Vec<i32>),
    Floats(Vec<f32>),
    Bytes(Vec<u8>),
}

fn gguf_of(pairs: &[(&str, Kv<'_>)]) -> Result<Tokenizer, LoadError> {
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

/// A byte-level vocabulary of letters and a few merges, some of whose keys are replaced.
fn gpt2<'a>(mut changes: Vec<(&'a str, Kv<'a>)>) -> Result<Tokenizer, LoadError> {
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

/// SentencePiece's vocabulary likewise.
fn llama<'a>(mut changes: Vec<(&'a str, Kv<'a>)>) -> Result<Tokenizer, LoadError> {
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
    let cases: Vec<(Result<Tokenizer, LoadError>, &str)> = vec![
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
    // No end is known.
    let tokenizer = gguf_of(&[
        ("model", Kv::Text("gpt2")),
        ("tokens", Kv::Texts(vec!["a", "b"])),
        ("merges", Kv::Texts(vec![])),
    ])
    .unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.bos(), tokenizer.ends().count()), (None, None, 0));
    // Merges of what is no token are steps to tokens, or nothing.
    let merges = Kv::Texts(vec!["b c", "a bc", "c c"]);
    let tokenizer = gpt2(vec![("merges", merges)]).unwrap();
    assert_eq!(tokenizer.encode("abc", BARE).unwrap(), [4]);
    assert_eq!(tokenizer.encode("bccc", BARE).unwrap(), [1, 2, 2, 2]);
    // A token without text is nowhere, but has its id.
    let tokenizer = gpt2(vec![("tokens", Kv::Texts(vec!["a", "b", "c", "ab", "abc", "", "<end>"]))]).unwrap();
    assert_eq!(tokenizer.token_text(5), Some("[EMPTY_5]"));
    // Characters that no token stands for are left out in a byte-level vocabulary that lacks them.
    assert_eq!(tokenizer.encode("a!b", BARE).unwrap(), [0, 1]);
    // One without a token for the unknown says so.
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
    // One that would have to be looked for in every text is refused.
    let message =
        gpt2(vec![("tokens", tokens()), ("token_type", Kv::Ints(vec![4; 8]))]).unwrap_err().to_string();
    assert!(message.contains("tokenizer.ggml.tokens: are 10000015 bytes long together"), "{message}");
}

/// A `tokenizer.json` with a vocabulary of few words.
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

fn json_of(value: &Value) -> Result<Tokenizer, LoadError> {
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
    // A real file cut short anywhere.
    for len in (0..folder.as_ref().map_or(0, Vec::len)).step_by(40_000) {
        let bytes = &folder.as_ref().unwrap()[..len];
        assert!(Tokenizer::from_json(Path::new("x"), bytes, None).is_err());
    }
}
