//! Conformance suite: every op of a backend against an `f64` oracle, every override against its default body.
//!
//! A backend's crate runs it with one line:
//!
//! ```
//! # use tallow_core::{Null as MyDevice, conformance::Suite};
//! tallow_core::conformance!(Suite::shapes(), MyDevice::default());
//! ```
//!
//! Sizes are deliberately odd, views are strided, batches are ragged and may be empty.

/// Defines the `cases` of a file: each the function of this name.
macro_rules! cases {
    ($($case:ident)*) => {
        pub(super) fn cases<B: $crate::Backend>() -> Vec<super::Case<B>> {
            vec![$(super::Case {
                name: stringify!($case),
                run: |b, suite| $case(&super::Bench { b, suite }),
            }),*]
        }
    };
}

mod adapters;
mod attention;
mod blocks;
mod experts;
mod memory;
mod oracle;
mod recurrent;
mod replay;
mod rowwise;
mod weights;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use half::bf16;
use tallow_quant::Format;

use crate::{Arithmetic, Backend, DType, Elem, HostWeight, Result as CoreResult, Stack, Tensor, Weight};

/// Result of a case; `Err` describes the failure.
pub type Outcome = Result<(), String>;

/// Settings of a run: which values, formats, sizes and tolerances.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// True if values are compared. False for devices that compute nothing.
    pub values: bool,
    /// Multiplies every error bound: 1 for a device that computes in `f32`.
    pub slack: f64,
    /// Weight formats to test.
    pub formats: &'static [Format],
    /// Maximum number of sizes to test per op.
    pub sizes: usize,
    /// True if attention of long sequences is compared at every row, and not at every few: the oracle of one row looks at
    /// all before it.
    pub every_row: bool,
    /// Types of the KV cache to test attention with.
    pub caches: &'static [DType],
    /// How precisely the device multiplies with weights.
    pub arithmetic: Arithmetic,
    /// A row of a linear layer's input as the device rounds it before multiplying it with weights of a format (activation
    /// quantization).
    pub round_input: fn(Format, &[f32]) -> Vec<f32>,
    /// How it may round queries and softmax weights, with a KV cache of a type.
    pub attends: fn(DType) -> Loose,
    /// Error bound for results of several chained ops, relative to the largest element.
    pub chain: f64,
}

/// Rounding allowed for queries and softmax weights.
#[derive(Clone, Copy, Debug)]
pub enum Loose {
    /// None.
    Exact,
    /// Relative to each element.
    Each(f64),
    /// Relative to the largest: of a query's elements, or of softmax weights times the values' scales.
    Largest(f64),
}

impl Loose {
    /// bf16 (8 bits of precision) with a bf16 cache, 16-bit integers with an i8 cache, and nothing else.
    fn of_cache(dtype: DType) -> Loose {
        match dtype {
            DType::BF16 => Loose::Each(1.0 / 256.0),
            DType::I8 => Loose::Largest(1.0 / 65_536.0),
            _ => Loose::Exact,
        }
    }
}

impl Suite {
    /// For a device that computes in `f32`.
    pub fn exact() -> Suite {
        let (formats, sizes, arithmetic) = (&Format::ALL, usize::MAX, Arithmetic::Exact);
        let round_input = |format, x: &[f32]| Arithmetic::Exact.round_input(format, x);
        let (attends, chain) = (Loose::of_cache as fn(DType) -> Loose, 1e-5);
        let (values, slack, every_row) = (true, 1.0, true);
        let caches = &[DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8];
        Suite { values, slack, formats, sizes, every_row, caches, arithmetic, round_input, attends, chain }
    }

    /// For a device that rounds the inputs of linear layers. Products of the rounded inputs have the same bounds as
    /// usual. In chained ops an input near a rounding boundary may round either way, which `chain` must allow for.
    pub fn fast(chain: f64) -> Suite {
        let round_input = |format, x: &[f32]| Arithmetic::Fast.round_input(format, x);
        Suite { arithmetic: Arithmetic::Fast, round_input, chain, ..Suite::exact() }
    }

