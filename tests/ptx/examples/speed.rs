//! How fast a shipped kernel is interpreted: `cargo run --release -p tallow-ptx --example speed`.

use std::time::Instant;

use tallow_ptx::{Device, Launch, Module};

const ROWS: usize = 64;
const INPUTS: usize = 512;
const OUTPUTS: usize = 256;

/// Time that this thread had a processor, where the system tells: others may be busy too.
struct Clock(Instant, Option<u64>);

impl Clock {
    fn ran() -> Option<u64> {
        std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
    }

    fn now() -> Clock {
        Clock(Instant::now(), Clock::ran())
    }

    fn seconds(&self) -> f64 {
        let ran = self.1.and_then(|before| Some(Clock::ran()? - before));
        ran.map_or(self.0.elapsed().as_secs_f64(), |nanoseconds| nanoseconds as f64 / 1e9)
    }
}

fn main() -> Result<(), tallow_ptx::Error> {
    let module = Module::new(include_str!("../../../crates/cuda/ptx/linear.ptx"))?;
    let kernel = module.kernel("linear_8")?;
    let mut device = Device::default();
    let mut filled = |count: usize| {
        let at = device.alloc(4 * count);
        let data: Vec<u8> =
            (0..count).flat_map(|i| ((i * 7919 % 1000) as f32 / 1000.0).to_le_bytes()).collect();
        device.write(at, &data).map(|()| at)
    };
    let (x, w) = (filled(ROWS * INPUTS)?, filled(OUTPUTS * INPUTS)?);
    let out = device.alloc(4 * ROWS * OUTPUTS);
    let words =
        |words: &[usize]| -> Vec<u8> { words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect() };
    let matrix =
        |at: u64, rows: usize, cols: usize| [&at.to_le_bytes()[..], &words(&[rows, cols, cols, 0])].concat();
    let parameters = [
        // Weights: rows of f32.
        w.to_le_bytes().to_vec(),
        (4 * INPUTS as u64).to_le_bytes().to_vec(),
        words(&[OUTPUTS, INPUTS, 0, 0, 0, 0, 0, 0]),
        words(&[0; 6]),
        // One layer of four, without a bias; no activation.
        w.to_le_bytes().to_vec(),
        words(&[0, 0, OUTPUTS, 0]),
        words(&[0; 18]),
        words(&[7, 0]),
        // The input: all rows, and no norm.
        matrix(x, ROWS, INPUTS),
        words(&[0; 12]),
        // No residual.
        matrix(0, 0, 0),
        matrix(out, ROWS, OUTPUTS),
        1f32.to_le_bytes().to_vec(),
        0f32.to_le_bytes().to_vec(),
    ]
    .concat();
    let grid = [OUTPUTS.div_ceil(32) as u32, ROWS.div_ceil(8) as u32, 1];
    let mut rates: Vec<f64> = Vec::new();
    for seed in 0..7 {
        let launch = Launch {
            grid,
            block: [256, 1, 1],
            shared: 0,
            parameters: &parameters,
            seed,
            limit: u64::MAX >> 8,
        };
        let begun = Clock::now();
        let executed = device.launch(&kernel, &launch)?;
        rates.push(executed as f64 / begun.seconds() / 1e9);
    }
    rates.sort_by(f64::total_cmp);
    let products = (ROWS * INPUTS * OUTPUTS) as f64 / 1e6;
    println!(
        "{products} million products by {}: {:.2} G lane-instructions/s (best {:.2})",
        kernel.name(),
        rates[3],
        rates[6]
    );
    Ok(())
}
