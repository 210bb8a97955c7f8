//! Folders of small encoder-decoder models (T5, Whisper): the goldens' weights with tokenizers made here.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::golden;

fn copied(case: &str, folder: &Path, change: &[(&str, Value)], tokenizer: &Value) {
    std::fs::create_dir_all(folder).unwrap();
    let read = |name: &str| std::fs::read(golden(case).join(name)).unwrap();
    let mut config: Value = serde_json::from_slice(&read("config.json")).unwrap();
    change.iter().for_each(|(key, value)| config[*key] = value.clone());
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("config.json", config.to_string().as_bytes());
    write("model.safetensors", &read("model.safetensors"));
    write("tokenizer.json", tokenizer.to_string().as_bytes());
}

fn added(id: usize, content: &str, special: bool) -> Value {
    json!({ "id": id, "content": content, "special": special, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false })
}

/// Writes a folder with the weights of the golden `t5` and a tokenizer of its size: letters, some in front of words.
pub fn reader(folder: &Path) {
    let letters = || ('a'..='z').map(String::from);
    let front = letters().map(|c| format!("▁{c}"));
    let marks = [".", ",", "!", "?", "▁"].map(String::from);
    let digits = ('0'..='9').map(String::from);
    let capitals = ('A'..='Z').map(String::from);
    let words = letters().chain(front).chain(marks).chain(digits).chain(capitals);
    let mut vocab = vec![json!(["<pad>", 0.0]), json!(["</s>", 0.0]), json!(["<unk>", 0.0])];
    vocab.extend(words.map(|text| json!([text, -2.0])));
    let specials = ["<pad>", "</s>", "<unk>"];
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": specials.iter().enumerate().map(|(id, t)| added(id, t, true)).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "add_prefix_space": true },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": "</s>", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
            "special_tokens": { "</s>": { "id": "</s>", "ids": [1], "tokens": ["</s>"] } },
        },
        "decoder": { "type": "Metaspace", "replacement": "▁", "add_prefix_space": true },
        "model": { "type": "Unigram", "unk_id": 2, "vocab": vocab },
    });
    copied("t5", folder, &[], &tokenizer);
}

/// Writes a folder with the weights of the golden `whisper` and a tokenizer of its size: letters, some in front of words,
/// what is special, and times. It hears windows of 0.48 s, and what it writes of them makes no sense.
pub fn listener(folder: &Path) {
    let letters = || ('a'..='z').map(String::from);
    let front = letters().map(|c| format!("Ġ{c}"));
    let more = "0123456789.,!?-:;".chars().map(String::from);
    let texts = letters().chain(["Ġ".to_owned()]).chain(front).chain(more);
    let vocab: Map<String, Value> = texts.enumerate().map(|(id, t)| (t, id.into())).collect();
    let end = vocab.len();
    let specials = [
        "<|endoftext|>",
        "<|startoftranscript|>",
        "<|en|>",
        "<|de|>",
        "<|translate|>",
        "<|transcribe|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ];
    let times = (0..110 - end - specials.len()).map(|i| format!("<|{:.2}|>", i as f64 * 0.02));
    let mut all: Vec<Value> = specials.iter().enumerate().map(|(i, t)| added(end + i, t, true)).collect();
    all.extend(times.enumerate().map(|(i, t)| added(end + specials.len() + i, &t, false)));
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": all,
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocab, "merges": letters().map(|c| format!("Ġ {c}")).collect::<Vec<_>>() },
    });
    let change = [("decoder_start_token_id", json!(end + 1)), ("eos_token_id", json!(end))];
    copied("whisper", folder, &change, &tokenizer);
    let generation = json!({ "is_multilingual": true, "eos_token_id": end, "begin_suppress_tokens": [26, end],
                             "suppress_tokens": [3, 4], "max_initial_timestamp_index": 10 });
    std::fs::write(folder.join("generation_config.json"), generation.to_string()).unwrap();
}
