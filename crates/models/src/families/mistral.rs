//! Mistral and Ministral: Llama with a sliding window, in some models only in some layers. Ministral 3 has queries
//! scaled by position instead.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, rope};
use crate::spec::DecoderSpec;
use crate::spec::rope::{RopeSpec, Scaling, Yarn};

pub(super) const FAMILIES: &[Declared] =
    &[Declared::Decoder(&MINISTRAL), Declared::Decoder(&MINISTRAL3), Declared::Decoder(&MISTRAL)];

static MISTRAL: Family = Family {
    name: "Mistral",
    hf: &["MistralForCausalLM", "Mistral3ForConditionalGeneration"],
    gguf: &["llama"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

const DEFAULTS: common::Defaults =
    common::Defaults { kv_heads: Some(8), context: (common::CONTEXT, 131_072), ..common::DEFAULTS };

/// Window where `config.json` lacks the key (`null` means none).
const WINDOW: usize = 4096;

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain_as(c, &DEFAULTS)?;
    let window = common::window_or(c, WINDOW)?;
    let windowed = common::windowed(c, spec.layers.len(), |_| true)?;
    for (layer, windowed) in spec.layers.iter_mut().zip(windowed) {
        layer.mixer.window = window.filter(|_| windowed);
    }
    Ok(spec.into())
}

static MINISTRAL: Family = Family {
    name: "Ministral",
    hf: &["MinistralForCausalLM"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

static MINISTRAL3: Family = Family {
    name: "Ministral 3",
    hf: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
    gguf: &[],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec: ministral3,
};

/// RoPE scaling of configs that have none.
const DEFAULT_YARN: Yarn =
    Yarn { factor: 16.0, original: 16_384, beta_fast: 32.0, beta_slow: 1.0, truncate: true, attention: 1.0 };

fn ministral3(c: &Config<'_>) -> Result<DecoderSpec> {
    let defaults = common::Defaults {
        kv_heads: Some(8),
        head_dim: Some(128),
        context: (common::CONTEXT, 262_144),
        eps: (common::EPS, 1e-5),
        ..common::DEFAULTS
    };
    let mut spec = common::plain_as(c, &defaults)?;
    let head = spec.layers[0].mixer.heads.dim;
    let temperature = match rope::is_said(c) {
        true => rope::temperature(c, &spec.ropes[0], head)?,
        false => {
            spec.ropes[0] =
                RopeSpec { theta: 1e6, scaling: Scaling::Yarn(DEFAULT_YARN), ..spec.ropes[0].clone() };
            let scaling = Scaling::Temperature { scale: 0.1, original: DEFAULT_YARN.original, early: 0 };
            RopeSpec { scaling, ..spec.ropes[0].clone() }
        }
    };
    spec.ropes.push(temperature);
    let window = common::window(c)?;
    for layer in &mut spec.layers {
        layer.mixer.window = window;
        layer.mixer.second_rope = Some(1);
    }
    Ok(spec.into())
}
