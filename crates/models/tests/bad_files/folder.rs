//! A Hugging Face folder as parts, each of which a test may corrupt.

use serde_json::{Map, Value, json};

use crate::Dir;

/// Hidden size of the model.
pub(crate) const DIM: usize = 32;

/// `config.json` of a one-layer model with a vocabulary of eight tokens.
pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 8,
        "hidden_size": DIM,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": DIM,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true,
    })
}

/// `tokenizer.json` of that vocabulary.
pub(crate) fn tokenizer() -> Value {
    json!({
        "version": "1.0",
        "added_tokens": [{"id": 5, "content": "<end>", "special": true}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "?": 4}, "merges": ["a b"]},
    })
}

/// Its tensors: the safetensors header entries, and the number of data bytes.
pub(crate) fn header() -> (Map<String, Value>, usize) {
    let mut shapes = vec![("embed_tokens".to_owned(), vec![8, DIM]), ("norm".into(), vec![DIM])];
    let norms = ["input_layernorm", "post_attention_layernorm"];
    shapes.extend(norms.map(|n| (format!("layers.0.{n}"), vec![DIM])));
    let attention = ["q", "k", "v", "o"].map(|n| format!("self_attn.{n}_proj"));
    let mlp = ["gate", "up", "down"].map(|n| format!("mlp.{n}_proj"));
    shapes.extend(attention.into_iter().chain(mlp).map(|n| (format!("layers.0.{n}"), vec![DIM, DIM])));
    let mut at = 0;
    let entries = shapes.into_iter().map(|(name, shape)| {
        let from = at;
        at += 4 * shape.iter().product::<usize>();
        (format!("model.{name}.weight"), json!({"dtype": "F32", "shape": shape, "data_offsets": [from, at]}))
    });
    let entries = entries.collect();
    (entries, at)
}

/// safetensors file with this header and `data` bytes of elements.
pub(crate) fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend((0..data / 4).flat_map(|i| ((i % 7) as f32 / 7.0 - 0.4).to_le_bytes()));
    out.resize(8 + header.len() + data, 0);
    out
}

/// The valid file of the model.
pub(crate) fn good() -> Vec<u8> {
    let (header, data) = header();
    file(Value::Object(header).to_string().as_bytes(), data)
}

impl Dir {
    /// Writes config, tokenizer and weights of a model that loads.
    pub(crate) fn write_folder(&self) {
        self.write("config.json", config().to_string().as_bytes());
        self.write("tokenizer.json", tokenizer().to_string().as_bytes());
        self.write("model.safetensors", &good());
    }
}
