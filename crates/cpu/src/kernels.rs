//! [`Kernels`]: the inner loops, compiled for each instruction set and chosen once.
//!
//! # Safety
//!
//! Unsafe functions here may only run on a CPU that has the instruction set of their `S` or `L`, and while nobody
//! else uses the part of the output that they write.

use half::{bf16, f16};
use tallow_core::{Activation, RopePairs};

use crate::attention::{self, AttendTask, Pages, Stage};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::attention::{tile_units::Amx, tiles};
use crate::choices::Prefetch;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::gemm::amx as gemm_amx;
use crate::gemm::{self, Activated, Bf16Task, Chunk, Finish, FloatGemmTask, GemmTask, GemvTask, Plain};
use crate::isa::Isa;
use crate::pack::PackedLayout;
use crate::quantize::{self, QuantizeOut};
use crate::recurrent::{self, CausalConvTask, GatedDeltaTask};
use crate::roofline;
use crate::rowwise::{self, NormTask, TailTask};
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, AvxVnni};
use crate::simd::{F8, Lines, Scalar};

/// `out = act(gate) * up`, or `act(gate)` without `up`.
type GluKernel = fn(Activation, &[f32], Option<&[f32]>, &mut [f32]);

/// Runs a stage of a task, with scratch memory.
type AttendKernel = fn(&AttendTask<'_>, &Stage<'_>, &mut Vec<f32>);

