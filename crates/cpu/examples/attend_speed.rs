//! Attention speed, next to the machine's limits measured in the same minute.
//!
//! `attend_speed [isa=avx512] [threads=2] [kv=f16] [q=16] [heads=8] [dim=128] [values=keys] [page=16] [runs=7] [only=decode]`

use std::error::Error;
use std::time::Instant;

use tallow_core::ops::{Attend, KvWrite};
use tallow_core::{AttnSpec, Backend, DType, Format, Heads, LayerKv, Memory, Span, Step, StepPlan, Tensor};
use tallow_cpu::{Cpu, Isa};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Bytes of KV cache that decode reads per run: more than any CPU cache holds.
const READ: usize = 1 << 29;

struct Bench {
    cpu: Cpu,
    dtype: DType,
    heads: Heads,
    /// The values are the keys, as in MLA (`q=16 heads=1 dim=576 values=keys`).
    keys_as_values: bool,
    page: usize,
    runs: usize,
    spec: AttnSpec<Cpu>,
}

/// K and V of one layer.
struct Layer {
    k: Tensor<Cpu>,
    /// None if the values are the keys.
    v: Option<Tensor<Cpu>>,
}

impl Layer {
    fn kv(&self) -> LayerKv<'_, Cpu> {
        LayerKv { k: &self.k, v: self.v.as_ref() }
    }
}

/// The value of `name=value` among the arguments.
fn argument(name: &str) -> Option<String> {
    std::env::args().find_map(|a| Some(a.strip_prefix(name)?.strip_prefix('=')?.to_string()))
}

fn number(name: &str, default: usize) -> Outcome<usize> {
    Ok(argument(name).map(|n| n.parse()).transpose()?.unwrap_or(default))
}

