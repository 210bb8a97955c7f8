//! A token's attention output is bitwise identical whether its sequence is computed in one step or token by token, on
//! one thread or in KV segments over several threads (as in flash decoding), and for any page length: over all shapes
//! that take different code paths.

#![allow(clippy::unwrap_used, reason = "tests")]

use tallow_core::ops::{Attend, KvWrite};
use tallow_core::{AttnSpec, Backend, DType, Heads, LayerKv, Memory, Span, Step, StepPlan, Tensor};
use tallow_cpu::{Cpu, Isa};

const LEN: usize = 600;

/// Values from -1 to 1.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut x = seed;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as f32 / (1u32 << 31) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Values of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    /// Different from the keys.
    Own,
    /// Equal to the keys, in a tensor of their own.
    Copied,
    /// The cache's keys (MLA).
    Keys,
}

struct Case {
    heads: Heads,
    dtype: DType,
    window: Option<usize>,
    values: Values,
}

impl Case {
    /// Attention output of the rows from `start` on, in steps of `chunk` rows, over pages of `page_len` tokens; the
    /// sequence's K and V are written in one step beforehand.
    fn rows(&self, cpu: &Cpu, page_len: usize, start: usize, chunk: usize) -> Vec<u32> {
        let (heads, dtype) = (self.heads, self.dtype);
        let pages = LEN.div_ceil(page_len);
        let plan = |rows: std::ops::Range<usize>| {
            // Pages in reverse order, not contiguous in memory.
            let pages = (0..rows.end.div_ceil(page_len)).map(|p| (pages - 1 - p) as u32).collect();
            let spans = vec![Span { rows: rows.len(), start: rows.start, pages }];
            let tokens = vec![0; rows.len()];
            StepPlan::new(cpu, Step { tokens, spans, page_len, ..Step::default() }).unwrap()
        };
        let cache = || cpu.alloc(dtype, pages, page_len * heads.cache_cols(dtype)).unwrap();
        let (k, v) = (cache(), (self.values != Values::Keys).then(cache));
        let kv = || LayerKv { k: &k, v: v.as_ref() };
        let up = |seed, cols| cpu.upload(&noise(seed, LEN * cols), LEN, cols).unwrap();
        let seed = if self.values == Values::Own { 2 } else { 1 };
        let (new_k, new_v, q) = (up(1, heads.kv_cols()), up(seed, heads.kv_cols()), up(3, heads.q_cols()));
        let (all, new_v) = (plan(0..LEN), (self.values != Values::Keys).then_some(&new_v));
        cpu.run(KvWrite { k: &new_k, v: new_v, heads, kv: kv(), plan: &all }).unwrap();
        let spec = AttnSpec {
            scale: 0.2,
            window: self.window,
            chunk: None,
            softcap: Some(20.0),
            sinks: None,
            bias: None,
            causal: true,
        };
        let mut out = Vec::new();
        for at in (start..LEN).step_by(chunk) {
            let rows = at..LEN.min(at + chunk);
            let (q, plan): (Tensor<Cpu>, _) = (q.row_range(rows.clone()), plan(rows));
            let y = cpu.run(Attend { q: &q, heads, spec: &spec, kv: kv(), plan: &plan }).unwrap();
            out.extend(cpu.download::<f32>(&y).unwrap().into_iter().map(f32::to_bits));
        }
        out
    }
}

/// (query heads, KV heads, head dim): GQA groups of every size with kernels of its own, and head dims that do and do
/// not fill vectors and tiles.
const SHAPES: [(usize, usize, usize); 11] = [
    (1, 1, 128),
    (2, 1, 80),
    (3, 1, 24),
    (4, 1, 40),
    (5, 1, 64),
    (12, 2, 16),
    (7, 1, 20),
    (8, 1, 128),
    (3, 1, 96),
    (2, 1, 256),
    (17, 1, 34),
];

fn hold(isa: Isa) {
    if !isa.is_available() {
        return;
    }
    let (one, many) = (Cpu::new(isa, 1).unwrap(), Cpu::new(isa, 4).unwrap());
    for (q, kv, dim) in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8] {
            for window in [None, Some(300), Some(20)] {
                let case = Case { heads: Heads { q, kv, dim }, dtype, window, values: Values::Own };
                let whole = case.rows(&one, 16, 0, LEN);
                // Steps of one token, and of row counts on both sides of the few/many rows boundary.
                for (page_len, start, chunk) in [
                    (16, 592, 1),
                    (48, 0, 128),
                    (24, 580, 7),
                    (LEN, 597, 1),
                    (16, 530, 16),
                    (32, 530, 17),
                    (16, 500, 33),
                ] {
                    let part = case.rows(&many, page_len, start, chunk);
                    let same = part == whole[start * q * dim..];
                    assert!(
                        same,
                        "{isa}, {q}/{kv} heads of {dim}, {dtype:?}, {window:?}, pages of {page_len}"
                    );
                }
            }
        }
    }
}

#[test]
fn in_scalar() {
    hold(Isa::Scalar);
}

#[test]
fn in_neon() {
    hold(Isa::Neon);
}

#[test]
fn in_avx2() {
    hold(Isa::Avx2);
}

#[test]
fn in_avx512() {
    hold(Isa::Avx512);
}

#[test]
fn in_avx512_with_bf16() {
    hold(Isa::Avx512Bf16);
}

#[test]
fn in_amx() {
    hold(Isa::Amx);
}

/// bf16 AMX tiles and plain vectors give the same bits.
#[test]
fn in_tiles_and_vectors() {
    if !Isa::Amx.is_available() {
        return;
    }
    let (vectors, tiles) = (Cpu::new(Isa::Avx512, 2).unwrap(), Cpu::new(Isa::Amx, 2).unwrap());
    for (q, kv, dim) in SHAPES {
        for window in [None, Some(100)] {
            let heads = Heads { q, kv, dim };
            let case = Case { heads, dtype: DType::BF16, window, values: Values::Own };
            let same = case.rows(&vectors, 16, 0, LEN) == case.rows(&tiles, 16, 0, LEN);
            assert!(same, "{q}/{kv} heads of {dim}, {window:?}");
        }
    }
}

/// A cache whose values are its keys gives the bits of one that holds both, on every instruction set, for few rows and
/// many, in whole and in partial blocks.
#[test]
fn keys_as_values() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let cpu = Cpu::new(isa, 2).unwrap();
        for (q, kv, dim) in [(1, 1, 128), (12, 2, 16), (17, 1, 34), (40, 1, 72), (3, 1, 33)] {
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8] {
                let case = |values| Case { heads: Heads { q, kv, dim }, dtype, window: Some(300), values };
                for (page_len, start, chunk) in [(16, 0, LEN), (32, 595, 1), (24, 570, 15)] {
                    let [both, keys] = [Values::Copied, Values::Keys]
                        .map(|values| case(values).rows(&cpu, page_len, start, chunk));
                    assert!(both == keys, "{isa}, {q}/{kv} heads of {dim}, {dtype:?}, pages of {page_len}");
                }
            }
        }
    }
}
