//! Ops that are one launch have the bits of those that they are composed of; and attention of many units those of one CTA that has
//! all of them.

use tallow_core::ops::{Attend, CausalConv, Copy, KvWrite, LatentWrite, Normalize, QkvPrep};
use tallow_core::{
    Arithmetic, AttnSpec, Backend, DType, Heads, LayerKv, Memory, Norm, NormKind, PageTable, QkNorm,
    RopePairs, RopeTable, Span, StateRows, Step, StepPlan, Tensor, compose,
};
use tallow_ptx::mock::{self, Machine};

use super::open;
use super::products::{floats, same};
use crate::Cuda;
use crate::args::Args;
use crate::device::ARRIVALS;
use crate::gpu::Launch;
use crate::kernels::Kernel;

const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8];
const PAGE: usize = 4;
/// Two sequences of five tokens and one, at positions of no page's start, in pages 4, 1, 3 and 2.
const LENS: [(usize, usize); 2] = [(3, 5), (6, 1)];
const PAGES: usize = 6;

/// A step's plan, and its tokens.
fn plan(b: &Cuda) -> (StepPlan<Cuda>, usize) {
    let span = |((start, rows), pages): ((usize, usize), [u32; 2])| Span {
        rows,
        start,
        pages: PageTable::from(pages.to_vec()),
    };
    let spans: Vec<Span> = LENS.into_iter().zip([[4, 1], [3, 2]]).map(span).collect();
    let rows = spans.iter().map(|span| span.rows).sum();
    let step = Step { tokens: vec![0; rows], spans, page_len: PAGE, ..Step::default() };
    (StepPlan::new(b, step).unwrap(), rows)
}

fn norm(b: &Cuda, kind: NormKind, width: usize) -> Norm<Cuda> {
    let row = |seed| b.upload_row(&floats(seed, width)).unwrap();
    let bias = (kind == NormKind::Layer).then(|| row(5));
    Norm { kind, weight: row(4), bias, eps: 1e-4 }
}

fn rope(b: &Cuda, width: usize, pairs: RopePairs) -> RopeTable<Cuda> {
    RopeTable { table: b.upload(&floats(6, 9 * width), 9, width).unwrap(), pairs }
}

/// Numbers of a row, with some that a cache of 8-bit codes takes for themselves: almost nothing, and NaN.
fn rows(rows: usize, cols: usize) -> Vec<f32> {
    let mut x = floats(7, rows * cols);
    x[2 * cols..3 * cols].iter_mut().for_each(|x| *x *= 1e-38);
    x[4 * cols - 1] = f32::NAN;
    x
}

/// A view with a gap behind each row.
fn strided(b: &Cuda, x: &[f32], rows: usize) -> Tensor<Cuda> {
    let cols = x.len() / rows;
    let view = b.alloc(DType::F32, rows, cols + 3).unwrap().col_range(0..cols);
    b.run(Copy { from: &b.upload(x, rows, cols).unwrap(), to: &view }).unwrap();
    view
}

/// The result of some work, and its launches.
fn counted<T>(b: &Cuda, work: impl FnOnce() -> tallow_core::Result<T>) -> (T, usize) {
    let before = b.counts().launches;
    let result = work().unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()));
    (result, b.counts().launches - before)
}

/// All bytes of a layer's cache.
fn bytes(b: &Cuda, cache: &Tensor<Cuda>) -> Vec<u8> {
    let mut bytes = vec![0; cache.bytes()];
    b.read(&mut [tallow_core::Reading { from: cache, to: &mut bytes }]).unwrap();
    bytes
}

/// A warp normalizes what is narrow, in the order of a CTA.
#[test]
fn a_warp_normalizes_with_the_bits_of_a_cta() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    for (width, kind) in
        [1, 31, 64, 129, 256, 300, 512].into_iter().flat_map(|w| [(w, NormKind::Rms), (w, NormKind::Layer)])
    {
        let (norm, groups) = (norm(&b, kind, width), 3);
        let x = strided(&b, &rows(5, groups * width), 5);
        let narrow = b.run(Normalize { x: &x, norm: &norm, residual: Some(&x) }).unwrap();
        let wide = b.alloc(DType::F32, 5, groups * width).unwrap();
        let args = Args::new().matrix(&x).pointer(&norm.weight).optional_pointer(norm.bias.as_ref());
        let args = args.word(width).flag(kind == NormKind::Layer).float(norm.eps).word(0);
        let (kernel, args) = (Kernel { module: "rowwise", name: "normalize" }, args.matrix(&x).matrix(&wide));
        let grid = [5, groups as u32, 1];
        b.gpu.launch(&Launch { kernel, grid, block: 256, shared: 0, args }).unwrap();
        let [narrow, wide] = [narrow, wide].map(|x| b.download::<f32>(&x).unwrap());
        same(&narrow, &wide, || format!("{width} columns, {kind:?}"));
    }
}

