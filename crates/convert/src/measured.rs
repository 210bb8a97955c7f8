//! [`Inputs`]: accumulated squares of the linear layers' inputs, written as imatrix files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tallow_checkpoint::gguf::write::{Header, Planned, Written};
use tallow_core::TensorId;
use tallow_models::{LoadError, Result};
use tallow_quant::Format;

use super::Made;
use super::importance::{COUNTS, SQUARES};

/// Sums over the inputs of the matrices of a checkpoint's tensors.
#[derive(Debug, Default)]
pub struct Inputs {
    tensors: BTreeMap<Arc<str>, Vec<Sums>>,
}

/// Sums for one matrix.
#[derive(Debug, Clone, Default)]
struct Sums {
    /// Sum of squares per column.
    squares: Vec<f64>,
    rows: u64,
}

/// The run that the sums were measured in.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Name of the text.
    pub text: String,
    /// Number of chunks, each evaluated on its own.
    pub chunks: usize,
    /// Tokens per chunk.
    pub context: usize,
}

impl Inputs {
    /// Accumulates input rows of a matrix. All rows of a matrix have the same length.
    pub fn add(&mut self, origin: &TensorId, rows: &[f32]) {
        let matrices = match self.tensors.get_mut(&origin.tensor) {
            Some(matrices) => matrices,
            None => self.tensors.entry(origin.tensor.clone()).or_default(),
        };
        if matrices.len() < origin.of {
            matrices.resize(origin.of, Sums::default());
        }
        let Some(sums) = matrices.get_mut(origin.matrix).filter(|_| origin.cols > 0) else { return };
        sums.squares.resize(origin.cols, 0.0);
        for row in rows.chunks_exact(origin.cols) {
            sums.squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            sums.rows += 1;
        }
    }

    /// Matrices without any input, in tensors of which other matrices had some.
    pub fn unobserved(&self) -> usize {
        self.tensors.values().flatten().filter(|sums| sums.rows == 0).count()
    }

    /// Contents of an imatrix file at `out`, and the number of tensors in it. `names` maps GGUF tensors to the model's.
    /// A name ending in `.dat` selects the older layout.
    pub fn file(&self, out: &Path, names: &[Made], measured: &Measured) -> Result<(Vec<u8>, usize)> {
        let (mut found, nothing) = (BTreeMap::new(), [Sums::default()]);
        for Made { name, parts, columns, matrices } in names {
            let of = |part: &String| match (self.tensors.get(part.as_str()), matrices) {
                (None, _) => &nothing[..],
                (Some(all), None) => all,
                (Some(all), Some(own)) => all.get(own.clone()).unwrap_or(&nothing),
            };
            let ordered = |sums: &Sums| match columns {
                Some(order) if order.len() == sums.squares.len() => {
                    Sums { squares: order.iter().map(|i| sums.squares[*i]).collect(), rows: sums.rows }
                }
                _ => sums.clone(),
            };
            let matrices: Vec<Sums> = parts.iter().flat_map(of).map(ordered).collect();
            let cols = matrices.iter().map(|sums| sums.squares.len()).max().unwrap_or(0);
            if cols > 0 {
                found.insert(name.as_str(), (matrices, cols));
            }
        }
        let is_old = out.extension().is_some_and(|e| e.eq_ignore_ascii_case("dat"));
        let bytes = if is_old { old(&found, measured) } else { new(&found, measured) };
        let too_large = || LoadError::bad(out, "its size", "is too large for a file");
        Ok((bytes.ok_or_else(too_large)?, found.len()))
    }
}

/// Per tensor: the sums of its matrices, and the columns of each.
type Found<'a> = BTreeMap<&'a str, (Vec<Sums>, usize)>;

/// GGUF imatrix: sums of squares and row counts.
fn new(found: &Found<'_>, measured: &Measured) -> Option<Vec<u8>> {
    let mut header = Header::default();
    header.set("general.type", Written::Text("imatrix".into()));
    header.set("imatrix.datasets", Written::Texts(vec![measured.text.clone()]));
    header.set("imatrix.chunk_count", Written::Count(u32::try_from(measured.chunks).ok()?));
    header.set("imatrix.chunk_size", Written::Count(u32::try_from(measured.context).ok()?));
    let mut data: Vec<Vec<f32>> = Vec::new();
    for (name, (matrices, cols)) in found {
        let mut plan = |kind: &str, cols: usize, numbers: Vec<f32>| {
            let name = format!("{name}{kind}");
            header.tensors.push(Planned { name, format: Format::F32, shape: vec![matrices.len(), cols] });
            data.push(numbers);
        };
        let squares = |sums: &Sums| {
            (0..*cols).map(|i| sums.squares.get(i).map_or(0.0, |s| *s as f32)).collect::<Vec<_>>()
        };
        plan(SQUARES, *cols, matrices.iter().flat_map(squares).collect());
        plan(COUNTS, 1, matrices.iter().map(|sums| sums.rows as f32).collect());
    }
    let (mut bytes, starts) = header.bytes()?;
    for (numbers, start) in data.iter().zip(starts) {
        bytes.resize(start, 0);
        bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    }
    Some(bytes)
}