    /// The same suite, of [`Suite::fast`], for a device that rounds to bf16 what it multiplies with BF16 weights.
    pub fn with_bf16_inputs(self) -> Suite {
        let round_input = |format, x: &[f32]| match format {
            Format::BF16 => x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
            _ => Arithmetic::Fast.round_input(format, x),
        };
        Suite { round_input, ..self }
    }

    /// The same suite with few formats, sizes and rows: checks in seconds whether a driver can be trusted.
    pub fn brief(self) -> Suite {
        Suite { formats: &[Format::F16, Format::Q8_0, Format::Q4K], sizes: 2, every_row: false, ..self }
    }

    /// For a device that computes nothing: tests shapes and checks only.
    pub fn shapes() -> Suite {
        Suite { values: false, ..Suite::exact() }
    }
}

/// A backend under test.
struct Bench<'a, B: Backend> {
    b: &'a B,
    suite: Suite,
}

/// One test case.
pub struct Case<B: Backend> {
    /// The op or property under test.
    pub name: &'static str,
    /// Runs the case.
    pub run: fn(&B, Suite) -> Outcome,
}

/// All cases, in the order in which a new backend should make them pass.
pub fn cases<B: Backend>() -> Vec<Case<B>> {
    let files = [
        memory::cases,
        weights::cases,
        rowwise::cases,
        attention::cases,
        recurrent::cases,
        blocks::cases,
        experts::cases,
        adapters::cases,
        replay::cases,
    ];
    files.into_iter().flat_map(|cases| cases()).collect()
}

/// Runs every case on a backend and returns the outcome of each.
pub fn run<B: Backend>(b: &B, suite: Suite) -> Vec<(&'static str, Outcome)> {
    run_with_progress(b, suite, &mut |_, _, _| {})
}

