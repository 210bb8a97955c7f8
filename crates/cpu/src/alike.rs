//! On ARM the scalar and the NEON kernels give the same bits: they have the same number of lanes, and both use fused
//! multiply-add. So what the scalar kernels, which run on every machine, are tested for holds for NEON as well; and for matrix
//! products of bytes. Those of BF16 round otherwise.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZero;

use tallow_core::conformance::{Suite, cases};
use tallow_core::ops::{Attend, Dequant, Epilogue, Ffn, KvWrite, Linear};
use tallow_core::{
    Activation, Arithmetic, AttnSpec, Backend, DType, Format, Heads, HostWeight, LayerKv, LinearWeights,
    Memory, Norm, NormKind, Span, Step, StepPlan, Tensor,
};

use crate::kernels::Kernels;
use crate::rowwise::{NormTask, TailTask};
use crate::{Cpu, Isa};

/// Pseudo-random values from -1 to 1.
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

fn linear(b: &Cpu, format: Format, rows: usize, cols: usize) -> LinearWeights<Cpu> {
    let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
    tallow_quant::pack(format, &noise(7, rows * cols), &mut bytes).unwrap();
    let weight = b.prepare(HostWeight::new(format, rows, cols, &bytes)).unwrap();
    LinearWeights::new(weight, None)
}

/// The instruction sets that round as the scalar one does; [`Isa::I8mm`] does not for BF16 weights. It has kernels of its own for
/// rounded products alone.
const ALIKE: [Isa; 2] = [Isa::Neon, Isa::I8mm];

/// Compares the results of the scalar and of other instruction sets, which `work` passes to its second argument. Those that
/// this machine lacks are skipped.
fn same(isas: &[Isa], arithmetic: Arithmetic, work: impl Fn(&Cpu, &mut dyn FnMut(&Tensor<Cpu>))) {
    let of = |isa| {
        let b = Cpu::new(isa, 1).unwrap().with(arithmetic);
        let mut all: Vec<Vec<u32>> = Vec::new();
        work(&b, &mut |t| all.push(b.download::<f32>(t).unwrap().into_iter().map(f32::to_bits).collect()));
        all
    };
    let plain = of(Isa::Scalar);
    assert!(!plain.is_empty());
    for isa in isas {
        if !isa.is_available() {
            eprintln!("skipped: this CPU lacks {isa}");
            continue;
        }
        let vectors = of(*isa);
        let differs = plain.iter().zip(&vectors).position(|(p, v)| p != v);
        assert_eq!((plain.len(), differs), (vectors.len(), None), "{isa}");
    }
}

/// Products over whole and partial chunks, for all row counts that have code of their own.
fn products(isas: &[Isa], format: Format, arithmetic: Arithmetic) {
    same(isas, arithmetic, |b, put| {
        for chunks in [1_usize, 3] {
            let block = format.block_weights();
            let cols = (256 * chunks - 64).next_multiple_of(block) + if block == 1 { 3 } else { 0 };
            let by = linear(b, format, 37, cols);
            put(&b.run(Dequant { w: by.weight.in_order().unwrap(), rows: 0..37 }).unwrap());
            for rows in [1, 2, 3, 4, 5, 6, 7, 9, 20] {
                let x = b.upload(&noise(5, rows * cols), rows, cols).unwrap();
                put(&b.run(Linear { x: &x, weights: &by, epilogue: Epilogue::NONE }).unwrap());
            }
        }
    });
}

#[test]
fn rounded_products() {
    for format in Format::ALL {
        let isas: &[Isa] = if format == Format::BF16 { &[Isa::Neon] } else { &ALIKE };
        products(isas, format, Arithmetic::Fast);
    }
}

#[test]
fn exact_products() {
    Format::ALL.into_iter().for_each(|format| products(&[Isa::Neon], format, Arithmetic::Exact));
}

#[test]
fn feed_forward() {
    same(&[Isa::Neon], Arithmetic::Fast, |b, put| {
        let norm = Norm {
            kind: NormKind::Rms,
            weight: b.upload_row(&noise(3, 256)).unwrap(),
            bias: None,
            eps: 1e-5,
        };
        for format in [Format::Q4K, Format::Q8_0, Format::BF16] {
            let (up, down) = ([linear(b, format, 512, 256)], linear(b, format, 256, 256));
            for rows in [1, 7] {
                let x = b.upload(&noise(1, rows * 256), rows, 256).unwrap();
                let then = Epilogue::add_to(&x);
                for act in [Activation::Silu, Activation::GeluTanh] {
                    put(&b
                        .run(Ffn {
                            x: &x,
                            norm: Some(&norm),
                            up: &up,
                            act,
                            down: &down,
                            epilogue: then,
                            adapters: &[],
                        })
                        .unwrap());
                }
            }
        }
    });
}