/// Values from -1 to 1.
fn noise(count: usize) -> Vec<f32> {
    let mut x = 1u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as f32 / (1u32 << 31) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Median and minimum of the run times, in seconds.
fn times(runs: usize, mut run: impl FnMut() -> Outcome<()>) -> Outcome<(f64, f64)> {
    run()?;
    let mut all = Vec::new();
    for _ in 0..runs {
        let begun = Instant::now();
        run()?;
        all.push(begun.elapsed().as_secs_f64());
    }
    all.sort_by(f64::total_cmp);
    Ok((all[all.len() / 2], all[0]))
}

impl Bench {
    /// Tensors of a layer's cache.
    fn tensors(&self) -> usize {
        if self.keys_as_values { 1 } else { 2 }
    }

    /// A step of `sequences` sequences, each with `rows` tokens after `start` earlier ones.
    fn plan(&self, sequences: usize, start: usize, rows: usize) -> Outcome<StepPlan<Cpu>> {
        let count = (start + rows).div_ceil(self.page);
        let span =
            |i: usize| Span { rows, start, pages: (i * count..(i + 1) * count).map(|p| p as u32).collect() };
        let spans = (0..sequences).map(span).collect();
        let tokens = vec![0; sequences * rows];
        let step = Step { tokens, spans, page_len: self.page, ..Step::default() };
        Ok(StepPlan::new(&self.cpu, step)?)
    }

    /// A layer with the K and V of a step, and the seconds it took to store one token.
    fn layer(&self, plan: &StepPlan<Cpu>) -> Outcome<(Layer, f64)> {
        let pages: usize = plan.host().spans.iter().map(|s| s.pages.len()).sum();
        let alloc = || self.cpu.alloc(self.dtype, pages, self.page * self.heads.cache_cols(self.dtype));
        let layer = Layer { k: alloc()?, v: (!self.keys_as_values).then(alloc).transpose()? };
        let (rows, cols) = (plan.host().tokens.len(), self.heads.kv_cols());
        let k = self.cpu.upload(&noise(rows * cols), rows, cols)?;
        let write = || {
            self.cpu.run(KvWrite {
                k: &k,
                v: layer.v.as_ref().map(|_| &k),
                heads: self.heads,
                kv: layer.kv(),
                plan,
            })
        };
        write()?;
        let begun = Instant::now();
        write()?;
        let took = begun.elapsed().as_secs_f64() / rows as f64;
        Ok((layer, took))
    }

    fn decode(&self, sequences: usize, depth: usize) -> Outcome<()> {
        let fill = self.plan(sequences, 0, depth)?;
        let plan = self.plan(sequences, depth - 1, 1)?;
        let bytes =
            sequences * depth * self.heads.cache_cols(self.dtype) * self.tensors() * self.dtype.size();
        let mut layers = vec![self.layer(&fill)?.0];
        while layers.len() * bytes < READ {
            let (like, pages) = (&layers[0], layers[0].k.rows());
            let copy = |from: &Tensor<Cpu>| -> Outcome<Tensor<Cpu>> {
                let to = self.cpu.alloc(self.dtype, pages, from.cols())?;
                self.cpu.copy(&tallow_core::ops::Copy { from, to: &to })?;
                Ok(to)
            };
            let layer = Layer { k: copy(&like.k)?, v: like.v.as_ref().map(copy).transpose()? };
            layers.push(layer);
        }
        let q = self.cpu.upload(&noise(sequences * self.heads.q_cols()), sequences, self.heads.q_cols())?;
        let memory = self.cpu.read_probe(READ)?;
        let (mut raw, begun) = (Vec::new(), Instant::now());
        let (median, best) = times(self.runs, || {
            raw.push(self.cpu.read_speed(&memory));
            Ok(())
        })
        .and_then(|_| {
            times(self.runs, || {
                for layer in &layers {
                    let op =
                        Attend { q: &q, heads: self.heads, spec: &self.spec, kv: layer.kv(), plan: &plan };
                    self.cpu.run(op)?;
                }
                Ok(())
            })
        })?;
        raw.sort_by(f64::total_cmp);
        let (total, raw) = ((bytes * layers.len()) as f64 * 1e-9, raw[raw.len() / 2] * 1e-9);
        println!(
            "decode  {sequences} x {depth:5}: {:6.2} GB/s (best {:6.2}), {:.1} us a layer; raw read {raw:.2} \
             GB/s: {:.0} % ({:.1} s)",
            total / median,
            total / best,
            median * 1e6 / layers.len() as f64,
            100.0 * total / median / raw,
            begun.elapsed().as_secs_f64(),
        );
        Ok(())
    }

    fn prefill(&self, tokens: usize) -> Outcome<()> {
        let plan = self.plan(1, 0, tokens)?;
        let (layer, write) = self.layer(&plan)?;
        let q = self.cpu.upload(&noise(tokens * self.heads.q_cols()), tokens, self.heads.q_cols())?;
        let (median, best) = times(self.runs, || {
            let (heads, kv) = (self.heads, layer.kv());
            self.cpu.run(Attend { q: &q, heads, spec: &self.spec, kv, plan: &plan })?;
            Ok(())
        })?;
        // Causal QKᵀ and the product with V; 2 FLOPs per multiply-add each.
        let work = 4.0 * (tokens * (tokens + 1) / 2 * self.heads.q_cols()) as f64 * 1e-9;
        let peak = self.cpu.multiply_speed(Format::F32) * 1e-9;
        println!(
            "prefill {tokens:5}: {:6.1} GFLOP/s (best {:6.1}); multiply {peak:.1}: {:.0} %; storing {:.2} us a \
             token",
            work / median,
            work / best,
            100.0 * work / median / peak,
            write * 1e6,
        );
        Ok(())
    }
}

fn main() -> Outcome<()> {
    let isa = argument("isa").map(|n| n.parse()).transpose()?.unwrap_or(Isa::best());
    let dtype = match argument("kv").as_deref() {
        None | Some("f16") => DType::F16,
        Some("bf16") => DType::BF16,
        Some("f32") => DType::F32,
        Some("int8") => DType::I8,
        Some("fp8") => DType::F8,
        Some(other) => return Err(format!("kv={other}: f32, f16, bf16, int8 or fp8").into()),
    };
    let bench = Bench {
        cpu: Cpu::new(isa, number("threads", 2)?)?,
        dtype,
        heads: Heads { q: number("q", 16)?, kv: number("heads", 8)?, dim: number("dim", 128)? },
        keys_as_values: argument("values").as_deref() == Some("keys"),
        page: number("page", 16)?,
        runs: number("runs", 7)?,
        spec: AttnSpec {
            scale: 0.1,
            window: None,
            chunk: None,
            softcap: None,
            sinks: None,
            bias: None,
            causal: true,
        },
    };
    println!("{}, {:?}, {}, pages of {}", bench.cpu.label(), bench.heads, dtype.name(), bench.page);
    let only = argument("only");
    let wanted = |what: &str| only.as_deref().is_none_or(|o| o == what);
    if wanted("prefill") {
        for tokens in [512, 2048, 4096] {
            bench.prefill(tokens)?;
        }
    }
    if wanted("decode") {
        for (sequences, depth) in [(1, 512), (1, 4096), (1, 16384), (8, 150), (8, 512), (8, 4096)] {
            bench.decode(sequences, depth)?;
        }
    }
    Ok(())
}
