//! The launch code of the kernels, per op. The WGSL is in `shaders`.

pub(crate) mod attend;
pub(crate) mod cache;
pub(crate) mod dequant;
pub(crate) mod latent_write;
pub(crate) mod linear;
pub(crate) mod moe;
pub(crate) mod qkv_prep;
pub(crate) mod recurrent;
pub(crate) mod rowwise;
pub(crate) mod stacked;
pub(crate) mod topk;

use tallow_core::{DType, Result, Tensor};

use crate::device::{Wgpu, block};
use crate::gpu::{Access, Arg, Param};

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
