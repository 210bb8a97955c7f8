//! NaN scales in quantized blocks, which loading does not check: the requests that read them fail, and no other request
//! is affected, not even one that gets the same KV cache pages afterwards.

use std::ops::ControlFlow;
use std::path::Path;

use tallow_core::DType;
use tallow_cpu::{Cpu, Isa};
use tallow_engine::engine::spawn;
use tallow_engine::handle::{EngineHandle, Event, Failure, Info, Request, RunningEngine};
use tallow_engine::kv_cache::KvShape;
use tallow_engine::runner::Runner;
use tallow_engine::sampler::Sampling;
use tallow_engine::scheduler::{DecodeBudget, Limits};
use tallow_models::Model;
use tallow_models::decoder::Decoder;
use tallow_support::golden;

/// Token whose embedding row is damaged.
const DAMAGED: u32 = 77;
const PAGES: usize = 24;
const SLOTS: usize = 3;

const VOCAB: usize = 200;
const DIM: usize = 32;

/// GGUF file of a one-layer model with a quantized token embedding that is not tied to the output head.
fn file(damaged: bool) -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }
    let number = |i: usize| ((i * 7919 + i / 13) % 97) as f32 / 97.0 - 0.5;
    let plain = |count: usize, from: usize| -> Vec<u8> {
        (from..from + count).flat_map(|i| number(i).to_le_bytes()).collect()
    };
    let block = |row: usize| -> Vec<u8> {
        // Q8_0 block: an f16 scale of about 0.01, or NaN, then the int8 codes of the row.
        let scale: u16 = if damaged && row == DAMAGED as usize { 0x7E00 } else { 0x211F };
        let numbers = (0..DIM).map(|i| (number(row * DIM + i) * 127.0) as i8 as u8);
        scale.to_le_bytes().into_iter().chain(numbers).collect()
    };
    let mut tensors =
        vec![("token_embd".to_owned(), vec![DIM, VOCAB], 8u32, (0..VOCAB).flat_map(block).collect())];
    tensors.push(("output".into(), vec![DIM, VOCAB], 0, plain(DIM * VOCAB, 5)));
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensors.push((name.into(), vec![DIM], 0, [1.0f32.to_le_bytes(); DIM].concat()));
    }
    let squares = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    for (i, name) in squares.into_iter().enumerate() {
        tensors.push((format!("blk.0.{name}"), vec![DIM, DIM], 0, plain(DIM * DIM, 1000 * i)));
    }
    let numbers = [
        ("block_count", 1u32),
        ("embedding_length", DIM as u32),
        ("feed_forward_length", DIM as u32),
        ("attention.head_count", 2),
        ("context_length", 64),
    ];
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((numbers.len() as u64 + 1).to_le_bytes());
    out.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat());
    for (key, n) in numbers {
        out.extend(text(&format!("llama.{key}")));
        out.extend([4, n].map(u32::to_le_bytes).concat());
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, dims, kind, bytes) in &tensors {
        data.resize(data.len().next_multiple_of(32), 0);
        out.extend(text(&format!("{name}.weight")));
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|d| (*d as u64).to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    [out, data].concat()
}

fn start(path: &Path) -> RunningEngine {
    let model = Model::open(path).unwrap();
    let info = Info {
        names: vec!["test".into()],
        tokenizer: Model::open(&golden("gguf-models/llama-bf16.gguf")).unwrap().tokenizer().unwrap(),
        vocab: model.spec.vocab,
        context: 64,
        slots: SLOTS,
        queue: 20,
        queue_timeout: None,
        page_len: 4,
        pages: PAGES,
        swa_pages: 0,
        state_rows: 0,
        sampling: Sampling::default(),
        adapter_room: 0,
    };
    let limits = Limits {
        context: 64,
        slots: SLOTS,
        budget: 16,
        decode_budget: DecodeBudget::of_tokens(16),
        all_logits: 8,
        drafts: None,
    };
    let runner = move || {
        let b = Cpu::new(Isa::best(), 2).map_err(|e| std::io::Error::other(e.to_string()))?;
        let decoder = Decoder::load(&b, &model, 64, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let shape = KvShape { dtype: DType::F32, page_len: 4, pages: PAGES, swa_pages: 0, state_rows: 0 };
        let runner = Runner::new(b, decoder, shape).map_err(|e| std::io::Error::other(e.to_string()))?;
        Ok::<_, std::io::Error>((runner, limits))
    };
    spawn(|| Ok(info), runner).unwrap()
}

fn ask(prompt: Vec<u32>) -> Request {
    Request { prompt, max_new: 12, sampling: Sampling::greedy(), ignore_end: true, ..Request::default() }
}

fn healthy() -> Vec<Vec<u32>> {
    (0..6).map(|i| (0..10).map(|t| 100 + 11 * i + t).collect()).collect()
}

/// The tokens of an answer, or the failure.
fn answer(mut events: impl FnMut() -> Option<Event>) -> Result<Vec<u32>, Failure> {
    let mut tokens = Vec::new();
    loop {
        match events() {
            Some(Event::Piece { choice, .. }) => tokens.push(choice.token),
            Some(Event::Done(_)) => return Ok(tokens),
            Some(Event::Failed(why)) => return Err(why),
            Some(_) => {}
            None => panic!("an answer has an end"),
        }
    }
}

#[test]
fn c3_14_a_damaged_row_is_its_askers_trouble_alone() {
    let folder = std::env::temp_dir().join(format!("tallow-bad-weights-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = |name: &str, damaged: bool| {
        let path = folder.join(name);
        std::fs::write(&path, file(damaged)).unwrap();
        start(&path)
    };
    let (good, bad) = (engine("good.gguf", false), engine("bad.gguf", true));
    let want: Vec<_> = healthy().into_iter().map(|p| tokens_of(&good, p).unwrap()).collect();
    assert!(want.windows(2).any(|pair| pair[0] != pair[1]), "answers differ: {want:?}");
    // Each bad request runs together with a healthy one, with so few pages that pages are reused between them.
    let mut receivers = Vec::new();
    for prompt in healthy() {
        let mut ill = prompt.clone();
        ill[4] = DAMAGED;
        receivers.push((false, bad.submit(ask(ill)).unwrap()));
        receivers.push((true, bad.submit(ask(prompt)).unwrap()));
    }
    let mut told = Vec::new();
    for (fine, mut receiver) in receivers {
        match (fine, answer(|| receiver.blocking_recv())) {
            (true, Ok(tokens)) => told.push(tokens),
            (false, Err(Failure::Broken(why))) => assert!(why.contains("not finite numbers"), "{why}"),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!(told, want);
    // Once more, in the pages that the bad requests have freed.
    for (prompt, want) in healthy().into_iter().zip(&want) {
        assert_eq!(&tokens_of(&bad, prompt).unwrap(), want);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

fn tokens_of(handle: &EngineHandle, prompt: Vec<u32>) -> Result<Vec<u32>, Failure> {
    let mut receiver = handle.submit(ask(prompt)).unwrap();
    answer(|| receiver.blocking_recv())
}