/// Like [`run`], calling `progress` before each case with the number of cases done, the total and the next case's name.
pub fn run_with_progress<B: Backend>(
    b: &B,
    suite: Suite,
    progress: &mut dyn FnMut(usize, usize, &'static str),
) -> Vec<(&'static str, Outcome)> {
    let cases = cases();
    let all = cases.len();
    let one = |(done, case): (usize, Case<B>)| {
        progress(done, all, case.name);
        (case.name, (case.run)(b, suite))
    };
    cases.into_iter().enumerate().map(one).collect()
}

/// Defines a test that runs the suite in the calling crate: `conformance!(suite, backend)`.
#[macro_export]
macro_rules! conformance {
    ($suite:expr, $backend:expr) => {
        #[test]
        fn conformance() {
            let backend = $backend;
            let outcomes = $crate::conformance::run(&backend, $suite);
            let failed: Vec<String> = outcomes
                .iter()
                .filter_map(|(name, outcome)| Some(format!("{name}: {}", outcome.as_ref().err()?)))
                .collect();
            println!(
                "{}: {} cases, {} failed",
                $crate::Backend::label(&backend),
                outcomes.len(),
                failed.len()
            );
            assert!(failed.is_empty(), "{}", failed.join("\n"));
        }
    };
}

impl<'a, B: Backend> Bench<'a, B> {
    fn up(&self, host: &Host) -> Result<Tensor<B>, String> {
        self.b.upload(&host.data, host.rows, host.cols).map_err(text)
    }

    fn ids(&self, ids: &[u32]) -> Result<Tensor<B>, String> {
        self.b.upload_row(ids).map_err(text)
    }

    /// Those of the types of KV cache that are to be tested.
    fn caches<const N: usize>(&self, of: [DType; N]) -> impl Iterator<Item = DType> + use<B, N> {
        let caches = self.suite.caches;
        of.into_iter().filter(|dtype| caches.contains(dtype))
    }

    /// `x` as the device rounds it before multiplying with weights of a format.
    fn rounded(&self, format: Format, x: &Host) -> Host {
        Host { data: (0..x.rows).flat_map(|r| (self.suite.round_input)(format, x.row(r))).collect(), ..*x }
    }

    /// Uploads `host` as a strided view with other data around it.
    fn strided(&self, host: &Host) -> Result<Tensor<B>, String> {
        let mut wide = Host::random(99, host.rows, host.cols + 5);
        for r in 0..host.rows {
            wide.row_mut(r)[3..3 + host.cols].copy_from_slice(host.row(r));
        }
        Ok(self.up(&wide)?.col_range(3..3 + host.cols))
    }

    fn down<T: Elem>(&self, t: &Tensor<B>) -> Result<Vec<T>, String> {
        self.b.download(t).map_err(text)
    }

    /// A random weight of a format on the device, and its dequantized values.
    fn weight(
        &self,
        seed: u64,
        format: Format,
        rows: usize,
        cols: usize,
    ) -> Result<(Weight<B>, Host), String> {
        self.prepared(seed, format, (rows, cols), |weight| self.b.prepare(weight))
    }

    /// As [`weight`](Bench::weight), for the next weight of a stack.
    fn stacked_weight(
        &self,
        seed: u64,
        format: Format,
        shape: (usize, usize),
        stack: &mut Stack<B>,
    ) -> Result<(Weight<B>, Host), String> {
        self.prepared(seed, format, shape, |weight| self.b.prepare_stacked(weight, stack))
    }

    fn prepared(
        &self,
        seed: u64,
        format: Format,
        (rows, cols): (usize, usize),
        prepare: impl FnOnce(HostWeight<'_>) -> CoreResult<Weight<B>>,
    ) -> Result<(Weight<B>, Host), String> {
        let width = HostWeight::row_bytes(format, cols).ok_or("the case has no whole blocks")?;
        let bytes = packed(seed, format, (rows, cols), width)?;
        let mut data = Vec::with_capacity(rows * cols);
        let mut whole = vec![0.0; cols.next_multiple_of(format.block_weights())];
        for bytes in bytes.chunks_exact(width.max(1)) {
            tallow_quant::unpack(format, bytes, &mut whole).map_err(text)?;
            data.extend_from_slice(&whole[..cols]);
        }
        let spent = Mutex::new(vec![0; rows]);
        let count = |rows: Range<usize>| {
            let mut spent = spent.lock().unwrap_or_else(PoisonError::into_inner);
            rows.for_each(|row| spent[row] += 1);
        };
        let weight = HostWeight { release: &count, ..HostWeight::new(format, rows, cols, &bytes) };
        let weight = prepare(weight).map_err(text)?;
        let spent = spent.into_inner().unwrap_or_else(PoisonError::into_inner);
        ensure(spent.iter().all(|times| *times <= 1), || format!("rows of {weight:?} were spent twice"))?;
        Ok((weight, Host { data, rows, cols }))
    }

    /// Compares a tensor with the oracle's result, element by element.
    fn near(&self, what: impl Debug, got: &Tensor<B>, want: &Bounded) -> Outcome {
        if (got.rows(), got.cols()) != (want.rows, want.cols) {
            return Err(format!("{what:?}: {got:?} where [{}, {}] was expected", want.rows, want.cols));
        }
        if !self.suite.values {
            return Ok(());
        }
        within_bounds(&what, &self.down(got)?, want, self.suite.slack)
    }

    /// Checks that two tensors are bit-identical, if values are compared.
    fn same(&self, what: impl Debug, got: &Tensor<B>, want: &Tensor<B>) -> Outcome {
        bit_identical(&what, &self.down(got)?, &self.down(want)?, self.suite.values)
    }

    /// Compares an override's result with that of the default body.
    fn like_default(&self, what: impl Debug, got: &Tensor<B>, default: CoreResult<Tensor<B>>) -> Outcome {
        let default: Vec<f32> = self.down(&default.map_err(text)?)?;
        let most = default.iter().fold(0f32, |m, x| m.max(x.abs()));
        let data = default.iter().map(|x| (f64::from(*x), 1e-5 * f64::from(most) + 1e-6)).collect();
        self.near(what, got, &Bounded { data, rows: got.rows(), cols: got.cols() })
    }
}

/// A random weight in a format, rows of `width` bytes. Each is packed once in a process: fitting the codes of some formats takes longer
/// than most cases do, and each suite asks for the same.
fn packed(
    seed: u64,
    format: Format,
    (rows, cols): (usize, usize),
    width: usize,
) -> Result<Arc<[u8]>, String> {
    type Weights = BTreeMap<(u64, Format, usize, usize), Arc<[u8]>>;
    static PACKED: Mutex<Weights> = Mutex::new(BTreeMap::new());
    let key = (seed, format, rows, cols);
    if let Some(bytes) = PACKED.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(bytes.clone());
    }
    let source = Host::random(seed, rows, cols);
    let mut bytes = vec![0; rows * width];
    let mut whole = vec![0.0; cols.next_multiple_of(format.block_weights())];
    for (r, bytes) in bytes.chunks_exact_mut(width.max(1)).enumerate() {
        whole[..cols].copy_from_slice(source.row(r));
        tallow_quant::pack(format, &whole, bytes).map_err(text)?;
    }
    let bytes = Arc::<[u8]>::from(bytes);
    PACKED.lock().unwrap_or_else(PoisonError::into_inner).insert(key, bytes.clone());
    Ok(bytes)
}

/// A matrix on the host.
#[derive(Clone, Debug)]
struct Host {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
}

impl Host {
    /// Uniform values from -1 to 1, determined by the seed.
    fn random(seed: u64, rows: usize, cols: usize) -> Host {
        let mut rng = Random(seed);
        Host { data: (0..rows * cols).map(|_| rng.signed()).collect(), rows, cols }
    }

    fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..][..self.cols]
    }

    fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..][..self.cols]
    }

    /// Applies `f` to each element.
    fn map(mut self, f: impl Fn(f32) -> f32) -> Host {
        self.data.iter_mut().for_each(|x| *x = f(*x));
        self
    }
}

