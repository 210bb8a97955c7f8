//! Tests of the backend on the first device of this machine (a software device will do): conformance of the ops,
//! translation of all kernels to MSL and SPIR-V, tensors larger than one binding, and errors.

mod replay;
mod shaders;
mod stacked;

use std::collections::{BTreeMap, BTreeSet};

use tallow_core::conformance::{Loose, Suite, cases};
use tallow_core::ops::{
    Attend, Dequant, Eltwise, EltwiseOp, Embed, Epilogue, Head, KvWrite, Linear, Normalize,
};
use tallow_core::{
    AttnSpec, Backend, DType, Error, Format, Heads, HostWeight, LayerKv, LinearWeights, Memory, Norm,
    NormKind, Span, Step, StepPlan, Tensor,
};
use tallow_support::needed;

use crate::gpu::Param::U;
use crate::gpu::{Access, Arg, Found, Kernel, Launch};
use crate::preprocess::Program;
use crate::{Wgpu, devices};

fn found() -> Option<Found> {
    needed("Vulkan or Metal device", devices().into_iter().next())
}

/// Runs the conformance cases selected by `takes`, then translates every kernel they compiled.
fn conforms(takes: impl Fn(&str) -> bool) {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let mut failed = Vec::new();
    let mut ran = 0;
    // On a driver that computes on the CPU, attention in all sizes takes minutes.
    let every_row = tallow_support::ci();
    let sizes = if every_row { usize::MAX } else { 2 };
    // Attention is in f32, whatever the cache's type.
    let suite = Suite { sizes, every_row, attends: |_| Loose::Exact, ..Suite::exact() };
    for case in cases::<Wgpu>().iter().filter(|case| takes(case.name)) {
        ran += 1;
        failed.extend((case.run)(&b, suite).err().map(|why| format!("{}: {why}", case.name)));
    }
    println!("{}: {ran} cases, {} failed", b.label(), failed.len());
    assert!(ran > 0 && failed.is_empty(), "{}", failed.join("\n"));
    let names = translate(&b);
    insta::with_settings!({ omit_expression => true }, {
        let which = if names.contains("attend") { "all_else" } else { "products" };
        insta::assert_snapshot!(format!("kernels_of_{which}"), names.into_iter().collect::<Vec<_>>().join("\n"));
    });
}

const PRODUCTS: [&str; 5] = ["matmul", "linear", "linear_alone", "linear_many", "ffn"];

#[test]
fn conformance_of_products() {
    conforms(|name| PRODUCTS.contains(&name));
}

#[test]
fn conformance_of_all_else() {
    conforms(|name| !PRODUCTS.contains(&name));
}

/// Translates every compiled kernel to MSL and SPIR-V, as Metal and Vulkan would get it, and returns the kernels' names.
fn translate(b: &Wgpu) -> BTreeSet<&'static str> {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    b.gpu.each_program(|kernel, declarations, program| {
        translate_one(kernel.name, declarations, program);
        *seen.entry(kernel.name).or_default() += 1;
    });
    println!("translated to MSL and SPIR-V: {seen:?}");
    seen.into_keys().collect()
}

fn translate_one(name: &str, declarations: &str, program: &Program) {
    let declared = declarations.lines().count();
    let wgsl = declarations.to_owned() + &program.wgsl;
    let module = naga::front::wgsl::parse_str(&wgsl).unwrap_or_else(|e| {
        let line = e.location(&wgsl).map_or(0, |at| at.line_number as usize);
        panic!("{}{}", program.place(line.saturating_sub(declared)), e.emit_to_string(&wgsl))
    });
    // No capabilities beyond what every device has.
    let mut validator = naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
    );
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {e:?}\n{wgsl}"));
    let constants = program.constants.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let main = Some((naga::ShaderStage::Compute, "main"));
    let (module, info) =
        naga::back::pipeline_constants::process_overrides(&module, &info, main, &constants).unwrap();
    let options = naga::back::msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let (msl, _) = naga::back::msl::write_string(&module, &info, &options, &Default::default()).unwrap();
    assert!(msl.contains("kernel void main_("), "{msl}");
    let entry = naga::back::spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
    };
    let spirv = naga::back::spv::write_vec(&module, &info, &Default::default(), Some(&entry)).unwrap();
    assert_eq!(spirv[0], 0x0723_0203);
}

