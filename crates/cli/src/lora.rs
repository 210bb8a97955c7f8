//! [`Lora`]: a LoRA adapter as given on the command line.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use tallow_engine::handle::{EngineHandle, LoadLora};
use tallow_models::adapter::AdapterFile;

use crate::Failed;

/// `NAME=PATH:SCALE`, of which only the path is required.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lora {
    name: String,
    path: PathBuf,
    scale: f32,
}

impl FromStr for Lora {
    type Err = String;

    fn from_str(text: &str) -> Result<Lora, String> {
        let (name, rest) = text.split_once('=').map_or((None, text), |(name, rest)| (Some(name), rest));
        let scaled = rest.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (path, scale) = scaled.unwrap_or((rest, 1.0));
        let path = PathBuf::from(path);
        // A folder's name may contain a dot, so only `.gguf` is stripped.
        let last = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let name = name.unwrap_or_else(|| last.strip_suffix(".gguf").unwrap_or(&last)).to_owned();
        if !scale.is_finite() {
            return Err(format!("the scale is {scale}; a number is expected"));
        }
        match name.is_empty() || path.as_os_str().is_empty() {
            true => Err("NAME=PATH or PATH is expected, perhaps with :SCALE behind it".into()),
            false => Ok(Lora { name, path, scale }),
        }
    }
}

impl Lora {
    /// Opens the adapter's files.
    pub(crate) fn open(&self) -> Result<LoadLora, Failed> {
        let Lora { name, path, scale } = self.clone();
        Ok(LoadLora { name, file: AdapterFile::open(&path)?, scale })
    }

    /// Opens all adapters; their names must differ.
    pub(crate) fn open_all(all: &[Lora]) -> Result<Vec<LoadLora>, Failed> {
        let again = |(i, lora): (usize, &Lora)| all[..i].iter().any(|other| other.name == lora.name);
        if let Some((_, lora)) = all.iter().enumerate().find(|(i, lora)| again((*i, lora))) {
            let why =
                format!("--lora: two adapters are called {:?}; give one a name, as NAME=PATH", lora.name);
            return Err(Failed::new(why));
        }
        all.iter().map(Lora::open).collect()
    }
}

/// Upper bound of the bytes that the adapters take on a device.
pub(crate) fn bytes(all: &[LoadLora]) -> usize {
    all.iter().map(|lora| lora.file.bytes()).sum()
}

/// Loads the adapters into an engine.
pub(crate) fn load(handle: &EngineHandle, all: Vec<LoadLora>) -> Result<(), Failed> {
    all.into_iter().try_for_each(|lora| handle.load_lora(lora).map_err(Failed::new))
}

/// The folder below which clients may load adapters, canonicalized.
pub(crate) fn folder(path: &Path) -> Result<PathBuf, Failed> {
    let real = path.canonicalize();
    real.map_err(|e| Failed::new(format!("--lora-dir {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_scales_are_read() {
        let lora = |name: &str, path: &str, scale| Ok(Lora { name: name.into(), path: path.into(), scale });
        let read = |text: &str| text.parse::<Lora>();
        assert_eq!(read("sql=adapters/one"), lora("sql", "adapters/one", 1.0));
        assert_eq!(read("sql=adapters/one:0.5"), lora("sql", "adapters/one", 0.5));
        assert_eq!(read("adapters/one"), lora("one", "adapters/one", 1.0));
        assert_eq!(read("adapters/one.gguf:-2"), lora("one", "adapters/one.gguf", -2.0));
        assert_eq!(read("adapters/sql-v1.5"), lora("sql-v1.5", "adapters/sql-v1.5", 1.0));
        assert_eq!(read("a=C:/adapters/one"), lora("a", "C:/adapters/one", 1.0));
        for wrong in ["", "=", "x=", "=x", "x:inf", ":1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
