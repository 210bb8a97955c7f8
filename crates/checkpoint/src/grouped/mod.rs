//! [`Grouped`]: matrices of quantized integers with group scales, as stored by GPTQ, AWQ, compressed-tensors and MLX.
//!
//! Such a checkpoint has several tensors in place of `x.weight`. `find` merges them into one, so that no other code has
//! to know. When uploaded to a device the matrix is converted to the narrowest block format that represents the same
//! values exactly: most block formats also compute `scale * (code - zero)`, with other codes.
//!
//! With act-order (`desc_act`), inputs that share a scale are not adjacent. The converted matrix then has its columns
//! permuted, and the layer permutes its input accordingly.

mod codes;
mod method;
mod mlx;
mod table;

use codes::Codes;
pub(super) use method::find;
pub(super) use mlx::find as find_mlx;
use table::{Scales, Table, Zeros, numbers};
use tallow_quant::{F8, F16, F32, Format, Q4_0, Q4_1, Q5_0, Q8_0, Q8K, U4G32, U4G64, U4G128};

use super::{Kind, Stored};
use crate::error::{FileError, Result};

/// Matrix of quantized integers, with a scale for each group of inputs of each output.
#[derive(Debug)]
pub struct Grouped {
    rows: usize,
    cols: usize,
    /// Inputs per scale.
    group: usize,
    /// Outputs per scale.
    tall: usize,
    codes: Codes,
    /// Zero point of each group of each output.
    zeros: Zeros,
    scales: Scales,
    /// Bias added to each group of each output, if there is one (MLX).
    adds: Option<Scales>,
    /// Group of each input (`g_idx`), unless it is the input's index divided by `group`.
    groups: Option<Vec<u32>>,
    /// Format that it is converted to.
    format: Format,
}

/// Rows transposed at a time: enough to use much of each file row, few enough to stay in cache.
const PANEL: usize = 32;

impl Grouped {
    /// Chooses the format. It depends on the zero points and scales, so this reads them all.
    fn choose(mut self) -> Grouped {
        let group = self.group;
        self.groups = self.groups.filter(|of| of.iter().enumerate().any(|(i, g)| *g as usize != i / group));
        self.format = self.narrowest();
        self
    }

    /// The narrowest format that represents all values exactly.
    fn narrowest(&self) -> Format {
        let (zeros, scales) = (self.zeros.read(self.rows), self.scales.read());
        let zeros = zeros.as_slice().iter();
        let (low, high) = zeros.fold((i32::MAX, i32::MIN), |(low, high), z| (low.min(*z), high.max(*z)));
        let (codes, scales) = (self.codes.range(), scales.as_slice());
        let (least, most) = (codes.start - high, codes.end - 1 - low);
        let within = |bits: u32| least >= -(1 << (bits - 1)) && most < 1 << (bits - 1);
        let blocks_of = |n: usize| self.cols.is_multiple_of(n) && self.group.is_multiple_of(n);
        let are_halves = |all: &[f32]| all.iter().all(|s| F16::nearest(*s).get().to_bits() == s.to_bits());
        let fits_half = || are_halves(scales);
        if let Some(adds) = &self.adds {
            let fits = blocks_of(32) && self.codes.range().end <= 16 && fits_half();
            return if fits && are_halves(adds.read().as_slice()) { Format::Q4_1 } else { Format::F32 };
        }
        // Groups of unequal size cannot be made contiguous.
        let sorts = self.groups.as_ref().is_none_or(|of| {
            let mut sizes = vec![0; self.group_count()];
            of.iter().for_each(|g| sizes[*g as usize] += 1);
            sizes.iter().all(|n| *n == self.group)
        });
        match () {
            () if !sorts => Format::F32,
            () if matches!(self.codes, Codes::Floats(_)) => match blocks_of(32) {
                true => Format::F8,
                false => Format::F32,
            },
            () if blocks_of(32) && within(4) && fits_half() => Format::Q4_0,
            () if blocks_of(32) && codes == (0..16) && within(5) && fits_half() => match () {
                () if blocks_of(128) => Format::U4G128,
                () if blocks_of(64) => Format::U4G64,
                () => Format::U4G32,
            },
            () if blocks_of(32) && within(8) && fits_half() => Format::Q8_0,
            () if blocks_of(256) && within(8) => Format::Q8K,
            () => Format::F32,
        }
    }

