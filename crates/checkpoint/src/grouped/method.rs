//! [`find`]: assembles quantized matrices from a checkpoint's tensors, by its quantization config.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tallow_quant::Format;

use super::super::{Kind, Stored, StoredTensors};
use super::codes::Codes;
use super::{Grouped, Part, Scales, Zeros};
use crate::error::{FileError, Result};

/// Quantization method of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Method {
    /// GPTQ: a word packs several inputs; zero points are stored minus `zero_offset`.
    Gptq { bits: usize, group: Option<usize>, zero_offset: i32 },
    /// AWQ: a word packs several outputs.
    Awq { group: Option<usize> },
    /// FP8.
    Floats(Sharing),
    /// compressed-tensors: i8, integers packed in words, or FP8.
    Compressed(Sharing),
}

/// Possible granularities of scales besides per-tensor and per-row; the scales' shape decides which applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Sharing {
    /// Group sizes: neighbouring inputs of one output.
    groups: Vec<usize>,
    /// Block sizes: [outputs, inputs].
    blocks: Vec<[usize; 2]>,
}

/// A quantization config, and the file that it is in.
struct Settings<'a> {
    json: &'a Value,
    path: &'a Path,
}

impl Settings<'_> {
    fn bad(&self, key: &str, why: impl std::fmt::Display) -> FileError {
        FileError::bad(self.path, format_args!("quantization_config.{key}"), why)
    }

    fn unsupported(&self, key: &str, why: impl std::fmt::Display) -> FileError {
        let what = format!("quantization_config.{key} = {}", self.json[key]);
        FileError::unsupported(self.path, what, why)
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match &self.json[key] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.to_ascii_lowercase())),
            other => Err(self.bad(key, format_args!("is {other}, not text"))),
        }
    }

    fn whole(&self, key: &str) -> Result<i64> {
        let value = &self.json[key];
        value.as_i64().ok_or_else(|| self.bad(key, format_args!("is {value}, not a whole number")))
    }

    /// Inputs per scale; `None` where all of an output's inputs share one.
    fn group(&self) -> Result<Option<usize>> {
        match self.whole("group_size")? {
            -1 => Ok(None),
            n @ 1..=0x10_0000 => Ok(Some(n as usize)),
            n => Err(self.bad("group_size", format_args!("is {n}; expected -1 or the size of a group"))),
        }
    }

    fn leaves_out(&self, key: &str) -> bool {
        match &self.json[key] {
            Value::Null => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        }
    }

    fn method(&self) -> Result<Method> {
        let method = self.text("quant_method")?;
        match method.as_deref() {
            Some("gptq") => self.gptq(),
            Some("awq") => self.awq(),
            Some("compressed-tensors") => self.compressed(),
            Some("fp8") => self.floats(),
            Some("fbgemm_fp8") => Ok(Method::Floats(Sharing::default())),
            _ => Err(self.unsupported(
                "quant_method",
                "gptq, awq, fp8, fbgemm_fp8 and compressed-tensors are; use the unquantized model or a GGUF file",
            )),
        }
    }

    fn gptq(&self) -> Result<Method> {
        let bits = match self.whole("bits")? {
            n @ (2 | 3 | 4 | 8) => n as usize,
            _ => return Err(self.unsupported("bits", "2, 3, 4 and 8 are")),
        };
        let zero_offset = match self.text("checkpoint_format")?.as_deref() {
            None | Some("gptq") => 1,
            Some("gptq_v2") => 0,
            Some(_) => return Err(self.unsupported("checkpoint_format", "gptq and gptq_v2 are")),
        };
        // Unquantized layers (`-:` rules) are also evident from the tensors.
        let rules = self.json["dynamic"].as_object();
        if !self.leaves_out("dynamic") && rules.is_none_or(|r| r.keys().any(|rule| !rule.starts_with("-:"))) {
            return Err(self.unsupported("dynamic", "all layers are read alike"));
        }
        Ok(Method::Gptq { bits, group: self.group()?, zero_offset })
    }

    fn awq(&self) -> Result<Method> {
        if self.whole("bits")? != 4 {
            return Err(self.unsupported("bits", "4 is"));
        }
        for key in ["version", "format"] {
            if !matches!(self.text(key)?.as_deref(), None | Some("gemm")) {
                return Err(self.unsupported(key, "gemm is"));
            }
        }
        Ok(Method::Awq { group: self.group()? })
    }

    fn floats(&self) -> Result<Method> {
        if !matches!(self.text("fmt")?.as_deref(), None | Some("e4m3" | "float8_e4m3fn")) {
            return Err(self.unsupported("fmt", "e4m3 is"));
        }
        let blocks = match (&self.json["weight_block_size"], self.leaves_out("weight_block_size")) {
            // Configs without the key mean this size, if the scales' shape matches it.
            (Value::Null, _) if self.json.get("weight_block_size").is_none() => vec![[128, 128]],
            (_, true) => Vec::new(),
            (value, false) => vec![self.block("weight_block_size", value)?],
        };
        Ok(Method::Floats(Sharing { blocks, groups: Vec::new() }))
    }

    /// Block size [outputs, inputs].
    fn block(&self, key: &str, value: &Value) -> Result<[usize; 2]> {
        let sides: Option<Vec<u64>> = match value {
            Value::String(text) => text.split('x').map(|side| side.trim().parse().ok()).collect(),
            other => other.as_array().and_then(|sides| sides.iter().map(Value::as_u64).collect()),
        };
        match sides.as_deref() {
            Some([tall @ 1..=0x10_0000, wide @ 1..=0x10_0000]) => Ok([*tall as usize, *wide as usize]),
            _ => Err(self.bad(key, format_args!("is {value}, not two sizes"))),
        }
    }

    fn compressed(&self) -> Result<Method> {
        const FORMATS: [&str; 4] = ["pack-quantized", "int-quantized", "naive-quantized", "float-quantized"];
        let groups = || self.json["config_groups"].as_object().into_iter().flat_map(|groups| groups.values());
        let known = |format: Option<&str>| format.is_some_and(|format| FORMATS.contains(&format));
        let each_known =
            || groups().all(|group| group["format"].is_null() || known(group["format"].as_str()));
        match self.text("format")?.as_deref() {
            Some("mixed-precision") if each_known() => {}
            format if known(format) && each_known() => {}
            _ => {
                let why = "pack-quantized, int-quantized, naive-quantized and float-quantized are";
                return Err(self.unsupported("format", why));
            }
        }
        for key in ["transform_config", "sparsity_config"] {
            if !self.leaves_out(key) && self.json[key]["format"] != "dense" {
                return Err(self.unsupported(key, "weights are read as they are"));
            }
        }
        let mut sharing = Sharing::default();
        for weights in groups().map(|group| &group["weights"]) {
            sharing.groups.extend(weights["group_size"].as_u64().filter(|n| *n > 0).map(|n| n as usize));
            let block = &weights["block_structure"];
            if !block.is_null() {
                sharing.blocks.push(self.block("config_groups", block)?);
            }
        }
        Ok(Method::Compressed(sharing))
    }
}