/// An oracle's result: each value and its absolute error bound.
#[derive(Debug)]
struct Bounded {
    data: Vec<(f64, f64)>,
    rows: usize,
    cols: usize,
}

impl Bounded {
    /// Built row by row; `row` returns `cols` values with their bounds.
    fn by_rows(rows: usize, cols: usize, mut row: impl FnMut(usize) -> Vec<(f64, f64)>) -> Bounded {
        let mut data = Vec::with_capacity(rows * cols);
        (0..rows).for_each(|r| data.append(&mut row(r)));
        Bounded { data, rows, cols }
    }
}

/// Compares values with an oracle's result. Like [`bit_identical`] compiled once, not for each backend and description.
fn within_bounds(what: &dyn Debug, got: &[f32], want: &Bounded, slack: f64) -> Outcome {
    for (i, (g, (w, bound))) in got.iter().zip(&want.data).enumerate() {
        let off = (f64::from(*g) - w).abs();
        if off > bound * slack || off.is_nan() {
            let (r, c) = (i / want.cols, i % want.cols);
            return Err(format!(
                "{what:?}: [{r}, {c}] is {g}, should be {w} within {bound:e}, is off by {off:e}"
            ));
        }
    }
    Ok(())
}

/// Compares lengths, and bits if `values` are compared.
fn bit_identical(what: &dyn Debug, got: &[f32], want: &[f32], values: bool) -> Outcome {
    if got.len() != want.len() {
        return Err(format!("{what:?}: {} elements, not {}", got.len(), want.len()));
    }
    match got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits()) {
        Some(i) if values => {
            Err(format!("{what:?}: element {i} is {} in one and {} in the other", got[i], want[i]))
        }
        _ => Ok(()),
    }
}

/// SplitMix64: small, and good enough for test data.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn signed(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Outcome {
    if ok { Ok(()) } else { Err(what()) }
}

#[cfg(test)]
mod tests {
    crate::conformance!(super::Suite::shapes(), crate::Null::default());

    mod observed {
        crate::conformance!(
            crate::conformance::Suite::shapes(),
            crate::Observed::new(crate::Null::default())
        );
    }
}