#[test]
fn qkv_prep_has_the_bits_of_its_parts() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    let (plan, tokens) = plan(&b);
    let heads = |q, kv, dim| Heads { q, kv, dim };
    // Widths of norms: of heads, of two heads, of all of them, some of which are more than a warp takes.
    let cases = [
        (heads(4, 2, 10), None, NormKind::Rms),
        (heads(2, 1, 128), Some((128, 128)), NormKind::Rms),
        (heads(4, 4, 6), Some((12, 6)), NormKind::Layer),
        (heads(12, 3, 64), Some((768, 192)), NormKind::Rms),
        (heads(20, 20, 32), Some((640, 640)), NormKind::Layer),
        (heads(2, 2, 520), Some((520, 520)), NormKind::Rms),
    ];
    for (i, (heads, widths, kind)) in cases.into_iter().enumerate() {
        let qk_norm = widths.map(|(q, k)| QkNorm { q: norm(&b, kind, q), k: norm(&b, kind, k) });
        let ropes = [
            None,
            Some(rope(&b, heads.dim / 4 * 2, RopePairs::Halves)),
            Some(rope(&b, heads.dim, RopePairs::Interleaved)),
        ];
        let qkv = strided(&b, &rows(tokens, heads.qkv_cols()), tokens);
        for (dtype, rope) in TYPES.into_iter().flat_map(|dtype| ropes.iter().map(move |rope| (dtype, rope))) {
            mock::seed(i as u64);
            let cache = || b.zeros(dtype, PAGES, PAGE * heads.cache_cols(dtype)).unwrap();
            let caches = [[cache(), cache()], [cache(), cache()]];
            let of = |cache: usize| {
                let kv = LayerKv { k: &caches[cache][0], v: Some(&caches[cache][1]) };
                QkvPrep { qkv: &qkv, heads, qk_norm: qk_norm.as_ref(), rope: rope.as_ref(), kv, plan: &plan }
            };
            let (got, launches) = counted(&b, || b.run(of(0)));
            let (want, _) = counted(&b, || compose::qkv_prep(&b, &of(1)));
            let what = || format!("{heads:?}, norms {widths:?}, {dtype:?}, {rope:?}");
            assert_eq!(launches, 1, "{}", what());
            let [got, want] = [got, want].map(|x| b.download::<f32>(&x).unwrap());
            same(&got, &want, what);
            for (half, name) in ["keys", "values"].into_iter().enumerate() {
                let equal = bytes(&b, &caches[0][half]) == bytes(&b, &caches[1][half]);
                assert!(equal, "{name}: {}", what());
            }
        }
    }
}

#[test]
fn latent_write_has_the_bits_of_its_parts() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    let (plan, tokens) = plan(&b);
    for (latent, others, rotated, kind) in [
        (512, 64, Some((64, RopePairs::Interleaved)), NormKind::Rms),
        (24, 12, Some((8, RopePairs::Halves)), NormKind::Layer),
        (600, 4, None, NormKind::Rms),
    ] {
        let heads = Heads { q: 2, kv: 1, dim: latent + others };
        let (norm, x) = (norm(&b, kind, latent), strided(&b, &rows(tokens, heads.dim), tokens));
        let rope = rotated.map(|(width, pairs)| rope(&b, width, pairs));
        for dtype in TYPES {
            mock::seed(latent as u64);
            let caches = [0, 1].map(|_| b.zeros(dtype, PAGES, PAGE * heads.cache_cols(dtype)).unwrap());
            let of = |cache: usize| {
                let kv = LayerKv { k: &caches[cache], v: None };
                LatentWrite { x: &x, norm: &norm, rope: rope.as_ref(), heads, kv, plan: &plan }
            };
            let ((), launches) = counted(&b, || b.run(of(0)));
            counted(&b, || compose::latent_write(&b, &of(1)));
            assert_eq!(launches, 1);
            assert!(
                bytes(&b, &caches[0]) == bytes(&b, &caches[1]),
                "{latent} and {others} elements, {dtype:?}"
            );
        }
    }
}

