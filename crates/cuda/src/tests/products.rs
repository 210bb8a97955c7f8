//! Products in [`Arithmetic::Fast`] have the CPU backend's bits: of every format in blocks, for any number of rows.

use tallow_core::ops::{Epilogue, Linear, LinearMany};
use tallow_core::{Arithmetic, Backend, Format, HostWeight, LinearWeights};
use tallow_cpu::{Cpu, Isa};
use tallow_ptx::mock::{self, Machine};

use super::open;
use crate::Cuda;

/// Each number of rows that takes other kernels than those before, and numbers beside it.
const ROWS: [usize; 8] = [1, 3, 8, 9, 17, 33, 64, 65];

fn random(seed: u32) -> impl FnMut() -> u32 {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    }
}

/// Numbers between -1 and 1.
pub(super) fn floats(seed: u32, len: usize) -> Vec<f32> {
    let mut next = random(seed);
    (0..len).map(|_| next() as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Formats in blocks of whole numbers.
fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|f| !f.is_plain() && *f != Format::F8)
}

/// A CPU that fuses products and sums, if this machine is one.
fn cpu() -> Option<Cpu> {
    let isa = Isa::best();
    let fuses = isa != Isa::Scalar || cfg!(target_arch = "aarch64");
    fuses.then(|| Cpu::new(isa, 1).unwrap())
}

/// A weight, its rows in a file, and its inputs.
pub(super) struct Case {
    format: Format,
    outputs: usize,
    inputs: usize,
    bytes: Vec<u8>,
}

impl Case {
    /// Of any bytes: with scales of all magnitudes, and some that are infinite.
    fn any(format: Format, outputs: usize, inputs: usize) -> Case {
        let inputs = inputs.next_multiple_of(format.block_weights());
        let mut next = random((outputs + inputs) as u32);
        let width = HostWeight::row_bytes(format, inputs).unwrap();
        let bytes = (0..outputs * width).map(|_| (next() >> 16) as u8).collect();
        let case = Case { format, outputs, inputs, bytes };
        // No zero point is above 16.
        if matches!(format, Format::U4G32 | Format::U4G64 | Format::U4G128) { case.packed() } else { case }
    }

    /// Of a matrix of numbers.
    pub(super) fn of_numbers(format: Format, outputs: usize, inputs: usize) -> Case {
        Case::any(format, outputs, inputs).packed()
    }

    /// Some of its rows.
    pub(super) fn rows(&self, rows: std::ops::Range<usize>) -> Case {
        let width = self.bytes.len() / self.outputs;
        let bytes = self.bytes[rows.start * width..rows.end * width].to_vec();
        Case { outputs: rows.len(), bytes, ..*self }
    }

    fn packed(mut self) -> Case {
        let numbers = floats(3, self.outputs * self.inputs);
        tallow_quant::pack(self.format, &numbers, &mut self.bytes).unwrap();
        self
    }

    /// Its weights, as the file has them.
    pub(super) fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.outputs * self.inputs];
        tallow_quant::unpack(self.format, &self.bytes, &mut numbers).unwrap();
        numbers
    }

    pub(super) fn layer<B: Backend>(&self, b: &B) -> LinearWeights<B> {
        let weight = HostWeight::new(self.format, self.outputs, self.inputs, &self.bytes);
        LinearWeights::new(b.prepare(weight).unwrap(), None)
    }
}

pub(super) fn same(got: &[f32], want: &[f32], what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{}, element {i}: {got:e} for {want:e}\n{:?}", what(), mock::last_fault());
    }
}

fn product<B: Backend>(b: &B, layer: &LinearWeights<B>, x: &[f32], cols: usize) -> Vec<f32> {
    let x = b.upload(x, x.len() / cols, cols).unwrap();
    let y = b.run(Linear { x: &x, weights: layer, epilogue: Epilogue::NONE });
    b.download::<f32>(&y.unwrap_or_else(|e| panic!("{e}\n{:?}", mock::last_fault()))).unwrap()
}

/// Compares a case with the CPU, for some numbers of rows.
fn check(b: &Cuda, cpu: &Cpu, case: &Case, rows: &[usize]) {
    let (ours, theirs) = (case.layer(b), case.layer(cpu));
    for &rows in rows {
        mock::seed(rows as u64);
        let mut x = floats(rows as u32, rows * case.inputs);
        // Each row has a magnitude of its own, and one has values halfway between two codes.
        for (r, x) in x.chunks_exact_mut(case.inputs).enumerate() {
            x.iter_mut().for_each(|x| *x *= (r % 7 + 1) as f32 / 3.0);
            if r == 2 {
                x.iter_mut().for_each(|x| *x = (*x * 100.0).round() / 2.0);
                x.iter_mut().step_by(100).for_each(|x| *x = 127.0);
            }
        }
        let want = product(cpu, &theirs, &x, case.inputs);
        let got = product(b, &ours, &x, case.inputs);
        let Case { format, outputs, inputs, .. } = case;
        same(&got, &want, || format!("{format} [{outputs}, {inputs}], {rows} rows"));
    }
}

