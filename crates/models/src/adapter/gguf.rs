//! LoRA adapters in GGUF files, as llama.cpp's converter writes them.

use std::path::Path;
use std::sync::Arc;

use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::map::Mapping;
use tallow_checkpoint::{Kind, Stored, regular};

use super::{AdapterFile, Half, Halves, Origin};
use crate::error::{LoadError, Result};

pub(super) fn open(path: &Path) -> Result<AdapterFile> {
    regular(path)?;
    let file = Gguf::parse(Arc::new(Mapping::open(path)?))?;
    let meta = &file.meta;
    let is = |key: &str, want: &str, what: &str| match meta.text(key)? {
        Some(text) if text == want => Ok(()),
        Some(other) => Err(LoadError::unsupported(path, format!("{key} = {other:?}"), what)),
        None => Err(LoadError::bad(path, key, format!("is missing: {what}"))),
    };
    is("general.type", "adapter", "an adapter is expected here; a model is named as MODEL or by --model")?;
    is("adapter.type", "lora", "adapters of low rank (\"lora\") are")?;
    let activated = meta.entries().find(|(key, _)| key.starts_with("adapter.alora"));
    if let Some((key, _)) = activated {
        let why = "adapters that begin within a prompt (aLoRA) are not implemented";
        return Err(LoadError::unsupported(path, key, why));
    }
    let Some(arch) = meta.text("general.architecture")? else {
        return Err(LoadError::bad(path, "general.architecture", "is missing"));
    };
    let alpha = meta.float("adapter.lora.alpha")?.unwrap_or(0.0) as f32;
    let mut halves = Halves::default();
    for t in &file.tensors {
        let (kind, shape) = (Kind::Weights(t.format), t.shape.clone());
        let stored = Stored { file: file.file.clone(), kind, shape, bytes: t.bytes.clone() };
        let split = |suffix: &str| t.name.strip_suffix(suffix).map(str::to_owned);
        match (split(".weight.lora_a"), split(".weight.lora_b")) {
            (Some(layer), _) => halves.down.insert(layer, Half::new(&t.name, &stored)?),
            (_, Some(layer)) => halves.up.insert(layer, Half::new(&t.name, &stored)?),
            (None, None) => {
                let what = format!("tensor {:?}", t.name);
                let why = "only matrices of low rank (.weight.lora_a and .weight.lora_b) are";
                return Err(LoadError::unsupported(path, what, why));
            }
        };
    }
    // Without an alpha the delta is not scaled.
    let pairs = halves.pairs(|_, down| Ok(if alpha == 0.0 { 1.0 } else { alpha / down.rows as f32 }))?;
    Ok(AdapterFile { path: path.into(), origin: Origin::Gguf(arch.into()), pairs })
}