    fn group_count(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    /// Format that it is converted to.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The narrowest format of GGUF files that represents all values exactly: of 4 bits with zero points, which such files
    /// do not have, Q5_0.
    pub fn gguf_format(&self) -> Format {
        match self.format {
            Format::U4G32 | Format::U4G64 | Format::U4G128 => Format::Q5_0,
            format => format,
        }
    }

    /// True if the columns are permuted after conversion.
    pub fn is_shuffled(&self) -> bool {
        self.groups.is_some() && self.format != Format::F32
    }

    /// Input index of each converted column, if they are permuted.
    pub fn order(&self) -> Option<Vec<u32>> {
        let of = self.groups.as_ref().filter(|_| self.is_shuffled())?;
        let mut order: Vec<u32> = (0..self.cols as u32).collect();
        order.sort_by_key(|i| of[*i as usize]);
        Some(order)
    }

    /// Size after conversion in bytes.
    pub fn size(&self) -> usize {
        self.format.row_bytes(self.cols).unwrap_or(0) * self.rows
    }

    /// Index of the first code that is NaN (FP8 only), if there is one.
    pub fn fault(&self) -> Option<usize> {
        match &self.codes {
            Codes::Floats(stored) => stored.bytes().iter().position(|q| q & 0x7f == 0x7f),
            _ => None,
        }
    }

    /// Writes all rows in `format`, with the columns in `order`.
    pub fn write(&self, order: Option<&[u32]>, out: &mut [u8]) {
        self.write_as(self.format, order, out);
    }

    /// Writes all rows in [`gguf_format`](Self::gguf_format), with the columns in their original order.
    pub fn write_for_gguf(&self, out: &mut [u8]) {
        self.write_as(self.gguf_format(), None, out);
    }

    /// Writes all rows as `f32` with the columns in their original order.
    pub fn write_plain(&self, out: &mut [u8]) {
        self.write_as(Format::F32, None, out);
    }

    /// Writes all rows, with a thread per core.
    fn write_as(&self, format: Format, order: Option<&[u32]>, out: &mut [u8]) {
        let adds = self.adds.as_ref().map_or(Table::All(0.0), Scales::read);
        let tables = Tables { zeros: self.zeros.read(self.rows), scales: self.scales.read(), adds };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let each = self.rows.div_ceil(cores).next_multiple_of(PANEL);
        let width = format.row_bytes(self.cols).unwrap_or(0);
        let parts = out.chunks_mut((each * width).max(1)).enumerate();
        std::thread::scope(|s| {
            for (i, out) in parts {
                let (first, tables) = (i * each, &tables);
                s.spawn(move || self.write_some((format, width), first, order, tables, out));
            }
        });
    }

    /// Writes rows starting at `first`.
    fn write_some(
        &self,
        (format, width): (Format, usize),
        first: usize,
        order: Option<&[u32]>,
        tables: &Tables,
        out: &mut [u8],
    ) {
        let mut codes = vec![0i16; PANEL * self.cols];
        let mut row = vec![0i16; self.cols];
        for (i, out) in out.chunks_mut(PANEL * width).enumerate() {
            let rows = first + i * PANEL..first + i * PANEL + out.len() / width;
            self.codes.read(rows.clone(), self.cols, &mut codes);
            let lines = codes.chunks_exact(self.cols).zip(out.chunks_exact_mut(width));
            for (r, (codes, out)) in rows.zip(lines) {
                match order {
                    Some(order) => row.iter_mut().zip(order).for_each(|(to, i)| *to = codes[*i as usize]),
                    None => row.copy_from_slice(codes),
                }
                let shape = (self.rows.div_ceil(self.tall), self.group_count());
                let of = |group: usize| {
                    let row = r / self.tall;
                    let (scale, zero) =
                        (tables.scales.at(row, group, shape), tables.zeros.at(row, group, shape));
                    (scale, zero, tables.adds.at(row, group, shape))
                };
                self.write_row(format, &row, of, out);
            }
        }
    }

    /// Writes a row whose codes are already in the output's column order.
    fn write_row(
        &self,
        format: Format,
        codes: &[i16],
        of: impl Fn(usize) -> (f32, i32, f32),
        out: &mut [u8],
    ) {
        match format {
            Format::Q4_0 => {
                self.write_blocks::<Q4_0, 32>(codes, of, out, |d, q| Q4_0::of(F16::nearest(d), q))
            }
            Format::Q4_1 => {
                let out: &mut [Q4_1] = bytemuck::cast_slice_mut(out);
                for (i, (q, out)) in codes.as_chunks::<32>().0.iter().zip(out).enumerate() {
                    let (scale, _, add) = of(i * 32 / self.group);
                    let qs = std::array::from_fn(|i| q[i] as u8 & 15 | (q[i + 16] as u8) << 4);
                    *out = Q4_1 { d: F16::nearest(scale), m: F16::nearest(add), qs };
                }
            }
            Format::U4G32 => self.write_zero_points::<U4G32, 32>(codes, of, out, U4G32::of),
            Format::U4G64 => self.write_zero_points::<U4G64, 64>(codes, of, out, U4G64::of),
            Format::U4G128 => self.write_zero_points::<U4G128, 128>(codes, of, out, U4G128::of),
            Format::Q5_0 => {
                self.write_blocks::<Q5_0, 32>(codes, of, out, |d, q| Q5_0::of(F16::nearest(d), q))
            }
            Format::Q8_0 => {
                self.write_blocks::<Q8_0, 32>(codes, of, out, |d, q| Q8_0 { d: F16::nearest(d), qs: *q });
            }
            Format::Q8K => {
                self.write_blocks::<Q8K, 256>(codes, of, out, |d, q| Q8K::of(F32(d.to_le_bytes()), q))
            }
            Format::F8 => self.write_blocks::<F8, 32>(codes, of, out, F8::of),
            _ => {
                for (i, (code, out)) in codes.iter().zip(out.as_chunks_mut().0).enumerate() {
                    let (scale, zero, add) =
                        of(self.groups.as_ref().map_or(i / self.group, |of| of[i] as usize));
                    let number = match self.codes {
                        Codes::Floats(_) => F8::value(*code as u8),
                        _ => (i32::from(*code) - zero) as f32,
                    };
                    let number = scale * number;
                    let number = if self.adds.is_some() { number + add } else { number };
                    *out = number.to_le_bytes();
                }
            }
        }
    }

    fn write_blocks<B: bytemuck::Pod, const N: usize>(
        &self,
        codes: &[i16],
        of: impl Fn(usize) -> (f32, i32, f32),
        out: &mut [u8],
        block: impl Fn(f32, &[i8; N]) -> B,
    ) {
        let out: &mut [B] = bytemuck::cast_slice_mut(out);
        for (i, (codes, out)) in codes.as_chunks::<N>().0.iter().zip(out).enumerate() {
            let (scale, zero, _) = of(i * N / self.group);
            *out = block(scale, &codes.map(|q| (i32::from(q) - zero) as i8));
        }
    }

    fn write_zero_points<B: bytemuck::Pod, const N: usize>(
        &self,
        codes: &[i16],
        of: impl Fn(usize) -> (f32, i32, f32),
        out: &mut [u8],
        block: impl Fn(F16, u8, &[u8; N]) -> B,
    ) {
        let out: &mut [B] = bytemuck::cast_slice_mut(out);
        for (i, (codes, out)) in codes.as_chunks::<N>().0.iter().zip(out).enumerate() {
            let (scale, zero, _) = of(i * N / self.group);
            *out = block(F16::nearest(scale), zero as u8, &codes.map(|q| q as u8));
        }
    }
}

/// Zero points, scales and biases in memory while a matrix is written.
struct Tables {
    zeros: Table<i32>,
    scales: Table<f32>,
    adds: Table<f32>,
}

/// A tensor that is a part of a quantized matrix.
struct Part<'a> {
    name: String,
    stored: &'a Stored,
}

