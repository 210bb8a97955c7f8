//! The machine's limits at this moment, measured by loops that do nothing else.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::process::{AGAIN, Watch};
use super::results::{Limits, Peak};

/// A cache line, so that reads are aligned to lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Bytes that are read: far more than caches hold.
const BYTES: usize = 1 << 30;
/// Repetitions of each measurement. The fastest counts: the others were disturbed.
const TIMES: usize = 3;
/// Duration of a count of operations.
const WHILE: Duration = Duration::from_millis(50);

/// Memory to read, kept between measurements.
pub(super) struct Probe {
    lines: Vec<Line>,
}

/// Order in which memory is read.
#[derive(Clone, Copy)]
enum Pattern {
    /// From first to last.
    Sequential,
    /// Four distant streams at once, as a GEMV reads several rows of the weight.
    Streams,
}

/// A loop and its kind: it returns the number of operations done in `rounds` rounds.
type Loop = (Peak, fn(u64) -> f64);

impl Probe {
    /// Allocates the memory and writes it once: untouched pages all map to the same zero page.
    pub(super) fn new() -> Probe {
        Probe { lines: vec![Line([7; 8]); BYTES / size_of::<Line>()] }
    }

    /// Limits of `threads` threads, for 8-bit or floating point weights. The best counts, so it is measured again where
    /// other processes disturbed it.
    pub(super) fn limits(&self, threads: usize, peak: Peak) -> Limits {
        let watch = Watch::start(None);
        let mut limits = self.measure(threads, peak);
        let mut disturbed = watch.is_disturbed();
        for _ in 0..AGAIN {
            if !disturbed {
                break;
            }
            let watch = Watch::start(None);
            let again = self.measure(threads, peak);
            disturbed = watch.is_disturbed();
            limits.read_gbs = limits.read_gbs.max(again.read_gbs);
            if again.peak_gops > limits.peak_gops {
                (limits.peak_gops, limits.peak) = (again.peak_gops, again.peak);
            }
        }
        limits
    }

    fn measure(&self, threads: usize, peak: Peak) -> Limits {
        let mut read: f64 = 0.0;
        for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
            for pattern in [Pattern::Sequential, Pattern::Streams] {
                read = best(|| self.read(threads, pattern)).max(read);
            }
        }
        let (peak, ops) = fastest(threads, peak);
        Limits { read_gbs: read / 1e9, peak_gops: ops / 1e9, peak }
    }

    /// Bytes per second.
    fn read(&self, threads: usize, pattern: Pattern) -> f64 {
        let shares = self.lines.chunks(self.lines.len().div_ceil(threads));
        let barrier = Barrier::new(shares.len());
        let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let readers: Vec<_> = shares
                .map(|share| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        let begun = Instant::now();
                        std::hint::black_box(Pass::new(share, pattern).sum());
                        (begun, Instant::now())
                    })
                })
                .collect();
            readers.into_iter().filter_map(|reader| reader.join().ok()).collect()
        });
        let begun = times.iter().map(|t| t.0).min();
        let ended = times.iter().map(|t| t.1).max();
        let took = begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun);
        BYTES as f64 / took.as_secs_f64().max(1e-9)
    }
}

fn best(run: impl Fn() -> f64) -> f64 {
    (0..TIMES).map(|_| run()).fold(0.0, f64::max)
}

/// The fastest kind of multiplication here. For 8-bit weights floats are candidates too, since the weights could be
/// unpacked.
fn fastest(threads: usize, peak: Peak) -> (Peak, f64) {
    let fits = |(kind, _): &Loop| *kind != Peak::Int8 || peak == Peak::Int8;
    let speeds = loops().into_iter().filter(fits).map(|(kind, run)| (kind, operations(threads, run)));
    speeds.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Peak::F32, 0.0))
}