#[test]
fn products_have_the_bits_of_the_cpu() {
    let Some(cpu) = cpu() else { return };
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    for format in formats() {
        check(&b, &cpu, &Case::of_numbers(format, 50, 640), &ROWS);
        // Less than a chunk, and a chunk more than the warps of a CTA.
        check(&b, &cpu, &Case::any(format, 17, 64), &[1, 9]);
        check(&b, &cpu, &Case::any(format, 33, 9 * 256 + 32), &[2, 20]);
    }
}

/// Rows that do not end with a block, and inputs of a layer that is wider than what is kept of it in shared memory.
#[test]
fn products_of_odd_shapes_have_the_bits_of_the_cpu() {
    let Some(cpu) = cpu() else { return };
    let b = open(Machine::default());
    b.gpu.stop_reuse();
    for inputs in [1, 40, 289, 300] {
        let width = HostWeight::row_bytes(Format::Q8_0, inputs).unwrap();
        let mut case = Case::of_numbers(Format::Q8_0, 18, width / 34 * 32);
        case.inputs = inputs;
        check(&b, &cpu, &case, &[1, 12]);
    }
    check(&b, &cpu, &Case::of_numbers(Format::Q4K, 16, 66 * 256), &[1, 10]);
    check(&b, &cpu, &Case::of_numbers(Format::Q5_1, 16, 512), &[128, 130, 300]);
}

/// Of infinite and of huge inputs, of such as vanish, and of zeros.
#[test]
fn inputs_are_rounded_as_on_a_cpu() {
    let Some(cpu) = cpu() else { return };
    let b = open(Machine::default());
    for format in [Format::Q4_0, Format::Q4_1, Format::Q4K, Format::Q6K] {
        let case = Case::of_numbers(format, 20, 512);
        let (ours, theirs) = (case.layer(&b), case.layer(&cpu));
        let values = [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, 1e-42, 3e-38, 0.0, -0.0];
        for value in values {
            let mut x = floats(9, 3 * 512);
            x[512 + 300] = value;
            x[1024..].fill(value);
            let (got, want) = (product(&b, &ours, &x, 512), product(&cpu, &theirs, &x, 512));
            same(&got, &want, || format!("{format}, {value}"));
        }
    }
}

/// Side by side, of formats that take input alike and not, and with all that follows a product.
#[test]
fn layers_share_their_input_and_finish_as_on_a_cpu() {
    let Some(cpu) = cpu() else { return };
    let b = open(Machine::default());
    let formats = [Format::Q4K, Format::F32, Format::Q8_0];
    let cases = formats.map(|format| Case::of_numbers(format, 24, 512));
    for rows in [1, 11] {
        let x = floats(4, rows * 512);
        fn many<B: Backend>(b: &B, cases: &[Case], x: &[f32]) -> Vec<f32> {
            let layers: Vec<_> = cases.iter().map(|case| case.layer(b)).collect();
            let x = b.upload(x, x.len() / 512, 512).unwrap();
            let y = b.run(LinearMany { x: &x, norm: None, weights: &layers }).unwrap();
            b.download::<f32>(&y).unwrap()
        }
        let (got, want) = (many(&b, &cases, &x), many(&cpu, &cases, &x));
        for (got, want) in got.chunks_exact(72).zip(want.chunks_exact(72)) {
            // F32 weights are summed in another order.
            same(&got[..24], &want[..24], || format!("the first of {rows} rows"));
            same(&got[48..], &want[48..], || format!("the last of {rows} rows"));
        }
        fn finished<B: Backend>(b: &B, case: &Case, x: &[f32]) -> Vec<f32> {
            let rows = x.len() / 512;
            let layer =
                LinearWeights { bias: Some(b.upload(&floats(5, 24), 1, 24).unwrap()), ..case.layer(b) };
            let (x, residual) =
                (b.upload(x, rows, 512).unwrap(), b.upload(&floats(6, rows * 24), rows, 24).unwrap());
            let epilogue = Epilogue { scale: 0.3, softcap: Some(7.0), residual: Some(&residual) };
            b.download::<f32>(&b.run(Linear { x: &x, weights: &layer, epilogue }).unwrap()).unwrap()
        }
        let (got, want) = (finished(&b, &cases[0], &x), finished(&cpu, &cases[0], &x));
        let near = |(got, want): (&f32, &f32)| (got - want).abs() <= 1e-5 * want.abs().max(1.0);
        assert!(got.iter().zip(&want).all(near), "{got:?} for {want:?}");
    }
}

/// Floats of 32 bits are multiplied as they are, in either arithmetic.
#[test]
fn floats_are_multiplied_exactly() {
    let fast = open(Machine::default());
    let exact = fast.clone().with(Arithmetic::Exact);
    let case = Case::of_numbers(Format::F32, 20, 512);
    let x = floats(1, 3 * 512);
    let of = |b: &Cuda| product(b, &case.layer(b), &x, 512);
    same(&of(&fast), &of(&exact), || "F32".into());
}
