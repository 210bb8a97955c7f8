//! [`Kernels`]: the inner loops, compiled for each instruction set and chosen once.
//!
//! # Safety
//!
//! What is unsafe here must run only on a CPU that has the instruction set of its `S`, and nobody else may use the part
//! of the output that it is given.

mod attend;
mod linear;
mod probe;
mod rowwise;

pub(crate) use attend::{AttendTask, Kept, Layout, Pages, Stage};
pub(crate) use linear::{LinearTask, Source};
pub(crate) use rowwise::NormTask;
use tallow_core::{Activation, RopePairs};

use crate::Isa;
use crate::simd::Scalar;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Reads a gate and perhaps what it gates; writes the result.
type GluKernel = fn(Activation, &[f32], Option<&[f32]>, &mut [f32]);

/// Does a stage of a task, in scratch memory.
type AttendKernel = fn(&AttendTask<'_>, &Stage<'_>, &mut Vec<f32>);

/// The inner loops for one instruction set. To have one is to know that the CPU has the instructions.
pub(crate) struct Kernels {
    pub isa: Isa,
    /// One row of a weight as plain numbers.
    pub unpack: fn(&Source<'_>, usize, &mut [f32]),
    /// Some outputs of a linear layer, for all rows of its input.
    pub linear: fn(&LinearTask<'_>, &mut Vec<f32>),
    /// Normalises a row.
    pub norm: fn(&NormTask<'_>, &[f32], &mut [f32]),
    /// `out = act(gate) * up`
    pub glu: GluKernel,
    /// Turns one head by a row of angles.
    pub rotate: fn(RopePairs, &[f32], &mut [f32]),
    /// Attention of some tokens of a sequence, for the query heads of one key head: all of it, or a stage. By any cache,
    /// and by two kinds of it without widening it first.
    pub attend: AttendKernel,
    pub attend_f16: AttendKernel,
    pub attend_bf16: AttendKernel,
    /// The columns of the largest numbers, largest first, of equals the first, NaN counting as smallest.
    pub largest: fn(&[f32], &mut [u32]),
    /// `out += scale * x`
    pub add_scaled: fn(&mut [f32], f32, &[f32]),
    /// `x = cap * tanh(x / cap)`
    pub softcap: fn(&mut [f32], f32),
    /// `x *= sigmoid(y)`
    pub gate: fn(&mut [f32], &[f32]),
    /// Adds up the elements, as fast as they can be read.
    pub read: fn(&[f32], &mut f32),
    /// Multiplies and adds as fast as possible; counts the operations.
    pub multiply: fn(usize, &mut u64),
}

/// Instantiates the generic kernels inside functions that have `$features` enabled.
macro_rules! table {
    ($table:ident, $isa:expr, $simd:ty $(, $feature:literal)*) => {
        table!(@fns $table, $isa, $simd, [$($feature),*],
            unpack: (w: &Source<'_>, row: usize, out: &mut [f32]) => linear::unpack_row::<$simd>(w, row, out);
            linear: (task: &LinearTask<'_>, scratch: &mut Vec<f32>) => linear::linear::<$simd>(task, scratch);
            norm: (task: &NormTask<'_>, x: &[f32], out: &mut [f32]) => rowwise::norm::<$simd>(task, x, out);
            glu: (act: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32])
                => rowwise::glu::<$simd>(act, gate, up, out);
            rotate: (pairs: RopePairs, angles: &[f32], head: &mut [f32]) => rowwise::rotate(pairs, angles, head);
            largest: (x: &[f32], ids: &mut [u32]) => rowwise::largest(x, ids);
            attend: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attend::attend::<$simd>(task, stage, scratch);
            attend_f16: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attend::attend_f16::<$simd>(task, stage, scratch);
            attend_bf16: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attend::attend_bf16::<$simd>(task, stage, scratch);
            add_scaled: (out: &mut [f32], scale: f32, x: &[f32]) => rowwise::add_scaled::<$simd>(out, scale, x);
            softcap: (x: &mut [f32], cap: f32) => rowwise::softcap::<$simd>(x, cap);
            gate: (x: &mut [f32], y: &[f32]) => rowwise::gate::<$simd>(x, y);
            read: (x: &[f32], sum: &mut f32) => probe::read::<$simd>(x, sum);
            multiply: (rounds: usize, count: &mut u64) => probe::multiply::<$simd>(rounds, count);
        );
    };
    (@fns $table:ident, $isa:expr, $simd:ty, $features:tt,
        $($name:ident: ($($arg:ident: $t:ty),*) => $body:expr;)*) => {
        mod $table {
            use super::*;
            $(table!(@one $features, $name, ($($arg: $t),*), $body);)*
            pub(super) static TABLE: Kernels = Kernels { isa: $isa, $($name),* };
        }
    };
    (@one [$($feature:literal),*], $name:ident, ($($arg:ident: $t:ty),*), $body:expr) => {
        fn $name($($arg: $t),*) {
            $(#[target_feature(enable = $feature)])*
            unsafe fn compiled($($arg: $t),*) {
                // SAFETY: the function around this one has the same contract.
                #[allow(unused_unsafe, reason = "some kernels are plain code")]
                unsafe {
                    $body
                }
            }
            // SAFETY: this table is handed out only where the CPU has these features (see `Kernels::new`).
            unsafe { compiled($($arg),*) }
        }
    };
}

table!(scalar, Isa::Scalar, Scalar);
#[cfg(target_arch = "x86_64")]
table!(avx2, Isa::Avx2, Avx2, "avx2", "fma", "f16c");
#[cfg(target_arch = "x86_64")]
table!(avx512, Isa::Avx512, Avx512, "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl");

impl Kernels {
    /// The kernels for `isa`, if this CPU has it.
    pub(crate) fn new(isa: Isa) -> Option<&'static Kernels> {
        isa.is_available().then_some(match isa {
            Isa::Scalar => &scalar::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::TABLE,
            #[cfg(not(target_arch = "x86_64"))]
            _ => &scalar::TABLE,
        })
    }
}
