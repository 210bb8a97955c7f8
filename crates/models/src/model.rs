//! [`Model`]: a decoder's checkpoint with its family and spec, not yet on a device.

use std::path::Path;

use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names::{Index, Indices, Names, Slot};
use tallow_checkpoint::{Checkpoint, Kind, Settings, Stored};
use tallow_quant::Format;
use tallow_text::generation::Generation;
use tallow_text::template::{ChatTemplates, MOST_SOURCE};
use tallow_text::tokenizer::Tokenizer;

use crate::families::{self, Family};
use crate::file_type::{FileType, dominant};
use crate::recipe::{Choice, Outcome, Quantizing, Recipe};
use crate::spec::{DecoderSpec, LayerSpec};
use crate::weights::{Common, Source};
use crate::{LoadError, Result};

/// A decoder as its files describe it.
#[derive(Debug, Clone)]
pub struct Model {
    /// The files.
    pub checkpoint: Checkpoint,
    /// The model family.
    pub family: &'static Family,
    /// The architecture.
    pub spec: DecoderSpec,
    /// Recipe that matrices are quantized by while they are loaded, if any.
    pub recipe: Option<Recipe>,
    /// True if the recipe also applies to matrices that are quantized already.
    pub requantize: bool,
    /// True if its MTP layer is loaded, too, to draft tokens.
    pub mtp: bool,
}

impl Model {
    /// Opens a GGUF file or a Hugging Face folder.
    pub fn open(path: &Path) -> Result<Model> {
        Model::new(Checkpoint::open(path)?)
    }

    /// Detects a checkpoint's family and reads its spec.
    pub fn new(mut checkpoint: Checkpoint) -> Result<Model> {
        let family = families::find(&Config::new(&checkpoint)?)?;
        checkpoint.keep_text();
        let mut spec = family.read(&Config::new(&checkpoint)?)?;
        if spec.is_bidirectional() {
            let what = format!("text generation by a {} model with bidirectional attention", family.name);
            let why = "a token would depend on those behind it; it may be an embedding model, of which modules.json \
                       is missing";
            return Err(LoadError::unsupported(&checkpoint.path, what, why));
        }
        if let (Settings::Hf(_), names) = (&checkpoint.settings, &family.hf_names) {
            // Some settings say tied although the file has an LM head that differs from the embedding.
            let tensor = |slot| checkpoint.get(&names.weight(slot, 0)?);
            let (embed, head) = (tensor(Slot::TokenEmbd), tensor(Slot::Output));
            let same = |(a, b): (&Stored, &Stored)| a.shape == b.shape && a.bytes() == b.bytes();
            spec.tied_embeddings = spec.tied_embeddings && embed.zip(head).is_none_or(same);
        }
        Ok(Model { checkpoint, family, spec, recipe: None, requantize: false, mtp: false })
    }

    /// True if its files have an MTP layer: settings may name one that a conversion has left out.
    pub fn has_mtp(&self) -> bool {
        let (names, layer) = self.mtp_names();
        let name = names.weight(Slot::NextnEhProj, layer);
        self.spec.mtp_layer().is_some() && name.is_some_and(|name| self.checkpoint.get(&name).is_some())
    }

    /// Its layers, and the MTP layer if its files have one.
    pub fn stored_layers(&self) -> Vec<LayerSpec> {
        let mtp = self.spec.mtp_layer().filter(|_| self.has_mtp());
        self.spec.layers.iter().cloned().chain(mtp).collect()
    }

    /// Names of the MTP layer's tensors, and its number in them.
    pub fn mtp_names(&self) -> (&'static Names, usize) {
        match self.names().mtp {
            Some((_, names)) => (names, 0),
            None => (self.names(), self.spec.layers.len()),
        }
    }

    /// True if a tensor belongs to an MTP layer.
    pub fn is_of_mtp(&self, name: &str) -> bool {
        let first = self.spec.layers.len();
        match self.names().mtp {
            Some((prefix, _)) => name.starts_with(prefix),
            None => {
                self.names().layer(name).is_some_and(|i| (first..first + self.spec.mtp_layers).contains(&i))
            }
        }
    }

