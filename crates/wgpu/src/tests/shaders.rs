//! Every shader file in every form that the backend uses, without a GPU: ops are run on wgpu's noop device, which
//! computes nothing, and each kernel that they launch is translated to MSL and SPIR-V.

use std::collections::BTreeSet;

use tallow_core::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, EltwiseOp, Embed, Epilogue, Ffn, GatedDelta,
    IndexMode, IndexRows, KvWrite, LinearMany, Matmul, Normalize, PermuteCols, QkvPrep, Rope, Route, TopK,
};
use tallow_core::{
    Activation, AttnSpec, Backend, DType, Decay, DeltaHeads, Format, Groups, Heads, HostWeight, LayerKv,
    LinearWeights, Memory, Norm, NormKind, QkNorm, RopePairs, RopeTable, Routing, Scores, Sharing, Span,
    StateRows, Step, StepPlan, Tensor, Weight,
};

use super::translate;
use crate::gpu::Found;
use crate::shaders::FILES;
use crate::{SpeedProbe, Wgpu};

/// Names of files.
type Files = BTreeSet<&'static str>;

#[test]
fn every_file_compiles_in_every_form() {
    let kinds: [fn() -> Files; 6] =
        [formats, linear_layers, attention, kv_cache, recurrent_layers, rows_and_elements];
    let used: Files = std::thread::scope(|scope| {
        kinds.map(|kind| scope.spawn(kind)).into_iter().flat_map(|kind| kind.join().unwrap()).collect()
    });
    assert_eq!(used, FILES.iter().map(|file| file.name).collect());
}

/// Translates the kernels that a device has compiled; returns the files that they are put together from.
fn files(b: &Wgpu) -> Files {
    translate(b);
    let mut files = Files::new();
    b.gpu.each_program(|_, _, program| files.extend(program.lines.iter().map(|(file, _)| file)));
    files
}

fn noop() -> Wgpu {
    Wgpu::open(&Found::noop()).unwrap()
}

fn zeros(b: &Wgpu, rows: usize, cols: usize) -> Tensor<Wgpu> {
    b.alloc(DType::F32, rows, cols).unwrap()
}

fn ids(b: &Wgpu, n: usize) -> Tensor<Wgpu> {
    b.alloc(DType::U32, 1, n).unwrap()
}

fn norm(b: &Wgpu, kind: NormKind, bias: bool, cols: usize) -> Norm<Wgpu> {
    Norm { kind, weight: zeros(b, 1, cols), bias: bias.then(|| zeros(b, 1, cols)), eps: 1e-5 }
}

/// A linear layer with weights of a format.
fn linear(b: &Wgpu, format: Format, rows: usize, cols: usize, bias: bool) -> LinearWeights<Wgpu> {
    let bytes = vec![0; format.row_bytes(cols).unwrap() * rows];
    let weight = HostWeight::new(format, rows, cols, &bytes);
    LinearWeights::new(b.prepare(weight).unwrap(), bias.then(|| zeros(b, 1, rows)))
}

/// Rows of `x` that make each kernel of a linear layer: GEMV of 1 to 8 rows, GEMM of 16 to 64.
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

fn gated(b: &Wgpu, x: &Tensor<Wgpu>, up: &[LinearWeights<Wgpu>], act: Activation) {
    let down = linear(b, Format::F16, 32, 256, false);
    let epilogue = Epilogue::NONE;
    b.run(Ffn { x, norm: None, up, act, down: &down, epilogue, adapters: &[] }).unwrap();
}

fn formats() -> Files {
    let b = noop();
    for format in Format::ALL {
        let by = [false, true].map(|bias| linear(&b, format, 256, 256, bias));
        for x in [1, 16].map(|rows| zeros(&b, rows, 256)) {
            b.run(LinearMany { x: &x, norm: None, weights: &by }).unwrap();
        }
        gated(&b, &zeros(&b, 1, 256), &by, Activation::Silu);
        let table = by[0].weight.in_order().unwrap();
        b.run(Embed { table, ids: &ids(&b, 3), scale: 2.0 }).unwrap();
        b.run(Dequant { w: table, rows: 0..3 }).unwrap();
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let weight = b.alloc(dtype, 64, 40).unwrap();
        for x in [1, 16].map(|rows| zeros(&b, rows, 40)) {
            b.run(Matmul { x: &x, weight: &weight, bias: None, epilogue: Epilogue::NONE }).unwrap();
        }
        let table = Weight::Dense(weight);
        b.run(Embed { table: &table, ids: &ids(&b, 3), scale: 1.0 }).unwrap();
        b.run(Dequant { w: &table, rows: 0..3 }).unwrap();
    }
    files(&b)
}

