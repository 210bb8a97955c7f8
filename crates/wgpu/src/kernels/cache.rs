//! How a cache is laid out.
//!
//! Of a page, keys lie `[head][element][token]`, so that invocations which look at neighbouring tokens read neighbouring
//! words; values lie `[head][token][element]`, because those which look at neighbouring elements do. Elements of 16 bits
//! go in pairs.

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
            return refuse(format!("a cache of {dtype} needs heads of an even width, and these have {dim}"));
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
        let page = len * self.heads.kv_cols() / pack;
        let mut s = format!(
            "const GROUP = {}u;\nconst QUERIES = {q}u;\nconst KV_HEADS = {kv}u;\nconst DIM = {dim}u;\nconst LEN = {len}u;\n\
             const PACK = {pack}u;\nconst PAGE = {page}u;\nconst EACH = {each}u;\n",
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
            s += include_str!("../shaders/halves.wgsl");
            s += match self.dtype {
                DType::F16 => "fn packed(a: f32, b: f32) -> u32 { return as_f16(a) | (as_f16(b) << 16u); }\n",
                DType::BF16 => {
                    "fn packed(a: f32, b: f32) -> u32 { return as_bf16(a) | (as_bf16(b) << 16u); }\n"
                }
                _ => "fn packed(a: f32, b: f32) -> u32 { return bitcast<u32>(a); }\n",
            };
            return s;
        }
        s + match self.dtype {
            DType::F16 => "fn unpacked(w: u32) -> vec2<f32> { return unpack2x16float(w); }\n",
            DType::BF16 => {
                "fn unpacked(w: u32) -> vec2<f32> {\n  \
                            return bitcast<vec2<f32>>(vec2<u32>(w << 16u, w & 0xffff0000u));\n}\n"
            }
            _ => "fn unpacked(w: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(w), 0.0); }\n",
        }
    }
}