/// Older imatrix: means, times the number of calls.
fn old(found: &Found<'_>, measured: &Measured) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let count = |bytes: &mut Vec<u8>, n: u64| -> Option<()> {
        bytes.extend(i32::try_from(n).ok()?.to_le_bytes());
        Some(())
    };
    let text = |bytes: &mut Vec<u8>, text: &str| -> Option<()> {
        count(bytes, text.len() as u64)?;
        bytes.extend(text.as_bytes());
        Some(())
    };
    count(&mut bytes, found.len() as u64)?;
    for (name, (matrices, cols)) in found {
        text(&mut bytes, name)?;
        let most = matrices.iter().map(|sums| sums.rows).max().unwrap_or(0);
        let calls = most.div_ceil(measured.context.max(1) as u64);
        count(&mut bytes, calls)?;
        count(&mut bytes, (matrices.len() * cols) as u64)?;
        for sums in matrices {
            let mean = |i: usize| match sums.rows {
                // Without data all inputs get the same weight.
                0 => 1.0,
                rows => sums.squares[i] / rows as f64,
            };
            let numbers = (0..*cols).map(|i| (mean(i) * calls as f64) as f32);
            bytes.extend(numbers.flat_map(|x| x.to_le_bytes()));
        }
    }
    count(&mut bytes, measured.chunks as u64)?;
    text(&mut bytes, &measured.text)?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::Importance;
    use super::*;

    /// Round trip through both layouts, also for a fused tensor one part of which had no input.
    #[test]
    fn files_are_read_again() {
        let mut inputs = Inputs::default();
        let mut add = |tensor: &str, matrix, of, rows: &[f32]| {
            inputs.add(&TensorId { tensor: tensor.into(), matrix, of, cols: 2 }, rows);
        };
        add("plain", 0, 1, &[1.0, 2.0, 3.0, 4.0]);
        add("plain", 0, 1, &[0.0, 2.0]);
        add("experts", 1, 3, &[2.0, -1.0]);
        add("one.0", 0, 1, &[5.0, 0.5]);
        assert_eq!(inputs.unobserved(), 2);
        let names = [
            ("a", vec!["plain"]),
            ("b", vec!["experts"]),
            ("c", vec!["one.0", "one.1"]),
            ("d", vec!["no"]),
            ("e", vec!["experts"]),
        ];
        let names = names.map(|(name, parts)| {
            let (columns, matrices) = ((name == "a").then(|| vec![1, 0]), (name == "e").then_some(1..2));
            let parts = parts.into_iter().map(str::to_owned).collect();
            Made { name: name.to_owned(), parts, columns, matrices }
        });
        let measured = Measured { text: "text".into(), chunks: 3, context: 2 };
        for is_old in [true, false] {
            let end = if is_old { "dat" } else { "gguf" };
            let path = std::env::temp_dir().join(format!("tallow-inputs-{}.{end}", std::process::id()));
            let (bytes, known) = inputs.file(&path, &names, &measured).unwrap();
            assert_eq!(known, 4);
            std::fs::write(&path, bytes).unwrap();
            let read = Importance::read(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            let nothing = if is_old { 1.0 } else { 0.0 };
            let mean = |x: f32| (x * 2.0) / 2.0;
            assert_eq!(read.of("a"), Some(&[8.0, 10.0 / 3.0].map(mean)[..]), "{is_old}");
            let experts = [nothing, nothing, 4.0, 1.0, nothing, nothing];
            assert_eq!(read.of("b"), Some(&experts[..]), "{is_old}");
            assert_eq!(read.of("c"), Some(&[25.0, 0.25, nothing, nothing][..]), "{is_old}");
            assert_eq!(read.of("d"), None);
            assert_eq!(read.of("e"), Some(&[4.0, 1.0][..]), "{is_old}");
        }
    }
}
