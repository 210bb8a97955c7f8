//! [`EncoderArch`]: the architecture of an encoder: an encoder family's, or a decoder family's where a checkpoint's hidden
//! states are pooled to vectors.

use serde_json::Value;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{Names, Slot};
use tallow_checkpoint::{FileError, Result};

use super::encoders::{self, EncoderFamily};
use super::{Family, decoder, decoders, find};
use crate::spec::DenseDecoderSpec;
use crate::spec::encoder::{EncoderSpec, Pooling};
use crate::spec::rope::RopeSpec;

/// The architecture of an encoder.
#[derive(Debug, Clone, Copy)]
pub enum EncoderArch {
    /// That of an encoder family.
    Encoder(&'static EncoderFamily),
    /// That of a decoder family, without the LM head (Qwen3-Embedding, EmbeddingGemma).
    Decoder {
        /// The family.
        family: &'static Family,
        /// Tensor names in the checkpoint's kind of file.
        names: &'static Names,
    },
}

impl EncoderArch {
    /// Display name.
    pub fn name(&self) -> &'static str {
        match self {
            EncoderArch::Encoder(family) => family.name,
            EncoderArch::Decoder { family, .. } => family.name,
        }
    }

    /// Tensor names.
    pub fn names(&self) -> &'static Names {
        match self {
            EncoderArch::Encoder(family) => &family.names,
            EncoderArch::Decoder { names, .. } => names,
        }
    }

    /// True if it is a decoder family's.
    pub fn is_decoder(&self) -> bool {
        matches!(self, EncoderArch::Decoder { .. })
    }

    /// True if a tensor may be left unused.
    pub(crate) fn is_unused(&self, name: &str) -> bool {
        match self {
            EncoderArch::Encoder(family) => family.is_unused(name),
            EncoderArch::Decoder { family, names } => {
                let layer = name.rsplit_once('.').map_or(name, |(layer, _)| layer);
                names.name(Slot::Output, 0).as_deref() == Some(layer) || family.reads(name)
            }
        }
    }

    /// Reads the settings.
    pub(crate) fn read(&self, c: &Config<'_>) -> Result<EncoderSpec> {
        match self {
            EncoderArch::Encoder(family) => (family.spec)(c),
            EncoderArch::Decoder { family, .. } => of_decoder(family, c),
        }
    }

    /// Pooling where the files do not say: the last token of a decoder family's causal model, else the mean.
    pub(crate) fn usual_pooling(&self, spec: &EncoderSpec) -> Pooling {
        let causal = spec.layers.iter().any(|layer| layer.mixer.causal);
        if self.is_decoder() && causal { Pooling::Last } else { Pooling::Mean }
    }
}

/// The architecture of a checkpoint that is an encoder; `None` of one that is not.
pub fn encoder(c: &Config<'_>) -> Result<Option<EncoderArch>> {
    if let Some(family) = encoders::of(c).next() {
        return Ok(Some(EncoderArch::Encoder(family)));
    }
    let arch = |Pooled { family, .. }: Pooled| {
        let names = if c.is_gguf() { &family.gguf_names } else { &family.hf_names };
        EncoderArch::Decoder { family, names }
    };
    Ok(pooled(c)?.map(arch))
}

/// The family of the image encoder that comes with a text encoder (CLIP, SigLIP), if there is one.
pub fn encoder_of_images(c: &Config<'_>) -> Option<EncoderArch> {
    encoders::of(c).nth(1).map(EncoderArch::Encoder)
}

/// The architecture of an encoder, or an error that says why the checkpoint is none.
pub fn find_encoder(c: &Config<'_>) -> Result<EncoderArch> {
    encoder(c)?.ok_or_else(|| {
        let what = format!("embedding with the architecture {:?}", c.arch());
        let why = match find(c) {
            Ok(_) => "it generates text: use `tallow run` or `tallow serve`".to_owned(),
            Err(_) => {
                let known: Vec<&str> = encoders::all(c).flat_map(|f| f.hf).copied().collect();
                format!("these are: {}", known.join(", "))
            }
        };
        FileError::unsupported(&c.checkpoint().path, what, why)
    })
}