/// Operations per second of all threads together.
fn operations(threads: usize, run: fn(u64) -> f64) -> f64 {
    const ROUNDS: u64 = 1 << 14;
    let once = || {
        let barrier = Barrier::new(threads);
        let count = || {
            barrier.wait();
            let (begun, mut done) = (Instant::now(), 0.0);
            while begun.elapsed() < WHILE {
                done += run(ROUNDS);
            }
            done / begun.elapsed().as_secs_f64()
        };
        std::thread::scope(|scope| {
            let counting: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
            counting.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })
    };
    best(once)
}

/// A pass over the memory: each step reads one line from each of four places.
#[derive(Clone, Copy)]
struct Pass<'a> {
    lines: &'a [Line],
    /// First line of each of the four.
    from: [usize; 4],
    /// Lines from one step to the next.
    stride: usize,
    steps: usize,
}

impl<'a> Pass<'a> {
    fn new(lines: &'a [Line], pattern: Pattern) -> Pass<'a> {
        let steps = lines.len() / 4;
        match pattern {
            Pattern::Sequential => Pass { lines, from: [0, 1, 2, 3], stride: 4, steps },
            Pattern::Streams => Pass { lines, from: [0, 1, 2, 3].map(|i| i * steps), stride: 1, steps },
        }
    }

    /// The sum of everything read, so that no read is optimised away.
    fn sum(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the check above shows that the CPU supports AVX-512.
            return unsafe { x86::sum_avx512(self) };
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: the check above shows that the CPU supports AVX2.
            return unsafe { x86::sum_avx2(self) };
        }
        self.sum_plain()
    }

    fn sum_plain(self) -> u64 {
        let mut sums = [0u64; 8];
        for step in 0..self.steps {
            for from in self.from {
                let line = &self.lines[from + step * self.stride];
                for (sum, x) in sums.iter_mut().zip(line.0) {
                    *sum = sum.wrapping_add(x);
                }
            }
        }
        sums.into_iter().fold(0, u64::wrapping_add)
    }
}

/// Multiply-adds in whatever instructions the compiler chooses.
fn plain(rounds: u64) -> f64 {
    const LANES: usize = 64;
    let (x, y) = std::hint::black_box((0.999_f32, 1e-3_f32));
    let mut sums = [1.0_f32; LANES];
    for _ in 0..rounds {
        sums.iter_mut().for_each(|sum| *sum = *sum * x + y);
    }
    std::hint::black_box(sums);
    (rounds * 2 * LANES as u64) as f64
}

#[cfg(not(target_arch = "x86_64"))]
fn loops() -> Vec<Loop> {
    vec![(Peak::F32, plain)]
}

#[cfg(target_arch = "x86_64")]
fn loops() -> Vec<Loop> {
    let mut loops: Vec<Loop> = vec![(Peak::F32, plain)];
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the check above shows that the CPU supports AVX-512.
        loops.push((Peak::F32, |rounds| unsafe { x86::fma_avx512(rounds) }));
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the check above shows that the CPU supports AVX2 and FMA.
        loops.push((Peak::F32, |rounds| unsafe { x86::fma_avx2(rounds) }));
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the check above shows that the CPU supports AVX-512 with bf16.
        loops.push((Peak::Bf16, |rounds| unsafe { x86::bf16(rounds) }));
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the check above shows that the CPU supports AVX-512 with VNNI.
        loops.push((Peak::Int8, |rounds| unsafe { x86::int8(rounds) }));
    }
    loops
}

