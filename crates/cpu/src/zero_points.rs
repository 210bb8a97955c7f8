//! Weights of 4 bits with zero points are multiplied as the same values in 5 bits are, to the last bit: with few rows and
//! with many, by every instruction set. So a checkpoint's results do not depend on which of the two it is loaded as.

#![allow(clippy::unwrap_used, reason = "tests")]

use tallow_core::ops::{Epilogue, Linear};
use tallow_core::{Arithmetic, Backend, Format, HostWeight, LinearWeights, Memory};
use tallow_quant::{F16, Q5_0, U4G32, U4G64, U4G128};

use crate::{Cpu, Isa};

/// More than a pair of panels, and not a multiple of it.
const OUTPUTS: usize = 50;
/// Rows for each kernel of GEMV, and enough for GEMM in vectors and in tiles.
const ROWS: [usize; 8] = [1, 2, 3, 5, 12, 16, 33, 70];

/// Numbers from 0 to `below - 1`.
fn random(seed: u32, below: u32) -> impl FnMut() -> u32 {
    let mut x = seed;
    move || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x % below
    }
}

/// The bits of the products of `rows` rows with a weight.
fn products(cpu: &Cpu, format: Format, bytes: &[u8], inputs: usize, rows: usize) -> Vec<u32> {
    let mut next = random(5, 2001);
    let x: Vec<f32> = (0..rows * inputs).map(|_| next() as f32 / 1000.0 - 1.0).collect();
    let x = cpu.upload(&x, rows, inputs).unwrap();
    let weight = cpu.prepare(HostWeight::new(format, OUTPUTS, inputs, bytes)).unwrap();
    let weights = LinearWeights::new(weight, None);
    let y = cpu.run(Linear { x: &x, weights: &weights, epilogue: Epilogue::NONE }).unwrap();
    cpu.download::<f32>(&y).unwrap().into_iter().map(f32::to_bits).collect()
}

/// A weight with random groups, GPTQ's zero point of 16 among them, and the same one in Q5_0.
macro_rules! both {
    ($block:ident, $group:literal, $inputs:expr) => {{
        let (mut code, mut zero, mut scale) = (random(1, 16), random(2, 17), random(3, 900));
        let (mut four, mut five) = (Vec::<$block>::new(), Vec::<Q5_0>::new());
        for _ in 0..OUTPUTS * $inputs / $group {
            let (d, zero) = (F16::nearest(scale() as f32 / 1000.0 - 0.4), zero() as u8);
            let codes: [u8; $group] = std::array::from_fn(|_| code() as u8);
            four.push($block::of(d, zero, &codes));
            five.extend(
                codes.as_chunks::<32>().0.iter().map(|c| Q5_0::of(d, &c.map(|c| c as i8 - zero as i8))),
            );
        }
        (bytemuck::cast_slice::<_, u8>(&four).to_vec(), bytemuck::cast_slice::<_, u8>(&five).to_vec())
    }};
}

#[test]
fn zero_points_are_subtracted_without_rounding() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for arithmetic in [Arithmetic::Fast, Arithmetic::Exact] {
            let cpu = Cpu::new(isa, 2).unwrap().with(arithmetic);
            // Whole chunks of 256 inputs, and a rest.
            for inputs in [256, 640] {
                for (format, (four, five)) in [
                    (Format::U4G32, both!(U4G32, 32, inputs)),
                    (Format::U4G64, both!(U4G64, 64, inputs)),
                    (Format::U4G128, both!(U4G128, 128, inputs)),
                ] {
                    for rows in ROWS {
                        let got = products(&cpu, format, &four, inputs, rows);
                        let want = products(&cpu, Format::Q5_0, &five, inputs, rows);
                        assert!(got == want, "{isa}, {arithmetic:?}, {format}, {inputs} inputs, {rows} rows");
                    }
                }
            }
        }
    }
}
