//! Speed of linear layers on a GPU by shape, format and rows:
//!
//! ```text
//! cargo run --release -p tallow-wgpu --example gpu_linear_speed [ROWS,ROWS,...] [FORMAT...]
//! ```
//!
//! For few rows in GB/s of weights read, beside the raw read of the same minute; for many rows in TFLOP/s, beside the f32
//! peak. Weights alternate, together larger than any cache, as in a model.

use std::time::{Duration, Instant};

use tallow_core::ops::{Epilogue, Linear};
use tallow_core::{Backend, Format, HostWeight, LinearWeights, Memory, Weight};
use tallow_wgpu::{SpeedProbe, Wgpu, devices};

/// Outputs and inputs: layers of 0.6 B and of 8 B parameters, and a vocabulary.
const SHAPES: [[usize; 2]; 6] =
    [[1024, 2048], [3072, 1024], [4096, 4096], [12288, 4096], [4096, 12288], [151_936, 1024]];
/// Total bytes of the weights that alternate.
const WEIGHTS: usize = 512 << 20;
/// Least time of a measurement.
const WARM_UP: Duration = Duration::from_millis(300);
/// Rows up to which the weights' bytes bound the speed.
const FEW: usize = 16;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rows = args.first().map_or("1,4,8,64,512", |r| r).split(',').map(str::parse);
    let rows = rows.collect::<std::result::Result<Vec<usize>, _>>()?;
    let wanted = |f: &Format| args.len() < 2 || args[1..].iter().any(|a| a.eq_ignore_ascii_case(f.name()));
    let b = Wgpu::open(devices().first().ok_or("there is no GPU")?)?;
    let probe = SpeedProbe::new(&b, WEIGHTS)?;
    println!("{}", b.label());
    for format in Format::ALL.into_iter().filter(wanted) {
        let (read, peak) = (probe.read_speed(&b)? / 1e9, probe.multiply_speed(&b)? / 1e12);
        println!("{}: raw read {read:.0} GB/s, f32 peak {peak:.1} TFLOP/s", format.name());
        for [outputs, inputs] in SHAPES {
            let weights = weights(&b, format, outputs, inputs)?;
            let bytes: usize = weights.iter().filter_map(|l| l.weight.in_order()).map(Weight::bytes).sum();
            print!("  {outputs:6} x {inputs:5}");
            for &rows in &rows {
                let some = if rows > FEW { &weights[..weights.len().min(8)] } else { &weights };
                let seconds = fastest(&b, some, rows)?;
                let work = 2.0 * (rows * some.len() * outputs * inputs) as f64;
                match rows {
                    ..=FEW => print!("; {rows} rows {:6.0} GB/s", bytes as f64 / seconds / 1e9),
                    _ => print!("; {rows} rows {:6.2} TFLOP/s", work / seconds / 1e12),
                }
            }
            println!();
        }
    }
    Ok(())
}

/// Weights of one shape, as many as fill the memory to read.
fn weights(b: &Wgpu, format: Format, outputs: usize, inputs: usize) -> Result<Vec<LinearWeights<Wgpu>>> {
    let width = format.row_bytes(inputs).ok_or("no whole blocks")?;
    let mut seed = 1u32;
    let mut noise = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as f32 / 65536.0 - 0.5
    };
    let row: Vec<f32> = (0..inputs).map(|_| noise()).collect();
    let mut bytes = vec![0; width];
    tallow_quant::pack(format, &row, &mut bytes)?;
    let bytes = bytes.repeat(outputs);
    let count = WEIGHTS.div_ceil(bytes.len());
    let one = || {
        let weight = b.prepare(HostWeight::new(format, outputs, inputs, &bytes))?;
        Ok(LinearWeights::new(weight, None))
    };
    (0..count).map(|_| one()).collect()
}

/// Fewest seconds for one pass over all the weights.
fn fastest(b: &Wgpu, weights: &[LinearWeights<Wgpu>], rows: usize) -> tallow_core::Result<f64> {
    let cols = weights[0].weight.cols();
    let x: Vec<f32> = (0..rows * cols).map(|i| (i * 7 % 31) as f32 / 31.0 - 0.5).collect();
    let x = b.upload(&x, rows, cols)?;
    let mut best = f64::INFINITY;
    // A GPU that was idle needs some time to raise its clocks.
    let start = Instant::now();
    while start.elapsed() < WARM_UP || best.is_infinite() {
        b.sync()?;
        let begun = Instant::now();
        for weights in weights {
            b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE })?;
        }
        b.sync()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best)
}
