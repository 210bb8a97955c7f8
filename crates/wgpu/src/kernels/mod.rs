//! The kernels: for each op, what is launched with which operands. The programs are in `shaders`.

pub(crate) mod attend;
pub(crate) mod cache;
pub(crate) mod linear;
pub(crate) mod prep;
pub(crate) mod recurrent;
pub(crate) mod rowwise;
pub(crate) mod tables;

use tallow_core::{DType, Error, Result, Tensor};

use crate::backend::Wgpu;
use crate::gpu::{Access, Arg, Block, Param};

/// The block that holds a tensor. Only weights and caches, which have kernels that know, lie in several.
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

/// A tensor as an operand: an array of its elements, and the view's offset and stride.
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
