//! [`Importance`]: importance of each input of a matrix, as measured by other programs ("imatrix" files).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::map::Mapping;
use tallow_models::{LoadError, Result};
use tallow_quant::Format;

/// Mean square of each matrix's inputs, by GGUF tensor name. A tensor of several matrices has those of the first one
/// first.
#[derive(Debug, Clone, PartialEq)]
pub struct Importance {
    inputs: BTreeMap<String, Vec<f32>>,
}

/// Suffixes in the GGUF kind of imatrix files.
pub(super) const SQUARES: &str = ".in_sum2";
pub(super) const COUNTS: &str = ".counts";

impl Importance {
    /// Reads an imatrix file: GGUF, or the older `.dat` layout, which has no magic number.
    pub fn read(path: &Path) -> Result<Importance> {
        let file = Mapping::open(path)?;
        let inputs = if file.starts_with(b"GGUF") { newer(file)? } else { older(&file)? };
        let wrong = |x: &f32| !x.is_finite() || *x < 0.0;
        match inputs.iter().find(|(_, inputs)| inputs.iter().any(wrong)) {
            None => Ok(Importance { inputs }),
            Some((name, _)) => {
                Err(LoadError::bad(path, name, "has a mean square that is no number, or less than 0"))
            }
        }
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// True if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Input importances of a tensor, if it has any.
    pub(super) fn of(&self, tensor: &str) -> Option<&[f32]> {
        self.inputs.get(tensor).map(Vec::as_slice)
    }
}

/// GGUF imatrix: sums of squares, and the row counts.
fn newer(file: Mapping) -> Result<BTreeMap<String, Vec<f32>>> {
    let gguf = Gguf::parse(Arc::new(file))?;
    let path = gguf.file.path();
    if gguf.meta.text("general.type")? != Some("imatrix") {
        return Err(LoadError::bad(path, "general.type", "is not imatrix: the file says nothing of inputs"));
    }
    let numbers = |name: &str| -> Result<Option<Vec<f32>>> {
        let Some(tensor) = gguf.tensors.iter().find(|t| t.name == name) else { return Ok(None) };
        let mut data = vec![0.0; tensor.shape.iter().product()];
        let bytes = gguf.file.get(tensor.bytes.clone()).unwrap_or_default();
        match tensor.format {
            Format::F32 if tallow_quant::unpack(Format::F32, bytes, &mut data).is_ok() => Ok(Some(data)),
            other => Err(LoadError::bad(
                path,
                format_args!("tensor {name:?}"),
                format_args!("is {other}, not F32"),
            )),
        }
    };
    let mut inputs = BTreeMap::new();
    for tensor in &gguf.tensors {
        let Some(name) = tensor.name.strip_suffix(SQUARES) else { continue };
        let squares = numbers(&tensor.name)?.unwrap_or_default();
        let counts = numbers(&format!("{name}{COUNTS}"))?.unwrap_or_default();
        if counts.is_empty() || !squares.len().is_multiple_of(counts.len()) {
            let why = format!("has {} sums for {} counts", squares.len(), counts.len());
            return Err(LoadError::bad(path, format_args!("tensor {:?}", tensor.name), why));
        }
        let each = squares.len() / counts.len();
        // No data for a matrix that no row went through: all inputs get the same weight.
        let mean =
            |(i, sum): (usize, &f32)| if counts[i / each] > 0.0 { sum / counts[i / each] } else { 0.0 };
        inputs.insert(name.to_owned(), squares.iter().enumerate().map(mean).collect());
    }
    gguf.file.intact()?;
    Ok(inputs)
}

/// Older imatrix: entries of a name and its values.
fn older(file: &Mapping) -> Result<BTreeMap<String, Vec<f32>>> {
    let mut read = Reader { path: file.path(), left: file };
    let entries = read.count("the number of entries")?;
    let mut inputs = BTreeMap::new();
    for i in 0..entries {
        let what = format!("entry {i}");
        let len = read.count(&what)?;
        let name = String::from_utf8_lossy(read.take(len, &what)?).into_owned();
        let (calls, len) = (read.count(&what)?, read.count(&what)?);
        let bytes = read.take(len.saturating_mul(4), &what)?;
        let number = |x: &[u8; 4]| f32::from_le_bytes(*x) / calls.max(1) as f32;
        inputs.insert(name, bytes.as_chunks().0.iter().map(number).collect());
    }
    file.intact()?;
    Ok(inputs)
}

/// The rest of a file.
struct Reader<'a> {
    path: &'a Path,
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let why = "is cut off: this is no imatrix file, or a damaged one";
        let split = self.left.split_at_checked(n);
        let (bytes, left) = split.ok_or_else(|| LoadError::bad(self.path, what, why))?;
        self.left = left;
        Ok(bytes)
    }

    fn count(&mut self, what: &str) -> Result<usize> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4, what)?);
        let count = usize::try_from(i32::from_le_bytes(bytes));
        count.map_err(|_| LoadError::bad(self.path, what, "is less than 0: this is no imatrix file"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_checkpoint::gguf::write::{Header, Planned, Written};

    fn older_file(entries: &[(&str, i32, &[f32])]) -> Vec<u8> {
        let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
        for (name, calls, numbers) in entries {
            bytes.extend((name.len() as i32).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(calls.to_le_bytes());
            bytes.extend((numbers.len() as i32).to_le_bytes());
            numbers.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        bytes
    }

    fn newer_file(kind: &str, tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
        let mut header = Header::default();
        header.set("general.type", Written::Text(kind.into()));
        let planned = |(name, shape, _): &(&str, &[usize], &[f32])| Planned {
            name: (*name).into(),
            format: Format::F32,
            shape: shape.to_vec(),
        };
        header.tensors = tensors.iter().map(planned).collect();
        let (mut bytes, starts) = header.bytes().unwrap();
        for ((.., numbers), start) in tensors.iter().zip(starts) {
            bytes.resize(start, 0);
            numbers.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        bytes
    }

    fn read(bytes: &[u8], tag: &str) -> std::result::Result<Importance, String> {
        let path = std::env::temp_dir().join(format!("tallow-importance-{}-{tag}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let read = Importance::read(&path).map_err(|e| e.to_string().replace(path.to_str().unwrap(), "FILE"));
        std::fs::remove_file(path).unwrap();
        read
    }

    #[test]
    fn both_kinds_of_file_are_read() {
        let old = read(&older_file(&[("a", 2, &[2.0, 4.0]), ("b", 0, &[1.0])]), "old").unwrap();
        assert_eq!((old.len(), old.of("a"), old.of("b")), (2, Some(&[1.0, 2.0][..]), Some(&[1.0][..])));
        let new = newer_file(
            "imatrix",
            &[("a.in_sum2", &[2, 3], &[2.0, 4.0, 6.0, 1.0, 1.0, 1.0]), ("a.counts", &[2, 1], &[2.0, 0.0])],
        );
        let new = read(&new, "new").unwrap();
        assert_eq!((new.len(), new.of("a")), (1, Some(&[1.0, 2.0, 3.0, 0.0, 0.0, 0.0][..])));
    }

    #[test]
    fn damaged_files_are_named() {
        let good = older_file(&[("a", 1, &[1.0, 2.0])]);
        let sums = ("a.in_sum2", &[1, 2][..], &[1.0, 2.0][..]);
        let said = [
            read(&good[..good.len() - 1], "cut"),
            read(b"", "empty"),
            read(&(-1i32).to_le_bytes(), "negative"),
            read(&i32::MAX.to_le_bytes(), "many"),
            read(&older_file(&[("a", 1, &[1.0, f32::NAN])]), "nan"),
            read(&older_file(&[("a", 1, &[-1.0])]), "less"),
            read(&newer_file("model", &[sums]), "model"),
            read(&newer_file("imatrix", &[sums]), "counts"),
            read(&newer_file("imatrix", &[sums, ("a.counts", &[3], &[1.0; 3])]), "thirds"),
        ];
        let said: String = said.into_iter().map(|read| read.unwrap_err() + "\n").collect();
        insta::assert_snapshot!(said);
    }
}