/// Error for text generation with an encoder-only checkpoint; `None` if it is not one.
pub(super) fn writes_no_text(c: &Config<'_>) -> Result<Option<FileError>> {
    let why = match (encoders::of(c).next(), pooled(c)?) {
        (Some(_), _) => {
            "it is an encoder: use `tallow embed`, `tallow rerank` or `tallow classify`, or serve it"
                .to_owned()
        }
        (None, Some(Pooled { by, .. })) => {
            format!("it is an embedding model, for {by}: use `tallow embed`, or serve it")
        }
        (None, None) => return Ok(None),
    };
    let what = format!("text generation with the architecture {:?}", c.arch());
    Ok(Some(FileError::unsupported(&c.checkpoint().path, what, why)))
}

/// A decoder family, and the reason why a checkpoint of it is an embedding model.
struct Pooled {
    family: &'static Family,
    by: &'static str,
}

const POOLING: Key = key("", "pooling_type");
const CAUSAL: Key = key("is_causal", "attention.causal");

/// The decoder family of a checkpoint that is an embedding model.
fn pooled(c: &Config<'_>) -> Result<Option<Pooled>> {
    if let Some(family) = bare(c) {
        return Ok(Some(Pooled { family, by: "its architecture has no LM head" }));
    }
    let Some(family) = decoder(c)? else { return Ok(None) };
    let by = match c.is_gguf() {
        // Pooling type 0 is none.
        true if c.find_count(POOLING)?.is_some_and(|kind| kind > 0) => "it has a pooling type",
        true if c.arch().ends_with("-embedding") => "its architecture has no LM head",
        false if has_pooling(c)? => "modules.json has a Pooling module",
        _ if !c.of_text().flag_or(CAUSAL, true)? => "its attention is bidirectional",
        _ => return Ok(None),
    };
    Ok(Some(Pooled { family, by }))
}

/// The decoder family whose architecture comes without an LM head: `Qwen3Model` for `Qwen3ForCausalLM`.
fn bare(c: &Config<'_>) -> Option<&'static Family> {
    let stem = c.arch().strip_suffix("Model").filter(|_| !c.is_gguf())?;
    let stem = stem.strip_suffix("Text").unwrap_or(stem);
    decoders().find(|family| family.is_called(stem))
}

/// True if `modules.json`, which sentence-transformers writes, has a Pooling module.
fn has_pooling(c: &Config<'_>) -> Result<bool> {
    let modules = c.checkpoint().json_file("modules.json")?.unwrap_or_default();
    let kind =
        |module: &Value| module["type"].as_str().and_then(|kind| kind.rsplit('.').next()) == Some("Pooling");
    Ok(modules.as_array().is_some_and(|modules| modules.iter().any(kind)))
}

const CODE: Key = key("AutoModel", "");

/// The encoder with the embedding and layers of a decoder.
fn of_decoder(family: &Family, c: &Config<'_>) -> Result<EncoderSpec> {
    let code = c.under("auto_map");
    if let Some(code_name) = code.find_text(CODE)?.filter(|_| !c.has(CAUSAL)) {
        let why = "code of its own may change the attention; if it does not, add \"is_causal\" to config.json: true, or \
                   false for bidirectional attention";
        return Err(code.unsupported(CODE, code_name, why));
    }
    let spec = DenseDecoderSpec::try_from(family.read(c)?).map_err(|block| {
        let what = format!("embedding by a {} model with {block}", family.name);
        let why = "models whose layers all have attention of one size and a dense FFN are";
        FileError::unsupported(&c.checkpoint().path, what, why)
    })?;
    let causal = c.of_text().flag_or(CAUSAL, true)?;
    let mut spec = EncoderSpec::from(spec);
    // Past that the angles would depend on the length of each text.
    let fixed = spec.ropes.iter().filter_map(RopeSpec::fixed).min();
    spec.context = fixed.map_or(spec.context, |fixed| spec.context.min(fixed));
    for layer in spec.layers.iter_mut().filter(|layer| layer.mixer.causal && !causal) {
        if let Some(window) = layer.mixer.window {
            let why = format!(
                "with it a window of {window} tokens may be of one side or of two; full attention is"
            );
            return Err(c.of_text().unsupported(CAUSAL, false, why));
        }
        layer.mixer.causal = false;
    }
    Ok(spec)
}
