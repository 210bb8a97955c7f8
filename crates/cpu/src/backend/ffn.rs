//! First phase of an FFN on the device: gate, up and activation fused, so that the sums stay in the nearest cache.

use tallow_core::ops::Ffn;
use tallow_core::{DType, Memory, Result, Tensor};

use super::device::Cpu;
use super::input::LinearInput;
use super::linear::OutputColumns;
use crate::ffn::{ActivationInput, ActivationTask, activate_rows};
use crate::kernels::Kernels;
use crate::linear::LinearScratch;
use crate::mat::MatMut;

/// The products of the layers of gate and up.
pub(crate) fn activation_inputs<'a>(
    k: &Kernels,
    x: &'a LinearInput,
    layers: &[OutputColumns<'a>],
) -> Vec<ActivationInput<'a>> {
    let one = |l: &OutputColumns<'a>| ActivationInput {
        product: x.times(k, l.w),
        bias: l.bias,
        columns: l.columns(),
    };
    layers.iter().map(one).collect()
}

/// Approximate number of multiplications of the layers of gate and up.
fn cost(rows: usize, inputs: &[ActivationInput<'_>]) -> usize {
    inputs.iter().map(|i| rows * i.columns.len() * i.product.w.cols()).sum()
}

impl Cpu {
    /// Input of down, [rows, width]. `layers`: gate and up.
    pub(crate) fn gated_up(&self, op: &Ffn<'_, Cpu>, layers: &[OutputColumns<'_>]) -> Result<Tensor<Cpu>> {
        let x = self.input(op.x, op.norm, layers.iter().map(|l| &l.w))?;
        self.run_gated_up(op, &activation_inputs(self.kernels, &x, layers), |_| ())
    }

    /// The same from the products of the layers, split into pieces. Every piece begins with `first`.
    pub(crate) fn run_gated_up(
        &self,
        op: &Ffn<'_, Cpu>,
        inputs: &[ActivationInput<'_>],
        first: impl Fn(&mut LinearScratch) + Sync,
    ) -> Result<Tensor<Cpu>> {
        let (width, rows) = (op.down.weight.cols(), op.x.rows());
        let activated = self.alloc(DType::F32, rows, width)?;
        let out = &MatMut::new(&activated);
        let (act, up, piece) = (op.act, op.is_gated().then_some(width), self.piece(width));
        self.share(width.div_ceil(piece), cost(rows, inputs), |scratch, i| {
            first(&mut scratch.linear);
            let columns = i * piece..width.min((i + 1) * piece);
            let task = ActivationTask { inputs, up, act, out, rows: 0..rows, columns };
            activate_rows(self.kernels, &task, &mut scratch.linear);
        });
        Ok(activated)
    }
}

#[cfg(test)]
mod tests {
    use tallow_core::ops::Epilogue;
    use tallow_core::{
        Activation, Backend, Format, HostWeight, LinearWeights, Memory, Norm, NormKind, compose,
    };

    use super::*;
    use crate::isa::Isa;

    /// Pseudo-random values in -1..1.
    fn numbers(seed: u32, count: usize) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / 8_388_608.0 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    fn layer(b: &Cpu, format: Format, outputs: usize, inputs: usize, bias: bool) -> LinearWeights<Cpu> {
        let x = numbers(outputs as u32, outputs * inputs);
        let bytes: Vec<u8> = match format {
            // The f16 scale 2^-7, then the codes.
            Format::Q8_0 => {
                let block = |x: &[f32]| {
                    [0, 0x20].into_iter().chain(x.iter().map(|x| (x * 127.0) as i8 as u8)).collect()
                };
                x.chunks(32).flat_map(|x| -> Vec<u8> { block(x) }).collect()
            }
            _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
        let weight = b.prepare(HostWeight::new(format, outputs, inputs, &bytes)).unwrap();
        let bias = bias.then(|| b.upload_row(&numbers(7, outputs)).unwrap());
        LinearWeights::new(weight, bias)
    }

    #[test]
    fn a_block_gives_the_bits_of_its_smaller_ops() {
        const Q: Format = Format::Q8_0;
        const P: Format = Format::F32;
        let case = |up: &[(Format, usize)], down: Format, width: usize| (up.to_vec(), down, width);
        let cases = [
            case(&[(Q, 96), (Q, 96)], Q, 96),
            case(&[(Q, 192)], Q, 96),
            case(&[(P, 96), (Q, 96)], Q, 96),
            case(&[(Q, 96)], Q, 96),
            case(&[(P, 80)], P, 40),
            case(&[(Q, 40), (Q, 40)], P, 40),
            case(&[(P, 9), (Q, 50), (P, 31)], P, 45),
        ];
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let b = Cpu::new(isa, 2).unwrap();
            let weight = b.upload_row(&numbers(3, 64)).unwrap();
            let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
            for (up, format, width) in &cases {
                for (rows, bias) in [(1, false), (3, true), (600, true)] {
                    let x = b.upload(&numbers(1, rows * 64), rows, 64).unwrap();
                    let up: Vec<_> = up.iter().map(|(f, n)| layer(&b, *f, *n, 64, bias)).collect();
                    let down = layer(&b, *format, 64, *width, bias);
                    let (norm, epilogue) = (Some(&norm), Epilogue::add_to(&x));
                    let op = Ffn {
                        x: &x,
                        norm,
                        up: &up,
                        act: Activation::Silu,
                        down: &down,
                        epilogue,
                        adapters: &[],
                    };
                    let bits = |t: Tensor<Cpu>| -> Vec<u32> {
                        b.download::<f32>(&t).unwrap().iter().map(|x| x.to_bits()).collect()
                    };
                    let want = bits(compose::ffn(&b, &op).unwrap());
                    let got = bits(b.run(op).unwrap());
                    assert!(got == want, "{isa}, width {width}, {rows} rows");
                }
            }
        }
    }
}