impl Part<'_> {
    fn bad(&self, why: impl std::fmt::Display) -> FileError {
        FileError::bad(self.stored.file.path(), format_args!("tensor {:?}", self.name), why)
    }

    /// Checks the shape.
    fn shape(&self, want: &[usize]) -> Result<()> {
        match self.stored.shape == want {
            true => Ok(()),
            false => Err(self.bad(format_args!("has shape {:?}; expected {want:?}", self.stored.shape))),
        }
    }

    /// Checks a shape that is derived from another tensor, which may be the wrong one of the two.
    fn shape_beside(&self, want: &[usize], other: &Part<'_>) -> Result<()> {
        match self.stored.shape == want {
            true => Ok(()),
            false => {
                let (have, name, of) = (&self.stored.shape, &other.name, &other.stored.shape);
                Err(self.bad(format_args!("has shape {have:?}; expected {want:?} with {name:?} of {of:?}")))
            }
        }
    }

    /// Rows and columns.
    fn matrix(&self) -> Result<[usize; 2]> {
        let shape = <[usize; 2]>::try_from(self.stored.shape.as_slice()).ok().filter(|s| !s.contains(&0));
        shape.ok_or_else(|| self.bad(format_args!("has shape {:?}, which is no matrix", self.stored.shape)))
    }

    /// Checks the element type.
    fn elements(&self, want: &str) -> Result<()> {
        match &self.stored.kind {
            Kind::Other(have) if have == want => Ok(()),
            Kind::Other(have) => Err(self.bad(format_args!("its elements are {have}; expected {want}"))),
            Kind::Weights(format) => {
                Err(self.bad(format_args!("its elements are {format}; expected {want}")))
            }
            Kind::Grouped(_) => Err(self.bad("is there in another form too")),
        }
    }

    /// The 32-bit words that codes are packed in.
    fn words(&self) -> Result<impl ExactSizeIterator<Item = u32>> {
        self.elements("I32")?;
        Ok(self.stored.bytes().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)))
    }

    /// Checks that the elements are finite floats.
    fn is_finite(&self) -> Result<()> {
        let numbers = numbers(self.stored);
        if numbers.len() != self.stored.len() {
            return Err(self.bad("its elements are not floats"));
        }
        match numbers.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(self.bad(format_args!("element {i} is {}: the file is damaged", numbers[i]))),
            None => Ok(()),
        }
    }
}

/// Reads `bits` bits at bit offset `at` in a row of words.
fn bits_at(word: impl Fn(usize) -> u32, at: usize, bits: usize) -> u32 {
    let (index, shift) = (at / 32, at % 32);
    let low = word(index) >> shift;
    let rest = if shift + bits > 32 { word(index + 1) << (32 - shift) } else { 0 };
    (low | rest) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests;
