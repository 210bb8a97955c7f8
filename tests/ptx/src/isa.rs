//! Functions compiled for AVX2 and FMA: without, `mul_add` is a library call for each lane.

/// The processor's instruction sets, of those that functions are compiled for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isa {
    #[cfg(target_arch = "x86_64")]
    has_avx2: bool,
}

impl Isa {
    pub(crate) fn detect() -> Isa {
        Isa {
            #[cfg(target_arch = "x86_64")]
            has_avx2: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt"),
        }
    }

    /// Calls a closure, which is to be inlined, compiled for what there is.
    #[inline(always)]
    pub(crate) fn run<R>(self, f: impl FnOnce() -> R) -> R {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
            #[inline(never)]
            fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
                f()
            }
            if self.has_avx2 {
                // SAFETY: the processor has these, as `detect` found.
                return unsafe { with_avx2(f) };
            }
        }
        f()
    }
}
