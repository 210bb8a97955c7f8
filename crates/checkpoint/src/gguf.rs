//! GGUF, versions 2 and 3: metadata and tensors in one file.
//!
//! All offsets and counts are checked against the file's length before use. Arrays are not copied: a [`Value`] keeps
//! their byte range in the file.

pub mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tallow_quant::Format;

use super::map::Mapping;
use crate::error::{FileError, Result};

/// Header, metadata and tensor table of a GGUF file.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// The mapped file.
    pub file: Arc<Mapping>,
    /// Key-value pairs.
    pub meta: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
}

/// An entry of the tensor table.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Tensor name.
    pub name: String,
    /// Weight type.
    pub format: Format,
    /// Slowest dimension first (the file has the reverse order).
    pub shape: Vec<usize>,
    /// Byte range in the file.
    pub bytes: Range<usize>,
}

/// Key-value pairs of a GGUF file.
#[derive(Debug, Clone)]
pub struct Metadata {
    pub(crate) file: Arc<Mapping>,
    entries: BTreeMap<String, Value>,
}

/// A metadata value. Scalars are widened; arrays stay in the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unsigned integer of any width.
    U64(u64),
    /// Signed integer of any width.
    I64(i64),
    /// Float of any width.
    F64(f64),
    /// Boolean.
    Bool(bool),
    /// String.
    Str(String),
    /// Array of one element type.
    Array(Array),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U64(n) => n.fmt(f),
            Value::I64(n) => n.fmt(f),
            Value::F64(x) => x.fmt(f),
            Value::Bool(b) => b.fmt(f),
            Value::Str(text) => write!(f, "{text:?}"),
            Value::Array(array) => write!(f, "{} elements", array.len),
        }
    }
}

/// An array, by its byte range in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    kind: Kind,
    len: usize,
    bytes: Range<usize>,
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// GGUF value types 0 to 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_id(id: u32) -> Option<Kind> {
        use Kind::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, Str, Array, U64, I64, F64].get(id as usize).copied()
    }

    /// Bytes of a value; the minimum for strings.
    fn size(self) -> usize {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => 1,
            Kind::U16 | Kind::I16 => 2,
            Kind::U32 | Kind::I32 | Kind::F32 => 4,
            Kind::Str | Kind::U64 | Kind::I64 | Kind::F64 => 8,
            Kind::Array => 12,
        }
    }
}

/// Forward reader over the file. Errors name the field being read.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bad<T>(&self, field: &str, why: impl std::fmt::Display) -> Result<T> {
        Err(FileError::bad(self.path, field, why))
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, n: usize, field: &str) -> Result<&'a [u8]> {
        if n > self.left() {
            return self.bad(
                field,
                format_args!(
                    "needs {n} bytes at byte {}, where {} are left: the file is cut short or damaged",
                    self.at,
                    self.left()
                ),
            );
        }
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// Reads a count of `things` of at least `size` bytes each; an error if the file is too short for them.
    fn count(&mut self, size: usize, things: &str, field: &str) -> Result<usize> {
        let n = self.u64(field)?;
        let most = self.left() / size;
        match usize::try_from(n) {
            Ok(n) if n <= most => Ok(n),
            _ => {
                let why = format!(
                    "should have {n} {things}, and the rest of the file has room for {most}: it is cut short or damaged"
                );
                self.bad(field, why)
            }
        }
    }

    fn text(&mut self, field: &str) -> Result<&'a str> {
        let n = self.count(1, "bytes", field)?;
        let bytes = self.take(n, field)?;
        std::str::from_utf8(bytes).or_else(|e| self.bad(field, format_args!("is not UTF-8: {e}")))
    }

    fn kind(&mut self, field: &str) -> Result<Kind> {
        let id = self.u32(field)?;
        Kind::from_id(id)
            .map_or_else(|| self.bad(field, format_args!("has type {id}, which GGUF does not have")), Ok)
    }

    fn value(&mut self, field: &str) -> Result<Value> {
        let kind = self.kind(field)?;
        if kind != Kind::Array {
            return self.scalar(kind, field);
        }
        let kind = self.kind(field)?;
        if kind == Kind::Array {
            return self.bad(field, "is an array of arrays, which nothing uses");
        }
        let len = self.count(kind.size(), "elements", field)?;
        let start = self.at;
        if kind == Kind::Str {
            for _ in 0..len {
                self.text(field)?;
            }
        } else {
            self.take(len * kind.size(), field)?;
        }
        Ok(Value::Array(Array { kind, len, bytes: start..self.at }))
    }

    fn scalar(&mut self, kind: Kind, field: &str) -> Result<Value> {
        Ok(match kind {
            Kind::U8 => Value::U64(u64::from(u8::from_le_bytes(self.array(field)?))),
            Kind::I8 => Value::I64(i64::from(i8::from_le_bytes(self.array(field)?))),
            Kind::U16 => Value::U64(u64::from(u16::from_le_bytes(self.array(field)?))),
            Kind::I16 => Value::I64(i64::from(i16::from_le_bytes(self.array(field)?))),
            Kind::U32 => Value::U64(u64::from(self.u32(field)?)),
            Kind::I32 => Value::I64(i64::from(i32::from_le_bytes(self.array(field)?))),
            Kind::F32 => Value::F64(f64::from(f32::from_le_bytes(self.array(field)?))),
            Kind::U64 => Value::U64(self.u64(field)?),
            Kind::I64 => Value::I64(i64::from_le_bytes(self.array(field)?)),
            Kind::F64 => Value::F64(f64::from_le_bytes(self.array(field)?)),
            Kind::Bool => Value::Bool(self.array::<1>(field)? != [0]),
            Kind::Str => Value::Str(self.text(field)?.to_owned()),
            Kind::Array => return self.bad(field, "is an array where one value should be"),
        })
    }
}