fn numbers(seed: u32, n: usize) -> Vec<f32> {
    let number = |i: usize| {
        let x = (i as u32 ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        f32::from(((x ^ x >> 13).wrapping_mul(0xC2B2_AE35) >> 16) as u16) / 32768.0 - 1.0
    };
    (0..n).map(number).collect()
}

fn weight(b: &Wgpu, format: Format, rows: usize, cols: usize) -> tallow_core::Weight<Wgpu> {
    let mut bytes = vec![0; format.row_bytes(cols).unwrap() * rows];
    tallow_quant::pack(format, &numbers(7, rows * cols), &mut bytes).unwrap();
    b.prepare(HostWeight::new(format, rows, cols, &bytes)).unwrap()
}

/// Pages of the KV cache in these tests.
const PAGES: usize = 180;

/// Attention over a KV cache of many pages, written in two steps.
fn attention(b: &Wgpu, dtype: DType) -> Vec<f32> {
    let (heads, page_len, tokens) = (Heads { q: 4, kv: 2, dim: 16 }, 4, 90);
    let pages: Vec<u32> = (0..23).map(|i| (i * 37 + 5) % PAGES as u32).collect();
    let cache = || b.alloc(dtype, PAGES, page_len * heads.kv_cols()).unwrap();
    let (k, v) = (cache(), cache());
    let kv = LayerKv { k: &k, v: Some(&v) };
    let mut out = Vec::new();
    for (start, rows) in [(0, tokens - 5), (tokens - 5, 5)] {
        let spans = vec![Span { rows, start, pages: pages.clone().into() }];
        let step = Step { tokens: vec![0; rows], spans, page_len, ..Step::default() };
        let plan = StepPlan::new(b, step).unwrap();
        let up = |seed, cols: usize| {
            b.upload(&numbers(seed, tokens * cols)[start * cols..(start + rows) * cols], rows, cols).unwrap()
        };
        let (q, k, v) = (up(1, heads.q_cols()), up(2, heads.kv_cols()), up(3, heads.kv_cols()));
        b.run(KvWrite { k: &k, v: Some(&v), heads, kv, plan: &plan }).unwrap();
        let spec = AttnSpec {
            scale: 0.25,
            window: None,
            chunk: None,
            softcap: None,
            sinks: None,
            bias: None,
            causal: true,
        };
        let y = b.run(Attend { q: &q, heads, spec: &spec, kv, plan: &plan }).unwrap();
        out.extend(b.download::<f32>(&y).unwrap());
    }
    out
}

/// Segments are merged within a workgroup for a long prompt, and by a second kernel for a single token: the bits are
/// the same.
#[test]
fn segments_are_merged_alike() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let (heads, page_len, tokens) = (Heads { q: 8, kv: 4, dim: 16 }, 16, 1100);
    let pages: Vec<u32> = (0..69).map(|i| i * 11 % 69).collect();
    let cache = || b.alloc(DType::F16, 69, page_len * heads.kv_cols()).unwrap();
    let (k, v) = (cache(), cache());
    let kv = LayerKv { k: &k, v: Some(&v) };
    let numbers = [1, 2, 3].map(|seed| numbers(seed, tokens * heads.q_cols()));
    let attend = |start: usize, rows: usize, window: Option<usize>| {
        // The pages say how many segments there may be.
        let table = pages[..(start + rows).div_ceil(page_len)].to_vec().into();
        let spans = vec![Span { rows, start, pages: table }];
        let step = Step { tokens: vec![0; rows], spans, page_len, ..Step::default() };
        let plan = StepPlan::new(&b, step).unwrap();
        let up = |i: usize, cols: usize| {
            b.upload(&numbers[i][start * cols..(start + rows) * cols], rows, cols).unwrap()
        };
        let (q, k, v) = (up(0, heads.q_cols()), up(1, heads.kv_cols()), up(2, heads.kv_cols()));
        b.run(KvWrite { k: &k, v: Some(&v), heads, kv, plan: &plan }).unwrap();
        let before = b.counts().dispatches;
        let sinks = Some(b.upload_row(&[0.5f32; 8]).unwrap());
        let spec =
            AttnSpec { scale: 0.5, window, chunk: None, softcap: None, sinks, bias: None, causal: true };
        let y = b.run(Attend { q: &q, heads, spec: &spec, kv, plan: &plan }).unwrap();
        (b.counts().dispatches - before, b.download::<f32>(&y).unwrap())
    };
    for window in [None, Some(600)] {
        let (launches, whole) = attend(0, tokens, window);
        assert_eq!(launches, 1);
        for token in [0, 127, 128, 511, 512, 700, 1023, 1024, 1099] {
            let (launches, alone) = attend(token, 1, window);
            assert_eq!(launches, if token < 128 { 1 } else { 2 });
            assert!(alone == whole[token * heads.q_cols()..][..heads.q_cols()], "token {token}, {window:?}");
        }
    }
}