/// Suffixes of scales for quantized KV caches, which are not used here.
const OF_CACHES: [&str; 4] = [".k_scale", ".v_scale", ".kv_scale", ".output_scale"];

/// Merges the parts of each quantized matrix into one tensor, if `json` is a quantization config.
pub(in super::super) fn find(json: &Value, path: &Path, tensors: &mut StoredTensors) -> Result<()> {
    // Families with MXFP4 experts read them directly.
    if json.is_null() || json["quant_method"] == "mxfp4" {
        return Ok(());
    }
    let method = Settings { json, path }.method()?;
    tensors.retain(|name, _| !OF_CACHES.iter().any(|end| name.ends_with(end)));
    // The presence of a codes tensor means that there is a matrix.
    let ends: &[&str] = match method {
        Method::Gptq { .. } | Method::Awq { .. } => &["qweight"],
        Method::Compressed(_) | Method::Floats(_) => &["weight_packed", "weight"],
    };
    let of_codes = |(name, stored): (&String, &Stored)| {
        let (module, end) = name.rsplit_once('.')?;
        let end = ends.iter().find(|e| **e == end)?;
        let coded = |elements: &str| elements == "I8" || elements == FLOATS;
        let is_plain = *end == "weight" && !matches!(&stored.kind, Kind::Other(elements) if coded(elements));
        (!is_plain).then(|| (module.to_owned(), *end))
    };
    let modules: Vec<_> = tensors.iter().filter_map(of_codes).collect();
    for (name, end) in modules {
        let mut module = Module { name: &name, tensors };
        let Some(codes) = module.take(end) else { continue };
        let made = match &method {
            Method::Gptq { bits, group, zero_offset } => module.gptq(codes, *bits, *group, *zero_offset)?,
            Method::Awq { group } => module.awq(codes, *group)?,
            Method::Floats(sharing) => module.floats(codes, sharing)?,
            Method::Compressed(sharing) if end == "weight" => module.bytes(codes, sharing)?,
            Method::Compressed(sharing) => module.packed(codes, sharing)?,
        };
        let stored = made.codes.stored();
        let (file, bytes) = (stored.file.clone(), stored.bytes.clone());
        let (shape, name) = (vec![made.rows, made.cols], format!("{name}.weight"));
        let stored = Stored { file, kind: Kind::Grouped(Arc::new(made.choose())), shape, bytes };
        if let Some(twin) = tensors.insert(name.clone(), stored) {
            let why = "is there both as floats and quantized";
            return Err(FileError::bad(twin.file.path(), format_args!("tensor {name:?}"), why));
        }
    }
    Ok(())
}

