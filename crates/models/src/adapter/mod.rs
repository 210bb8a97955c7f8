//! [`AdapterFile`]: LoRA adapters: low-rank additions to a model's weights, in files of their own.
//!
//! An adapter is a PEFT folder or a GGUF file. It is opened and checked without its model; `Targets` describes the
//! layers of a loaded decoder, and matches the two.

mod gguf;
mod peft;
mod targets;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tallow_checkpoint::{Kind, Stored};
use tallow_core::{Adapter, Backend, HostWeight, LoraPair, Weight};
use tallow_quant::Format;

use crate::error::{LoadError, Result};
use crate::weights::{not_finite, quantized, room};

pub(crate) use targets::Targets;

/// Format of adapter matrices of layers with quantized weights.
const EIGHT_BITS: Format = Format::Q8_0;
/// Rows that devices interleave (panel): smaller matrices are padded to a multiple of it.
const LANES: usize = 32;

/// A LoRA adapter as its files describe it, not yet on a device.
#[derive(Debug, Clone)]
pub struct AdapterFile {
    /// The folder or file.
    pub path: PathBuf,
    origin: Origin,
    /// LoRA matrices by layer name.
    pairs: BTreeMap<String, Pair>,
}

/// The tool that wrote it, and so how it names layers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Origin {
    Peft,
    /// GGUF file for models of that architecture.
    Gguf(String),
}

/// The LoRA matrices of one layer: `lora_a` (down) and `lora_b` (up).
#[derive(Debug, Clone)]
struct Pair {
    down: Half,
    up: Half,
    scale: f32,
}

/// One of a layer's two LoRA matrices.
#[derive(Debug, Clone)]
struct Half {
    name: String,
    stored: Stored,
    format: Format,
    rows: usize,
    cols: usize,
}

impl Half {
    /// A tensor, if it is a matrix of weights.
    fn new(name: &str, stored: &Stored) -> Result<Half> {
        let bad = |why: String| Err(LoadError::bad(stored.file.path(), format!("tensor {name:?}"), why));
        let Kind::Weights(format) = stored.kind else {
            let why = "its elements are no floats; f32, f16, bf16 and GGUF blocks are supported";
            return Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why));
        };
        match *stored.shape.as_slice() {
            [rows, cols] if rows > 0 && cols > 0 => {
                Ok(Half { name: name.into(), stored: stored.clone(), format, rows, cols })
            }
            _ => bad(format!("has shape {:?}; a matrix is expected", stored.shape)),
        }
    }

    fn field(&self) -> String {
        format!("tensor {:?}", self.name)
    }

    fn path(&self) -> &Path {
        self.stored.file.path()
    }

    /// Upper bound of its bytes on a device.
    fn bytes(&self) -> usize {
        let size = if self.format == Format::F32 || !self.format.is_plain() { 4 } else { 2 };
        self.rows
            .next_multiple_of(LANES)
            .saturating_mul(self.cols.next_multiple_of(LANES))
            .saturating_mul(size)
    }

    /// Reads all of it once and checks that every element is finite.
    fn check(&self) -> Result<()> {
        let bytes = self.stored.bytes();
        let bad = match self.format.is_plain() {
            true => not_finite(self.format, bytes),
            false => self.plain()?.1.as_chunks().0.iter().position(|x| !f32::from_le_bytes(*x).is_finite()),
        };
        self.stored.file.intact()?;
        match bad {
            None => Ok(()),
            Some(i) => {
                let why = format!("element {i} is not a finite number: the file is damaged");
                Err(LoadError::bad(self.path(), self.field(), why))
            }
        }
    }

    /// Elements of the matrix dequantized, and their format.
    fn plain(&self) -> Result<(Format, Vec<u8>)> {
        let format = if self.format.is_plain() { self.format } else { Format::F32 };
        let (rows, cols, bytes) = (self.rows, self.cols, self.stored.bytes());
        let weight = HostWeight::new(self.format, rows, cols, bytes);
        Ok((format, quantized(&weight, format, None)?))
    }

    /// Loads it onto a device and returns its scale, too. `rows`: the order of its rows, if not the file's.
    ///
    /// Beside quantized weights it is kept in 8 bits: their activations are rounded to 8 bits anyway.
    fn load<B: Backend>(
        &self,
        b: &B,
        rows: Option<&[usize]>,
        beside_blocks: bool,
    ) -> Result<(Weight<B>, f32)> {
        let (mut format, mut bytes) = self.plain()?;
        let width = bytes.len() / self.rows;
        if let Some(rows) = rows {
            let mut ordered = room(rows.len() * width)?;
            for (to, from) in ordered.chunks_exact_mut(width.max(1)).zip(rows) {
                to.copy_from_slice(&bytes[from * width..(from + 1) * width]);
            }
            bytes = ordered;
        }
        let (rows, cols) = (rows.map_or(self.rows, <[usize]>::len), self.cols);
        let mut unit = 1.0;
        if beside_blocks {
            let weight = HostWeight::new(format, rows, cols, &bytes);
            (bytes, unit) = narrowed(&weight)?;
            format = EIGHT_BITS;
        }
        let weight = HostWeight::new(format, rows, cols, &bytes);
        Ok((b.prepare(weight)?, unit))
    }
}