/// Sequences that begin and that go on, one of them in several spans, without tokens and with more than a CTA has.
#[test]
fn causal_conv_has_the_bits_of_its_parts() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    let parts = [
        (0, 3, 7, 0),
        (5, 11, 1, 2),
        (16, 0, 2, 3),
        (16, 1, 3, 4),
        (17, 1, 4, 5),
        (0, 1, 7, 6),
        (9, 1, 8, 9),
    ];
    let span =
        |&(start, rows, ..): &(usize, usize, u32, u32)| Span { rows, start, pages: vec![0, 0, 0].into() };
    let states = parts.iter().map(|&(.., from, to)| StateRows { from, to }).collect();
    let spans: Vec<Span> = parts.iter().map(span).collect();
    let tokens: usize = spans.iter().map(|span| span.rows).sum();
    let step = Step { tokens: vec![0; tokens], spans, states, page_len: 8, ..Step::default() };
    let plan = StepPlan::new(&b, step).unwrap();
    for (kernel, cols) in [(4, 300), (2, 1), (16, 257)] {
        let x = strided(&b, &floats(1, tokens * cols), tokens);
        let weight = strided(&b, &floats(2, kernel * cols), kernel);
        let width = (kernel - 1) * cols;
        for seed in 0..3 {
            mock::seed(seed);
            let windows = [0, 1].map(|_| b.upload(&floats(3, 10 * width), 10, width).unwrap());
            let of =
                |window: usize| CausalConv { x: &x, weight: &weight, window: &windows[window], plan: &plan };
            let (got, launches) = counted(&b, || b.run(of(0)));
            let (want, _) = counted(&b, || compose::causal_conv(&b, &of(1)));
            assert_eq!(launches, 1);
            for [got, want] in [[&got, &want], [&windows[0], &windows[1]]] {
                let [got, want] = [got, want].map(|x| b.download::<f32>(x).unwrap());
                same(&got, &want, || format!("{cols} columns, kernel {kernel}"));
            }
        }
    }
}

fn spec(window: Option<usize>, sinks: Option<Tensor<Cuda>>) -> AttnSpec<Cuda> {
    AttnSpec { scale: 0.3, window, chunk: None, softcap: None, sinks, bias: None, causal: true }
}

/// Attention of tokens of one sequence, in pages of 256, in a step with so many sequences of one token.
fn attention(
    b: &Cuda,
    spec: &AttnSpec<Cuda>,
    kv: LayerKv<'_, Cuda>,
    heads: Heads,
    [start, rows, others]: [usize; 3],
) -> Vec<f32> {
    let mut spans = vec![Span { rows: 1, start: 0, pages: PageTable::from(vec![0]) }; others];
    spans.insert(0, Span { rows, start, pages: (0..kv.k.rows() as u32).collect() });
    let tokens = vec![0; rows + others];
    let plan = StepPlan::new(b, Step { tokens, spans, page_len: 256, ..Step::default() }).unwrap();
    let q = floats(9, (rows + others) * heads.q_cols());
    let q = b.upload(&q, rows + others, heads.q_cols()).unwrap();
    let (out, launches) = counted(b, || b.run(Attend { q: &q, heads, spec, kv, plan: &plan }));
    assert_eq!(launches, 1);
    assert!(b.download::<u32>(&b.arrivals).unwrap().iter().all(|count| *count == 0));
    b.download::<f32>(&out.row_range(0..rows)).unwrap()
}

/// Keys and values of so many positions, in pages of 256.
fn filled(b: &Cuda, heads: Heads, dtype: DType, len: usize) -> [Tensor<Cuda>; 2] {
    let pages = len.div_ceil(256);
    let caches = [0, 1].map(|_| b.zeros(dtype, pages, 256 * heads.cache_cols(dtype)).unwrap());
    let spans = vec![Span { rows: len, start: 0, pages: (0..pages as u32).collect() }];
    let plan =
        StepPlan::new(b, Step { tokens: vec![0; len], spans, page_len: 256, ..Step::default() }).unwrap();
    let [k, v] =
        [1, 2].map(|seed| b.upload(&floats(seed, len * heads.kv_cols()), len, heads.kv_cols()).unwrap());
    let kv = LayerKv { k: &caches[0], v: Some(&caches[1]) };
    b.run(KvWrite { k: &k, v: Some(&v), heads, kv, plan: &plan }).unwrap();
    caches
}

