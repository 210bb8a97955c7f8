//! What loading a model takes at most.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![cfg(target_os = "linux")]

mod common;

use std::io::Write;

use common::Home;

/// Writes a model of 8-bit blocks, of the demo's kind but far larger, and gives the bytes of its file.
fn write_model(path: &str) -> u64 {
    const DIM: u64 = 1024;
    const FFN: u64 = 4096;
    const LAYERS: u64 = 12;
    const VOCAB: u64 = 4096;
    let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let uint =
        |key: &str, n: u64| [text(key), 4_u32.to_le_bytes().into(), (n as u32).to_le_bytes().into()].concat();
    let string = |key: &str, s: &str| [text(key), 8_u32.to_le_bytes().into(), text(s)].concat();
    let words: Vec<Vec<u8>> = (0..VOCAB).map(|i| text(&format!("w{i}"))).collect();
    let list = |kind: u32, items: Vec<u8>| {
        [&9_u32.to_le_bytes()[..], &kind.to_le_bytes(), &VOCAB.to_le_bytes(), &items].concat()
    };
    let keys = [
        string("general.architecture", "llama"),
        uint("llama.context_length", 2048),
        uint("llama.embedding_length", DIM),
        uint("llama.block_count", LAYERS),
        uint("llama.feed_forward_length", FFN),
        uint("llama.attention.head_count", 16),
        uint("llama.attention.head_count_kv", 8),
        [
            text("llama.attention.layer_norm_rms_epsilon"),
            6_u32.to_le_bytes().into(),
            1e-5_f32.to_le_bytes().into(),
        ]
        .concat(),
        string("tokenizer.ggml.model", "llama"),
        [text("tokenizer.ggml.tokens"), list(8, words.concat())].concat(),
        [text("tokenizer.ggml.scores"), list(6, vec![0; 4 * VOCAB as usize])].concat(),
        uint("tokenizer.ggml.bos_token_id", 1),
    ];
    let mut tensors: Vec<(String, Vec<u64>)> =
        vec![("token_embd.weight".into(), vec![DIM, VOCAB]), ("output_norm.weight".into(), vec![DIM])];
    for i in 0..LAYERS {
        let shapes: [(&str, &[u64]); 9] = [
            ("attn_norm", &[DIM]),
            ("attn_q", &[DIM, DIM]),
            ("attn_k", &[DIM, DIM / 2]),
            ("attn_v", &[DIM, DIM / 2]),
            ("attn_output", &[DIM, DIM]),
            ("ffn_norm", &[DIM]),
            ("ffn_gate", &[DIM, FFN]),
            ("ffn_up", &[DIM, FFN]),
            ("ffn_down", &[FFN, DIM]),
        ];
        tensors.extend(shapes.map(|(name, shape)| (format!("blk.{i}.{name}.weight"), shape.to_vec())));
    }
    let bytes = |shape: &[u64]| match shape {
        [n] => 4 * n,
        _ => shape.iter().product::<u64>() / 32 * 34,
    };
    let mut head = [&b"GGUF"[..], &3_u32.to_le_bytes()].concat();
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((keys.len() as u64).to_le_bytes());
    head.extend(keys.concat());
    let mut at = 0_u64;
    for (name, shape) in &tensors {
        head.extend(text(name));
        head.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| head.extend(n.to_le_bytes()));
        head.extend(if shape.len() == 1 { 0_u32 } else { 8 }.to_le_bytes());
        head.extend(at.to_le_bytes());
        at += bytes(shape).next_multiple_of(32);
    }
    head.resize(head.len().next_multiple_of(32), 0);
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&head).unwrap();
    let mut seed = 1_u32;
    for (_, shape) in &tensors {
        let mut data = Vec::new();
        while (data.len() as u64) < bytes(shape) {
            if let [_] = shape.as_slice() {
                data.extend(1.0_f32.to_le_bytes());
                continue;
            }
            // A scale of 2⁻⁹ and 32 codes.
            data.extend(0x1800_u16.to_le_bytes());
            for _ in 0..32 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                data.push((seed >> 24) as u8);
            }
        }
        data.resize(data.len().next_multiple_of(32), 0);
        file.write_all(&data).unwrap();
    }
    file.flush().unwrap();
    head.len() as u64 + at
}

/// Runs a program and gives the most memory that it ever had in use, in bytes. No other program may be run here: the
/// system only tells of the largest.
fn peak(home: &Home, args: &[&str]) -> u64 {
    home.run(args).ok();
    // SAFETY: all zeroes are a value of this struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is valid for the struct.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) }, 0);
    usage.ru_maxrss as u64 * 1024
}

/// Weights are never held twice, nor as anything larger than they are in the file.
#[test]
fn loading_an_8_bit_file_takes_its_size_and_a_tenth() {
    let home = Home::new();
    let model = home.path().join("large.gguf");
    let model = model.to_str().unwrap();
    let file = write_model(model);
    // 12 layers of 8 heads, 64 wide, keys and values, two bytes each, for 2048 tokens.
    let cache = 12 * 8 * 64 * 2 * 2 * 2048;
    let peak = peak(&home, &["run", model, "--raw", "-c", "2048", "-n", "8", "w1 w2 w3"]);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "file {:.1} MiB + cache {:.1} MiB; peak {:.1} MiB, {:.3} of that",
        mib(file),
        mib(cache),
        mib(peak),
        peak as f64 / (file + cache) as f64
    );
    assert!(peak * 10 <= (file + cache) * 11, "peak {peak}, file {file}, cache {cache}");
}
