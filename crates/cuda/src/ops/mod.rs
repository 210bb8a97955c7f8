//! Kernel launches of each op. The kernels are in `kernels`, in files of the same names.

mod attention;
pub(crate) mod experts;
mod layers;
mod linear;
pub(crate) mod lora;
mod products;
mod recurrent;
mod rowwise;
mod select;
mod sixteen;
mod stacked;