/// In a step of few CTAs each does a unit, and the last to finish merges; with more sequences in the step a CTA does all units.
/// In any order of the CTAs the bits are the same.
#[test]
fn attention_in_units_is_one_launch_with_the_same_bits() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    // More units than are merged at a time; queries of several tokens, which begin to see in different units.
    for (heads, len, tokens, window, has_sinks) in [
        (Heads { q: 2, kv: 1, dim: 4 }, 66 * 256 + 9_usize, 1, None, false),
        (Heads { q: 6, kv: 2, dim: 20 }, 1100, 3, Some(332), true),
        (Heads { q: 4, kv: 4, dim: 6 }, 40, 2, None, false),
    ] {
        for dtype in TYPES {
            let [k, v] = filled(&b, heads, dtype, len);
            let kv = LayerKv { k: &k, v: Some(&v) };
            let sinks = has_sinks.then(|| b.upload_row(&floats(3, heads.q)).unwrap());
            let spec = spec(window, sinks);
            let want = attention(&b, &spec, kv, heads, [len - tokens, tokens, ARRIVALS]);
            for seed in 0..5 {
                mock::seed(seed);
                let got = attention(&b, &spec, kv, heads, [len - tokens, tokens, 0]);
                same(&got, &want, || format!("{heads:?}, {dtype:?}, {len} positions, seed {seed}"));
            }
        }
    }
}

/// In `Arithmetic::Fast` tensor cores round queries and weights, unless the cache is of f32 or heads are wider than they take.
#[test]
fn fast_attention_is_by_tensor_cores() {
    for (dtype, dim, rounds) in [
        (DType::F32, 16, false),
        (DType::F16, 584, false),
        (DType::F16, 576, true),
        (DType::BF16, 16, true),
        (DType::I8, 16, true),
        (DType::F8, 16, true),
    ] {
        let heads = Heads { q: 4, kv: 2, dim };
        let [exact, fast] = [Arithmetic::Exact, Arithmetic::Fast].map(|arithmetic| {
            let b = open(Machine::default()).with(arithmetic);
            let [k, v] = filled(&b, heads, dtype, 40);
            let kv = LayerKv { k: &k, v: Some(&v) };
            attention(&b, &spec(None, None), kv, heads, [38, 2, 0])
        });
        assert_eq!(exact != fast, rounds, "{dtype:?}, heads of {dim}");
    }
}

/// A step of a long sequence and a short one, for which there is as much room.
#[test]
fn short_sequences_are_not_merged() {
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    let heads = Heads { q: 2, kv: 2, dim: 8 };
    let numbers = |seed| b.upload(&floats(seed, 4 * 256 * 16), 4, 256 * 16).unwrap();
    let (k, v) = (numbers(1), numbers(2));
    let (kv, spec) = (LayerKv { k: &k, v: Some(&v) }, spec(None, None));
    let pages = |all: &[u32]| PageTable::from(all.to_vec());
    let spans = [(700, pages(&[0, 1, 2])), (30, pages(&[3]))];
    let spans = spans.map(|(start, pages)| Span { rows: 1, start, pages });
    let run = |spans: &[Span]| {
        let step =
            Step { tokens: vec![0; spans.len()], spans: spans.to_vec(), page_len: 256, ..Step::default() };
        let plan = StepPlan::new(&b, step).unwrap();
        let q =
            b.upload(&floats(9, heads.q_cols()).repeat(spans.len()), spans.len(), heads.q_cols()).unwrap();
        let (out, launches) = counted(&b, || b.run(Attend { q: &q, heads, spec: &spec, kv, plan: &plan }));
        assert_eq!(launches, 1);
        b.download::<f32>(&out).unwrap()
    };
    let both = run(&spans);
    for (i, want) in both.chunks(heads.q_cols()).enumerate() {
        same(&run(&spans[i..=i]), want, || format!("span {i}"));
    }
}