fn linear_layers() -> Files {
    let b = noop();
    for rows in ROWS {
        for cols in [64, 40] {
            let x = zeros(&b, rows, cols);
            let residual = zeros(&b, rows, 256);
            for bias in [false, true] {
                let by = [Format::F32, Format::BF16, Format::F16].map(|f| linear(&b, f, 256, cols, bias));
                for n in 1..=by.len() {
                    b.run(LinearMany { x: &x, norm: None, weights: &by[..n] }).unwrap();
                }
                let epilogue = Epilogue { scale: 0.5, softcap: Some(3.0), residual: Some(&residual) };
                b.run(tallow_core::ops::Linear { x: &x, weights: &by[0], epilogue }).unwrap();
                for act in Activation::ALL {
                    gated(&b, &x, &by[..2], act);
                }
            }
        }
    }
    files(&b)
}

/// A step of two sequences.
fn plan(b: &Wgpu, tokens: [usize; 2], start: usize) -> StepPlan<Wgpu> {
    let span = |rows| Span { rows, start, pages: (0..(start as u32 + rows as u32).div_ceil(16)).collect() };
    let spans = tokens.map(span).to_vec();
    let states = vec![StateRows { from: 0, to: 1 }, StateRows { from: 2, to: 3 }];
    let tokens = vec![0; tokens.iter().sum()];
    StepPlan::new(b, Step { tokens, spans, states, outputs: Vec::new(), page_len: 16 }).unwrap()
}

const KV_TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8];

/// Devices whose bindings hold the caches of these tests in one block and in four.
fn caches(dtype: DType, heads: Heads) -> [(Wgpu, Tensor<Wgpu>, Tensor<Wgpu>); 2] {
    let cols = 16 * heads.cache_cols(dtype);
    let page_bytes = cols * dtype.size();
    let cut = Wgpu::within(&Found::noop(), (20 * page_bytes) as u64).unwrap();
    [noop(), cut].map(|b| {
        let (k, v) = (b.alloc(dtype, 80, cols).unwrap(), b.alloc(dtype, 80, cols).unwrap());
        (b, k, v)
    })
}

fn attention() -> Files {
    let mut used = Files::new();
    for dtype in KV_TYPES {
        for (q, dim) in [(4, 16), (2, 192), (12, 256)] {
            let heads = Heads { q, kv: 2, dim };
            for (b, k, v) in caches(dtype, heads) {
                attend(&b, heads, LayerKv { k: &k, v: &v });
                used.extend(files(&b));
            }
        }
    }
    used
}

fn attend(b: &Wgpu, heads: Heads, kv: LayerKv<'_, Wgpu>) {
    for (tokens, start) in [([1, 1], 0), ([1, 1], 1000), ([2, 1], 1000), ([3, 4], 0), ([12, 1], 0)] {
        let plan = plan(b, tokens, start);
        let q = zeros(b, tokens.iter().sum(), heads.q_cols());
        for (sinks, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let spec = AttnSpec {
                scale: 0.5,
                window: None,
                chunk: None,
                softcap: None,
                sinks: sinks.then(|| zeros(b, 1, heads.q)),
                bias: bias.then(|| zeros(b, heads.q, 33)),
                causal: true,
            };
            b.run(Attend { q: &q, heads, spec: &spec, kv, plan: &plan }).unwrap();
        }
    }
}

