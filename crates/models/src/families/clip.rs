//! CLIP: a causal text encoder pooled at the end token, and an image encoder with a class token.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::Slot;

use super::{Declared, EncoderFamily, towers};
use crate::spec::Bias;
use crate::spec::encoder::{
    EncoderSpec, ImageDefaults, PatchSpec, PoolKind, Pooling, PoolingHeadSpec, Projection,
};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&CLIP), Declared::Encoder(&CLIP_IMAGES)];

static CLIP: EncoderFamily = EncoderFamily {
    name: "CLIP",
    hf: &["CLIPModel", "CLIPTextModelWithProjection", "CLIPTextModel"],
    names: towers::TEXT,
    spare: towers::BESIDE_TEXT,
    spec: text,
};

static CLIP_IMAGES: EncoderFamily = EncoderFamily {
    name: "CLIP (images)",
    hf: &["CLIPModel", "CLIPVisionModelWithProjection", "CLIPVisionModel"],
    names: towers::IMAGES.with(&[(Slot::TokenEmbdNorm, "vision_model.pre_layrnorm")]),
    // The checkpoint's own spelling.
    spare: towers::BESIDE_IMAGES,
    spec: images,
};

const WIDTH: Key = key("projection_dim", "");
const END: Key = key("eos_token_id", "");

/// `eos_token_id` in the first configs, which does not match their tokenizer: with it the largest id is the end token.
const WRONG_END: usize = 2;

const DEFAULTS: towers::Defaults =
    towers::Defaults { dim: 512, layers: 12, heads: 8, ffn: 2048, act: "quick_gelu", eps: 1e-5 };

const PATCHES: PatchSpec = PatchSpec {
    image: 224,
    side: 32,
    first: Some("vision_model.embeddings.class_embedding"),
    bias: Bias::No,
    // Mean and standard deviation of CLIP's training images.
    usual: ImageDefaults {
        crops: true,
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        deviation: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    },
};

fn text(c: &Config<'_>) -> Result<EncoderSpec> {
    let of = within(c, "text_config_dict", "text_config")?;
    let mut spec = towers::text(&of, &DEFAULTS, (49_408, 77))?;
    for layer in &mut spec.layers {
        layer.mixer.causal = true;
    }
    let pooling = match of.find_count(END)?.unwrap_or(49_407) {
        WRONG_END => Pooling::Largest,
        end => Pooling::At(end as u32),
    };
    let project = projection((c, &of), "CLIPTextModel", "text_projection")?;
    spec.pooling_head = Some(PoolingHeadSpec { pool: PoolKind::By(pooling), norm: false, project });
    Ok(spec)
}

fn images(c: &Config<'_>) -> Result<EncoderSpec> {
    let of = within(c, "vision_config_dict", "vision_config")?;
    let defaults = towers::Defaults { dim: 768, heads: 12, ffn: 3072, ..DEFAULTS };
    let mut spec = towers::images(&of, &defaults, PATCHES)?;
    // Only the pooled vector is normalized.
    spec.last_norm = false;
    let project = projection((c, &of), "CLIPVisionModel", "visual_projection")?;
    let pool = PoolKind::By(Pooling::First);
    spec.pooling_head = Some(PoolingHeadSpec { pool, norm: true, project });
    Ok(spec)
}

/// Older configs have a second object, which wins.
fn within<'a>(c: &Config<'a>, older: &'static str, newer: &'static str) -> Result<Config<'a>> {
    if c.under(older).is_there() { Ok(c.under(older)) } else { towers::of(c, newer) }
}

/// Projection into the shared embedding space, which architecture `lacking` does not have. A single tower takes its
/// width from its own settings.
fn projection(
    (whole, own): (&Config<'_>, &Config<'_>),
    lacking: &str,
    name: &'static str,
) -> Result<Option<Projection>> {
    let c = if whole.arch() == "CLIPModel" { whole } else { own };
    let width = super::common::sane(c, WIDTH, c.find_count(WIDTH)?.unwrap_or(512))?;
    Ok((c.arch() != lacking).then_some(Projection { name, width, bias: Bias::No }))
}