/// A tensor larger than one binding is split into blocks, with the same results bit for bit.
#[test]
fn tensors_larger_than_a_binding() {
    let Some(found) = found() else { return };
    let whole = Wgpu::open(&found).unwrap();
    for format in [Format::Q4K, Format::Q8_0, Format::BF16] {
        let run = |b: &Wgpu| {
            let w = weight(b, format, 700, 512);
            let bias = b.upload_row(&numbers(4, 700)).unwrap();
            let by = LinearWeights::new(w.clone(), Some(bias));
            let mut out = Vec::new();
            for rows in [1, 5, 40] {
                let x = b.upload(&numbers(5, rows * 512), rows, 512).unwrap();
                let y = b.run(Linear { x: &x, weights: &by, epilogue: Epilogue::NONE }).unwrap();
                out.extend(b.download::<f32>(&y).unwrap());
            }
            let ids = b.upload_row(&[3u32, 699, 350, 700, 31, 32]).unwrap();
            out.extend(
                b.download::<f32>(&b.run(Embed { table: &w, ids: &ids, scale: 2.0 }).unwrap()).unwrap(),
            );
            out.extend(b.download::<f32>(&b.run(Dequant { w: &w, rows: 190..240 }).unwrap()).unwrap());
            let x = b.upload(&numbers(6, 3 * 512), 3, 512).unwrap();
            let norm = b.upload_row(&numbers(8, 512)).unwrap();
            let norm = Norm { kind: NormKind::Rms, weight: norm, bias: None, eps: 1e-5 };
            let rows = b.upload_row(&[2u32, 0]).unwrap();
            let head = Head { x: &x, rows: &rows, norm: &norm, weights: &by, epilogue: Epilogue::NONE };
            out.extend(b.download::<f32>(&b.run(head).unwrap()).unwrap());
            (out, blocks(&w))
        };
        // Large enough that the largest activation still fits into one block.
        let cut = Wgpu::within(&found, 128 << 10).unwrap();
        let ((a, one), (b, several)) = (run(&whole), run(&cut));
        println!("{format}: in {one} block and in {several}");
        assert!(a == b, "{format}");
        assert!(one == 1 && several > 1);
    }
    for dtype in [DType::F32, DType::F16] {
        let cut = Wgpu::within(&found, 24 << 10).unwrap();
        assert!(cut.alloc(dtype, PAGES, 128).unwrap().buf().blocks().len() > 1);
        assert!(attention(&cut, dtype) == attention(&whole, dtype), "{dtype}");
    }
    // A tensor that no kernel could bind is refused when it is allocated, not during a step.
    let cut = Wgpu::within(&found, 1 << 10).unwrap();
    assert!(matches!(cut.alloc(DType::F32, 100, 128), Err(Error::OutOfMemory { .. })));
    assert!(matches!(cut.alloc(DType::F32, 1, 1000), Err(Error::OutOfMemory { .. })));
}

/// Layers of many outputs are cut into other workgroups than those of few, and many rows into others than few, with the
/// same results bit for bit.
#[test]
fn many_outputs_are_summed_as_few() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    // A few more segments of inputs than strands, and outputs that fill no whole group.
    let (many, few, cols) = ((1 << 15) + 40, 40, 33 * 32);
    let width = Format::Q8_0.row_bytes(cols).unwrap();
    let mut bytes = vec![0; width * many];
    tallow_quant::pack(Format::Q8_0, &numbers(7, many * cols), &mut bytes).unwrap();
    let linear = |bytes: &[u8]| {
        let rows = bytes.len() / width;
        LinearWeights::new(b.prepare(HostWeight::new(Format::Q8_0, rows, cols, bytes)).unwrap(), None)
    };
    let (all, last) = (linear(&bytes), linear(&bytes[width * (many - few)..]));
    let mut alone = Vec::new();
    for rows in [1, 3, 8, 20] {
        // The first row is the same each time.
        let x = b.upload(&numbers(5, rows * cols), rows, cols).unwrap();
        let y = |weights| {
            let y = b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE }).unwrap();
            b.download::<f32>(&y.col_range(y.cols() - few..y.cols())).unwrap()
        };
        let (all, last) = (y(&all), y(&last));
        assert!(all == last && all.iter().any(|y| *y != 0.0), "{rows} rows");
        alone.extend_from_slice(if rows == 1 { &all } else { &[] });
        assert!(all[..few] == alone, "{rows} rows");
    }
}

fn blocks(w: &tallow_core::Weight<Wgpu>) -> usize {
    match w {
        tallow_core::Weight::Blocks { data, .. } => data.buf().blocks().len(),
        tallow_core::Weight::Dense(t) => t.buf().blocks().len(),
    }
}

