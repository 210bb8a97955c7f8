//! A small encoder with a tokenizer: a golden's weights, and words made here.

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

/// A folder with a small model that sees texts and images, with words as above. It takes 16 tokens or 16 x 16 pixels.
pub fn image_encoder(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("clip").join(name), folder.join(name)).unwrap();
    }
    let mut tokenizer = tokenizer();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    for id in vocab.len()..97 {
        vocab.insert(format!("[{id}]"), id.into());
    }
    vocab.insert("[START]".into(), 97.into());
    vocab.insert("[END]".into(), 98.into());
    let around = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let special = |name: &str, id: u32| json!({ "id": name, "ids": [id], "tokens": [name] });
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [around("[START]"), { "Sequence": { "id": "A", "type_id": 0 } }, around("[END]")],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "[START]": special("[START]", 97), "[END]": special("[END]", 98) },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
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

/// A safetensors file with those tensors alone that are to be kept.
pub fn only_tensors(file: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    let at = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..at]).unwrap();
    let (mut kept, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, mut facts) in header.into_iter().filter(|(name, _)| name != "__metadata__" && keep(name)) {
        let of = |i: usize| at + facts["data_offsets"][i].as_u64().unwrap() as usize;
        let (bytes, start) = (&file[of(0)..of(1)], data.len());
        data.extend(bytes);
        facts["data_offsets"] = json!([start, data.len()]);
        kept.insert(name, facts);
    }
    let header = serde_json::to_vec(&kept).unwrap();
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
