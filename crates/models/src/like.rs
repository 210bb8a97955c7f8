//! [`like`]: a model of random weights in the shape of another, to measure speed without its files.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tallow_checkpoint::map::Mapping;
use tallow_checkpoint::tensor_names::{Index, Indices, named};
use tallow_checkpoint::{Checkpoint, Kind, Settings, Stored, StoredTensors};
use tallow_core::Null;
use tallow_quant::Format;

use crate::decoder::Decoder;
use crate::error::{LoadError, Result};
use crate::model::Model;
use crate::recipe::Recipe;
use crate::weights::Weights;

/// Context for which tables are built while the shapes are found out.
const CONTEXT: usize = 16;
/// Tensors that settings may count on before any is known.
const UNKNOWN: usize = 1 << 12;
/// Random weights of a format; a tensor repeats them.
const SAMPLE: usize = 1 << 15;

/// A decoder of the settings `config`, a `config.json` from `folder`, with random weights in the formats that `recipe` gives a
/// model of BF16 weights, or in BF16. Tensors of one format share their bytes.
///
/// The tensors and their shapes are found by loading the model on a device that computes nothing, until no
/// tensor is missing. Models with tensors that have a row for each input (GPT-2; experts of gpt-oss and Llama 4) are refused.
pub fn like(folder: &Path, config: Value, recipe: Option<Recipe>) -> Result<Model> {
    let empty = (0..UNKNOWN).map(|i| (format!("unknown.{i}"), vec![0])).collect();
    // Blocks are not checked, so that their memory is never touched.
    let any = |_: &str, shape: &[usize]| match shape {
        [.., _, cols] if Format::Q8_0.row_bytes(*cols).is_some() => Format::Q8_0,
        _ => Format::F32,
    };
    let zeros = |shapes: &Shapes| tensors(folder, shapes, any, |_, size| Ok(vec![0; size]));
    let mut model = Model::new(Checkpoint::in_memory(folder, Settings::Hf(config), zeros(&empty)?))?;
    let (settings, mut shapes) = (model.checkpoint.settings.clone(), Shapes::new());
    let with = |tensors| Checkpoint::in_memory(folder, settings.clone(), tensors);
    loop {
        model.checkpoint = with(zeros(&shapes)?);
        let Some((name, shape)) = missing(&model)? else { break };
        shapes.extend(alike(&model, &name).into_iter().map(|name| (name, shape.clone())));
    }
    model.recipe = recipe;
    let wanted = |name: &str, shape: &[usize]| match shape {
        [.., _, cols] => model.wanted_format(name, Format::BF16, *cols),
        _ => Format::F32,
    };
    let random = tensors(folder, &shapes, wanted, |kind, size| {
        let sample = match kind {
            Shared::Matrices(format) => sample(folder, format)?,
            // Norms, for the most part.
            Shared::Vectors => 1f32.to_le_bytes().to_vec(),
        };
        let mut bytes = sample.repeat(size.div_ceil(sample.len()));
        bytes.truncate(size);
        Ok(bytes)
    })?;
    model.checkpoint = with(random);
    Ok(Model { recipe: None, ..model })
}

/// Shapes of tensors by their names, slowest dimension first.
type Shapes = BTreeMap<String, Vec<usize>>;

/// Tensors that have the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shared {
    Matrices(Format),
    Vectors,
}

impl Shared {
    fn of(format: Format, shape: &[usize]) -> Shared {
        if shape.len() > 1 { Shared::Matrices(format) } else { Shared::Vectors }
    }
}

/// Tensors of these shapes. Those that are alike lie in the same memory, of which each has as much as it needs.
fn tensors(
    folder: &Path,
    shapes: &Shapes,
    format: impl Fn(&str, &[usize]) -> Format,
    bytes: impl Fn(Shared, usize) -> Result<Vec<u8>>,
) -> Result<StoredTensors> {
    let of = |(name, shape): (&String, &Vec<usize>)| {
        let format = format(name, shape);
        (format, Shared::of(format, shape), bytes_of(format, shape))
    };
    let mut sizes: BTreeMap<Shared, usize> = BTreeMap::new();
    for (_, shared, range) in shapes.iter().map(of) {
        let size = sizes.entry(shared).or_default();
        *size = range.end.max(*size);
    }
    let file = |(shared, size)| Ok((shared, Arc::new(Mapping::held(folder, bytes(shared, size)?))));
    let files: BTreeMap<_, _> = sizes.into_iter().map(file).collect::<Result<_>>()?;
    let tensor = |(name, shape): (&String, &Vec<usize>)| {
        let (format, shared, bytes) = of((name, shape));
        let file = files.get(&shared)?.clone();
        Some((name.clone(), Stored { file, kind: Kind::Weights(format), shape: shape.clone(), bytes }))
    };
    Ok(shapes.iter().filter_map(tensor).collect())
}