/// Freed memory is reused, and running out of memory is an error that the device survives.
#[test]
fn memory_is_used_again_and_runs_out_with_words() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let id = |t: &Tensor<Wgpu>| format!("{:?}", t.buf());
    let first = id(&b.alloc(DType::F32, 100, 100).unwrap());
    assert_eq!(first, id(&b.alloc(DType::F32, 100, 100).unwrap()));
    // More than any device has.
    let huge = b.alloc(DType::F32, usize::MAX / 8, 8);
    assert!(matches!(huge, Err(Error::OutOfMemory { .. })), "{huge:?}");
    // The device still works.
    let x = b.upload(&[1.0f32, 2.0, 3.0], 1, 3).unwrap();
    assert_eq!(b.download::<f32>(&x).unwrap(), [1.0, 2.0, 3.0]);
}

#[test]
fn a_kernel_that_does_not_compile_is_an_error_with_its_place() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let fails = |kernel| {
        let launch = Launch { kernel, args: vec![], params: vec![U("n", 1)], grid: [1, 1, 1], work: 0 };
        b.gpu.launch(&launch).unwrap_err().to_string()
    };
    // No `out` is bound.
    let why = fails(Kernel::new("copy"));
    assert!(why.contains("the kernel copy does not compile: copy.wgsl:5: "), "{why}");
    let why = fails(Kernel::new("copy_packed"));
    assert!(
        why.contains("the kernel copy_packed does not compile: copy_packed.wgsl:6: PACK has no value"),
        "{why}"
    );
    let x = b.upload(&[1.0f32], 1, 1).unwrap();
    assert_eq!(b.download::<f32>(&x).unwrap(), [1.0]);
}

/// Every call on a lost device returns `Error::Lost`, and the device can be dropped.
#[test]
fn a_device_that_is_lost_says_so() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let x = b.upload(&numbers(1, 64), 1, 64).unwrap();
    let norm = Norm { kind: NormKind::Rms, weight: x.clone(), bias: None, eps: 1e-5 };
    b.run(Normalize { x: &x, norm: &norm, residual: None }).unwrap();
    b.gpu.destroy();
    let tried: [(&str, Option<Error>); 4] = [
        ("upload", b.upload(&[1.0f32], 1, 1).err()),
        ("download", b.download::<f32>(&x).err()),
        ("sync", b.sync().err()),
        ("a new size", b.alloc(DType::F32, 77, 77).and_then(|t| b.zero(&t).and_then(|()| b.sync())).err()),
    ];
    for (what, e) in tried {
        assert!(matches!(e, Some(Error::Lost { .. })), "{what}: {e:?}");
    }
}

/// A failed step does not make later steps fail.
#[test]
fn a_step_that_fails_is_over() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    for _ in 0..3 {
        // Reading twice the block's size is an error that wgpu itself reports.
        let block = &x.buf().blocks()[0];
        assert!(matches!(b.gpu.read(&[(block, 0, 2 * block.size())]), Err(Error::Device { .. })));
        let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(3.0) }).unwrap();
        assert_eq!(b.download::<f32>(&y).unwrap(), [3.0, 6.0]);
    }
}

/// The conformance suite in few sizes, as `doctor` runs it on hardware. Outside CI the tests above run no more themselves.
#[test]
fn conformance_in_brief() {
    let Some(found) = found().filter(|_| tallow_support::ci()) else { return };
    let outcomes = tallow_core::conformance::run(&Wgpu::open(&found).unwrap(), Suite::exact().brief());
    assert_eq!(outcomes.len(), cases::<Wgpu>().len());
    assert!(outcomes.iter().all(|(_, outcome)| outcome.is_ok()), "{outcomes:?}");
}

/// More launches than fit into one submission.
#[test]
fn many_launches() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let mut x = b.upload(&[0.0f32, 1.0, -2.0], 1, 3).unwrap();
    let one = b.upload(&[1.0f32; 3], 1, 3).unwrap();
    let before = b.counts();
    for _ in 0..20_000 {
        x = b.run(Eltwise { x: &x, op: EltwiseOp::Add(&one) }).unwrap();
    }
    assert_eq!(b.download::<f32>(&x).unwrap(), [20_000.0, 20_001.0, 19_998.0]);
    let after = b.counts();
    assert!(after.submits - before.submits > 1 && after.dispatches - before.dispatches == 20_000);
}

