//! The launch code of the kernels, per op. The WGSL is in `shaders`.

pub(crate) mod attend;
pub(crate) mod cache;
pub(crate) mod dequant;
pub(crate) mod linear;
pub(crate) mod qkv_prep;
pub(crate) mod recurrent;
pub(crate) mod rowwise;

use tallow_core::{DType, Error, Result, Tensor};

use crate::backend::Wgpu;
use crate::gpu::{Access, Arg, Block, Param};

/// The one block of a tensor. Only weights and KV caches, whose kernels support it, may have several.
pub(crate) fn block(t: &Tensor<Wgpu>) -> Result<&Block> {
    match t.buf().blocks() {
        [block] => Ok(block),
        blocks => {
            let most = blocks.first().map_or(0, Block::size);
            let why = format!("{t:?} has {} bytes, and a kernel sees {most} of them at once", t.bytes());
            Err(Error::Device { device: "the GPU".into(), why })
        }
    }
}

/// Binds a tensor as an array of its elements, and adds the view's offset and stride to `params`.
pub(crate) fn operand<'a>(
    name: &'static str,
    access: Access,
    t: &'a Tensor<Wgpu>,
    params: &mut Vec<Param>,
) -> Result<Arg<'a>> {
    params.push(Param::View(name, t.offset() as u32, t.stride() as u32));
    let of = if t.dtype() == DType::F32 { "f32" } else { "u32" };
    Ok(Arg { name, of, access, block: block(t)? })
}