impl Gguf {
    /// Parses header, metadata and tensor table, and checks them against the file's length.
    pub fn parse(file: Arc<Mapping>) -> Result<Gguf> {
        let mut r = Reader { path: file.path(), bytes: &file, at: 0 };
        let magic: [u8; 4] = r.array("the magic number")?;
        if magic != *b"GGUF" {
            let why = format!("is \"{}\", not \"GGUF\": this is no GGUF file", magic.escape_ascii());
            return r.bad("the magic number", why);
        }
        match r.u32("the version")? {
            2 | 3 => {}
            1 => return Err(FileError::unsupported(r.path, "GGUF version 1", "convert the model again")),
            v if (1..=3).contains(&v.swap_bytes()) => {
                return Err(FileError::unsupported(r.path, "big-endian GGUF", "get the little-endian file"));
            }
            v => return r.bad("the version", format_args!("is {v}; versions 2 and 3 are known")),
        }
        // Minimum size of a tensor's and of a pair's entry.
        let tensor_count = r.count(8 + 4 + 4 + 8, "tensors", "the header")?;
        let pair_count = r.count(8 + 4 + 1, "keys", "the header")?;
        let mut entries = BTreeMap::new();
        for i in 0..pair_count {
            let key = r.text(&format!("key {i}"))?.to_owned();
            let value = r.value(&key)?;
            if entries.insert(key.clone(), value).is_some() {
                return r.bad(&key, "is there twice");
            }
        }
        let meta = Metadata { file: file.clone(), entries };
        let tensors = tensors(&mut r, &meta, tensor_count)?;
        Ok(Gguf { meta, tensors, file })
    }
}

fn tensors(r: &mut Reader<'_>, meta: &Metadata, count: usize) -> Result<Vec<TensorInfo>> {
    let mut found = Vec::new();
    for i in 0..count {
        let name = r.text(&format!("the name of tensor {i}"))?.to_owned();
        let field = format!("tensor {name:?}");
        let dims = r.u32(&field)?;
        if !(1..=4).contains(&dims) {
            return r.bad(&field, format_args!("has {dims} dimensions; 1 to 4 are known"));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let d = r.u64(&field)?;
            match usize::try_from(d) {
                Ok(d) if d > 0 && d <= i64::MAX as usize => shape.insert(0, d),
                _ => return r.bad(&field, format_args!("has a dimension of {}", d as i64)),
            }
        }
        let id = r.u32(&field)?;
        let Some(format) = Format::from_gguf_id(id) else {
            let known = Format::ALL.into_iter().filter(|format| format.gguf_id().is_some());
            let known: Vec<&str> = known.map(Format::name).collect();
            let what = named(id).map_or_else(String::new, |name| format!(" ({name})"));
            let why = format!("type {id}{what} is not one of {}", known.join(", "));
            return Err(FileError::unsupported(r.path, field, why));
        };
        let cols = shape.last().copied().unwrap_or(0);
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, d| n.checked_mul(*d));
        let blocks = format.block_weights();
        if !cols.is_multiple_of(blocks) {
            return r.bad(
                &field,
                format_args!("has rows of {cols}, not a multiple of {format}'s block of {blocks}"),
            );
        }
        let Some(size) = rows.and_then(|n| n.checked_mul(format.row_bytes(cols)?)) else {
            return r.bad(&field, format_args!("has dimensions {shape:?}, whose product overflows"));
        };
        let offset = r.u64(&field)?;
        found.push((TensorInfo { name, format, shape, bytes: 0..size }, offset));
    }
    place(r, meta, found)
}

/// Names of ggml types that hold no weights or were removed.
fn named(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2, given up in 2023",
        5 => "Q4_3, given up in 2023",
        9 => "Q8_1, for what is multiplied only",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        31 => "Q4_0_4_4, given up: Q4_0 is as fast",
        32 => "Q4_0_4_8, given up: Q4_0 is as fast",
        33 => "Q4_0_8_8, given up: Q4_0 is as fast",
        36..=38 => "IQ4_NL in another order, given up: IQ4_NL is as fast",
        _ => return None,
    })
}

