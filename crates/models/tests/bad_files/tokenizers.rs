//! Vocabularies: item 13. What each kind of tokenizer refuses is in `tokenizer_files.rs`; here it is checked against
//! the model.

use serde_json::{Value, json};
use tallow_models::Model;
use tallow_text::tokenizer::Special;

use crate::gguf_file::{GgufFile, texts, uint};
use crate::{Dir, Said, folder, memory, snapshot};

#[test]
fn c3_13_vocabularies_of_a_folder() {
    let dir = Dir::new("13");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let cases = [
        ("a merge of what is no token", "/model/merges", json!(["a z"])),
        ("a merge of three", "/model/merges", json!(["a b c"])),
        ("merges that are numbers", "/model/merges", json!([1, 2])),
        ("an id that is negative", "/model/vocab", json!({"a": -1})),
        ("an id of 2^32-1", "/model/vocab", json!({"a": u32::MAX})),
        ("an id twice", "/model/vocab", json!({"a": 0, "b": 0})),
        ("an added token's id of 2^32-1", "/added_tokens/0/id", json!(u32::MAX)),
        ("an added token's id that another has", "/added_tokens/0/id", json!(2)),
    ];
    for (case, place, value) in cases {
        let mut file = folder::tokenizer();
        *file.pointer_mut(place).unwrap() = value;
        dir.write("tokenizer.json", file.to_string().as_bytes());
        said.note(case, Model::open(&dir.0).unwrap().tokenizer().map(drop).expect_err(case));
    }
    dir.write("tokenizer.json", b"{\"model\": ");
    said.note("cut short", Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err());
    dir.write("tokenizer.json", &[b"{\"model\": ".to_vec(), b"[".repeat(100_000)].concat());
    said.note("100000 lists deep", Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err());
    snapshot!(said);
}

#[test]
fn c3_13_vocabularies_of_a_gguf_file() {
    let dir = Dir::new("13-gguf");
    let mut said = Said::new(&dir);
    for (case, key, value) in [
        ("a merge of one", "merges", texts(&["ab"])),
        ("an end past the vocabulary", "eos_token_id", uint(8)),
        ("a beginning past the vocabulary", "bos_token_id", uint(8)),
        ("a token twice", "tokens", texts(&["a", "b", "c", "ab", "abc", "d", "a", "<end>"])),
        ("no tokens", "tokens", texts(&[])),
        ("an unknown kind", "model", crate::gguf_file::text("runes")),
    ] {
        let file = GgufFile::good().with(&format!("tokenizer.ggml.{key}"), value);
        let path = dir.write("model.gguf", &file.bytes());
        said.note(case, Model::open(&path).unwrap().tokenizer().map(drop).expect_err(case));
    }
    snapshot!(said);
}

/// Without an end-of-sequence token answers end at their length limit.
#[test]
fn c3_13_no_end() {
    let dir = Dir::new("13-end");
    let mut file = GgufFile::good();
    file.pairs.retain(|(key, _)| key != "tokenizer.ggml.eos_token_id");
    let tokens = texts(&["a", "b", "c", "ab", "abc", "d", "e", "f"]);
    let path = dir.write("model.gguf", &file.with("tokenizer.ggml.tokens", tokens).bytes());
    let tokenizer = Model::open(&path).unwrap().tokenizer().unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.ends().count()), (None, 0));
    assert_eq!(tokenizer.encode("abc", Special::PROMPT).unwrap(), [4]);
}

#[test]
fn c3_13_a_token_of_ten_megabytes() {
    let dir = Dir::new("13-long");
    dir.write_folder();
    let long = "a".repeat(10_000_000);
    let mut file = folder::tokenizer();
    file["model"]["vocab"][&long] = json!(5);
    file["added_tokens"] = Value::Array(Vec::new());
    let bytes = file.to_string();
    dir.write("tokenizer.json", bytes.as_bytes());
    let model = Model::open(&dir.0).unwrap();
    let (tokenizer, peak) = memory::peak_of(|| model.tokenizer().unwrap());
    assert!(peak < 8 * bytes.len(), "{peak} bytes for a file of {}", bytes.len());
    assert_eq!(tokenizer.encode(&long, Special::BARE).unwrap().len(), long.len());
    assert_eq!(tokenizer.token_text(5), Some(long.as_str()));
}
