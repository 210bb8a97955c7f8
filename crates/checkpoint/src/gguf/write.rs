//! Writing GGUF files: [`Header`] is everything before the tensor data.

use std::collections::BTreeMap;

use tallow_quant::Format;

use super::{Array, Kind, Metadata, Value};

/// Alignment of tensor data; the default of readers where the key is missing.
const ALIGN: usize = 32;

/// A metadata value with its GGUF type.
#[derive(Debug, Clone, PartialEq)]
pub enum Written {
    /// Unsigned count or id.
    Count(u32),
    /// Float.
    Number(f32),
    /// Boolean.
    Flag(bool),
    /// String.
    Text(String),
    /// Array of counts.
    Counts(Vec<i32>),
    /// Array of floats.
    Numbers(Vec<f32>),
    /// Array of booleans.
    Flags(Vec<bool>),
    /// Array of strings.
    Texts(Vec<String>),
}

impl Written {
    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let kind = |out: &mut Vec<u8>, kind: Kind| out.extend((kind as u32).to_le_bytes());
        let array = |out: &mut Vec<u8>, of: Kind, len: usize| {
            kind(out, Kind::Array);
            kind(out, of);
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Written::Count(n) => {
                kind(&mut out, Kind::U32);
                out.extend(n.to_le_bytes());
            }
            Written::Number(x) => {
                kind(&mut out, Kind::F32);
                out.extend(x.to_le_bytes());
            }
            Written::Flag(flag) => {
                kind(&mut out, Kind::Bool);
                out.push(u8::from(*flag));
            }
            Written::Text(text) => {
                kind(&mut out, Kind::Str);
                put_text(&mut out, text);
            }
            Written::Counts(all) => {
                array(&mut out, Kind::I32, all.len());
                all.iter().for_each(|n| out.extend(n.to_le_bytes()));
            }
            Written::Numbers(all) => {
                array(&mut out, Kind::F32, all.len());
                all.iter().for_each(|x| out.extend(x.to_le_bytes()));
            }
            Written::Flags(all) => {
                array(&mut out, Kind::Bool, all.len());
                out.extend(all.iter().map(|flag| u8::from(*flag)));
            }
            Written::Texts(all) => {
                array(&mut out, Kind::Str, all.len());
                all.iter().for_each(|text| put_text(&mut out, text));
            }
        }
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Tensor name.
    pub name: String,
    /// Weight type; must be one that GGUF has.
    pub format: Format,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
}

impl Planned {
    /// Size in bytes; `None` where a row is not a multiple of the block size, or on overflow.
    pub fn size(&self) -> Option<usize> {
        let (cols, rows) = self.shape.split_last()?;
        let row = self.format.row_bytes(*cols)?;
        rows.iter().try_fold(row, |size, n| size.checked_mul(*n))
    }
}

/// Everything before the tensor data: metadata and tensor table.
#[derive(Debug, Clone, Default)]
pub struct Header {
    /// Encoded values with their types, by key.
    pairs: BTreeMap<String, Vec<u8>>,
    /// Tensors in file order.
    pub tensors: Vec<Planned>,
}

impl Header {
    /// Sets a key.
    pub fn set(&mut self, key: impl Into<String>, value: Written) {
        self.pairs.insert(key.into(), value.bytes());
    }

    /// Copies all keys of another file unchanged, except those about splitting and alignment.
    pub fn copy(&mut self, meta: &Metadata) {
        for (key, value) in meta.entries() {
            if !key.starts_with("split.") && key != "general.alignment" {
                self.pairs.insert(key.to_owned(), meta.raw(value));
            }
        }
    }

    /// Removes a key.
    pub fn unset(&mut self, key: &str) {
        self.pairs.remove(key);
    }

    /// Encoded header up to the first tensor, and each tensor's offset in the file. `None` if a tensor's size is
    /// invalid or GGUF lacks its type.
    pub fn bytes(&self) -> Option<(Vec<u8>, Vec<usize>)> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        // Old readers look for these two first.
        let first = ["general.architecture", "general.name"];
        let early = first.iter().filter_map(|key| self.pairs.get_key_value(*key));
        let late = self.pairs.iter().filter(|(key, _)| !first.contains(&key.as_str()));
        for (key, value) in early.chain(late) {
            put_text(&mut out, key);
            out.extend(value);
        }
        let (mut at, mut offsets) = (0usize, Vec::new());
        for tensor in &self.tensors {
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|n| out.extend((*n as u64).to_le_bytes()));
            out.extend(tensor.format.gguf_id()?.to_le_bytes());
            out.extend((at as u64).to_le_bytes());
            offsets.push(at);
            at = at.checked_add(tensor.size()?)?.checked_next_multiple_of(ALIGN)?;
        }
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        let start = out.len();
        Some((out, offsets.into_iter().map(|at| start + at).collect()))
    }
}

