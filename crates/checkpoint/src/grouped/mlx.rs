//! MLX folders: a word packs neighbouring inputs of one output, and each group has a scale and a bias.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tallow_quant::Format;

use super::super::{Kind, Stored, StoredTensors};
use super::codes::Codes;
use super::method::Module;
use super::{Grouped, Scales, Zeros};
use crate::error::{FileError, Result};

/// Quantization settings: the global ones, or those of one matrix.
struct Settings<'a> {
    json: &'a Value,
    /// Path of these settings in `config.json`.
    at: String,
    path: &'a Path,
}

impl Settings<'_> {
    /// Bits per code, and inputs per scale.
    fn shape(&self, usual: Option<(usize, usize)>) -> Result<(usize, usize)> {
        let whole = |key: &str, usual: Option<usize>, known: &[usize]| match (&self.json[key], usual) {
            (Value::Null, Some(usual)) => Ok(usual),
            (value, _) => match value.as_u64().map(|n| n as usize).filter(|n| known.contains(n)) {
                Some(n) => Ok(n),
                None => {
                    let what = format!("{}.{key} = {value}", self.at);
                    let known: Vec<String> = known.iter().map(usize::to_string).collect();
                    Err(FileError::unsupported(self.path, what, format!("{} are", known.join(", "))))
                }
            },
        };
        match &self.json["mode"] {
            Value::Null => {}
            Value::String(mode) if mode == "affine" => {}
            mode => {
                let what = format!("{}.mode = {mode}", self.at);
                return Err(FileError::unsupported(self.path, what, "affine is"));
            }
        }
        let bits = whole("bits", usual.map(|u| u.0), &[2, 3, 4, 5, 6, 8])?;
        Ok((bits, whole("group_size", usual.map(|u| u.1), &[32, 64, 128])?))
    }
}

/// Merges the parts of each quantized matrix into one tensor, as described by the config's `quantization` object.
pub(in super::super) fn find(json: &Value, path: &Path, tensors: &mut StoredTensors) -> Result<()> {
    let at = "quantization".to_owned();
    let usual = Settings { json, at, path }.shape(None)?;
    let coded = |name: &str| {
        let stored = tensors.get(&format!("{name}.weight"));
        stored.is_some_and(|stored| matches!(&stored.kind, Kind::Other(elements) if elements == "U32"))
    };
    let modules = tensors.keys().filter_map(|name| name.strip_suffix(".scales")).filter(|name| coded(name));
    let modules: Vec<String> = modules.map(str::to_owned).collect();
    for name in modules {
        let shape = match &json[&name] {
            own @ Value::Object(_) => {
                Settings { json: own, at: format!("quantization.{name}"), path }.shape(Some(usual))?
            }
            _ => usual,
        };
        let Some(made) = (Module { name: &name, tensors }).affine(shape)? else { continue };
        let stored = made.codes.stored();
        let (file, bytes) = (stored.file.clone(), stored.bytes.clone());
        let (shape, name) = (vec![made.rows, made.cols], format!("{name}.weight"));
        tensors.insert(name, Stored { file, kind: Kind::Grouped(Arc::new(made.choose())), shape, bytes });
    }
    Ok(())
}

impl Module<'_> {
    fn affine(&mut self, (bits, group): (usize, usize)) -> Result<Option<Grouped>> {
        let Some(codes) = self.take("weight") else { return Ok(None) };
        let part = codes.part();
        part.elements("U32")?;
        let [rows, words] = part.matrix()?;
        let cols = 32 * words / bits;
        if !(32 * words).is_multiple_of(bits) || !cols.is_multiple_of(group) {
            let why = format!("{words} words a row are no groups of {group} numbers of {bits} bits");
            return Err(part.bad(why));
        }
        let (scales, adds) = (self.need("scales", &codes)?, self.need("biases", &codes)?);
        for table in [&scales, &adds] {
            table.part().shape(&[rows, cols / group])?;
            table.part().is_finite()?;
        }
        let codes = Codes::Along { words: codes.stored, bits };
        let (scales, adds) = (Scales::ByRow(scales.stored), Some(Scales::ByRow(adds.stored)));
        let (zeros, groups, format) = (Zeros::All(0), None, Format::F32);
        Ok(Some(Grouped { rows, cols, group, tall: 1, codes, zeros, scales, adds, groups, format }))
    }
}