/// Few rows and many, in whole and partial vectors, for every KV cache type.
#[test]
fn attention() {
    const LEN: usize = 290;
    const PAGE: usize = 16;
    same(&[Isa::Neon], Arithmetic::Fast, |b, put| {
        for (q, kv, dim, has_values) in [
            (1, 1, 128, true),
            (3, 1, 24, true),
            (8, 2, 64, true),
            (7, 1, 20, true),
            (17, 1, 34, true),
            (17, 1, 34, false),
        ] {
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8] {
                let heads = Heads { q, kv, dim };
                let plan = |rows: std::ops::Range<usize>| {
                    let pages = (0..rows.end.div_ceil(PAGE) as u32).collect();
                    let spans = vec![Span { rows: rows.len(), start: rows.start, pages }];
                    let tokens = vec![0; rows.len()];
                    let step = Step { tokens, spans, page_len: PAGE, ..Step::default() };
                    StepPlan::new(b, step).unwrap()
                };
                let cache = || b.alloc(dtype, LEN.div_ceil(PAGE), PAGE * heads.cache_cols(dtype)).unwrap();
                let (k, v) = (cache(), has_values.then(cache));
                let kv = || LayerKv { k: &k, v: v.as_ref() };
                let up = |seed, cols| b.upload(&noise(seed, LEN * cols), LEN, cols).unwrap();
                let (new_k, new_v) = (up(1, heads.kv_cols()), up(2, heads.kv_cols()));
                let q = up(3, heads.q_cols());
                let new_v = v.is_some().then_some(&new_v);
                b.run(KvWrite { k: &new_k, v: new_v, heads, kv: kv(), plan: &plan(0..LEN) }).unwrap();
                for (window, softcap) in [(None, None), (Some(100), Some(20.0))] {
                    let spec = AttnSpec {
                        scale: 0.2,
                        window,
                        chunk: None,
                        softcap,
                        sinks: None,
                        bias: None,
                        causal: true,
                    };
                    for rows in [LEN - 1..LEN, LEN - 5..LEN, LEN - 40..LEN] {
                        let (q, plan) = (q.row_range(rows.clone()), plan(rows));
                        put(&b.run(Attend { q: &q, heads, spec: &spec, kv: kv(), plan: &plan }).unwrap());
                    }
                }
            }
        }
    });
}

/// Fused multiply-add rounds differently from other machines, so the results are checked against the reference, too.
/// In brief, and not attention, which take minutes in an emulator.
#[test]
fn conformance_of_all_but_attention() {
    const LONG: [&str; 3] = ["attend", "attend_window", "attend_keys_as_values"];
    conformance(Isa::Neon, Suite::exact().brief(), |name| !LONG.contains(&name));
}

/// Matrix products of bf16 have bits of their own, for all row counts and widths.
#[test]
fn conformance_of_matrix_products() {
    const PRODUCTS: [&str; 6] = ["linear", "linear_alone", "linear_many", "linear_heads", "ffn", "moe"];
    let suite = Suite { formats: &[Format::BF16], ..Suite::fast(8e-3).with_bf16_inputs() };
    conformance(Isa::I8mm, suite, |name| PRODUCTS.contains(&name));
}

/// Runs some of the cases, which are dealt out to all cores.
fn conformance(isa: Isa, suite: Suite, is_run: impl Fn(&str) -> bool + Copy + Sync + Send) {
    if !isa.is_available() {
        eprintln!("skipped: this CPU lacks {isa}");
        return;
    }
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let b = Cpu::new(isa, 1).unwrap().with(suite.arithmetic);
                let cases = cases().into_iter().filter(|case| is_run(case.name));
                for case in cases.skip(thread).step_by(threads) {
                    if let Err(why) = (case.run)(&b, suite) {
                        panic!("{}: {why}", case.name);
                    }
                }
            });
        }
    });
    println!("{}: conforms", Cpu::new(isa, 1).unwrap().label());
}

/// Row-wise kernels, in whole and partial vectors, for small and large values, zeros, infinities and NaN.
#[test]
fn rows() {
    let (Some(plain), Some(neon)) = (Kernels::new(Isa::Scalar), Kernels::new(Isa::Neon)) else {
        eprintln!("skipped: this CPU lacks products of bytes");
        return;
    };
    let same = |what: &str, work: &dyn Fn(&Kernels, &mut [f32])| {
        for n in [5, 8, 203] {
            let of = |kernels| {
                let mut out = vec![0.0; n];
                work(kernels, &mut out);
                // All NaNs compare equal.
                out.into_iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<u32>>()
            };
            assert!(of(plain) == of(neon), "{what} of {n}");
        }
    };
    for scale in [1.0, 100.0, 1e-20, 3e38] {
        let x = |n| noise(1, n).into_iter().map(|x| x * scale).collect::<Vec<f32>>();
        let odd = |n| {
            let mut x = x(n);
            let edges = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            x.iter_mut().step_by(2).zip(edges).for_each(|(x, edge)| *x = edge);
            x
        };
        for kind in [NormKind::Rms, NormKind::Layer] {
            same("a norm", &|kernels, out| {
                let (weight, bias) = (noise(2, out.len()), noise(3, out.len()));
                let task = NormTask { kind, weight: &weight, bias: Some(&bias), eps: 1e-5 };
                (kernels.norm)(&task, &x(out.len()), out);
            });
        }
        for act in Activation::ALL {
            same("an activation", &|kernels, out| (kernels.activate)(act, &odd(out.len()), None, out));
            same("a gated one", &|kernels, out| {
                (kernels.activate)(act, &odd(out.len()), Some(&noise(2, out.len())), out);
            });
        }
        same("a cap", &|kernels, out| {
            out.copy_from_slice(&odd(out.len()));
            (kernels.softcap)(out, 30.0);
        });
        same("a gate", &|kernels, out| {
            out.copy_from_slice(&noise(2, out.len()));
            (kernels.gate)(out, &odd(out.len()));
        });
        same("a sum", &|kernels, out| (kernels.add_scaled)(out, 0.3, &odd(out.len())));
        same("a tail", &|kernels, out| {
            let x = x(out.len());
            let mut top = x.clone();
            top.sort_by(|a, b| b.total_cmp(a));
            top.truncate(3);
            let temperatures = noise(2, out.len()).into_iter().map(|t| 1.1 + t).collect::<Vec<f32>>();
            (kernels.tail_sum)(&TailTask { x: &x, top: &top, temperatures: &temperatures }, out);
        });
    }
}
