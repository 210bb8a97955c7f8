//! A model of the demo's family and of any size, written as a GGUF file.

use std::io::Write;

/// Shape and contents of the file.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) dim: u64,
    pub(crate) ffn: u64,
    pub(crate) layers: u64,
    pub(crate) vocab: u64,
    /// Training context in the metadata.
    pub(crate) context: u64,
    /// Type of the matrices.
    pub(crate) kind: Kind,
    /// Tokenizer name in the metadata.
    pub(crate) tokenizer: &'static str,
    /// Value of all norm weights.
    pub(crate) norm: f32,
}

/// GGUF tensor types.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Q8_0,
    Bf16,
}

impl Written {
    /// A small model that loads.
    pub(crate) const SMALL: Written = Written {
        dim: 64,
        ffn: 128,
        layers: 1,
        vocab: 64,
        context: 2048,
        kind: Kind::Q8_0,
        tokenizer: "llama",
        norm: 1.0,
    };

    /// Writes it, and returns the file's size in bytes.
    pub(crate) fn to(&self, path: &str) -> u64 {
        write(self, path)
    }
}

fn write(model: &Written, path: &str) -> u64 {
    let Written { dim, ffn, layers, vocab, .. } = *model;
    let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let uint =
        |key: &str, n: u64| [text(key), 4_u32.to_le_bytes().into(), (n as u32).to_le_bytes().into()].concat();
    let string = |key: &str, s: &str| [text(key), 8_u32.to_le_bytes().into(), text(s)].concat();
    let words: Vec<Vec<u8>> = (0..vocab).map(|i| text(&format!("w{i}"))).collect();
    let list = |kind: u32, items: Vec<u8>| {
        [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &vocab.to_le_bytes(), &items].concat()
    };
    let keys = [
        string("general.architecture", "llama"),
        uint("llama.context_length", model.context),
        uint("llama.embedding_length", dim),
        uint("llama.block_count", layers),
        uint("llama.feed_forward_length", ffn),
        uint("llama.attention.head_count", dim / 64),
        uint("llama.attention.head_count_kv", (dim / 128).max(1)),
        [
            text("llama.attention.layer_norm_rms_epsilon"),
            6_u32.to_le_bytes().into(),
            1e-5_f32.to_le_bytes().into(),
        ]
        .concat(),
        string("tokenizer.ggml.model", model.tokenizer),
        [text("tokenizer.ggml.tokens"), list(8, words.concat())].concat(),
        [text("tokenizer.ggml.scores"), list(6, vec![0; 4 * vocab as usize])].concat(),
        uint("tokenizer.ggml.bos_token_id", 1),
    ];
    let mut tensors: Vec<(String, Vec<u64>)> =
        vec![("token_embd.weight".into(), vec![dim, vocab]), ("output_norm.weight".into(), vec![dim])];
    for i in 0..layers {
        let shapes: [(&str, &[u64]); 9] = [
            ("attn_norm", &[dim]),
            ("attn_q", &[dim, dim]),
            ("attn_k", &[dim, 64 * (dim / 128).max(1)]),
            ("attn_v", &[dim, 64 * (dim / 128).max(1)]),
            ("attn_output", &[dim, dim]),
            ("ffn_norm", &[dim]),
            ("ffn_gate", &[dim, ffn]),
            ("ffn_up", &[dim, ffn]),
            ("ffn_down", &[ffn, dim]),
        ];
        tensors.extend(shapes.map(|(name, shape)| (format!("blk.{i}.{name}.weight"), shape.to_vec())));
    }
    let bytes = |shape: &[u64]| match shape {
        [n] => 4 * n,
        _ if model.kind == Kind::Bf16 => 2 * shape.iter().product::<u64>(),
        _ => shape.iter().product::<u64>() / 32 * 34,
    };
    let mut head = [&b"GGUF"[..], &3_u32.to_le_bytes()].concat();
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((keys.len() as u64).to_le_bytes());
    head.extend(keys.concat());
    let matrix = if model.kind == Kind::Bf16 { 30 } else { 8 };
    let mut at = 0_u64;
    for (name, shape) in &tensors {
        head.extend(text(name));
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| head.extend(n.to_le_bytes()));
        head.extend(if shape.len() == 1 { 0_u32 } else { matrix }.to_le_bytes());
        head.extend(at.to_le_bytes());
        at += bytes(shape).next_multiple_of(32);
    }
    head.resize(head.len().next_multiple_of(32), 0);
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&head).unwrap();
    let mut seed = 1_u32;
    for (_, shape) in &tensors {
        // In chunks: memory that the test holds counts as its children's, too.
        let (mut data, mut written) = (Vec::new(), 0);
        while written + (data.len() as u64) < bytes(shape) {
            if data.len() > 1 << 20 {
                file.write_all(&data).unwrap();
                written += data.len() as u64;
                data.clear();
            }
            if let [_] = shape.as_slice() {
                data.extend(model.norm.to_le_bytes());
                continue;
            }
            if model.kind == Kind::Bf16 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Either sign, magnitude about 2⁻⁴.
                data.extend((0x3D80 | (seed >> 16) as u16 & 0x807F).to_le_bytes());
                continue;
            }
            // Q8_0: a scale of 2⁻⁹ and 32 codes.
            data.extend(0x1800_u16.to_le_bytes());
            for _ in 0..32 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                data.push((seed >> 24) as u8);
            }
        }
        let end = (written as usize + data.len()).next_multiple_of(32);
        data.resize(end - written as usize, 0);
        file.write_all(&data).unwrap();
    }
    file.flush().unwrap();
    head.len() as u64 + at
}
