//! Every shader file in every form, without a GPU: the conformance cases run on wgpu's noop device, which computes
//! nothing, and each kernel that they launch is translated to MSL and SPIR-V.

use std::collections::BTreeSet;

use tallow_core::conformance::{Suite, cases};
use tallow_core::ops::{Attend, KvWrite, QkvPrep};
use tallow_core::{AttnSpec, Backend, DType, Heads, LayerKv, Memory, Span, Step, StepPlan, Tensor};

use super::translate;
use crate::gpu::Found;
use crate::shaders::FILES;
use crate::{SpeedProbe, Wgpu};

/// Names of files.
type Files = BTreeSet<&'static str>;

#[test]
fn every_file_compiles_in_every_form() {
    let b = Wgpu::open(&Found::noop()).unwrap();
    for case in cases::<Wgpu>() {
        (case.run)(&b, Suite::shapes()).unwrap_or_else(|why| panic!("{}: {why}", case.name));
    }
    let probe = SpeedProbe::new(&b, 1 << 10).unwrap();
    probe.read_speed(&b).unwrap();
    probe.multiply_speed(&b).unwrap();
    assert_eq!(files(&b), FILES.iter().map(|file| file.name).collect());
}

/// The small caches of the conformance cases fit into one binding; these are in four blocks.
#[test]
fn kernels_of_caches_in_blocks_compile() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8] {
        for (q, dim) in [(4, 16), (2, 192), (12, 256)] {
            let heads = Heads { q, kv: 2, dim };
            let cols = 16 * heads.cache_cols(dtype);
            let b = Wgpu::within(&Found::noop(), (20 * cols * dtype.size()) as u64).unwrap();
            let [k, v] = [(); 2].map(|()| b.alloc(dtype, 80, cols).unwrap());
            launch(&b, heads, LayerKv { k: &k, v: Some(&v) });
            launch(&b, heads, LayerKv { k: &k, v: None });
            assert!(files(&b).contains("attend.wgsl"));
        }
    }
}

/// Translates the kernels that a device has compiled; returns the files that they are put together from.
fn files(b: &Wgpu) -> Files {
    translate(b);
    let mut files = Files::new();
    b.gpu.each_program(|_, _, program| files.extend(program.lines.iter().map(|(file, _)| *file)));
    files
}

/// Launches the ops of a KV cache, with one token a sequence and with more, and from short contexts and long ones.
fn launch(b: &Wgpu, heads: Heads, kv: LayerKv<'_, Wgpu>) {
    let zeros = |rows, cols| -> Tensor<Wgpu> { b.alloc(DType::F32, rows, cols).unwrap() };
    for (tokens, start) in [([1, 1], 0), ([1, 1], 1000), ([2, 1], 1000), ([3, 4], 0), ([12, 1], 0)] {
        let span =
            |rows| Span { rows, start, pages: (0..(start as u32 + rows as u32).div_ceil(16)).collect() };
        let (rows, spans) = (tokens.iter().sum(), tokens.map(span).to_vec());
        let step = Step { tokens: vec![0; rows], spans, page_len: 16, ..Step::default() };
        let plan = &StepPlan::new(b, step).unwrap();
        let (q, k) = (zeros(rows, heads.q_cols()), zeros(rows, heads.kv_cols()));
        b.run(KvWrite { k: &k, v: kv.v.map(|_| &k), heads, kv, plan }).unwrap();
        // More rows would not fit into these bindings.
        if rows < 8 && kv.v.is_some() {
            let qkv = zeros(rows, heads.qkv_cols());
            b.run(QkvPrep { qkv: &qkv, heads, qk_norm: None, rope: None, kv, plan }).unwrap();
        }
        for (sinks, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let spec = AttnSpec {
                scale: 0.5,
                window: None,
                chunk: None,
                softcap: None,
                sinks: sinks.then(|| zeros(1, heads.q)),
                bias: bias.then(|| zeros(heads.q, 33)),
                causal: true,
            };
            b.run(Attend { q: &q, heads, spec: &spec, kv, plan }).unwrap();
        }
    }
}
