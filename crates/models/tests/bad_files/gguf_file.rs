//! A GGUF file as parts, each of which a test may corrupt.

/// The parts a file is written from. Counts and offsets follow from the parts unless a test sets them.
#[derive(Clone)]
pub(crate) struct GgufFile {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) pair_count: Option<u64>,
    pub(crate) pairs: Vec<(String, Vec<u8>)>,
    pub(crate) tensors: Vec<TensorEntry>,
    pub(crate) align: usize,
}

#[derive(Clone)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    /// Fastest-varying dimension first, as in the file.
    pub(crate) dims: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) offset: Option<u64>,
    pub(crate) data: Vec<u8>,
}

pub(crate) const F32: u32 = 0;
pub(crate) const Q8_0: u32 = 8;
pub(crate) const DIM: u64 = 32;

pub(crate) fn text_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A metadata value: its type, then its bytes.
pub(crate) fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

pub(crate) fn text(text: &str) -> Vec<u8> {
    value(8, &text_bytes(text))
}

pub(crate) fn uint(n: u32) -> Vec<u8> {
    value(4, &n.to_le_bytes())
}

pub(crate) fn float(x: f32) -> Vec<u8> {
    value(6, &x.to_le_bytes())
}

pub(crate) fn array(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    value(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat())
}

pub(crate) fn texts(list: &[&str]) -> Vec<u8> {
    array(8, list.len() as u64, &list.iter().flat_map(|t| text_bytes(t)).collect::<Vec<u8>>())
}

pub(crate) fn tensor(name: &str, dims: &[u64]) -> TensorEntry {
    let count: u64 = dims.iter().product();
    let data = (0..count).flat_map(|i| ((i % 7) as f32 / 7.0 - 0.4).to_le_bytes()).collect();
    TensorEntry { name: name.into(), dims: dims.into(), kind: F32, offset: None, data }
}

impl GgufFile {
    /// One-layer model with a vocabulary of eight tokens, which loads.
    pub(crate) fn good() -> GgufFile {
        let pairs = [
            ("general.architecture", text("llama")),
            ("llama.block_count", uint(1)),
            ("llama.embedding_length", uint(DIM as u32)),
            ("llama.feed_forward_length", uint(DIM as u32)),
            ("llama.attention.head_count", uint(2)),
            ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
            ("llama.context_length", uint(16)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("gpt-2")),
            ("tokenizer.ggml.tokens", texts(&["a", "b", "c", "ab", "abc", "d", "e", "<end>"])),
            ("tokenizer.ggml.merges", texts(&["a b", "ab c"])),
            ("tokenizer.ggml.eos_token_id", uint(7)),
        ];
        let square = [DIM, DIM];
        let layer = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        let mut tensors = vec![tensor("token_embd.weight", &[DIM, 8]), tensor("output_norm.weight", &[DIM])];
        tensors.extend(["attn_norm", "ffn_norm"].map(|n| tensor(&format!("blk.0.{n}.weight"), &[DIM])));
        tensors.extend(layer.map(|n| tensor(&format!("blk.0.{n}.weight"), &square)));
        GgufFile {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            pair_count: None,
            pairs: pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            tensors,
            align: 32,
        }
    }

    /// The same with another value under `key`.
    pub(crate) fn with(mut self, key: &str, value: Vec<u8>) -> GgufFile {
        self.pairs.retain(|(k, _)| k != key);
        self.pairs.push((key.into(), value));
        self
    }

    /// The same with the tensor at `index` changed.
    pub(crate) fn changed(mut self, index: usize, change: impl FnOnce(&mut TensorEntry)) -> GgufFile {
        change(&mut self.tensors[index]);
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            out.extend(text_bytes(key));
            out.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for t in &self.tensors {
            data.resize(data.len().next_multiple_of(self.align), 0);
            out.extend(text_bytes(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            out.extend(t.dims.iter().flat_map(|d| d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(t.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&t.data);
        }
        out.resize(out.len().next_multiple_of(self.align), 0);
        out.extend(data);
        out
    }
}