/// A step that has begun is one submission, and what was asked of it another wait and no more.
#[test]
fn what_has_begun_is_handed_over_once() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    let before = b.counts();
    let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(3.0) }).unwrap();
    let pending = b.fetch(&[&y]).unwrap();
    assert_eq!(b.counts().submits, before.submits);
    assert!(b.begin().unwrap());
    assert_eq!((b.counts().submits, b.counts().reads), (before.submits + 1, before.reads));
    let mut got = [0f32; 2];
    b.wait(pending, &mut [bytemuck::cast_slice_mut(&mut got)]).unwrap();
    assert_eq!(
        (got, b.counts().submits, b.counts().reads),
        ([3.0, 6.0], before.submits + 1, before.reads + 1)
    );
    // With nothing launched nothing is handed over.
    b.begin().unwrap();
    assert_eq!(b.counts().submits, before.submits + 1);
}

/// What is waited for is what was fetched, however many submissions have been begun since, and in any order.
#[test]
fn results_of_several_submissions_are_read_one_by_one() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let x = b.upload(&[1.0f32, 2.0], 1, 2).unwrap();
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        let launch = |n: u8| {
            let y = b.run(Eltwise { x: &x, op: EltwiseOp::Scale(f32::from(n)) }).unwrap();
            let pending = b.fetch(&[&y]).unwrap();
            b.begin().unwrap();
            Some(pending)
        };
        let mut all = [0, 1, 2, 3].map(launch);
        for n in order {
            let mut got = [0f32; 2];
            let pending = all[n].take().unwrap();
            b.wait(pending, &mut [bytemuck::cast_slice_mut(&mut got)]).unwrap();
            assert_eq!(got, [n as f32, 2.0 * n as f32]);
        }
    }
}

/// Work is split into several submissions, since some systems reset a GPU that is busy for too long.
#[test]
fn much_work_is_handed_over_in_pieces() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let out = b.gpu.alloc(4).unwrap();
    let submits = |work: u64| {
        let before = b.counts().submits;
        for _ in 0..6 {
            let kernel = Kernel::new("probe_fma");
            let args = vec![Arg { name: "out", of: "u32", access: Access::Write, block: &out }];
            let params = vec![U("rounds", 1)];
            b.gpu.launch(&Launch { kernel, args, params, grid: [1, 1, 1], work }).unwrap();
        }
        b.sync().unwrap();
        b.counts().submits - before
    };
    assert_eq!((submits(0), submits(20_000_000_000), submits(200_000_000_000)), (1, 3, 6));
}

/// A 16-bit KV cache refuses an odd head dimension.
#[test]
fn a_cache_that_cannot_be_is_refused() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let heads = Heads { q: 1, kv: 1, dim: 3 };
    let (k, v) = (b.alloc(DType::F16, 2, 12).unwrap(), b.alloc(DType::F16, 2, 12).unwrap());
    let spans = vec![Span { rows: 1, start: 0, pages: vec![1].into() }];
    let step = Step { tokens: vec![0], spans, page_len: 4, ..Step::default() };
    let plan = StepPlan::new(&b, step).unwrap();
    let x = b.upload(&[1.0f32; 3], 1, 3).unwrap();
    let kv = LayerKv { k: &k, v: Some(&v) };
    let why = b.run(KvWrite { k: &x, v: Some(&x), heads, kv, plan: &plan }).unwrap_err().to_string();
    insta::assert_snapshot!(why, @"the GPU failed: a cache of f16 needs heads whose width 2 divides, and these have 3");
}

/// Reads and writes that begin and end within words.
#[test]
fn small_elements_are_written_where_they_should() {
    let Some(found) = found() else { return };
    let b = Wgpu::open(&found).unwrap();
    let t = b.upload(&(0u8..35).collect::<Vec<u8>>(), 5, 7).unwrap();
    b.write(&t.row_range(1..3), &[100; 14]).unwrap();
    let mut want: Vec<u8> = (0..35).collect();
    want[7..21].fill(100);
    assert_eq!(b.download::<u8>(&t).unwrap(), want);
    let half = half::f16::from_f32(2.5);
    let h = b.upload(&[half; 9], 3, 3).unwrap();
    b.zero(&h.row_range(1..2)).unwrap();
    let zero = half::f16::ZERO;
    assert_eq!(b.download::<half::f16>(&h).unwrap(), [half, half, half, zero, zero, zero, half, half, half]);
    // Zeroing the first row must not clear the whole tensor, though both begin at the same offset.
    let h = b.upload(&[half; 9], 3, 3).unwrap();
    b.zero(&h.row_range(0..1)).unwrap();
    assert_eq!(b.download::<half::f16>(&h).unwrap(), [zero, zero, zero, half, half, half, half, half, half]);
    b.zero(&h).unwrap();
    assert_eq!(b.download::<half::f16>(&h).unwrap(), [zero; 9]);
}