    /// Tensor names in its files.
    pub fn names(&self) -> &'static Names {
        match self.checkpoint.settings {
            Settings::Gguf(_) => &self.family.gguf_names,
            Settings::Hf(_) => &self.family.hf_names,
        }
    }

    /// Context for loading its weights.
    pub(crate) fn source(&self) -> Source<'_> {
        let spec = &self.spec;
        let (tied, layers) = (spec.tied_embeddings, spec.layers.len());
        Source {
            checkpoint: &self.checkpoint,
            names: self.names(),
            spec: Common { dim: spec.dim, norm: spec.norm, per_layer_dim: spec.per_layer_dim },
            quantizing: self.recipe.map(|recipe| Quantizing { recipe, again: self.requantize, tied, layers }),
        }
    }

    /// Format that rows of `cols` elements of tensor `name`, stored as `format`, are loaded or converted to.
    pub fn wanted_format(&self, name: &str, format: Format, cols: usize) -> Format {
        self.source().wanted(name, format, cols)
    }

    /// The recipe's choice for those rows; `None` if it leaves the tensor alone.
    pub fn recipe_choice(&self, name: &str, format: Format, cols: usize) -> Option<Choice> {
        self.source().choice(name, format, cols)
    }

    /// Notes for the user where the recipe's outcome is not what they asked for.
    pub fn quantizing_notes(&self) -> Vec<String> {
        let source = self.source();
        let Some(how) = source.quantizing else { return Vec::new() };
        let mut outcome = Outcome::default();
        for (name, stored) in self.checkpoint.tensors().filter(|(name, _)| !source.names.is_unused(name)) {
            let (Some(own), [.., _, cols]) = (stored.format(), stored.shape.as_slice()) else { continue };
            if let Some(choice) = how.choice(source.names, name, (own, *cols)) {
                outcome.count(own, choice, how.format(source.names, name, (own, *cols)));
            }
        }
        outcome.notes(how.recipe)
    }

    /// The file type (ftype) by the format of most of its matrices on the device; that format where no file type stands
    /// for it.
    pub fn file_type(&self) -> Option<String> {
        let (source, edges) = (self.source(), self.edges(self.names()));
        let tensors = self.checkpoint.tensors().filter(|(_, stored)| stored.shape.len() > 1);
        let formats = tensors.filter_map(|(name, stored)| {
            let format = source.format(name, stored)?;
            Some((edges.iter().any(|edge| edge == name), format, stored.len()))
        });
        let most = dominant(formats)?;
        let kind = FileType::of(most, self.said_types());
        Some(kind.map_or_else(|| most.to_string(), |kind| kind.to_string()))
    }

    /// Tensors outside the layers: embedding, LM head, position embedding.
    pub fn edges(&self, names: &Names) -> Vec<String> {
        let slots = [Slot::TokenEmbd, Slot::Output, Slot::PosEmbd];
        slots.into_iter().filter_map(|slot| names.weight(slot, 0)).collect()
    }

    /// File type ids that the recipe, or the file, claims.
    pub fn said_types(&self) -> Vec<u32> {
        let own = match &self.checkpoint.settings {
            Settings::Gguf(meta) => meta.uint("general.file_type").ok().flatten(),
            Settings::Hf(_) => None,
        };
        let recipe = self.recipe.map(Recipe::gguf_id);
        recipe.into_iter().chain(own.and_then(|id| u32::try_from(id).ok())).collect()
    }

    /// Format of a tensor on the device; `None` if it holds no weights.
    pub fn format(&self, name: &str, stored: &Stored) -> Option<Format> {
        self.source().format(name, stored)
    }

    /// Number of grouped tensors (GPTQ and the like) that fit no block format and are dequantized to many times their
    /// size.
    pub fn widened(&self) -> usize {
        let tensors = self.checkpoint.tensors();
        tensors.filter(|(_, t)| matches!(&t.kind, Kind::Grouped(m) if m.format() == Format::F32)).count()
    }

    /// True if experts have act-order (GPTQ `desc_act`).
    pub fn has_shuffled_experts(&self) -> bool {
        let names = self.names();
        let is_expert = |slot| matches!(slot, Slot::FfnGateExps | Slot::FfnUpExps | Slot::FfnDownExps);
        let of_experts = |name: &str| names.find(name).any(|(slot, _)| is_expert(slot));
        let mut tensors = self.checkpoint.tensors();
        tensors.any(|(name, t)| matches!(&t.kind, Kind::Grouped(m) if m.is_shuffled()) && of_experts(name))
    }

    /// Bytes of a tensor as handed to the device.
    pub fn size(&self, name: &str, stored: &Stored) -> usize {
        self.source().size(name, stored)
    }

    /// Bytes of all tensors as handed to the device.
    pub fn weight_bytes(&self) -> usize {
        let (source, names) = (self.source(), self.names());
        let needed = |name: &str| if self.is_of_mtp(name) { self.mtp } else { !names.is_unused(name) };
        let tensors = self.checkpoint.tensors().filter(|(name, _)| needed(name));
        tensors.map(|(name, stored)| source.size(name, stored)).sum()
    }

    /// Bytes of all experts of a layer.
    pub fn expert_bytes(&self, layer: usize) -> usize {
        let (names, count) =
            (self.names(), self.spec.layers[layer].ffn.moe().map_or(0, |moe| moe.experts.count));
        let bytes = |name: &str| self.checkpoint.get(name).map_or(0, |stored| self.size(name, stored));
        let of = |slot, at: Indices| names.weight(slot, at).map_or(0, |name| bytes(&name));
        if names.has(Slot::FfnGateUpExpsT) {
            // Quantized matrices are pairs of tensors.
            let kinds = |name: String| ["", "_blocks", "_scales"].map(|kind| bytes(&format!("{name}{kind}")));
            let slots = [Slot::FfnGateUpExpsT, Slot::FfnDownExps].into_iter();
            return slots.filter_map(|slot| names.name(slot, layer)).flat_map(kinds).sum();
        }
        let stacked = of(Slot::FfnGateUpExps, layer.into());
        if stacked > 0 {
            return stacked + of(Slot::FfnDownExpsStacked, layer.into());
        }
        let all = |slot| match names.get(slot).is_some_and(|name| name.has(Index::Expert)) {
            true => (0..count).map(|expert| of(slot, Indices { expert, ..layer.into() })).sum(),
            false => of(slot, layer.into()),
        };
        [Slot::FfnGateExps, Slot::FfnUpExps, Slot::FfnDownExps].into_iter().map(all).sum()
    }

    /// The model's tokenizer, with the end tokens of its generation settings.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let tokenizer = match &self.checkpoint.settings {
            Settings::Gguf(meta) => Tokenizer::from_gguf(meta)?,
            Settings::Hf(_) => Tokenizer::from_folder(&self.checkpoint.path)?,
        };
        tokenizer.belongs_to(&self.checkpoint.path, self.spec.vocab)?;
        Ok(tokenizer.ending_with(&self.generation()?.ends))
    }

    /// Its chat templates; `None` if it has none.
    pub fn templates(&self, tokenizer: &Tokenizer) -> tallow_checkpoint::Result<Option<ChatTemplates>> {
        match &self.checkpoint.settings {
            Settings::Gguf(meta) => ChatTemplates::from_gguf(meta, tokenizer),
            Settings::Hf(_) => {
                const CONFIG: &str = "tokenizer_config.json";
                let config = self.checkpoint.json_file(CONFIG)?.unwrap_or_default();
                let jinja = self.checkpoint.text_file("chat_template.jinja", MOST_SOURCE)?;
                ChatTemplates::from_config(&self.checkpoint.path.join(CONFIG), &config, jinja.as_deref())
            }
        }
    }

    /// Default sampling settings (`generation_config.json`).
    pub fn generation(&self) -> tallow_checkpoint::Result<Generation> {
        Generation::read(&self.checkpoint)
    }
}