/// Kernels of one instruction set. Having a reference to this proves that the CPU has the instructions.
pub(crate) struct Kernels {
    pub isa: Isa,
    /// Unpacks a chunk of that many inputs to 8-bit codes and scales.
    pub unpack: fn(&PackedLayout, &[u8], usize, &mut Chunk),
    /// Dequantizes a chunk to f32, with scratch memory for the codes.
    pub unpack_plain: fn(&PackedLayout, &[u8], usize, &mut Chunk, &mut Plain),
    /// Rows that GEMV multiplies at a time.
    pub gemv_rows: usize,
    /// Most rows that are multiplied by GEMV, and more by GEMM, until both were tried.
    pub gemv_max_rows: usize,
    /// GEMV: multiplies a pair of packed panels with a few rows.
    pub gemv: fn(&mut GemvTask<'_>),
    /// GEMM: multiplies an unpacked chunk of a pair of panels with many rows.
    pub gemm: fn(&mut GemmTask<'_>),
    /// GEMM in f32.
    pub gemm_float: fn(&mut FloatGemmTask<'_>),
    /// Multiplies a pair of packed BF16 panels with rows of bf16, any number of them. Without it they are multiplied with f32.
    pub bf16: Option<fn(&mut Bf16Task<'_>)>,
    /// Rounds a row to bf16. What is left of the output is zeros.
    pub to_bf16: fn(&[f32], &mut [bf16]),
    /// Epilogue of a linear layer: from sums to outputs.
    pub finish: fn(&Finish<'_>),
    /// True if signed codes are multiplied with 128 added to them (`Lines::BIASED`).
    pub biased: bool,
    /// From the sums of gate and up to the input of down.
    pub activate_sums: fn(&Activated<'_>),
    /// Quantizes a row to 8 bits, from a given chunk on.
    pub quantize: fn(&QuantizeOut<'_>, usize, usize, &[f32]),
    /// RMS norm or layer norm of a row.
    pub norm: fn(&NormTask<'_>, &[f32], &mut [f32]),
    /// `out = act(gate) * up`
    pub activate: GluKernel,
    /// One row of a causal convolution.
    pub causal_conv: fn(&CausalConvTask<'_>, &mut [f32]),
    /// Gated delta rule: runs tokens through a block of columns of a head's state.
    pub gated_delta: fn(&GatedDeltaTask<'_>, &mut [f32]),
    /// RoPE of one head by one row of the table.
    pub rope: fn(RopePairs, &[f32], &mut [f32]),
    /// Attention of some tokens of a sequence, for the query heads of one KV head: all of it, or one stage. `attend`
    /// takes any KV cache, `attend_bf16` BF16; the others take f16, int8 and FP8 without widening them first.
    pub attend: AttendKernel,
    pub attend_f16: AttendKernel,
    pub attend_bf16: AttendKernel,
    pub attend_i8: AttendKernel,
    pub attend_f8: AttendKernel,
    /// max |x|; not finite if an element is not.
    pub magnitude: fn(&[f32], &mut f32),
    /// Converts elements, each multiplied by the second argument, to the nearest `i8` or FP8.
    pub to_i8: fn(&[f32], f32, &mut [i8]),
    pub to_f8: fn(&[f32], f32, &mut [F8]),
    /// Top-k: columns of the largest elements, largest first, the first of equals; NaN is smallest.
    pub largest: fn(&[f32], &mut [u32]),
    /// Softmax mass outside the top k, for each temperature.
    pub tail_sum: fn(&TailTask<'_>, &mut [f32]),
    /// `out += scale * x`
    pub add_scaled: fn(&mut [f32], f32, &[f32]),
    /// `x = cap * tanh(x / cap)`
    pub softcap: fn(&mut [f32], f32),
    /// `x *= sigmoid(y)`
    pub gate: fn(&mut [f32], &[f32]),
    /// Reads the elements as fast as possible, and returns a value that depends on all.
    pub read: fn(&[f32], Prefetch, &mut u32),
    /// Multiplies and adds as fast as possible; counts the operations.
    pub multiply: fn(usize, &mut u64),
    /// The same with 8-bit integers.
    pub multiply_int8: fn(usize, &mut u64),
    /// The same with bf16, if that is what BF16 weights are multiplied with.
    pub multiply_bf16: Option<fn(usize, &mut u64)>,
}

/// Instantiates the generic kernels inside functions that have `$features` enabled.
macro_rules! table {
    ($table:ident, $isa:expr, $simd:ty, $lines:ty $(, $feature:literal)*) => {
        table!(@fns $table, $isa, $lines, [$($feature),*],
            unpack: (layout: &PackedLayout, from: &[u8], inputs: usize, to: &mut Chunk)
                => gemm::unpack::<$lines>(layout, from, inputs, to);
            unpack_plain: (layout: &PackedLayout, from: &[u8], inputs: usize, scratch: &mut Chunk, to: &mut Plain)
                => gemm::unpack_plain::<$lines>(layout, from, inputs, scratch, to);
            gemv: (task: &mut GemvTask<'_>) => gemm::gemv::<$lines>(task);
            gemm: (task: &mut GemmTask<'_>) => gemm::gemm::<$lines>(task);
            gemm_float: (task: &mut FloatGemmTask<'_>) => gemm::gemm_float::<$lines>(task);
            finish: (f: &Finish<'_>) => gemm::finish::<$simd>(f);
            activate_sums: (b: &Activated<'_>) => gemm::activate_sums::<$simd>(b);
            quantize: (to: &QuantizeOut<'_>, row: usize, first: usize, x: &[f32]) => quantize::round::<$simd>(to, row, first, x);
            to_bf16: (x: &[f32], out: &mut [bf16]) => quantize::to_bf16(x, out);
            norm: (task: &NormTask<'_>, x: &[f32], out: &mut [f32]) => rowwise::norm::<$simd>(task, x, out);
            activate: (act: Activation, gate: &[f32], up: Option<&[f32]>, out: &mut [f32])
                => rowwise::glu::<$simd>(act, gate, up, out);
            causal_conv: (task: &CausalConvTask<'_>, out: &mut [f32]) => recurrent::causal_conv::<$simd>(task, out);
            gated_delta: (task: &GatedDeltaTask<'_>, block: &mut [f32]) => recurrent::gated_delta::<$simd>(task, block);
            rope: (pairs: RopePairs, angles: &[f32], head: &mut [f32]) => rowwise::rope(pairs, angles, head);
            largest: (x: &[f32], ids: &mut [u32]) => rowwise::largest(x, ids);
            tail_sum: (task: &TailTask<'_>, sums: &mut [f32]) => rowwise::tail_sum::<$simd>(task, sums);
            attend: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attention::attend::<$simd>(task, stage, scratch);
            attend_f16: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attention::attend_as_is::<$simd, f16>(task, stage, scratch);
            attend_bf16: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attention::attend_bf16::<$simd>(task, stage, scratch);
            attend_i8: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attention::attend_i8::<$simd>(task, stage, scratch);
            attend_f8: (task: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>)
                => attention::attend_as_is::<$simd, F8>(task, stage, scratch);
            magnitude: (x: &[f32], most: &mut f32) => attention::magnitude(x, most);
            to_i8: (x: &[f32], by: f32, out: &mut [i8]) => attention::to_i8(x, by, out);
            to_f8: (x: &[f32], by: f32, out: &mut [F8]) => attention::to_f8(x, by, out);
            add_scaled: (out: &mut [f32], scale: f32, x: &[f32]) => rowwise::add_scaled::<$simd>(out, scale, x);
            softcap: (x: &mut [f32], cap: f32) => rowwise::softcap::<$simd>(x, cap);
            gate: (x: &mut [f32], y: &[f32]) => rowwise::gate::<$simd>(x, y);
            read: (x: &[f32], prefetch: Prefetch, bits: &mut u32) => roofline::read::<$lines>(x, prefetch, bits);
            multiply_int8: (rounds: usize, count: &mut u64) => roofline::multiply_int8::<$lines>(rounds, count);
            multiply: (rounds: usize, count: &mut u64) => roofline::multiply::<$simd>(rounds, count);
        );
    };
    (@fns $table:ident, $isa:expr, $lines:ty, $features:tt,
        $($name:ident: ($($arg:ident: $t:ty),*) => $body:expr;)* $(..$rest:ident)?) => {
        mod $table {
            use super::*;
            $(table!(@one $features, $name, ($($arg: $t),*), $body);)*
            pub(super) const TABLE: Kernels = Kernels {
                isa: $isa,
                biased: <$lines as Lines>::BIASED,
                gemv_rows: <$lines as Lines>::GEMV_ROWS,
                gemv_max_rows: <$lines as Lines>::GEMV_MAX_ROWS,
                bf16: None,
                multiply_bf16: None,
                $($name,)*
                $(..$rest::TABLE)?
            };
        }
    };
    (@one [$($feature:literal),*], $name:ident, ($($arg:ident: $t:ty),*), $body:expr) => {
        fn $name($($arg: $t),*) {
            $(#[target_feature(enable = $feature)])*
            unsafe fn compiled($($arg: $t),*) {
                // SAFETY: this function has the contract of the kernel it calls.
                #[allow(unused_unsafe, reason = "some kernels are plain code")]
                unsafe {
                    $body
                }
            }
            // SAFETY: `Kernels::new` returns this table only where the CPU has these features.
            unsafe { compiled($($arg),*) }
        }
    };
}

table!(scalar, Isa::Scalar, Scalar, Scalar);
#[cfg(target_arch = "aarch64")]
table!(neon, Isa::Neon, Neon, Neon, "neon", "dotprod");
#[cfg(target_arch = "x86_64")]
table!(avx2, Isa::Avx2, Avx2, Avx2, "avx2", "fma", "f16c");
// The AVX2 table, with other integer products.
#[cfg(target_arch = "x86_64")]
table!(@fns avxvnni, Isa::AvxVnni, AvxVnni, ["avx2", "fma", "f16c", "avxvnni"],
    unpack: (layout: &PackedLayout, from: &[u8], inputs: usize, to: &mut Chunk)
        => gemm::unpack::<AvxVnni>(layout, from, inputs, to);
    gemv: (task: &mut GemvTask<'_>) => gemm::gemv::<AvxVnni>(task);
    gemm: (task: &mut GemmTask<'_>) => gemm::gemm::<AvxVnni>(task);
    multiply_int8: (rounds: usize, count: &mut u64) => roofline::multiply_int8::<AvxVnni>(rounds, count);
    ..avx2
);
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
table!(avx512, Isa::Avx512, Avx512, Avx512,
    "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni");

/// The NEON table, with matrix products for GEMM and for BF16 weights.
#[cfg(target_arch = "aarch64")]
static I8MM: Kernels = Kernels {
    isa: Isa::I8mm,
    // SAFETY: this table is handed out only where the CPU has I8MM and BF16.
    gemm: |t| unsafe { gemm::i8mm::gemm(t) },
    // SAFETY: as above.
    bf16: Some(|t| unsafe { gemm::bf16_matrices::multiply(t) }),
    // SAFETY: as above.
    multiply_int8: |rounds, count| unsafe { roofline::multiply_matrices::<1>(rounds, count) },
    // SAFETY: as above.
    multiply_bf16: Some(|rounds, count| unsafe { roofline::multiply_matrices::<2>(rounds, count) }),
    ..neon::TABLE
};

/// The AVX-512 table, with dot products of pairs of bf16, for BF16 weights and attention over BF16 caches.
#[cfg(target_arch = "x86_64")]
static AVX512_BF16: Kernels = Kernels {
    isa: Isa::Avx512Bf16,
    // SAFETY: this table is handed out only where the CPU has AVX-512 with BF16.
    bf16: Some(|t| unsafe { gemm::bf16_pairs::multiply(t) }),
    // SAFETY: as above.
    multiply_bf16: Some(|rounds, count| unsafe { roofline::multiply_bf16_pairs(rounds, count) }),
    // SAFETY: as above.
    attend_bf16: |t, stage, scratch| unsafe { attention::pairs::attend_bf16(t, stage, scratch) },
    ..avx512::TABLE
};

/// The AVX-512 table, with AMX tiles for GEMM and for attention over BF16 caches.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
static AMX: Kernels = Kernels {
    isa: Isa::Amx,
    gemm: |t| match gemm_amx::takes(t) {
        // SAFETY: this table is handed out only where the CPU and the OS allow AMX.
        true => unsafe { gemm_amx::gemm(t) },
        false => (avx512::TABLE.gemm)(t),
    },
    // Tiles multiply more rows faster.
    gemv_max_rows: avx512::TABLE.gemv_rows,
    // SAFETY: as above.
    bf16: Some(|t| unsafe { gemm_amx::bf16::multiply(t) }),
    // SAFETY: as above.
    multiply_int8: |rounds, count| unsafe { roofline::multiply_tiles::<1>(rounds, count) },
    // SAFETY: as above.
    multiply_bf16: Some(|rounds, count| unsafe { roofline::multiply_tiles::<2>(rounds, count) }),
    attend_bf16: |t, stage, scratch| match Amx::takes(t, stage) {
        // SAFETY: as above.
        true => unsafe { tiles::attend_bf16::<Amx>(t, stage, scratch) },
        false => (avx512::TABLE.attend_bf16)(t, stage, scratch),
    },
    ..avx512::TABLE
};

impl Kernels {
    /// The kernels for `isa`, if this CPU has it.
    pub(crate) fn new(isa: Isa) -> Option<&'static Kernels> {
        let table = match isa {
            Isa::Scalar => &scalar::TABLE,
            isa => Kernels::of_vectors(isa)?,
        };
        isa.is_available().then_some(table)
    }

    /// The kernels for a vector instruction set.
    #[cfg(not(fuzzing))]
    fn of_vectors(isa: Isa) -> Option<&'static Kernels> {
        match isa {
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Some(&neon::TABLE),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Some(&I8MM),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Some(&avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Some(&avxvnni::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Some(&avx512::TABLE),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Some(&AVX512_BF16),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => Some(&AMX),
            _ => None,
        }
    }

    /// Fuzz targets have scalar kernels alone, since instrumenting kernels takes minutes for each instruction set: they load
    /// models and compute nothing, and weights are packed alike for all.
    #[cfg(fuzzing)]
    fn of_vectors(_: Isa) -> Option<&'static Kernels> {
        None
    }

    /// Runs a stage of attention with the kernel for the cache's dtype.
    pub(crate) fn attend_stage(&self, t: &AttendTask<'_>, stage: &Stage<'_>, scratch: &mut Vec<f32>) {
        // Keys and values have one type.
        let kernel = match &t.k {
            Pages::F16(_) if t.direct() => self.attend_f16,
            // Few models have a bias, and those are small: only the generic kernel supports it with bf16.
            Pages::BF16(_) if t.bias.is_none() => self.attend_bf16,
            Pages::I8(_) => self.attend_i8,
            Pages::F8(_) if t.direct() => self.attend_f8,
            _ => self.attend,
        };
        kernel(t, stage, scratch);
    }
}
