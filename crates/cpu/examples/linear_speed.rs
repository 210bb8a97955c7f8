//! Speed of linear layers by format: `cargo run --release -p tallow-cpu --example linear_speed [isa=avx512] [THREADS]
//! [ROWS,ROWS,...] [FORMAT...]`.
//!
//! GEMV (one row of x) is compared with the memory bandwidth, GEMM (many rows) with the peak multiply rate. Several
//! weights alternate, together larger than any cache, as in a model.

use std::time::Instant;

use tallow_core::ops::{Epilogue, Linear};
use tallow_core::{Backend, DType, Format, HostWeight, LinearWeights, Memory, Weight};
use tallow_cpu::{Cpu, Isa};

const OUTPUTS: usize = 3072;
const INPUTS: usize = 1024;
/// Total bytes of the weights that alternate.
const WEIGHTS: usize = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let isa = args.iter().find_map(|a| a.strip_prefix("isa=")).map_or(Ok(Isa::best()), str::parse)?;
    args.retain(|a| !a.starts_with("isa="));
    let threads = args.first().map_or(Ok(2), |t| t.parse())?;
    let rows = args.get(1).map_or("1,2,4,8,16,64,512", |r| r).split(',').map(str::parse);
    let rows = rows.collect::<Result<Vec<usize>, _>>()?;
    let wanted = |f: &Format| args.len() < 3 || args[2..].iter().any(|a| a.eq_ignore_ascii_case(f.name()));
    let b = Cpu::new(isa, threads)?;
    let memory = b.read_probe(WEIGHTS)?;
    println!("{}", b.label());
    for format in Format::ALL.into_iter().filter(wanted) {
        let weights = weights(&b, format)?;
        let bytes: usize = weights.iter().filter_map(|l| l.weight.in_order()).map(Weight::bytes).sum();
        let read = b.read_speed(&memory) / 1e9;
        print!("{:8} read {read:5.1} GB/s", format.name());
        for &rows in &rows {
            let few = weights.len().min(if rows > 8 { 8 } else { usize::MAX });
            let seconds = fastest(&b, &weights[..few], rows)?;
            let work = (2 * rows * few * OUTPUTS * INPUTS) as f64;
            match rows {
                1 => print!("; 1 row {:5.1} GB/s", bytes as f64 / seconds / 1e9),
                _ => print!("; {rows} rows {:6.1} GOP/s", work / seconds / 1e9),
            }
        }
        println!();
    }
    Ok(())
}

/// Random weights.
fn weights(b: &Cpu, format: Format) -> Result<Vec<LinearWeights<Cpu>>, Box<dyn std::error::Error>> {
    let width = format.row_bytes(INPUTS).ok_or("no whole blocks")?;
    let mut seed = 1u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as f32 / 65536.0 - 0.5
    };
    let row: Vec<f32> = (0..INPUTS).map(|_| noise()).collect();
    let mut bytes = vec![0; width];
    tallow_quant::pack(format, &row, &mut bytes)?;
    let bytes = bytes.repeat(OUTPUTS);
    let count = WEIGHTS.div_ceil(bytes.len());
    let one = || {
        let weight = b.prepare(HostWeight::new(format, OUTPUTS, INPUTS, &bytes))?;
        Ok(LinearWeights::new(weight, None))
    };
    (0..count).map(|_| one()).collect()
}

/// Fewest seconds for one pass over all the weights.
fn fastest(b: &Cpu, weights: &[LinearWeights<Cpu>], rows: usize) -> tallow_core::Result<f64> {
    let x: Vec<f32> = (0..rows * INPUTS).map(|i| (i * 7 % 31) as f32 / 31.0 - 0.5).collect();
    let x = b.upload(&x, rows, INPUTS)?;
    debug_assert_eq!(x.dtype(), DType::F32);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begun = Instant::now();
        for weights in weights {
            b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE })?;
        }
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best)
}