/// # Safety
///
/// The CPU must support the target features of the function.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::array::from_fn;
    use std::hint::black_box;

    use super::Pass;

    /// Independent accumulators: as many as hide the latency of an instruction.
    const SUMS: usize = 12;

    /// # Safety
    ///
    /// The CPU must support AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn sum_avx512(pass: Pass<'_>) -> u64 {
        let mut sums = [_mm512_setzero_si512(); 4];
        let mut from = pass.from.map(|from| pass.lines[from..].as_ptr());
        for _ in 0..pass.steps {
            for (sum, from) in sums.iter_mut().zip(&mut from) {
                // SAFETY: `Pass::new` sets `steps` so that all four streams stay within `lines`; `Line` is 64-byte
                // aligned.
                let line = unsafe { _mm512_load_si512(from.cast()) };
                *sum = _mm512_add_epi64(*sum, line);
                *from = from.wrapping_add(pass.stride);
            }
        }
        let sums = sums.map(|sum| _mm512_reduce_add_epi64(sum) as u64);
        sums.into_iter().fold(0, u64::wrapping_add)
    }

    /// # Safety
    ///
    /// The CPU must support AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn sum_avx2(pass: Pass<'_>) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 8];
        let mut from = pass.from.map(|from| pass.lines[from..].as_ptr());
        for _ in 0..pass.steps {
            for (sums, from) in sums.chunks_exact_mut(2).zip(&mut from) {
                let halves = from.cast::<__m256i>();
                // SAFETY: `Pass::new` sets `steps` so that all four streams stay within `lines`; `Line` is 64-byte
                // aligned.
                let (low, high) = unsafe { (_mm256_load_si256(halves), _mm256_load_si256(halves.add(1))) };
                (sums[0], sums[1]) = (_mm256_add_epi64(sums[0], low), _mm256_add_epi64(sums[1], high));
                *from = from.wrapping_add(pass.stride);
            }
        }
        let mut total = sums[0];
        for sum in &sums[1..] {
            total = _mm256_add_epi64(total, *sum);
        }
        let mut lanes = [0u64; 4];
        // SAFETY: `lanes` has room for the four 64-bit lanes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
        lanes.into_iter().fold(0, u64::wrapping_add)
    }

    /// # Safety
    ///
    /// The CPU must support AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn fma_avx512(rounds: u64) -> f64 {
        let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
        let mut sums: [__m512; SUMS] = from_fn(|i| _mm512_set1_ps(i as f32));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        (rounds * 2 * 16 * SUMS as u64) as f64
    }

    /// # Safety
    ///
    /// The CPU must support AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn fma_avx2(rounds: u64) -> f64 {
        let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
        let mut sums: [__m256; SUMS] = from_fn(|i| _mm256_set1_ps(i as f32));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, x, y);
            }
        }
        black_box(sums);
        (rounds * 2 * 8 * SUMS as u64) as f64
    }

    /// # Safety
    ///
    /// The CPU must support AVX-512 with bf16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn bf16(rounds: u64) -> f64 {
        let one = _mm512_set1_ps(black_box(1.0));
        let (x, y) = (_mm512_cvtne2ps_pbh(one, one), _mm512_cvtne2ps_pbh(one, one));
        let mut sums: [__m512; SUMS] = from_fn(|i| _mm512_set1_ps(i as f32));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, x, y);
            }
        }
        black_box(sums);
        (rounds * 2 * 32 * SUMS as u64) as f64
    }

    /// # Safety
    ///
    /// The CPU must support AVX-512 with VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn int8(rounds: u64) -> f64 {
        let (x, y) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
        let mut sums: [__m512i; SUMS] = from_fn(|i| _mm512_set1_epi32(i as i32));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, x, y);
            }
        }
        black_box(sums);
        (rounds * 2 * 64 * SUMS as u64) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_once_in_both_patterns() {
        let lines: Vec<Line> = (0..64).map(|i| Line([i, 1, 0, 0, 0, 0, 0, 0])).collect();
        let want = 63 * 64 / 2 + 64;
        for pattern in [Pattern::Sequential, Pattern::Streams] {
            let pass = Pass::new(&lines, pattern);
            assert_eq!((pass.sum(), pass.sum_plain()), (want, want));
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the check above shows that the CPU supports AVX2.
                assert_eq!(unsafe { x86::sum_avx2(pass) }, want);
            }
        }
    }

    #[test]
    fn weights_in_floating_point_are_not_held_against_eight_bits() {
        let (kind, one) = fastest(1, Peak::Int8);
        assert!(one > 1e8, "{kind:?}: {one}");
        assert_ne!(fastest(1, Peak::Bf16).0, Peak::Int8);
    }
}