impl Metadata {
    /// A value with its type, as in the file; scalars may be wider.
    fn raw(&self, value: &Value) -> Vec<u8> {
        let typed = |kind: Kind, bytes: &[u8]| [&(kind as u32).to_le_bytes(), bytes].concat();
        match value {
            Value::U64(n) => match u32::try_from(*n) {
                Ok(n) => typed(Kind::U32, &n.to_le_bytes()),
                Err(_) => typed(Kind::U64, &n.to_le_bytes()),
            },
            Value::I64(n) => match i32::try_from(*n) {
                Ok(n) => typed(Kind::I32, &n.to_le_bytes()),
                Err(_) => typed(Kind::I64, &n.to_le_bytes()),
            },
            Value::F64(x) if f64::from(*x as f32) == *x => typed(Kind::F32, &(*x as f32).to_le_bytes()),
            Value::F64(x) => typed(Kind::F64, &x.to_le_bytes()),
            Value::Bool(flag) => typed(Kind::Bool, &[u8::from(*flag)]),
            Value::Str(text) => Written::Text(text.clone()).bytes(),
            Value::Array(Array { kind, len, bytes }) => {
                let mut out = typed(Kind::Array, &(*kind as u32).to_le_bytes());
                out.extend((*len as u64).to_le_bytes());
                out.extend(self.file.get(bytes.clone()).unwrap_or_default());
                out
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Gguf;
    use super::*;
    use crate::map::Mapping;

    fn parsed(bytes: Vec<u8>) -> Gguf {
        Gguf::parse(Arc::new(Mapping::embedded("test", bytes.leak()))).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut header = Header::default();
        let texts = vec!["a".to_owned(), String::new(), "ü b".into()];
        for (key, value) in [
            ("general.architecture", Written::Text("llama".into())),
            ("a.count", Written::Count(7)),
            ("a.number", Written::Number(1e-5)),
            ("a.flag", Written::Flag(true)),
            ("a.counts", Written::Counts(vec![-1, 2])),
            ("a.numbers", Written::Numbers(vec![0.5, -2.0])),
            ("a.flags", Written::Flags(vec![true, false])),
            ("a.texts", Written::Texts(texts.clone())),
        ] {
            header.set(key, value);
        }
        for (name, format, shape) in [
            ("one", Format::Q4_0, vec![3, 32]),
            ("two", Format::F32, vec![5]),
            ("three", Format::BF16, vec![2, 3, 4]),
        ] {
            header.tensors.push(Planned { name: name.into(), format, shape });
        }
        let (mut bytes, starts) = header.bytes().unwrap();
        let end = starts[2] + header.tensors[2].size().unwrap();
        bytes.resize(end, 0);
        let read = parsed(bytes);
        let meta = &read.meta;
        assert_eq!(meta.text("general.architecture").unwrap(), Some("llama"));
        assert_eq!(meta.uint("a.count").unwrap(), Some(7));
        assert_eq!(meta.float("a.number").unwrap(), Some(f64::from(1e-5f32)));
        assert_eq!(meta.bool("a.flag").unwrap(), Some(true));
        assert_eq!(meta.ints("a.counts").unwrap(), Some(vec![-1, 2]));
        assert_eq!(meta.floats("a.numbers").unwrap(), Some(vec![0.5, -2.0]));
        assert_eq!(meta.ints("a.flags").unwrap(), Some(vec![1, 0]));
        assert_eq!(meta.texts("a.texts").unwrap().unwrap(), texts);
        for ((tensor, planned), start) in read.tensors.iter().zip(&header.tensors).zip(&starts) {
            assert_eq!(
                (&tensor.name, tensor.format, &tensor.shape),
                (&planned.name, planned.format, &planned.shape)
            );
            assert_eq!(tensor.bytes.start, *start);
            assert_eq!(start % ALIGN, 0);
        }
        let mut again = Header { tensors: header.tensors.clone(), ..Header::default() };
        again.copy(meta);
        let copied = again.bytes().unwrap().0;
        assert_eq!(copied, header.bytes().unwrap().0);
    }

    #[test]
    fn what_no_file_can_hold_has_no_bytes() {
        let with = |format, shape| Header {
            tensors: vec![Planned { name: "x".into(), format, shape }],
            ..Header::default()
        };
        assert!(with(Format::F8, vec![1, 32]).bytes().is_none());
        assert!(with(Format::Q4_0, vec![1, 33]).bytes().is_none());
        assert!(with(Format::F32, vec![usize::MAX, 32]).bytes().is_none());
        assert!(with(Format::F32, vec![1, 32]).bytes().is_some());
    }
}