/// Quantizes to 8 bits after division by a power of two, the returned scale: it brings elements into the range where
/// block scales are precise.
fn narrowed(weight: &HostWeight<'_>) -> Result<(Vec<u8>, f32)> {
    let mut plain = quantized(weight, Format::F32, None)?;
    let numbers = plain.as_chunks_mut().0;
    let most = numbers.iter().fold(0f32, |most, x| most.max(f32::from_le_bytes(*x).abs()));
    let unit = if most > 0.0 { most.log2().ceil().clamp(-126.0, 127.0).exp2() } else { 1.0 };
    numbers.iter_mut().for_each(|x| *x = (f32::from_le_bytes(*x) / unit).to_le_bytes());
    // The last block of a row is padded with zeros.
    let cols = weight.cols.next_multiple_of(EIGHT_BITS.block_weights());
    if cols > weight.cols {
        let mut whole = room(weight.rows.saturating_mul(4 * cols))?;
        let rows = whole.chunks_exact_mut(4 * cols).zip(plain.chunks_exact(4 * weight.cols));
        rows.for_each(|(whole, row)| whole[..row.len()].copy_from_slice(row));
        plain = whole;
    }
    let weight = HostWeight { format: Format::F32, cols, bytes: &plain, ..*weight };
    Ok((quantized(&weight, EIGHT_BITS, None)?, unit))
}

impl AdapterFile {
    /// Opens a PEFT folder or a GGUF file, and checks all that can be checked without the model.
    pub fn open(path: &Path) -> Result<AdapterFile> {
        let meta = std::fs::metadata(path).map_err(|e| LoadError::io(path, e))?;
        let file = if meta.is_dir() { peft::open(path)? } else { gguf::open(path)? };
        if file.pairs.is_empty() {
            return Err(LoadError::bad(path, "the adapter", "has no tensors"));
        }
        for Pair { down, up, .. } in file.pairs.values() {
            if down.rows != up.cols {
                let why =
                    format!("has shape {:?}, and {} {:?}", up.stored.shape, down.field(), down.stored.shape);
                return Err(LoadError::bad(up.path(), up.field(), format!("{why}: their ranks differ")));
            }
            down.check()?;
            up.check()?;
        }
        Ok(file)
    }

    /// Upper bound of its bytes on a device.
    pub fn bytes(&self) -> usize {
        self.pairs.values().fold(0, |n, p| n.saturating_add(p.down.bytes()).saturating_add(p.up.bytes()))
    }

    /// Loads it onto the device of its model.
    pub(crate) fn load<B: Backend>(&self, b: &B, targets: &Targets) -> Result<Adapter<B>> {
        let mut parts = BTreeMap::new();
        for (name, pair) in &self.pairs {
            let found = targets.find(self, name, pair)?;
            // All found layers share one tensor, so either all are quantized or none is.
            let blocks = found.iter().any(|target| target.blocks);
            let (down, unit) = pair.down.load(b, None, blocks)?;
            let (down, scale) = (Rc::new(down), pair.scale * unit);
            for target in found {
                let (up, unit) = pair.up.load(b, target.rows.as_deref(), blocks)?;
                parts.insert(target.site, LoraPair { a: down.clone(), b: up, scale: scale * unit });
            }
        }
        Ok(Adapter::new(parts))
    }
}

/// The matrices by layer name, until all have been read.
#[derive(Default)]
struct Halves {
    down: BTreeMap<String, Half>,
    up: BTreeMap<String, Half>,
}

impl Halves {
    /// Pairs them up; `scale` returns a pair's scale by layer name and `lora_a`.
    fn pairs(mut self, scale: impl Fn(&str, &Half) -> Result<f32>) -> Result<BTreeMap<String, Pair>> {
        let mut pairs = BTreeMap::new();
        for (name, down) in self.down {
            let Some(up) = self.up.remove(&name) else { return Err(lonely(&down)) };
            let scale = scale(&name, &down)?;
            if !scale.is_finite() {
                let why = format!("would be multiplied by {scale}");
                return Err(LoadError::bad(down.path(), down.field(), why));
            }
            pairs.insert(name, Pair { down, up, scale });
        }
        match self.up.into_values().next() {
            None => Ok(pairs),
            Some(up) => Err(lonely(&up)),
        }
    }
}

fn lonely(half: &Half) -> LoadError {
    LoadError::bad(half.path(), half.field(), "is one half of a pair, and the other is missing")
}