/// FP8 with 4 exponent bits, as safetensors names it.
const FLOATS: &str = "F8_E4M3";

/// A quantized layer, and the tensors that its parts are taken from.
pub(super) struct Module<'a> {
    pub(super) name: &'a str,
    pub(super) tensors: &'a mut StoredTensors,
}

/// A tensor removed from the others as a part of a matrix.
pub(super) struct Taken {
    name: String,
    pub(super) stored: Stored,
}

impl Taken {
    pub(super) fn part(&self) -> Part<'_> {
        Part { name: self.name.clone(), stored: &self.stored }
    }
}

impl Module<'_> {
    pub(super) fn take(&mut self, end: &str) -> Option<Taken> {
        let name = format!("{}.{end}", self.name);
        let stored = self.tensors.remove(&name)?;
        Some(Taken { name, stored })
    }

    /// `take`, or an error where `of` is incomplete without the part.
    pub(super) fn need(&mut self, end: &str, of: &Taken) -> Result<Taken> {
        self.take(end).ok_or_else(|| {
            let name = format!("{}.{end}", self.name);
            FileError::bad(of.stored.file.path(), format_args!("tensor {name:?}"), "is missing")
        })
    }

    fn gptq(&mut self, codes: Taken, bits: usize, group: Option<usize>, zero_offset: i32) -> Result<Grouped> {
        let part = codes.part();
        let [lines, rows] = part.matrix()?;
        part.elements("I32")?;
        let cols = 32 * lines / bits;
        if !(32 * lines).is_multiple_of(bits) {
            return Err(part.bad(format_args!("{lines} words do not hold numbers of {bits} bits")));
        }
        let group = group.unwrap_or(cols).min(cols);
        let count = cols.div_ceil(group);
        let scales = self.need("scales", &codes)?;
        scales.part().shape_beside(&[count, rows], &part)?;
        let zeros = self.need("qzeros", &codes)?;
        zeros.part().shape_beside(&[count, (rows * bits).div_ceil(32)], &part)?;
        zeros.part().elements("I32")?;
        scales.part().is_finite()?;
        let groups = self.take("g_idx").map(|order| groups_of(&order.part(), cols, count)).transpose()?;
        let zeros = Zeros::Down { words: zeros.stored, bits, zero_offset };
        let (codes, scales) = (Codes::Down { words: codes.stored, bits }, Scales::ByGroup(scales.stored));
        Ok(Grouped {
            rows,
            cols,
            group,
            tall: 1,
            codes,
            zeros,
            scales,
            adds: None,
            groups,
            format: Format::F32,
        })
    }

    fn awq(&mut self, codes: Taken, group: Option<usize>) -> Result<Grouped> {
        let part = codes.part();
        let [cols, words] = part.matrix()?;
        part.elements("I32")?;
        let rows = 8 * words;
        let group = group.unwrap_or(cols).min(cols);
        let count = cols.div_ceil(group);
        let scales = self.need("scales", &codes)?;
        scales.part().shape_beside(&[count, rows], &part)?;
        let zeros = self.need("qzeros", &codes)?;
        zeros.part().shape_beside(&[count, words], &part)?;
        zeros.part().elements("I32")?;
        scales.part().is_finite()?;
        let (codes, zeros) = (Codes::Across { words: codes.stored }, Zeros::Across { words: zeros.stored });
        let scales = Scales::ByGroup(scales.stored);
        Ok(Grouped {
            rows,
            cols,
            group,
            tall: 1,
            codes,
            zeros,
            scales,
            adds: None,
            groups: None,
            format: Format::F32,
        })
    }

    /// Matrix of FP8.
    fn floats(&mut self, codes: Taken, sharing: &Sharing) -> Result<Grouped> {
        let shape = codes.part().matrix()?;
        codes.part().elements(FLOATS)?;
        let of = Codes::Floats(codes.stored.clone());
        self.scaled(&codes, shape, of, Zeros::All(0), sharing)
    }

    /// Matrix of bytes: i8 or FP8.
    fn bytes(&mut self, codes: Taken, sharing: &Sharing) -> Result<Grouped> {
        if codes.part().elements(FLOATS).is_ok() {
            return self.floats(codes, sharing);
        }
        let shape = codes.part().matrix()?;
        let zeros = match self.take("weight_zero_point") {
            None => Zeros::All(0),
            Some(zeros) => {
                zeros.part().elements("I8")?;
                Zeros::Bytes { bytes: zeros.stored, zero_offset: 0 }
            }
        };
        self.scaled(&codes, shape, Codes::Bytes(codes.stored.clone()), zeros, sharing)
    }

    /// Matrix of integers packed in words.
    fn packed(&mut self, codes: Taken, sharing: &Sharing) -> Result<Grouped> {
        let part = codes.part();
        let [rows, words] = part.matrix()?;
        part.elements("I32")?;
        let shape = self.need("weight_shape", &codes)?;
        shape.part().elements("I64")?;
        shape.part().shape(&[2])?;
        let shape: Vec<u64> =
            shape.stored.bytes().as_chunks().0.iter().map(|n| u64::from_le_bytes(*n)).collect();
        let bits = [4, 8].into_iter().find(|bits| {
            let most = (words * 32 / bits) as u64;
            shape[0] == rows as u64 && shape[1] <= most && shape[1] + (32 / bits) as u64 > most
        });
        let Some(bits) = bits else {
            let what = format!("tensor {:?}", codes.name);
            let why =
                format!("it has {words} words a row for a shape of {shape:?}; numbers of 4 and 8 bits are");
            return Err(FileError::unsupported(codes.stored.file.path(), what, why));
        };
        let cols = shape[1] as usize;
        let half = 1 << (bits - 1);
        let zeros = match self.take("weight_zero_point") {
            None => Zeros::All(half),
            // Some writers pack the zero points too, others do not.
            Some(zeros) if zeros.part().elements("I8").is_ok() => {
                Zeros::Bytes { bytes: zeros.stored, zero_offset: half }
            }
            Some(zeros) => {
                let [_, count] = zeros.part().matrix()?;
                zeros.part().shape(&[(rows * bits).div_ceil(32), count])?;
                zeros.part().elements("I32")?;
                Zeros::Along { words: zeros.stored, bits }
            }
        };
        let of_words = Codes::Along { words: codes.stored.clone(), bits };
        self.scaled(&codes, [rows, cols], of_words, zeros, sharing)
    }

    /// Matrix whose granularity follows from the scales' shape: per tensor, row, group of inputs, or block.
    fn scaled(
        &mut self,
        of: &Taken,
        [rows, cols]: [usize; 2],
        codes: Codes,
        zeros: Zeros,
        sharing: &Sharing,
    ) -> Result<Grouped> {
        // Activation quantization is not taken from the checkpoint.
        for end in ["input_scale", "input_zero_point", "activation_scale", "input_scale_ub"] {
            let _ = self.take(end);
        }
        // Under either name the scale is multiplied.
        let scales = match self.take("weight_scale_inv") {
            Some(scales) => scales,
            None => self.need("weight_scale", of)?,
        };
        scales.part().is_finite()?;
        let stored = scales.stored.clone();
        let shape = scales.stored.shape.as_slice();
        let block = sharing.blocks.iter().find(|b| shape == [rows.div_ceil(b[0]), cols.div_ceil(b[1])]);
        let (tall, group, table) = match (shape, block) {
            (_, Some([tall, group])) => (*tall, *group, Scales::ByRow(stored)),
            ([] | [1] | [1, 1], _) => (1, cols, Scales::All(stored)),
            ([n] | [n, 1], _) if *n == rows => (1, cols, Scales::ByRow(stored)),
            ([n, count], _) if *n == rows && sharing.groups.iter().any(|size| size * count == cols) => {
                (1, cols / count, Scales::ByRow(stored))
            }
            _ => {
                let Sharing { groups, blocks } = sharing;
                let why = format!(
                    "has shape {shape:?}, which fits no matrix [{rows}, {cols}] in groups of {groups:?} or blocks of {blocks:?}"
                );
                return Err(scales.part().bad(why));
            }
        };
        let count = cols.div_ceil(group);
        let fits = match &zeros {
            Zeros::Along { words, .. } => tall == 1 && words.shape[1] == count,
            Zeros::Bytes { bytes, .. } => bytes.len() == 1 || bytes.len() == rows.div_ceil(tall) * count,
            Zeros::All(_) | Zeros::Down { .. } | Zeros::Across { .. } => true,
        };
        if !fits {
            let name = format!("tensor \"{}.weight_zero_point\"", self.name);
            let why = format!("does not fit the scales, which have shape {shape:?}");
            return Err(FileError::bad(of.stored.file.path(), name, why));
        }
        let groups =
            self.take("weight_g_idx").map(|order| groups_of(&order.part(), cols, count)).transpose()?;
        let scales = table;
        Ok(Grouped { rows, cols, group, tall, codes, zeros, scales, adds: None, groups, format: Format::F32 })
    }
}

/// Group of each input (`g_idx`). The caller checks the group sizes.
fn groups_of(part: &Part<'_>, cols: usize, count: usize) -> Result<Vec<u32>> {
    part.shape(&[cols])?;
    let groups: Vec<u32> = part.words()?.collect();
    match groups.iter().position(|g| *g as usize >= count) {
        Some(i) => Err(part.bad(format_args!("input {i} is in group {}, and there are {count}", groups[i]))),
        None => Ok(groups),
    }
}
