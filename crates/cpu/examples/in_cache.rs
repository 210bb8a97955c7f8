//! What the instructions of linear layers allow where memory does not limit them, and what an op costs around its loop:
//!
//! ```text
//! cargo run --release -p tallow-cpu --example in_cache [FORMAT...]
//! ```
//!
//! The first table has the bytes of weights that one thread multiplies with one row of input in a clock cycle (GEMV), weights
//! in the L2 cache. Times the clock that is what a core could read: where memory is faster than that, instructions limit
//! decoding. The second has what is left of an op's time without its loop.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use tallow_core::ops::LinearMany;
use tallow_core::{Backend, Format, HostWeight, LinearWeights, Memory, Weight};
use tallow_cpu::{Cpu, Isa};

type Outcome<T> = Result<T, Box<dyn Error>>;

const INPUTS: usize = 1024;
/// Bytes of a weight: more than an L1 cache has, and fewer than an L2 cache.
const WEIGHT: usize = 160 << 10;
/// Layers of an op over the same weight, so that what it costs around its loop does not count.
const LAYERS: usize = 32;
/// Layers of the second table: outputs of each, with 1024 inputs.
const SHAPES: [usize; 4] = [32, 256, 1024, 4096];
const RUNS: usize = 25;

fn main() -> Outcome<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |f: &Format| wanted.is_empty() || wanted.iter().any(|w| w.eq_ignore_ascii_case(f.name()));
    let isas: Vec<Isa> =
        Isa::ALL.into_iter().filter(|isa| isa.is_available() && *isa != Isa::Scalar).collect();
    println!(
        "Bytes of weights a cycle, one thread, one row, and GB/s in brackets; clock {:.2} GHz\n",
        clock() / 1e9
    );
    println!("| format |{}", isas.iter().map(|isa| format!(" {isa} |")).collect::<String>());
    println!("|---|{}", "---:|".repeat(isas.len()));
    for format in Format::ALL.into_iter().filter(is_wanted) {
        let mut row = format!("| {} |", format.name());
        for isa in &isas {
            let (rate, clock) = in_cache(&Cpu::new(*isa, 1)?, format)?;
            row += &format!(" {:.1} ({:.0}) |", rate / clock, rate / 1e9);
        }
        println!("{row}");
    }
    around()
}

/// What ops cost around their loops.
fn around() -> Outcome<()> {
    let most = std::thread::available_parallelism()?.get();
    let threads: Vec<usize> = (0..).map(|i| 1 << i).take_while(|t| *t <= most).collect();
    println!(
        "\nMicroseconds of an op, less those of its loop by the table above; Q8_0, {INPUTS} inputs, {}\n",
        Isa::best()
    );
    let named = |t: &usize| format!(" {t} thread{} |", if *t == 1 { "" } else { "s" });
    println!("| outputs |{}", threads.iter().map(named).collect::<String>());
    println!("|---:|{}", "---:|".repeat(threads.len()));
    let (rate, _) = in_cache(&Cpu::new(Isa::best(), 1)?, Format::Q8_0)?;
    for outputs in SHAPES {
        let mut row = format!("| {outputs} |");
        for threads in &threads {
            let b = Cpu::new(Isa::best(), *threads)?;
            let weight = prepare(&b, Format::Q8_0, outputs)?;
            let bytes = weight.bytes() as f64;
            let seconds = fastest(&b, &[LinearWeights::new(weight, None)], outputs)?;
            row += &format!(" {:.2} |", (seconds - bytes / rate / *threads as f64) * 1e6);
        }
        println!("{row}");
    }
    Ok(())
}

/// Bytes a second of weights in the L2 cache, and the clock of that moment: it changes with the load of the other cores.
fn in_cache(b: &Cpu, format: Format) -> Outcome<(f64, f64)> {
    let width = format.row_bytes(INPUTS).ok_or("no whole blocks")?;
    let outputs = (WEIGHT / width / 32).max(1) * 32;
    let weight = prepare(b, format, outputs)?;
    let bytes = (LAYERS * weight.bytes()) as f64;
    let clock = clock();
    Ok((bytes / fastest(b, &vec![LinearWeights::new(weight, None); LAYERS], outputs)?, clock))
}

/// Random weights.
fn prepare(b: &Cpu, format: Format, outputs: usize) -> Outcome<Weight<Cpu>> {
    let mut seed = 1u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as f32 / 65536.0 - 0.5
    };
    let row: Vec<f32> = (0..INPUTS).map(|_| noise()).collect();
    let mut bytes = vec![0; format.row_bytes(INPUTS).ok_or("no whole blocks")?];
    tallow_quant::pack(format, &row, &mut bytes)?;
    Ok(b.prepare(HostWeight::new(format, outputs, INPUTS, &bytes.repeat(outputs)))?)
}

/// Fewest seconds of an op with these layers.
fn fastest(b: &Cpu, weights: &[LinearWeights<Cpu>], outputs: usize) -> Outcome<f64> {
    let x: Vec<f32> = (0..INPUTS).map(|i| (i * 7 % 31) as f32 / 31.0 - 0.5).collect();
    let x = b.upload(&x, 1, INPUTS)?;
    // As many ops that each run takes about as long.
    let ops = (4096 / (outputs * weights.len()).div_ceil(32)).clamp(1, 512);
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..ops {
            b.run(LinearMany { x: &x, norm: None, weights })?;
        }
        best = best.min(begun.elapsed().as_secs_f64() / ops as f64);
    }
    Ok(best)
}

/// Clock cycles a second: by a chain of operations that take a cycle each and wait for the one before.
fn clock() -> f64 {
    const LINKS: u32 = 1 << 20;
    let run = |_| {
        let (mut x, y) = (black_box(1u64), black_box(3u64));
        let begun = Instant::now();
        for _ in 0..LINKS {
            x = x.wrapping_add(x ^ y);
        }
        black_box(x);
        f64::from(2 * LINKS) / begun.elapsed().as_secs_f64()
    };
    (0..7).map(run).fold(0.0, f64::max)
}