/// The first bytes of a file, as many as a tensor has.
fn bytes_of(format: Format, shape: &[usize]) -> Range<usize> {
    0..format.row_bytes(shape.iter().product()).unwrap_or(0)
}

/// The first tensor that the model lacks, with its shape.
fn missing(model: &Model) -> Result<Option<(String, Vec<usize>)>> {
    let b = Null::default();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut weights = Weights::new(&b, model.source(), &mut go_on);
    let read = Decoder::read(&mut weights, &model.spec, CONTEXT, None);
    match (read, weights.missing()) {
        (Ok(_), _) => Ok(None),
        (Err(_), Some(missing)) => Ok(Some(missing)),
        (Err(why), None) => Err(why),
    }
}

/// The tensors of the same name in layers of the same kind, and of their experts.
fn alike(model: &Model, name: &str) -> Vec<String> {
    let (names, layers) = (model.names(), &model.spec.layers);
    let (stem, end) = name.rsplit_once('.').unwrap_or((name, ""));
    // A bias is named as its weight is.
    let weight = named(stem);
    for (slot, at) in names.find(name).chain(names.find(&weight)) {
        let filled = |at: Indices| {
            let name = names.name(slot, at)?;
            Some(if slot.is_whole() { name } else { format!("{name}.{end}") })
        };
        let Some(layer) = layers.get(at.layer).filter(|_| filled(at).as_deref() == Some(name)) else {
            continue;
        };
        let has_experts = names.get(slot).is_some_and(|name| name.has(Index::Expert));
        let experts = layer.ffn.moe().filter(|_| has_experts).map_or(1, |moe| moe.experts.count);
        let same = layers.iter().enumerate().filter(|(_, other)| *other == layer).map(|(i, _)| i);
        let places = same.flat_map(|layer| (0..experts).map(move |expert| Indices { layer, expert, ..at }));
        return places.filter_map(filled).collect();
    }
    vec![name.to_owned()]
}

/// Random weights in a format, about as large as those of trained models.
fn sample(folder: &Path, format: Format) -> Result<Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // A sum of uniform numbers is nearly normal.
    let weights: Vec<f32> = (0..SAMPLE).map(|_| 0.05 * (0..4).map(|_| uniform()).sum::<f32>()).collect();
    let mut bytes = vec![0; bytes_of(format, &[SAMPLE]).end];
    tallow_quant::pack(format, &weights, &mut bytes).map_err(|e| LoadError::bad(folder, format, e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallow_support::{DECODERS, golden, json};

    /// Its tensors have as many weights as those of the model whose settings it has, where files may also have several in one.
    #[test]
    fn shapes_are_those_of_the_model() {
        for name in DECODERS {
            let folder = golden(name);
            let real = Model::open(&folder).unwrap();
            let like = like(&folder, json(&folder.join("config.json")), None);
            if ["gpt2", "gpt-oss", "llama4-text"].contains(&name) {
                assert!(like.unwrap_err().to_string().contains("cannot be transposed"), "{name}");
                continue;
            }
            let like = like.unwrap_or_else(|why| panic!("{name}: {why}"));
            let count = |model: &Model| -> usize {
                let needed = |name: &str| !model.names().is_unused(name) && !model.is_of_mtp(name);
                let tensors = model.checkpoint.tensors().filter(|(name, _)| needed(name));
                tensors.map(|(_, stored)| stored.len()).sum()
            };
            assert_eq!(count(&like), count(&real), "{name}");
            assert_eq!(missing(&like).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn formats_are_those_of_the_recipe() {
        let folder = golden("llama");
        let config = json(&folder.join("config.json"));
        let recipe = "q8_0".parse().unwrap();
        let like = like(&folder, config, Some(recipe)).unwrap();
        let real = Model { recipe: Some(recipe), ..Model::open(&folder).unwrap() };
        for (name, stored) in real.checkpoint.tensors().filter(|(_, stored)| stored.shape.len() > 1) {
            assert_eq!(like.checkpoint.get(name).unwrap().format(), real.format(name, stored), "{name}");
        }
        assert_eq!(like.recipe, None);
    }
}
