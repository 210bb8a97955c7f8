//! Encoders in GGUF files, made here from the goldens' tensors under the names that llama.cpp's converter uses.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::{Value, json};
use tallow_core::{Arithmetic, Memory};
use tallow_cpu::{Cpu, Isa};
use tallow_models::Model;
use tallow_models::encoder::{Encoder, EncoderModel, Input, Inputs, Truncation};
use tallow_models::spec::encoder::Pooling;
use tallow_support::{Golden, golden, json, tensors};

/// Hugging Face tensor names and their GGUF names.
const BERT: [(&str, &str); 13] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("embeddings.LayerNorm", "token_embd_norm"),
    ("encoder.layer.{}.attention.self.query", "blk.{}.attn_q"),
    ("encoder.layer.{}.attention.self.key", "blk.{}.attn_k"),
    ("encoder.layer.{}.attention.self.value", "blk.{}.attn_v"),
    ("encoder.layer.{}.attention.output.dense", "blk.{}.attn_output"),
    ("encoder.layer.{}.attention.output.LayerNorm", "blk.{}.attn_output_norm"),
    ("encoder.layer.{}.intermediate.dense", "blk.{}.ffn_up"),
    ("encoder.layer.{}.output.dense", "blk.{}.ffn_down"),
    ("encoder.layer.{}.output.LayerNorm", "blk.{}.layer_output_norm"),
    ("pooler.dense", ""),
];
const NOMIC: [(&str, &str); 10] = [
    ("embeddings.word_embeddings", "token_embd"),
    ("embeddings.token_type_embeddings", "token_types"),
    ("emb_ln", "token_embd_norm"),
    ("encoder.layers.{}.attn.Wqkv", "blk.{}.attn_qkv"),
    ("encoder.layers.{}.attn.out_proj", "blk.{}.attn_output"),
    ("encoder.layers.{}.norm1", "blk.{}.attn_output_norm"),
    ("encoder.layers.{}.mlp.fc11", "blk.{}.ffn_up"),
    ("encoder.layers.{}.mlp.fc12", "blk.{}.ffn_gate"),
    ("encoder.layers.{}.mlp.fc2", "blk.{}.ffn_down"),
    ("encoder.layers.{}.norm2", "blk.{}.layer_output_norm"),
];

/// Settings of the goldens as GGUF metadata.
fn bert() -> Value {
    json!({
        "general.architecture": "bert",
        "bert.block_count": 2, "bert.context_length": 40, "bert.embedding_length": 48,
        "bert.feed_forward_length": 96, "bert.attention.head_count": 4,
        "bert.attention.layer_norm_epsilon": 1e-12, "bert.attention.causal": false, "bert.pooling_type": 2,
    })
}

fn nomic() -> Value {
    json!({
        "general.architecture": "nomic-bert",
        "nomic-bert.block_count": 3, "nomic-bert.context_length": 48, "nomic-bert.embedding_length": 32,
        "nomic-bert.feed_forward_length": 48, "nomic-bert.attention.head_count": 4,
        "nomic-bert.attention.layer_norm_epsilon": 1e-12, "nomic-bert.attention.causal": false,
        "nomic-bert.pooling_type": 1, "nomic-bert.rope.freq_base": 1000.0,
    })
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}

fn value(out: &mut Vec<u8>, of: &Value) {
    match of {
        Value::String(of) => {
            out.extend(8u32.to_le_bytes());
            text(out, of);
        }
        Value::Bool(of) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*of));
        }
        Value::Number(of) if of.is_f64() => {
            out.extend(6u32.to_le_bytes());
            out.extend((of.as_f64().unwrap() as f32).to_le_bytes());
        }
        Value::Number(of) => out.extend([4, of.as_u64().unwrap() as u32].map(u32::to_le_bytes).concat()),
        Value::Array(all) => {
            let texts = all.first().is_none_or(Value::is_string);
            out.extend([9, if texts { 8u32 } else { 5 }].map(u32::to_le_bytes).concat());
            out.extend((all.len() as u64).to_le_bytes());
            for one in all {
                match one.as_str() {
                    Some(one) => text(out, one),
                    None => out.extend((one.as_u64().unwrap() as u32).to_le_bytes()),
                }
            }
        }
        other => panic!("{other}"),
    }
}

/// GGUF file with that metadata and a golden's tensors in f32.
fn gguf(name: &str, names: &[(&str, &str)], meta: &Value) -> Vec<u8> {
    let named = |tensor: &str| {
        let (stem, end) = tensor.rsplit_once('.').unwrap();
        let layer = stem.split('.').find(|part| part.parse::<usize>().is_ok());
        let found = names.iter().find(|(from, _)| from.replace("{}", layer.unwrap_or("")) == stem);
        let (_, to) = found.unwrap_or_else(|| panic!("{tensor}"));
        (!to.is_empty()).then(|| format!("{}.{end}", to.replace("{}", layer.unwrap_or(""))))
    };
    let all = tensors(&golden(name).join("model.safetensors"));
    let of = |(tensor, t): (&String, &Golden)| Some((named(tensor)?, t.shape.clone(), t.f32()));
    gguf_of(&all.iter().filter_map(of).collect::<Vec<_>>(), meta)
}