/// Resolves each tensor's byte range: aligned, inside the file, not overlapping.
fn place(r: &Reader<'_>, meta: &Metadata, found: Vec<(TensorInfo, u64)>) -> Result<Vec<TensorInfo>> {
    let align = meta.uint("general.alignment")?.unwrap_or(32) as usize;
    if !align.is_power_of_two() || align > 1 << 20 {
        return r.bad("general.alignment", format_args!("is {align}; a power of two up to 2^20 is expected"));
    }
    let data = r.at.next_multiple_of(align);
    let mut tensors = Vec::new();
    for (mut t, offset) in found {
        let field = format!("tensor {:?}", t.name);
        if offset % align as u64 != 0 {
            return r.bad(&field, format_args!("lies at offset {offset}, not a multiple of {align}"));
        }
        let start = usize::try_from(offset).ok().and_then(|o| data.checked_add(o));
        let end = start.and_then(|s| s.checked_add(t.bytes.end)).filter(|end| *end <= r.bytes.len());
        let (Some(start), Some(end)) = (start, end) else {
            let (size, have) = (t.bytes.end, r.bytes.len());
            let why = format!(
                "{size} bytes at offset {offset} reach past the end of the file ({have} bytes): it is cut short or damaged"
            );
            return r.bad(&field, why);
        };
        t.bytes = start..end;
        tensors.push(t);
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.bytes.start);
    for pair in order.windows(2) {
        if pair[0].bytes.end > pair[1].bytes.start {
            return r.bad(
                &format!("tensor {:?}", pair[1].name),
                format_args!("lies over tensor {:?}", pair[0].name),
            );
        }
    }
    order.sort_by_key(|t| &t.name);
    if let Some(pair) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return r.bad(&format!("tensor {:?}", pair[0].name), "is there twice");
    }
    Ok(tensors)
}

impl Metadata {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// All metadata entries, sorted by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    fn wrong<T>(&self, key: &str, want: &str) -> Result<T> {
        Err(FileError::bad(self.path(), key, format_args!("is not {want}")))
    }

    /// String, if present.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Str(s)) => Ok(Some(s)),
            Some(_) => self.wrong(key, "text"),
        }
    }

    /// Non-negative integer, if present.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::U64(n)) => Ok(Some(*n)),
            Some(Value::I64(n)) if *n >= 0 => Ok(Some(*n as u64)),
            Some(_) => self.wrong(key, "a whole number of at least 0"),
        }
    }

    /// True if the key is an array.
    pub fn is_array(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Value::Array(_)))
    }

    /// Float, or integer as float, if present.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F64(x)) => Ok(Some(*x)),
            Some(Value::U64(n)) => Ok(Some(*n as f64)),
            Some(Value::I64(n)) => Ok(Some(*n as f64)),
            Some(_) => self.wrong(key, "a number"),
        }
    }

    /// Boolean, if present.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => self.wrong(key, "true or false"),
        }
    }

    fn array(&self, key: &str) -> Result<Option<(&Array, Reader<'_>)>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(a)) => Ok(Some((
                a,
                Reader { path: self.path(), bytes: &self.file[..a.bytes.end], at: a.bytes.start },
            ))),
            Some(_) => self.wrong(key, "an array"),
        }
    }

    /// The array's content, unless the file was truncated while it was read.
    fn read<T>(&self, list: Result<Vec<T>>) -> Result<Option<Vec<T>>> {
        self.file.intact()?;
        list.map(Some)
    }

    /// Array of strings, if present.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some((array, mut r)) = self.array(key)? else { return Ok(None) };
        if array.kind != Kind::Str {
            return self.wrong(key, "an array of texts");
        }
        self.read((0..array.len).map(|_| r.text(key)).collect())
    }

    /// Array of integers, if present.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        let Some((array, mut r)) = self.array(key)? else { return Ok(None) };
        let int = |v| match v {
            Value::I64(n) => Ok(n),
            Value::U64(n) => {
                i64::try_from(n).or_else(|_| self.wrong(key, "an array of numbers that fit 63 bits"))
            }
            Value::Bool(b) => Ok(i64::from(b)),
            _ => self.wrong(key, "an array of whole numbers"),
        };
        self.read((0..array.len).map(|_| r.scalar(array.kind, key).and_then(int)).collect())
    }

    /// Array of floats, if present.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let Some((array, mut r)) = self.array(key)? else { return Ok(None) };
        let float = |v| match v {
            Value::F64(x) => Ok(x as f32),
            _ => self.wrong(key, "an array of floats"),
        };
        self.read((0..array.len).map(|_| r.scalar(array.kind, key).and_then(float)).collect())
    }
}
