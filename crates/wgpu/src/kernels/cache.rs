//! How a cache is laid out.
//!
//! Of a page, keys lie `[head][element][token]`, so that invocations which look at neighbouring tokens read neighbouring
//! words; values lie `[head][token][element]`, because those which look at neighbouring elements do. Elements of 16 bits
//! go in pairs, codes of eight bits in fours; behind all codes of a page are its scales, `[head][token]`.

use std::fmt::Write;

use tallow_core::{DType, Error, Heads, LayerKv, Result, StepPlan};

use crate::backend::Wgpu;
use crate::gpu::{Access, Arg};

/// Names of the blocks that a cache may lie in.
const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
const VALUES: [&str; 4] = ["v0", "v1", "v2", "v3"];
/// Blocks that a cache may lie in.
pub(crate) const CACHE_BLOCKS: usize = KEYS.len();

/// How a cache is laid out, as far as kernels have it fixed.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    dtype: DType,
    pub heads: Heads,
    page_len: usize,
    /// Blocks of memory, and pages in each where there are several.
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

    /// Elements in a word.
    pub(super) fn pack(&self) -> usize {
        4 / self.dtype.size()
    }

    /// Are elements codes that have scales?
    pub(super) fn is_scaled(&self) -> bool {
        self.dtype.reach().is_some()
    }

    pub(super) fn args<'a>(&self, kv: &LayerKv<'a, Wgpu>, access: Access, args: &mut Vec<Arg<'a>>) {
        for (names, t) in [(KEYS, kv.k), (VALUES, kv.v)] {
            let blocks = t.buf().blocks().iter().zip(names);
            args.extend(blocks.map(|(block, name)| Arg { name, of: "u32", access, block }));
        }
    }

    /// WGSL: what is fixed, and how a word of a page is found.
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
            if let Some(reach) = self.dtype.reach() {
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
