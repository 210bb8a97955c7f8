//! [`Isa`]: the instruction sets that kernels exist for.

use std::fmt;
use std::str::FromStr;
#[cfg(target_arch = "x86_64")]
use std::{sync::LazyLock, time::Instant};

#[cfg(target_arch = "x86_64")]
use crate::roofline;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Baseline of the architecture.
    Scalar,
    /// AArch64 with NEON and its 8-bit dot products (`dotprod`).
    Neon,
    /// NEON with the matrix products of Armv8.6: I8MM and BF16.
    I8mm,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// x86 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// The same with BF16: dot products of pairs.
    Avx512Bf16,
    /// The same with AMX tiles (INT8 and BF16), on Linux.
    Amx,
}

impl Isa {
    /// All instruction sets, the best last.
    pub const ALL: [Isa; 8] =
        [Isa::Scalar, Isa::Neon, Isa::I8mm, Isa::Avx2, Isa::AvxVnni, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// True if this machine has it.
    pub fn is_available(self) -> bool {
        // See `Kernels::of_vectors`.
        if cfg!(fuzzing) {
            return self == Isa::Scalar;
        }
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => {
                std::arch::is_aarch64_feature_detected!("neon")
                    && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => {
                Isa::Neon.is_available()
                    && std::arch::is_aarch64_feature_detected!("i8mm")
                    && std::arch::is_aarch64_feature_detected!("bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => Isa::Avx512Bf16.is_available() && may_use_tiles(),
            #[allow(unreachable_patterns, reason = "depends on the system")]
            _ => false,
        }
    }

    /// The best one that this machine has.
    pub fn best() -> Isa {
        let is_best = |isa: &Isa| isa.is_available() && (*isa != Isa::Avx512Bf16 || pairs_are_fast());
        Isa::ALL.into_iter().rev().find(is_best).unwrap_or(Isa::Scalar)
    }

    /// True if attention over a BF16 cache takes instructions for products of bf16, which are faster than those of `f32` where it is
    /// the best one.
    pub fn multiplies_bf16(self) -> bool {
        matches!(self, Isa::Avx512Bf16 | Isa::Amx)
    }

    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::I8mm => "i8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }
}

/// True if dot products of pairs of bf16 are faster than FMA, as on AMD's CPUs: on Intel's they take twice as long, and no CPU
/// says which. Measured once, in a fraction of a millisecond; one rate is about twice the other. Asked where they are there.
fn pairs_are_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static ARE: LazyLock<bool> = LazyLock::new(|| {
            let speed = |multiply: unsafe fn(usize, &mut u64)| {
                let (begun, mut count) = (Instant::now(), 0);
                // SAFETY: the CPU has AVX-512 with BF16.
                unsafe { multiply(1 << 11, &mut count) };
                count as f64 / begun.elapsed().as_secs_f64().max(1e-9)
            };
            // The fastest of some, in turn: others were disturbed, or ran before the clock had risen.
            let (mut pairs, mut fma) = (0f64, 0f64);
            for _ in 0..8 {
                pairs = pairs.max(speed(roofline::multiply_bf16_pairs));
                fma = fma.max(speed(roofline::multiply_avx512));
            }
            pairs > fma
        });
        *ARE
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// True if the CPU has AMX tiles for INT8 and BF16, and Linux permits this process to use them. The permission must
/// be requested before first use, as the kernel then has to save the tile registers for each thread.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn may_use_tiles() -> bool {
    use std::arch::x86_64::__cpuid_count;

    static MAY: LazyLock<bool> = LazyLock::new(|| {
        const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        let has = __cpuid_count(7, 0).edx & TILES == TILES;
        // SAFETY: the call only requests a permission, and fails on kernels that do not know it.
        has && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } == 0
    });
    *MAY
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(s: &str) -> Result<Isa, String> {
        let known = || Isa::ALL.map(Isa::name).join(", ");
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == s)
            .ok_or_else(|| format!("{s:?} is none of {}", known()))
    }
}