/// GGUF file with that metadata and those tensors: names, shapes and numbers.
pub(crate) fn gguf_of(all: &[(String, Vec<usize>, Vec<f32>)], meta: &Value) -> Vec<u8> {
    let meta = meta.as_object().unwrap();
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((all.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, of) in meta {
        text(&mut out, key);
        value(&mut out, of);
    }
    let mut data = Vec::new();
    for (name, shape, numbers) in all {
        text(&mut out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

/// Writes a file, calls `with` on it, and removes it.
pub(crate) fn with_file<T>(tag: &str, bytes: &[u8], with: impl FnOnce(&PathBuf) -> T) -> T {
    let file = std::env::temp_dir().join(format!("tallow-encoder-{}-{tag}.gguf", std::process::id()));
    std::fs::write(&file, bytes).unwrap();
    let given = with(&file);
    std::fs::remove_file(file).unwrap();
    given
}

/// Largest deviation of a file's hidden states from the reference.
fn distance(name: &str, model: &EncoderModel) -> f32 {
    let tensors = tensors(&golden(name).join("golden.safetensors"));
    let (want, ids, mask) =
        (&tensors["last_hidden_state"], &tensors["input_ids"], &tensors["attention_mask"]);
    let (columns, dim) = (want.shape[1], want.shape[2]);
    let types = tensors.get("token_type_ids").map_or(vec![0; ids.ids().len()], |t| t.ids());
    let b = Cpu::new(Isa::best(), 2).unwrap().with(Arithmetic::Exact);
    let encoder = Encoder::load(&b, model, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let mut most = 0.0f32;
    for row in 0..want.shape[0] {
        let count = mask.ids()[row * columns..(row + 1) * columns].iter().sum::<u32>() as usize;
        let some = row * columns..row * columns + count;
        let input = Input { tokens: ids.ids()[some.clone()].to_vec(), types: types[some].to_vec() };
        let texts = encoder.upload(&b, &[input]).unwrap();
        let got: Vec<f32> = b.download(&encoder.forward(&b, &texts, |_, _| Ok(())).unwrap()).unwrap();
        let want = &want.f32()[row * columns * dim..][..count * dim];
        most = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(most, f32::max);
    }
    most
}

fn tolerance(name: &str) -> f32 {
    json(&golden(name).join("golden.json"))["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32
}

#[test]
fn they_say_what_folders_say() {
    let cases = [
        ("bert", &BERT[..], bert(), Pooling::First),
        ("encoders/nomic-bert", &NOMIC[..], nomic(), Pooling::Mean),
    ];
    for (name, names, meta, pooling) in cases {
        let far = with_file(&name.replace('/', "-"), &gguf(name, names, &meta), |file| {
            let model = EncoderModel::open(file).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(model.sentence.pooling, pooling);
            assert!(model.embeds().is_ok() && Model::open(file).is_err());
            distance(name, &model)
        });
        println!("{name}: {far:.2e}");
        assert!(far <= tolerance(name), "{name}: off by {far}");
    }
    // One changed setting moves the result, which shows that this test can fail.
    let mut other = nomic();
    other["nomic-bert.rope.freq_base"] = json!(10.0);
    let name = "encoders/nomic-bert";
    let far = with_file("mutant", &gguf(name, &NOMIC, &other), |file| {
        distance(name, &EncoderModel::open(file).unwrap())
    });
    assert!(far > 5.0 * tolerance(name), "moved by {far} only");
}

/// WordPiece vocabulary in GGUF: tokens that begin a word carry the marker, those within a word do not.
#[test]
fn their_vocabularies_cut_texts() {
    let mut meta = bert();
    let mut tokens: Vec<String> =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁cat", "s", "▁the"].map(String::from).into();
    tokens.extend((tokens.len()..96).map(|i| format!("[unused{i}]")));
    let kinds: Vec<u32> = (0..96).map(|i| if i < 4 { 3 } else { 1 }).collect();
    let more = json!({
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.padding_token_id": 0,
    });
    meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    with_file("words", &gguf("bert", &BERT, &meta), |file| {
        let inputs = Inputs::new(&EncoderModel::open(file).unwrap()).unwrap();
        assert_eq!(inputs.text("The cats", Truncation::No).unwrap().tokens, [2, 6, 4, 5, 3]);
    });
}

#[test]
fn what_is_not_certain_is_refused() {
    let with = |names: &[(&str, &str)], name: &str, mut meta: Value, key: &str, of: Value| {
        match of {
            Value::Null => drop(meta.as_object_mut().unwrap().shift_remove(key)),
            of => meta[key] = of,
        }
        with_file("refused", &gguf(name, names, &meta), |file| {
            let why = EncoderModel::open(file).and_then(|m| {
                Encoder::load(&Cpu::new(Isa::Scalar, 1).unwrap(), &m, &mut |_, _| ControlFlow::Continue(()))
            });
            why.unwrap_err().to_string().replace(&file.display().to_string(), "FILE")
        })
    };
    let said = [
        with(&BERT, "bert", bert(), "bert.pooling_type", json!(0)),
        with(&BERT, "bert", bert(), "bert.pooling_type", json!(4)),
        with(&BERT, "bert", bert(), "bert.attention.causal", json!(true)),
        with(&BERT, "bert", bert(), "bert.block_count", json!(1)),
        with(&BERT, "bert", bert(), "general.architecture", json!("jina-bert-v2")),
        with(&NOMIC, "encoders/nomic-bert", nomic(), "nomic-bert.rope.freq_base", Value::Null),
    ];
    insta::assert_snapshot!(said.join("\n"));
}
