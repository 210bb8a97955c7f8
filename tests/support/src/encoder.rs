//! A small encoder with a tokenizer: a golden's weights, and words of ours.

use std::path::Path;

use serde_json::{Value, json};

use crate::golden;

/// Writes a folder with the weights of the golden `bert` and a tokenizer of its size: letters, alone and within words, and
/// a few words. With `labels` it is a model that gives texts so many scores.
pub fn text_encoder(folder: &Path, labels: Option<usize>) {
    std::fs::create_dir_all(folder).unwrap();
    let read = |name: &str| std::fs::read(golden("bert").join(name)).unwrap();
    let (mut config, mut weights): (Value, _) =
        (serde_json::from_slice(&read("config.json")).unwrap(), read("model.safetensors"));
    if let Some(labels) = labels {
        config["architectures"] = json!(["BertForSequenceClassification"]);
        let numbers: Vec<f32> = (0..48 * labels).map(|i| (i as f32 * 0.7).sin()).collect();
        weights = with_tensors(
            &weights,
            &[
                ("classifier.weight", &[labels, 48], &numbers),
                ("classifier.bias", &[labels], &vec![0.25; labels]),
            ],
        );
    }
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("config.json", config.to_string().as_bytes());
    write("model.safetensors", &weights);
    write("tokenizer.json", tokenizer().to_string().as_bytes());
}

/// A safetensors file with more tensors of 32-bit numbers in it.
pub fn with_tensors(file: &[u8], more: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    let at = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..at]).unwrap();
    let mut data = file[at..].to_vec();
    for (name, shape, numbers) in more {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        header[*name] = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn tokenizer() -> Value {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    let letters = || ('a'..='z').map(String::from);
    let words = ["cat", "dog", "sat", "mat", "the", "on", "rug", "a1", ".", ","].map(String::from);
    let tokens = special.into_iter().map(String::from).chain(letters());
    let tokens = tokens.chain(letters().map(|c| format!("##{c}"))).chain(words);
    let vocab: serde_json::Map<String, Value> = tokens.enumerate().map(|(id, t)| (t, id.into())).collect();
    let added = |(id, content): (usize, &str)| {
        json!({ "id": id, "content": content, "special": true, "normalized": false, "single_word": false,
                "lstrip": false, "rstrip": false })
    };
    let token = |id: &str, of: u32| json!({ "SpecialToken": { "id": id, "type_id": of } });
    let text = |id: &str, of: u32| json!({ "Sequence": { "id": id, "type_id": of } });
    json!({
        "version": "1.0",
        "added_tokens": special.into_iter().enumerate().map(added).collect::<Vec<_>>(),
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                        "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": {
                "[CLS]": { "id": "[CLS]", "ids": [2], "tokens": ["[CLS]"] },
                "[SEP]": { "id": "[SEP]", "ids": [3], "tokens": ["[SEP]"] },
            },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": vocab },
    })
}
