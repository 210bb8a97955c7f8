//! safetensors: a JSON header and the tensors after it. The crate of that name checks the header against the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tallow_quant::Format;

use super::map::Mapping;
use super::{Kind, Stored, StoredTensors};
use crate::error::{LoadError, Result};

/// The tensors of one file.
pub fn parse(file: &Arc<Mapping>, tensors: &mut StoredTensors) -> Result<()> {
    let (size, meta) = SafeTensors::read_metadata(file).map_err(|e| {
        LoadError::bad(file.path(), "the header", format_args!("{e}; the file is damaged or cut short"))
    })?;
    let data = 8 + size;
    for (name, info) in meta.tensors() {
        let kind = match info.dtype {
            Dtype::F32 => Kind::Weights(Format::F32),
            Dtype::F16 => Kind::Weights(Format::F16),
            Dtype::BF16 => Kind::Weights(Format::BF16),
            other => Kind::Other(format!("{other:?}")),
        };
        let bytes = data + info.data_offsets.0..data + info.data_offsets.1;
        let stored = Stored { file: file.clone(), kind, shape: info.shape.clone(), bytes };
        if let Some(twin) = tensors.insert(name.clone(), stored) {
            let why = format!("is there twice: in {} too", twin.file.path().display());
            return Err(LoadError::bad(file.path(), format_args!("tensor {name:?}"), why));
        }
    }
    Ok(())
}

/// The files that hold a folder's model: one, or those that an index names.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let single = folder.join("model.safetensors");
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        return shards(folder, &index);
    }
    // Some folders name their one file otherwise.
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(|e| LoadError::io(folder, e))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found),
        0 => Err(no_weights(folder)),
        n => {
            let why = format!(
                "{n} .safetensors files and no model.safetensors.index.json to say which belong together"
            );
            Err(LoadError::bad(folder, "the folder", why))
        }
    }
}

fn no_weights(folder: &Path) -> LoadError {
    let pickles = ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt"];
    match pickles.iter().find(|name| folder.join(name).exists()) {
        Some(name) => {
            let why = "pickle files can run any code when they are read; get the model's .safetensors or .gguf files, or convert it";
            LoadError::unsupported(&folder.join(name), "a pickle checkpoint", why)
        }
        None => LoadError::bad(folder, "the folder", "holds no .safetensors and no .gguf file"),
    }
}

/// Files that an index names, each once. The index is data: it may name only files that lie in the folder.
fn shards(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    let bad = |field: &str, why: String| Err(LoadError::bad(index, field, why));
    let json: Value = super::read_json(index)?;
    let Some(Value::Object(map)) = json.get("weight_map") else {
        return bad("weight_map", "is missing or is no object".into());
    };
    let mut names: Vec<&str> = Vec::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(name) if is_plain_name(name) => names.push(name),
            Some(name) => {
                return bad(tensor, format!("names the file {name:?}, which is not a plain file name"));
            }
            None => return bad(tensor, "names no file".into()),
        }
    }
    names.sort_unstable();
    names.dedup();
    let root = root(folder)?;
    let mut files = Vec::new();
    for name in names {
        let path = folder.join(name);
        let real = path.canonicalize().map_err(|e| LoadError::io(&path, e))?;
        if !real.starts_with(&root) {
            let why = format!("{name} is a link out of {}; copy the file there instead", root.display());
            return bad("weight_map", why);
        }
        files.push(path);
    }
    match files.is_empty() {
        true => bad("weight_map", "names no files".into()),
        false => Ok(files),
    }
}

/// What a shard's file may lie in: the folder, or the hub cache's folder of the model, whose snapshots are links.
fn root(folder: &Path) -> Result<PathBuf> {
    let real = folder.canonicalize().map_err(|e| LoadError::io(folder, e))?;
    let named = |p: &Path, start: &str| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start));
    let snapshots = real.parent().filter(|p| named(p, "snapshots"));
    let model = snapshots.and_then(Path::parent).filter(|p| named(p, "models--"));
    Ok(model.map_or(real.clone(), Path::to_path_buf))
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.len() < 256 && !name.contains(['/', '\\', '\0', ':'])
}