fn kv_cache() -> Files {
    let mut used = Files::new();
    for dtype in KV_TYPES {
        let heads = Heads { q: 4, kv: 2, dim: 16 };
        for (b, k, v) in caches(dtype, heads) {
            let plan = plan(&b, [3, 4], 0);
            let kv = LayerKv { k: &k, v: &v };
            let x = zeros(&b, 7, heads.kv_cols());
            b.run(KvWrite { k: &x, v: &x, heads, kv, plan: &plan }).unwrap();
            let qkv = zeros(&b, 7, heads.qkv_cols());
            let of =
                |q, k| QkNorm { q: norm(&b, NormKind::Rms, false, q), k: norm(&b, NormKind::Rms, false, k) };
            let norms = [None, Some(of(16, 16)), Some(of(heads.q_cols(), heads.kv_cols()))];
            let ropes = [(16, RopePairs::Halves), (16, RopePairs::Interleaved), (8, RopePairs::Halves)];
            let tables = ropes.map(|(n, pairs)| RopeTable { table: zeros(&b, 64, n), pairs });
            for qk_norm in &norms {
                for rope in tables.iter().map(Some).chain([None]) {
                    let qk_norm = qk_norm.as_ref();
                    b.run(QkvPrep { qkv: &qkv, heads, qk_norm, rope, kv, plan: &plan }).unwrap();
                }
            }
            for rope in &tables {
                b.run(Rope { x: &qkv, head_dim: 16, rope, positions: &plan.positions }).unwrap();
            }
            used.extend(files(&b));
        }
    }
    used
}

fn recurrent_layers() -> Files {
    let b = noop();
    let plan = plan(&b, [3, 4], 0);
    let (x, weight, window) = (zeros(&b, 7, 64), zeros(&b, 4, 64), zeros(&b, 4, 3 * 64));
    b.run(CausalConv { x: &x, weight: &weight, window: &window, plan: &plan }).unwrap();
    for sharing in [Sharing::Grouped, Sharing::RoundRobin] {
        for (key_dim, value_dim) in [(32, 32), (64, 100), (256, 32)] {
            let heads = DeltaHeads { keys: 2, values: 4, key_dim, value_dim, sharing };
            let (qk, v) = (zeros(&b, 7, 2 * heads.key_cols()), zeros(&b, 7, heads.value_cols()));
            let (gates, states) = (zeros(&b, 7, 8), zeros(&b, 4, heads.state_len()));
            let decay = Decay { rate: zeros(&b, 1, 4), bias: zeros(&b, 1, 4) };
            let op = GatedDelta {
                qk: &qk,
                v: &v,
                gates: &gates,
                heads,
                decay: &decay,
                states: &states,
                plan: &plan,
            };
            b.run(op).unwrap();
        }
    }
    files(&b)
}

fn rows_and_elements() -> Files {
    let b = noop();
    let (x, y, at) = (zeros(&b, 5, 64), zeros(&b, 5, 64), ids(&b, 5));
    for bias in [false, true] {
        for residual in [None, Some(&y)] {
            let norm = norm(&b, NormKind::Layer, bias, 64);
            b.run(Normalize { x: &x, norm: &norm, residual }).unwrap();
        }
    }
    for act in Activation::ALL {
        for up in [None, Some(&y)] {
            b.run(Activate { gate: &x, up, act }).unwrap();
        }
    }
    let pairs = [EltwiseOp::Add(&y), EltwiseOp::AddScaled(&y, 0.5), EltwiseOp::Mul(&y), EltwiseOp::Gate(&y)];
    for op in pairs.into_iter().chain([EltwiseOp::Scale(2.0), EltwiseOp::SoftCap(3.0)]) {
        b.run(Eltwise { x: &x, op }).unwrap();
    }
    for mode in [IndexMode::Gather, IndexMode::ScatterAdd(&y)] {
        b.run(IndexRows { x: &x, indices: &at, mode }).unwrap();
    }
    b.run(PermuteCols { x: &x, indices: &at }).unwrap();
    for dtype in [DType::F32, DType::F16, DType::U8] {
        let [from, to] = [(); 2].map(|()| b.alloc(dtype, 5, 64).unwrap());
        b.run(Copy { from: &from, to: &to }).unwrap();
    }
    b.run(TopK { x: &x, k: 3 }).unwrap();
    for bias in [None, Some(zeros(&b, 1, 64))] {
        let groups = Some(Groups { n_group: 4, topk_group: 2, best: 2 });
        let routing =
            Routing { top_k: 4, scores: Scores::Sigmoid, bias, groups, norm_weights: true, scale: 1.0 };
        b.run(Route { logits: &x, routing: &routing }).unwrap();
    }
    let probe = SpeedProbe::new(&b, 1 << 10).unwrap();
    probe.read_speed(&b).unwrap();
    probe.multiply_speed(&b).unwrap();
    files(&b)
}
