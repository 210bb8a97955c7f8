//! Mistral: Llama with a sliding window. Ministral 3: queries grow with their position instead.

use super::{Family, common, rope};
use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names;
use crate::spec::DecoderSpec;

pub(super) static MISTRAL: Family = Family {
    name: "Mistral",
    hf: &["MistralForCausalLM"],
    gguf: &["llama"],
    hf_names: names::HF,
    gguf_names: names::GGUF,
    spec,
};

/// The window where `config.json` does not say, not even `null`.
const WINDOW: usize = 4096;

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain(c)?;
    let window = common::window_or(c, WINDOW)?;
    spec.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    Ok(spec)
}

pub(super) static MINISTRAL3: Family = Family {
    name: "Ministral 3",
    hf: &["Ministral3ForCausalLM"],
    gguf: &[],
    hf_names: names::HF,
    gguf_names: names::GGUF,
    spec: ministral3,
};

fn ministral3(c: &Config<'_>) -> Result<DecoderSpec> {
    let usual = common::Usual {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: (common::CONTEXT, 262_144),
        eps: (common::EPS, 1e-5),
        ..common::USUAL
    };
    let mut spec = common::plain_as(c, &usual)?;
    let head = spec.layers[0].mixer.heads.dim;
    spec.ropes.push(rope::growing(c, &spec.ropes[0], head)?);
    let window = common::window(c)?;
    for layer in &mut spec.layers {
        layer.mixer.window = window;
        layer.mixer.again = Some(1);
    }
    Ok(spec)
}
