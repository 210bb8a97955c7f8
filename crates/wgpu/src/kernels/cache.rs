//! Layout of the KV cache.
//!
//! Within a page, keys are `[head][element][token]`, since neighbouring invocations read neighbouring tokens, and
//! values `[head][token][element]`, since there they read neighbouring elements. 16-bit elements are packed in pairs
//! and 8-bit codes in fours along a head's elements; a page's scales, `[head][token]`, follow all its codes.

use std::fmt::Write;

use tallow_core::{DType, Error, Heads, LayerKv, Result, StepPlan};

use crate::backend::Wgpu;
use crate::gpu::{Access, Arg};

/// Binding names of the blocks of a KV cache.
const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
const VALUES: [&str; 4] = ["v0", "v1", "v2", "v3"];
/// Most blocks per K or V cache.
pub(crate) const CACHE_BLOCKS: usize = KEYS.len();

/// Layout of a KV cache, as far as it is fixed in a kernel's source.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    dtype: DType,
    pub heads: Heads,
    page_len: usize,
    /// Blocks of memory, and pages per block if there are several.
    blocks: usize,
    each: usize,
}

impl Pages {
    pub(super) fn new(kv: &LayerKv<'_, Wgpu>, heads: Heads, plan: &StepPlan<Wgpu>) -> Result<Pages> {
        let (dtype, page_len, blocks) = (kv.k.dtype(), plan.host.page_len, kv.k.buf().blocks().len());
        let each = if blocks == 1 { 1 } else { kv.k.buf().rows_each() };
        let pages = Pages { dtype, heads, page_len, blocks, each };
        let refuse = |why: String| Err(Error::Device { device: "the GPU".into(), why });
        if !heads.dim.is_multiple_of(pages.pack()) {
            let dim = heads.dim;
            let pack = pages.pack();
            return refuse(format!(
                "a cache of {dtype} needs heads whose width {pack} divides, and these have {dim}"
            ));
        }
        match kv.k.offset() == 0 && kv.v.offset() == 0 {
            true => Ok(pages),
            false => refuse("a cache begins where its memory does".into()),
        }
    }

    pub(super) fn variant(&self) -> Vec<u32> {
        let Heads { q, kv, dim } = self.heads;
        let numbers = [self.dtype as usize, q, kv, dim, self.page_len, self.blocks, self.each];
        numbers.map(|n| n as u32).to_vec()
    }

    /// Elements per 32-bit word.
    pub(super) fn pack(&self) -> usize {
        4 / self.dtype.size()
    }

    /// Whether elements are 8-bit codes with scales.
    pub(super) fn is_scaled(&self) -> bool {
        self.dtype.max_abs().is_some()
    }

    pub(super) fn args<'a>(&self, kv: &LayerKv<'a, Wgpu>, access: Access, args: &mut Vec<Arg<'a>>) {
        for (names, t) in [(KEYS, kv.k), (VALUES, kv.v)] {
            let blocks = t.buf().blocks().iter().zip(names);
            args.extend(blocks.map(|(block, name)| Arg { name, of: "u32", access, block }));
        }
    }

    /// WGSL: constants of the layout, and functions that read a word of a page or, if `stores`, write one.
    pub(super) fn source(&self, stores: bool) -> String {
        let Heads { q, kv, dim } = self.heads;
        let (len, pack, each) = (self.page_len, self.pack(), self.each);
        let page = len * self.heads.cache_cols(self.dtype) / pack;
        let scales = len * self.heads.kv_cols() / pack;
        let mut s = format!(
            "const GROUP = {}u;\nconst QUERIES = {q}u;\nconst KV_HEADS = {kv}u;\nconst DIM = {dim}u;\nconst LEN = {len}u;\n\
             const PACK = {pack}u;\nconst PAGE = {page}u;\nconst SCALES = {scales}u;\nconst EACH = {each}u;\n",
            q / kv
        );
        for name in ["k", "v"] {
            let (mut get, mut put) = (String::new(), String::new());
            for i in (1..self.blocks).rev() {
                let _ = writeln!(
                    get,
                    "  if (page / EACH == {i}u) {{ return {name}{i}[(page % EACH) * PAGE + i]; }}"
                );
                let _ = writeln!(
                    put,
                    "  if (page / EACH == {i}u) {{ {name}{i}[(page % EACH) * PAGE + i] = x; return; }}"
                );
            }
            let _ = writeln!(
                s,
                "fn {name}_get(page: u32, i: u32) -> u32 {{\n{get}  return {name}0[page * PAGE + i];\n}}"
            );
            if stores {
                let _ = writeln!(
                    s,
                    "fn {name}_put(page: u32, i: u32, x: u32) {{\n{put}  {name}0[page * PAGE + i] = x;\n}}"
                );
            }
        }
        if stores {
            if let Some(reach) = self.dtype.max_abs() {
                let _ = writeln!(s, "const REACH = {reach:?};");
                s += include_str!("../shaders/keep.wgsl");
            }
            s += include_str!("../shaders/halves.wgsl");
            s += match self.dtype {
                DType::I8 => "fn code(x: f32) -> u32 { return u32(i32(round(x))) & 0xffu; }\n",
                DType::F8 => "fn code(x: f32) -> u32 { return as_f8(x); }\n",
                DType::F16 => "fn packed(a: f32, b: f32) -> u32 { return as_f16(a) | (as_f16(b) << 16u); }\n",
                DType::BF16 => {
                    "fn packed(a: f32, b: f32) -> u32 { return as_bf16(a) | (as_bf16(b) << 16u); }\n"
                }
                _ => "fn packed(a: f32, b: f32) -> u32 { return bitcast<u32>(a); }\n",
            };
            return s;
        }
        for name in ["k", "v"] {
            let by = if self.is_scaled() {
                format!("bitcast<f32>({name}_get(page, SCALES + i))")
            } else {
                "1.0".into()
            };
            let _ = writeln!(s, "fn {name}_by(page: u32, i: u32) -> f32 {{ return {by}; }}");
        }
        let unpacked = match self.dtype {
            DType::F16 => "vec4<f32>(unpack2x16float(w), 0.0, 0.0)",
            DType::BF16 => "vec4<f32>(bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u)), 0.0, 0.0)",
            DType::I8 => "vec4<f32>(bitcast<vec4<i32>>(fours(w)) >> vec4<u32>(24u))",
            DType::F8 => "of_f8(fours(w))",
            _ => "vec4<f32>(bitcast<f32>(w), 0.0, 0.0, 0.0)",
        };
        if self.is_scaled() {
            s += include_str!("../shaders/kept.wgsl");
        }
        let _ = writeln!(s, "fn unpacked(w: u32) -> vec4<f32> {{ return {unpacked}; }}");
        s
    }
}
