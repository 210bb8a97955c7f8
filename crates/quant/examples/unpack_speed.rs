//! Unpacking speed of each format on one core, for each vector instruction set, in GB/s of floats written.
//!
//! Bytes and floats stay in the L1 cache, so this measures the code and not the memory.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use tallow_quant::{Format, SizeError, pack, unpack};

type Unpack = fn(Format, &[u8], &mut [f32]) -> Result<(), SizeError>;

/// Weights unpacked at a time: 16 KiB of f32.
const WEIGHTS: usize = 4096;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use tallow_quant::{unpack_as, with_block};

    use super::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    fn with_avx2(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
        with_block!(format, B => unpack_as::<B>(bytes, out))
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
    fn with_avx512(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), SizeError> {
        with_block!(format, B => unpack_as::<B>(bytes, out))
    }

    /// The functions and their names, for the instruction sets that this CPU supports.
    pub(super) fn wrappers() -> Vec<(&'static str, Unpack)> {
        let mut found: Vec<(&'static str, Unpack)> = Vec::new();
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            // SAFETY: the CPU supports the features: checked in the condition above.
            found.push(("avx2", |format, bytes, out| unsafe { with_avx2(format, bytes, out) }));
            if is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
            {
                // SAFETY: the CPU supports the features: checked in the condition above.
                found.push(("avx512", |format, bytes, out| unsafe { with_avx512(format, bytes, out) }));
            }
        }
        found
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let plain: [(&str, Unpack); 1] = [("plain", unpack)];
    #[cfg(target_arch = "x86_64")]
    let kinds = [&plain[..], &x86::wrappers()].concat();
    #[cfg(not(target_arch = "x86_64"))]
    let kinds = plain;
    print!("{:8}", "");
    kinds.iter().for_each(|(name, _)| print!("{name:>10}"));
    println!("{:>20}", "pack, M weights/s");
    let weights: Vec<f32> = (0..WEIGHTS).map(|i| (i as f32 * 0.7).sin() * (i as f32 * 0.013).cos()).collect();
    for format in Format::ALL {
        let mut bytes = vec![0; WEIGHTS / format.block_weights() * format.block_bytes()];
        let packing = fastest(20, || pack(format, black_box(&weights), &mut bytes))?;
        print!("{:8}", format.name());
        for (_, unpack) in &kinds {
            print!("{:10.1}", speed(format, &bytes, *unpack)?);
        }
        println!("{:20.1}", WEIGHTS as f64 / packing / 1e6);
    }
    Ok(())
}

/// Floats written, in GB/s.
fn speed(format: Format, bytes: &[u8], unpack: Unpack) -> Result<f64, SizeError> {
    const TIMES: usize = 200;
    let mut out = vec![0.0; WEIGHTS];
    let seconds = fastest(50, || {
        for _ in 0..TIMES {
            unpack(format, black_box(bytes), black_box(&mut out))?;
        }
        Ok(())
    })?;
    Ok((TIMES * WEIGHTS * size_of::<f32>()) as f64 / seconds / 1e9)
}

/// Seconds of the fastest round, which is the least disturbed one.
fn fastest(rounds: usize, mut work: impl FnMut() -> Result<(), SizeError>) -> Result<f64, SizeError> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
